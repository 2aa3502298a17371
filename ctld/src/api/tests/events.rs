//! `/v1/events`: streams that begin where they are asked to, go on with what happens, and are picked up again by the last id.

use super::door::{Door, PATIENCE, connect, submission};
use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use sqlx::PgPool;

/// A stream as a client reads it.
struct Stream {
    body: Incoming,
    text: String,
    /// The last id.
    last: String,
}

/// An event as it came.
#[derive(Debug)]
struct Came {
    id: String,
    kind: String,
    data: Value,
}

impl Stream {
    async fn open(door: &Door, query: &str, last: Option<&str>) -> Stream {
        let mut request = Request::builder().uri(format!("/v1/events{query}")).header("host", "ctld");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = request.body(Full::<Bytes>::default()).unwrap();
        let answer = super::door::send(connect(&door.socket).await, request).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Stream { body: answer.into_body(), text: String::new(), last: last.unwrap_or_default().to_owned() }
    }

    /// One that has said that it is there.
    async fn from_now(door: &Door, query: &str) -> Stream {
        let mut stream = Stream::open(door, query, None).await;
        assert!(stream.block().await.unwrap().kind.is_empty());
        assert!(!stream.last.is_empty(), "the first block says the place");
        stream
    }

    /// The next block, `None` at the end.
    async fn block(&mut self) -> Option<Came> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    block.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned()
                };
                let came = Came {
                    id: field("id: "),
                    kind: field("event: "),
                    data: serde_json::from_str(&field("data: ")).unwrap_or(Value::Null),
                };
                self.text = rest.to_owned();
                self.last.clone_from(&came.id);
                return Some(came);
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("nothing came")?;
            self.text.push_str(std::str::from_utf8(frame.unwrap().data_ref().unwrap()).unwrap());
        }
    }

    /// The next event.
    async fn next(&mut self) -> Option<Came> {
        loop {
            let came = self.block().await?;
            if !came.kind.is_empty() {
                return Some(came);
            }
        }
    }
}

async fn submit(door: &Door, key: &str) -> i64 {
    let answer = door.ask("POST", "/v1/jobs", &submission(json!({"idempotency_key": key}))).await;
    answer.json["id"].as_i64().unwrap_or_else(|| panic!("{}", answer.text))
}

/// So many events of no job, each with its number.
async fn tell(db: &PgPool, from: i64, count: i64) {
    sqlx::query(
        "INSERT INTO outbox (type, subject, data) SELECT 'job.updated', 'job/0', jsonb_build_object('n', n, 'pad', repeat('x', 500))
         FROM generate_series($1::bigint, $1 + $2 - 1) n",
    )
    .bind(from)
    .bind(count)
    .execute(db)
    .await
    .unwrap();
}

#[sqlx::test(migrations = "../migrations")]
async fn a_stream_tells_what_happens_and_goes_on_from_the_last_id(db: PgPool) {
    let door = Door::open(db).await;
    let mut stream = Stream::from_now(&door, "").await;
    let first = submit(&door, "a").await;
    let came = stream.next().await.unwrap();
    assert_eq!((came.kind.as_str(), &came.data["data"]["job"]), ("job.submitted", &json!(first)));
    assert_eq!(came.data["subject"], format!("job/{first}"));
    let last = stream.last.clone();
    drop(stream);

    let second = submit(&door, "b").await;
    let mut again = Stream::open(&door, "", Some(&last)).await;
    assert_eq!(again.next().await.unwrap().data["data"]["job"], second);
    let third = submit(&door, "c").await;
    assert_eq!(again.next().await.unwrap().data["data"]["job"], third);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_filtered_stream_tells_only_what_it_names(db: PgPool) {
    let door = Door::open(db).await;
    let other = submit(&door, "a").await;
    let mine = submit(&door, "b").await;
    let mut stream = Stream::from_now(&door, &format!("?type=job.ended,node&job={mine}")).await;
    for id in [other, mine] {
        door.ask("POST", "/v1/jobs/cancel", &json!({"ids": [id.to_string()]}).to_string()).await;
    }
    let came = stream.next().await.unwrap();
    assert_eq!((came.kind.as_str(), &came.data["data"]["state"]), ("job.ended", &json!("cancelled")));
    assert_eq!(came.data["data"]["job"], mine);
}

#[sqlx::test(migrations = "../migrations")]
async fn without_follow_a_stream_ends_where_there_is_no_more(db: PgPool) {
    let door = Door::open(db.clone()).await;
    tell(&db, 0, 1200).await;
    crate::store::tests::events::settled(&db).await;
    let mut stream = Stream::open(&door, "?follow=false", None).await;
    for n in 0..1200 {
        assert_eq!(stream.next().await.unwrap().data["data"]["n"], n);
    }
    assert!(stream.next().await.is_none());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reader_that_is_too_slow_is_cut_off_and_misses_nothing(db: PgPool) {
    let door = Door::open(db.clone()).await;
    let mut stream = Stream::from_now(&door, "").await;
    const MANY: i64 = 20_000;
    for from in (0..MANY).step_by(1000) {
        tell(&db, from, 1000).await;
        door.app.wakes.events();
        crate::store::tests::events::settled(&db).await;
        // The ring has gone on before the next come.
        let mut other = Stream::open(&door, "?type=node", None).await;
        other.block().await.unwrap();
    }
    let (mut n, mut cuts) = (0, 0);
    while n < MANY {
        match stream.next().await {
            Some(came) => {
                assert_eq!(came.data["data"]["n"], n, "after {}", came.id);
                n += 1;
            }
            None => {
                cuts += 1;
                stream = Stream::open(&door, "", Some(&stream.last.clone())).await;
            }
        }
    }
    assert!(cuts >= 1, "a stream that nobody reads must end");
}

#[sqlx::test(migrations = "../migrations")]
async fn others_see_what_is_theirs_only(db: PgPool) {
    if !super::door::can_be_nobody() {
        return;
    }
    let door = Door::open(db.clone()).await;
    let roots = submit(&door, "a").await;
    let body = submission(json!({"idempotency_key": "b"}));
    let nobodys = door.ask_as_nobody("POST", "/v1/jobs", &body).await.json["id"].as_i64().unwrap();
    crate::store::tests::events::settled(&db).await;
    let all = door.get("/v1/events?follow=false").await.text;
    let own = door.ask_as_nobody("GET", "/v1/events?follow=false", "").await.text;
    let named = |text: &str, id: i64| text.contains(&format!("\"subject\":\"job/{id}\""));
    assert!(named(&all, roots) && named(&all, nobodys), "{all}");
    assert!(!named(&own, roots) && named(&own, nobodys), "{own}");
    let of_another = door.ask_as_nobody("GET", &format!("/v1/events?follow=false&job={roots}"), "").await;
    assert_eq!(of_another.text, "");
}

#[sqlx::test(migrations = "../migrations")]
async fn places_that_cannot_be_gone_on_from_are_named(db: PgPool) {
    let door = Door::open(db.clone()).await;
    for (query, said) in [
        ("?after=x", "\"x\" is no place among events"),
        ("?type=jobz", "no event is of type \"jobz\""),
        ("?after=999999999999-1", "is ahead of this database"),
        ("?colour=red", "unknown field"),
    ] {
        let answer = door.get(&format!("/v1/events{query}")).await;
        assert!(!answer.status.is_success() && answer.error().1.contains(said), "{query}: {}", answer.text);
    }
    sqlx::query("UPDATE outbox_pruned SET txid = '3', seq = 7").execute(&db).await.unwrap();
    let mut stream = Stream::open(&door, "", Some("2-1")).await;
    let came = stream.next().await.unwrap();
    assert_eq!((came.kind.as_str(), came.id.as_str()), ("expired", "3-7"));
    assert!(came.data["error"]["message"].as_str().unwrap().contains("no longer kept"));
    assert!(stream.next().await.is_none());
}

#[sqlx::test(migrations = "../migrations")]
async fn a_sink_is_made_only_where_webhooks_may_go_and_its_secret_is_shown_once(db: PgPool) {
    let door = Door::open(db.clone()).await;
    for (body, said) in [
        (json!({"url": "https://127.0.0.1/x"}), "a loopback address"),
        (json!({"url": "https://localhost/x"}), "a loopback address"),
        (json!({"url": "https://169.254.169.254/latest"}), "metadata"),
        (json!({"url": "https://[::ffff:10.0.0.1]/"}), "a private address"),
        (json!({"url": "http://1.1.1.1/"}), "without TLS"),
        (json!({"url": "gopher://1.1.1.1/"}), "must begin with https://"),
        (json!({"url": "https://1.1.1.1/", "secret": "hunter2"}), "the secret is none"),
        (json!({"url": "https://1.1.1.1/", "types": ["jobz"]}), "no event is of type"),
        (json!({"url": "https://1.1.1.1/", "tenant": "nobody"}), "nobody"),
    ] {
        let answer = door.ask("POST", "/v1/sinks", &body.to_string()).await;
        assert!(!answer.status.is_success() && answer.error().1.contains(said), "{body}: {}", answer.text);
        assert!(!answer.text.contains("hunter2"));
    }
    let added = door
        .ask("POST", "/v1/sinks", &json!({"url": "https://1.1.1.1/x", "types": ["job"]}).to_string())
        .await;
    let (id, secret) = (&added.json["sink"]["id"], added.json["secret"].as_str().unwrap());
    assert!(added.status.as_u16() == 201 && secret.starts_with("whsec_"), "{}", added.text);
    for path in ["/v1/sinks".to_owned(), format!("/v1/sinks/{id}"), format!("/v1/sinks/{id}/dead-letters")] {
        let answer = door.get(&path).await;
        assert!(answer.status.is_success() && !answer.text.contains("whsec_"), "{path}: {}", answer.text);
    }
    let paused = door.ask("POST", &format!("/v1/sinks/{id}/pause"), "").await;
    assert_eq!(paused.json["sinks"][0]["state"], "paused", "{}", paused.text);
    if super::door::can_be_nobody() {
        assert_eq!(door.ask_as_nobody("GET", "/v1/sinks", "").await.error().0, "PERMISSION_DENIED");
    }
    assert!(door.ask("POST", &format!("/v1/sinks/{id}/delete"), "").await.status.is_success());
    assert_eq!(door.get(&format!("/v1/sinks/{id}")).await.error().0, "NOT_FOUND");
}
