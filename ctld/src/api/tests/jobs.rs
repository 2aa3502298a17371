//! Submitting, waiting, acting: who may do what to whose job.

use super::door::{Door, can_be_nobody, own_name, submission, until};
use serde_json::{Value, json};
use sqlx::PgPool;
use std::time::{Duration, Instant};

#[sqlx::test(migrations = "../migrations")]
async fn a_job_belongs_to_who_connected_whatever_its_body_says(db: PgPool) {
    let door = Door::open(db).await;
    for claim in ["user", "uid", "tenant", "operator"] {
        let answer = door.ask("POST", "/v1/jobs", &submission(json!({ claim: "alice" }))).await;
        assert_eq!(answer.status.as_u16(), 400, "{}", answer.text);
        assert!(answer.error().1.contains(claim), "{}", answer.text);
    }
    let mine = door.ask("POST", "/v1/jobs", &submission(json!({}))).await;
    assert_eq!((mine.status.as_u16(), &mine.json["replayed"]), (201, &json!(false)), "{}", mine.text);
    let again = door.ask("POST", "/v1/jobs", &submission(json!({}))).await;
    assert_eq!((&again.json["id"], &again.json["replayed"]), (&mine.json["id"], &json!(true)));
    let list = door.get("/v1/jobs").await;
    assert_eq!(list.json["jobs"][0]["user"], own_name().as_str());
    assert_eq!(list.json["jobs"][0]["tenant"], "default");

    if can_be_nobody() {
        // The same key of another user names another operation.
        let theirs = door.ask_as_nobody("POST", "/v1/jobs", &submission(json!({}))).await;
        assert_eq!(
            (theirs.status.as_u16(), &theirs.json["replayed"]),
            (201, &json!(false)),
            "{}",
            theirs.text
        );
        let shown = door.get(&format!("/v1/jobs/{}", theirs.json["id"])).await;
        assert_eq!(shown.json["jobs"][0]["user"], "nobody");
        assert_eq!(shown.json["jobs"][0]["detail"]["uid"], 65534);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn a_plain_user_sees_others_jobs_but_neither_their_scripts_nor_a_way_to_stop_them(db: PgPool) {
    assert!(can_be_nobody(), "this test needs two users: run it as root");
    let door = Door::open(db).await;
    let id = door.ask("POST", "/v1/jobs", &submission(json!({}))).await.json["id"].as_i64().unwrap();
    let mine = door.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!(mine.json["jobs"][0]["detail"]["script"], "#!/bin/sh\nexit 0\n");
    let seen = door.ask_as_nobody("GET", &format!("/v1/jobs/{id}"), "").await;
    assert_eq!((seen.status.as_u16(), &seen.json["jobs"][0]["id"]), (200, &json!(id)));
    assert_eq!(seen.json["jobs"][0]["detail"]["script"], Value::Null);
    let stop = json!({ "ids": [id.to_string()] }).to_string();
    for act in ["cancel", "hold", "release", "requeue"] {
        let answer = door.ask_as_nobody("POST", &format!("/v1/jobs/{act}"), &stop).await;
        assert_eq!(answer.json["results"][0]["error"]["code"], "PERMISSION_DENIED", "{act}: {}", answer.text);
    }
    let held = door.ask("POST", "/v1/jobs/hold", &stop).await;
    assert_eq!(held.json["results"][0]["outcome"], "done", "{}", held.text);
    let cancelled = door.ask("POST", "/v1/jobs/cancel", &stop).await;
    assert_eq!(cancelled.json["results"][0]["outcome"], "done", "{}", cancelled.text);
    let ended = door.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!(ended.json["jobs"][0]["state"], "cancelled", "{}", ended.text);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_batch_answers_each_in_order(db: PgPool) {
    let door = Door::open(db).await;
    let jobs: Vec<Value> =
        [json!({ "idempotency_key": "a" }), json!({ "idempotency_key": "b", "pool": "nowhere" })]
            .into_iter()
            .map(|changes| serde_json::from_str(&submission(changes)).unwrap())
            .collect();
    let answer = door.ask("POST", "/v1/jobs/batch", &json!({ "jobs": jobs }).to_string()).await;
    assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
    assert!(answer.json["results"][0]["job"]["id"].is_i64(), "{}", answer.text);
    assert!(
        answer.json["results"][1]["error"]["message"].as_str().unwrap().contains("nowhere"),
        "{}",
        answer.text
    );
    let many = vec![&jobs[0]; 1001];
    let refused = door.ask("POST", "/v1/jobs/batch", &json!({ "jobs": many }).to_string()).await;
    assert_eq!((refused.status.as_u16(), refused.error().0), (413, "TOO_LARGE"));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_long_list_is_answered_whole(db: PgPool) {
    let door = Door::open(db).await;
    let jobs: Vec<Value> = (0..700)
        .map(|i| serde_json::from_str(&submission(json!({ "idempotency_key": i.to_string() }))).unwrap())
        .collect();
    let answer = door.ask("POST", "/v1/jobs/batch", &json!({ "jobs": jobs }).to_string()).await;
    assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
    let list: proto::api::JobList = serde_json::from_str(&door.get("/v1/jobs").await.text).unwrap();
    assert_eq!((list.jobs.len(), list.truncated), (700, false));
    assert!(list.jobs.is_sorted_by_key(|job| job.id));
    let cut: proto::api::JobList = serde_json::from_str(&door.get("/v1/jobs?limit=600").await.text).unwrap();
    assert_eq!((cut.jobs.as_slice(), cut.truncated), (&list.jobs[..600], true));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_wait_is_answered_when_its_job_ends_and_not_by_the_end_of_another(db: PgPool) {
    let door = Door::open(db.clone()).await;
    let id = door.ask("POST", "/v1/jobs", &submission(json!({}))).await.json["id"].as_i64().unwrap();
    let now = door.get(&format!("/v1/jobs/{id}/wait?timeout_s=0")).await;
    assert_eq!(now.json["jobs"][0]["state"], "pending", "{}", now.text);

    sqlx::query("SELECT pg_stat_clear_snapshot()").execute(&db).await.unwrap();
    let socket = door.socket.clone();
    let waiting = tokio::spawn(async move {
        let stream = super::door::connect(&socket).await;
        super::door::ask(stream, "GET", &format!("/v1/jobs/{id}/wait?timeout_s=600"), "").await
    });
    until("the first look", async || door.app.events.listeners() > 0).await;
    door.app.wakes.ended([id + 1]);
    let begun = Instant::now();
    let cancelled =
        door.ask("POST", "/v1/jobs/cancel", &json!({ "ids": [id.to_string()] }).to_string()).await;
    assert_eq!(cancelled.json["results"][0]["outcome"], "done", "{}", cancelled.text);
    let answer = tokio::time::timeout(super::door::PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(answer.json["jobs"][0]["state"], "cancelled", "{}", answer.text);
    assert!(begun.elapsed() < Duration::from_secs(4), "it was not woken, but looked by itself");
    let over = door.get(&format!("/v1/jobs/{id}/wait?timeout_s=600")).await;
    assert_eq!(over.json["jobs"][0]["state"], "cancelled");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_end_recorded_elsewhere_is_seen_without_a_wake(db: PgPool) {
    let door = Door::open(db.clone()).await;
    let id = door.ask("POST", "/v1/jobs", &submission(json!({}))).await.json["id"].as_i64().unwrap();
    let socket = door.socket.clone();
    let waiting = tokio::spawn(async move {
        let stream = super::door::connect(&socket).await;
        super::door::ask(stream, "GET", &format!("/v1/jobs/{id}/wait?timeout_s=600"), "").await
    });
    until("the first look", async || door.app.events.listeners() > 0).await;
    sqlx::query(
        "UPDATE jobs SET pending = '{}', cancelled = indices, state = 'cancelled', ended_at = compute_now()",
    )
    .execute(&db)
    .await
    .unwrap();
    let answer = tokio::time::timeout(super::door::PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(answer.json["jobs"][0]["state"], "cancelled", "{}", answer.text);
}

#[sqlx::test(migrations = "../migrations")]
async fn stopping_answers_those_who_wait_and_ends_the_service(db: PgPool) {
    let door = Door::open(db.clone()).await;
    let id = door.ask("POST", "/v1/jobs", &submission(json!({}))).await.json["id"].as_i64().unwrap();
    let socket = door.socket.clone();
    let waiting = tokio::spawn(async move {
        let stream = super::door::connect(&socket).await;
        super::door::ask(stream, "GET", &format!("/v1/jobs/{id}/wait?timeout_s=600"), "").await
    });
    until("the first look", async || door.app.events.listeners() > 0).await;
    door.app.stopping.cancel();
    let answer = tokio::time::timeout(super::door::PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(answer.json["jobs"][0]["state"], "pending", "{}", answer.text);
    tokio::time::timeout(super::door::PATIENCE, door.serving).await.unwrap().unwrap().unwrap();
}
