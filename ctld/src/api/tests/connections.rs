//! Connections that stall, that are too many, and that become something else.

use super::door::{Door, PATIENCE, ask, can_be_nobody, connect, send, until};
use crate::api::Limits;
use http_body_util::Full;
use hyper::{Request, StatusCode};
use sqlx::PgPool;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[sqlx::test(migrations = "../migrations")]
async fn a_connection_that_stalls_is_closed(db: PgPool) {
    let limits = Limits { header_within: Duration::from_millis(150), ..Limits::default() };
    let door = Door::open_within(db, limits).await;
    for sent in [
        "",
        "GET /v1/pools HT",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /v1/pools HTTP/1.1\r\nhost: c\r\n\r\n",
    ] {
        let begun = Instant::now();
        let mut stream = connect(&door.socket).await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "still open after {:?} having sent {sent:?}", begun.elapsed());
    }
    until("every connection is let go", async || {
        door.get("/metrics").await.text.contains("better_compute_api_connections 1\n")
    })
    .await;
}

#[sqlx::test(migrations = "../migrations")]
async fn one_connection_too_many_waits_its_turn(db: PgPool) {
    let door = Door::open_within(db, Limits { connections: 1, ..Limits::default() }).await;
    let mut first = connect(&door.socket).await;
    first.write_all(b"GET /v1/pools HT").await.unwrap();
    let second = ask(connect(&door.socket).await, "GET", "/v1/pools", "");
    tokio::pin!(second);
    // The first is taken before the second, and holds the only place while it stays.
    tokio::select! {
        answer = &mut second => panic!("two connections at once: {answer:?}"),
        () = until("the first connection is taken", async || {
            door.app.metrics.scrape(&door.app.db).await.contains("better_compute_api_connections 1\n")
        }) => {}
    }
    drop(first);
    let answer = tokio::time::timeout(PATIENCE, second).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn many_requests_share_a_connection(db: PgPool) {
    let door = Door::open(db).await;
    let mut stream = connect(&door.socket).await;
    for _ in 0..3 {
        stream.write_all(b"GET /v1/pools HTTP/1.1\r\nhost: c\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 15];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer, b"HTTP/1.1 200 OK");
        let mut rest = [0; 4096];
        let got = stream.read(&mut rest).await.unwrap();
        assert!(String::from_utf8_lossy(&rest[..got]).contains("\"main\""));
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_session_is_a_websocket_for_the_daemons_own_users(db: PgPool) {
    let door = Door::open(db).await;
    let upgrade = || {
        Request::get("/v1/node-session")
            .header("host", "ctld")
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .body(Full::default())
            .unwrap()
    };
    let opened = send(connect(&door.socket).await, upgrade()).await;
    assert_eq!(opened.status(), StatusCode::SWITCHING_PROTOCOLS);
    if can_be_nobody() {
        let refused = door.ask_as_nobody("GET", "/v1/node-session", "").await;
        assert_eq!((refused.status.as_u16(), refused.error().0), (403, "PERMISSION_DENIED"));
    }
    // A session that said nothing yet does not keep the controller from stopping.
    door.app.stopping.cancel();
    drop(opened);
    tokio::time::timeout(PATIENCE, door.serving).await.unwrap().unwrap().unwrap();
}

#[sqlx::test(migrations = "../migrations")]
async fn a_client_that_reads_nothing_is_cut_off_and_its_place_given_to_another(db: PgPool) {
    let limits = Limits { connections: 1, read_within: Duration::from_millis(150), ..Limits::default() };
    let door = Door::open_within(db, limits).await;
    let mut deaf = connect(&door.socket).await;
    // Questions whose answers fill every buffer on the way, none of them read.
    let question = b"GET /v1/openapi.json HTTP/1.1\r\nhost: c\r\n\r\n";
    let mut asked = 0;
    let stuck = async {
        while asked < 10_000 && deaf.write_all(question).await.is_ok() {
            asked += 1;
        }
    };
    tokio::time::timeout(PATIENCE, stuck).await.expect("the connection is closed");
    assert!(asked < 10_000);
    let answer =
        tokio::time::timeout(PATIENCE, ask(connect(&door.socket).await, "GET", "/v1/pools", "")).await;
    assert_eq!(answer.unwrap().status, StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_body_that_never_ends_is_refused_in_time(db: PgPool) {
    let limits = Limits { body_within: Duration::from_millis(150), ..Limits::default() };
    let door = Door::open_within(db, limits).await;
    let mut slow = connect(&door.socket).await;
    let head = "POST /v1/jobs HTTP/1.1\r\nhost: c\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    tokio::time::timeout(PATIENCE, slow.read_exact(&mut answer)).await.expect("an answer").unwrap();
    assert_eq!(answer, b"HTTP/1.1 400");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_question_is_not_worked_on_beyond_its_deadline_and_an_act_not_begun(db: PgPool) {
    let door = Door::open(db.clone()).await;
    let with = |ms: &str| vec![("bc-deadline-ms", ms.to_owned())];
    assert_eq!(door.ask_with("GET", "/v1/pools", with("5000")).await.status, StatusCode::OK);
    let refused = door.ask_with("GET", "/v1/pools", with("soon")).await;
    assert_eq!((refused.status.as_u16(), refused.error().0), (400, "INVALID_ARGUMENT"));
    let refused = door.ask_with("POST", "/v1/tenants", with("0")).await;
    assert_eq!((refused.status.as_u16(), refused.error().0), (503, "UNAVAILABLE"));
    assert_eq!(refused.retry_after.as_deref(), Some("1"));
    // Somebody holds what the question needs.
    let mut holding = db.begin().await.unwrap();
    sqlx::query("LOCK TABLE pools IN ACCESS EXCLUSIVE MODE").execute(&mut *holding).await.unwrap();
    let begun = Instant::now();
    let late = door.ask_with("GET", "/v1/pools", with("100")).await;
    assert_eq!((late.status.as_u16(), late.error().0), (503, "UNAVAILABLE"));
    assert!(begun.elapsed() < PATIENCE, "long before the lock's own end");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_act_whose_connection_to_the_database_is_lost_has_an_unknown_outcome_and_a_question_none(
    db: PgPool,
) {
    let door = Door::open(db.clone()).await;
    let lose_the_waiting = || async {
        let waits = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        until("the request waits and loses its connection", async || {
            sqlx::query_scalar::<_, i64>(waits).fetch_one(&db).await.unwrap() == 1
        })
        .await;
    };
    let mut holding = db.begin().await.unwrap();
    sqlx::query("LOCK TABLE tenants IN EXCLUSIVE MODE").execute(&mut *holding).await.unwrap();
    let (act, ()) = tokio::join!(door.ask("POST", "/v1/tenants", "{\"name\": \"t\"}"), lose_the_waiting());
    assert_eq!((act.status.as_u16(), act.error().0), (504, "OUTCOME_UNKNOWN"), "{act:?}");
    holding.rollback().await.unwrap();
    let mut holding = db.begin().await.unwrap();
    sqlx::query("LOCK TABLE pools IN ACCESS EXCLUSIVE MODE").execute(&mut *holding).await.unwrap();
    let (question, ()) = tokio::join!(door.get("/v1/pools"), lose_the_waiting());
    assert_eq!((question.status.as_u16(), question.error().0), (503, "UNAVAILABLE"), "{question:?}");
}
