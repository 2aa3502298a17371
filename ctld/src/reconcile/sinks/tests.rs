//! Rounds, one by one, against a real receiver that refuses, leads elsewhere, loses answers and has enough.

use super::*;
use crate::config::Config;
use crate::store::leases::Owner;
use crate::store::sinks::{add, dead_letters, list, replay};
use crate::store::tests::caller;
use crate::store::tests::events::settled;
use crate::webhook::sign;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use proto::api::SinkRequest;
use serde_json::{Value, json};
use sqlx::PgPool;
use std::sync::Mutex;
use tokio::net::TcpListener;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A delivery as it came.
#[derive(Clone, Debug)]
struct Came {
    id: String,
    timestamp: i64,
    signature: String,
    body: Vec<u8>,
}

impl Came {
    fn n(&self) -> i64 {
        serde_json::from_slice::<Value>(&self.body).unwrap()["data"]["n"].as_i64().unwrap()
    }
}

/// What a receiver does with a delivery: a status, or 0 to hang up without an answer.
type Answers = Arc<dyn Fn(&Came) -> u16 + Send + Sync>;

/// A receiver on this machine.
struct Site {
    url: String,
    came: Arc<Mutex<Vec<Came>>>,
    answers: Arc<Mutex<Answers>>,
}

impl Site {
    async fn open() -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let came: Arc<Mutex<Vec<Came>>> = Arc::default();
        let answers: Arc<Mutex<Answers>> = Arc::new(Mutex::new(Arc::new(|_: &Came| 204)));
        let (log, how) = (came.clone(), answers.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (log, how) = (log.clone(), how.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (log, how) = (log.clone(), how.clone());
                    async move {
                        let header =
                            |name: &str| request.headers()[name].to_str().unwrap_or_default().to_owned();
                        let mut one = Came {
                            id: header("webhook-id"),
                            timestamp: header("webhook-timestamp").parse().unwrap(),
                            signature: header("webhook-signature"),
                            body: Vec::new(),
                        };
                        one.body = request.into_body().collect().await.unwrap().to_bytes().to_vec();
                        let answers = how.lock().unwrap().clone();
                        let status = answers(&one);
                        log.lock().unwrap().push(one);
                        if status == 0 {
                            return Err("hung up");
                        }
                        let answer =
                            Response::builder().status(status).header("location", "http://169.254.169.254/");
                        Ok(answer.body(Full::<Bytes>::default()).unwrap())
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Site { url, came, answers }
    }

    fn answers(&self, how: impl Fn(&Came) -> u16 + Send + Sync + 'static) {
        *self.answers.lock().unwrap() = Arc::new(how);
    }

    /// What came since the last time this was asked.
    fn came(&self) -> Vec<Came> {
        std::mem::take(&mut self.came.lock().unwrap())
    }

    fn ns(&self) -> Vec<i64> {
        self.came().iter().map(Came::n).collect()
    }
}

/// A controller that serves one sink, by hand.
struct Server {
    app: App,
    id: i64,
    lease: Lease,
}

impl Server {
    async fn start(db: &PgPool, url: &str) -> Server {
        let config = Config { webhooks_allow: vec!["127.0.0.1/32".parse().unwrap()], ..Config::default() };
        let owner = Owner::new(&uuid::Uuid::now_v7().simple().to_string(), "test");
        let app = App::start(db.clone(), config, None, owner);
        app.clock.anchor_to(db).await.unwrap();
        let request = SinkRequest { url: url.into(), ..SinkRequest::default() };
        let id = add(db, &caller("root"), &request, SECRET).await.unwrap();
        app.leases.want(&lease_name(id));
        app.leases.step(&app).await.unwrap();
        let lease = app.leases.held(&lease_name(id)).unwrap();
        Server { app, id, lease }
    }

    /// One round, as a controller that knows only what the database does.
    async fn round(&self) -> Result<Rest, StoreError> {
        settled(&self.app.db).await;
        let sinks = active(&self.app.db).await.unwrap();
        let mut sink = sinks.into_iter().find(|sink| sink.id == self.id).expect("the sink is active");
        let allow: Arc<[IpNet]> = self.app.config.webhooks_allow.clone().into();
        let tls = Arc::new(roots(&self.app).await.unwrap());
        let mut receiver = Receiver::new(&sink.url, &sink.secret, allow, tls).unwrap();
        round(&self.app, &self.lease, &mut sink, &mut receiver).await
    }

    /// Has what waits tried again now.
    async fn due(&self) {
        sqlx::query("UPDATE event_deliveries SET next_at = compute_now()")
            .execute(&self.app.db)
            .await
            .unwrap();
    }

    async fn counts(&self) -> (String, i64, i64) {
        let sink = list(&self.app.db, Some(self.id)).await.unwrap().sinks.remove(0);
        (sink.state, sink.waiting, sink.dead)
    }
}

async fn tell(db: &PgPool, subject: &str, n: i64) {
    sqlx::query("INSERT INTO outbox (type, subject, data) VALUES ('job.updated', $1, $2)")
        .bind(subject)
        .bind(json!({ "n": n }))
        .execute(db)
        .await
        .unwrap();
}

#[sqlx::test(migrations = "../migrations")]
async fn every_event_comes_once_in_order_and_signed(db: PgPool) {
    let site = Site::open().await;
    tell(&db, "job/1", 0).await;
    settled(&db).await;
    let server = Server::start(&db, &site.url).await;
    for n in 1..=250 {
        tell(&db, "job/1", n).await;
    }
    while server.round().await.unwrap() == Rest::None {}
    let came = site.came();
    assert_eq!(came.iter().map(Came::n).collect::<Vec<_>>(), (1..=250).collect::<Vec<_>>());
    let key = sign::key(SECRET).unwrap();
    for one in &came {
        assert_eq!(one.signature, sign::signature(&key, &one.id, one.timestamp, &one.body));
        assert!(one.timestamp > 1_700_000_000);
    }
    server.round().await.unwrap();
    assert!(site.came().is_empty(), "its place was saved");
}

#[sqlx::test(migrations = "../migrations")]
async fn one_bad_event_holds_back_its_own_subject_and_nothing_else(db: PgPool) {
    let site = Site::open().await;
    let server = Server::start(&db, &site.url).await;
    site.answers(|came| if came.n() == 1 { 500 } else { 200 });
    for (subject, n) in [("job/1", 1), ("job/2", 2), ("job/1", 3), ("job/3", 4)] {
        tell(&db, subject, n).await;
    }
    server.round().await.unwrap();
    assert_eq!(site.ns(), [1, 2, 4]);
    assert_eq!(server.counts().await, ("active".into(), 2, 0));
    server.round().await.unwrap();
    assert!(site.came().is_empty(), "it is not tried before its time");
    server.due().await;
    server.round().await.unwrap();
    assert_eq!(site.ns(), [1], "what stands behind it waits");
    site.answers(|_| 200);
    for _ in 0..2 {
        server.due().await;
        server.round().await.unwrap();
    }
    assert_eq!(site.ns(), [1, 3]);
    assert_eq!(server.counts().await, ("active".into(), 0, 0));
}

#[sqlx::test(migrations = "../migrations")]
async fn what_is_never_taken_is_a_dead_letter_and_can_be_sent_again(db: PgPool) {
    let site = Site::open().await;
    let server = Server::start(&db, &site.url).await;
    site.answers(|came| if came.n() == 1 { 302 } else { 200 });
    tell(&db, "job/1", 1).await;
    tell(&db, "job/1", 2).await;
    for _ in 0..ATTEMPTS_MAX {
        server.round().await.unwrap();
        server.due().await;
    }
    server.round().await.unwrap();
    let ns = site.ns();
    assert_eq!(ns.iter().filter(|n| **n == 1).count() as i32, ATTEMPTS_MAX);
    assert_eq!(ns.last(), Some(&2), "given up, it holds nothing back");
    assert_eq!(server.counts().await, ("active".into(), 0, 1));
    let dead = dead_letters(&db, server.id).await.unwrap().dead_letters.remove(0);
    assert_eq!(dead.event["data"]["n"], 1);
    assert!(dead.error.unwrap().contains("redirects are not followed"));
    site.answers(|_| 200);
    assert_eq!(replay(&db, server.id, &[dead.cursor.parse().unwrap()]).await.unwrap(), 1);
    server.round().await.unwrap();
    assert_eq!((site.ns(), server.counts().await), (vec![1], ("active".into(), 0, 0)));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_lost_answer_is_asked_for_again_with_the_same_id(db: PgPool) {
    let site = Site::open().await;
    let server = Server::start(&db, &site.url).await;
    site.answers(|_| 0);
    tell(&db, "job/1", 1).await;
    server.round().await.unwrap();
    site.answers(|_| 200);
    server.due().await;
    server.round().await.unwrap();
    let came = site.came();
    assert_eq!((came.len(), &came[0].id), (2, &came[1].id));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_receiver_that_is_down_is_left_alone_and_one_that_has_enough_is_paused(db: PgPool) {
    let site = Site::open().await;
    let server = Server::start(&db, &site.url).await;
    site.answers(|_| 503);
    for n in 0..50 {
        tell(&db, &format!("job/{n}"), n).await;
    }
    assert!(matches!(server.round().await.unwrap(), Rest::Until(_)));
    assert_eq!(site.ns().len(), REFUSALS_MAX);
    site.answers(|_| 410);
    server.due().await;
    server.round().await.unwrap();
    assert_eq!((site.ns().len(), server.counts().await.0.as_str()), (1, "paused"));
    let note = list(&db, Some(server.id)).await.unwrap().sinks.remove(0).note;
    assert!(note.unwrap().contains("410"));
    crate::store::sinks::set_state(&db, server.id, "active", None).await.unwrap();
    site.answers(|_| 200);
    server.due().await;
    while server.round().await.unwrap() == Rest::None {}
    let mut ns = site.ns();
    ns.sort_unstable();
    assert_eq!(ns, (0..50).collect::<Vec<_>>());
}

#[sqlx::test(migrations = "../migrations")]
async fn who_lost_the_lease_saves_no_place(db: PgPool) {
    let site = Site::open().await;
    let server = Server::start(&db, &site.url).await;
    tell(&db, "job/1", 1).await;
    sqlx::query("UPDATE leases SET owner = 'other/1', epoch = epoch + 1 WHERE name = $1")
        .bind(lease_name(server.id))
        .execute(&db)
        .await
        .unwrap();
    let before = list(&db, None).await.unwrap();
    assert!(matches!(server.round().await, Err(StoreError::Fenced { .. })));
    assert_eq!(
        (site.ns(), list(&db, None).await.unwrap()),
        (vec![1], before),
        "its successor sends it again"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn an_address_that_is_not_allowed_any_more_is_sent_nothing(db: PgPool) {
    let site = Site::open().await;
    let server = Server::start(&db, &site.url).await;
    let tls = Arc::new(roots(&server.app).await.unwrap());
    let mut receiver = Receiver::new(&site.url, SECRET, Arc::new([]), tls).unwrap();
    let letter = Letter { id: "a", timestamp: 1, body: b"{}".to_vec() };
    let Outcome::Failed { why, .. } = receiver.deliver(&letter).await else { panic!("it was sent") };
    assert!(why.contains("a loopback address"), "{why}");
    assert!(site.came().is_empty());
}

#[test]
fn tries_come_ever_less_often_and_end() {
    let all: Vec<f64> = (1..ATTEMPTS_MAX).filter_map(|n| again_in_s(n, None, 1.0)).collect();
    assert_eq!(all, [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 3600.0]);
    assert_eq!(again_in_s(ATTEMPTS_MAX, None, 1.0), None);
    assert_eq!(again_in_s(1, Some(Duration::from_secs(60)), 1.0), Some(60.0));
}
