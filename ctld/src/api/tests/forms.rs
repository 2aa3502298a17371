//! The form of answers: errors of every kind, the document, the metrics.

use super::door::{Door, submission};
use crate::api::Limits;
use crate::api::error::panicked;
use hyper::StatusCode;
use serde_json::json;
use sqlx::PgPool;
use std::time::Duration;

/// Every path that `proto::api` lists, with its method.
const PATHS: &[(&str, &str)] = &[
    ("post", "/v1/jobs"),
    ("post", "/v1/jobs/batch"),
    ("get", "/v1/jobs"),
    ("get", "/v1/jobs/brief"),
    ("get", "/v1/jobs/{id}"),
    ("get", "/v1/jobs/{id}/why"),
    ("get", "/v1/jobs/{id}/wait"),
    ("post", "/v1/jobs/cancel"),
    ("post", "/v1/jobs/hold"),
    ("post", "/v1/jobs/release"),
    ("post", "/v1/jobs/requeue"),
    ("get", "/v1/nodes"),
    ("get", "/v1/nodes/{name}"),
    ("post", "/v1/nodes/{name}/lost"),
    ("get", "/v1/holds"),
    ("post", "/v1/holds"),
    ("post", "/v1/holds/preview"),
    ("post", "/v1/holds/resume"),
    ("get", "/v1/pools"),
    ("get", "/v1/gpus/changes"),
    ("post", "/v1/gpus/changes"),
    ("post", "/v1/gpus/changes/{id}/cancel"),
    ("get", "/v1/reservations"),
    ("post", "/v1/reservations"),
    ("get", "/v1/reservations/{name}"),
    ("post", "/v1/reservations/{name}/cancel"),
    ("post", "/v1/extend"),
    ("get", "/v1/tenants"),
    ("post", "/v1/tenants"),
    ("get", "/v1/tenants/{name}"),
    ("post", "/v1/tenants/{name}/users"),
    ("get", "/v1/quotas"),
    ("get", "/v1/tenants/{name}/quota"),
    ("post", "/v1/tenants/{name}/quota"),
    ("get", "/v1/events"),
    ("get", "/v1/sinks"),
    ("post", "/v1/sinks"),
    ("get", "/v1/sinks/{id}"),
    ("post", "/v1/sinks/{id}/pause"),
    ("post", "/v1/sinks/{id}/resume"),
    ("post", "/v1/sinks/{id}/delete"),
    ("get", "/v1/sinks/{id}/dead-letters"),
    ("post", "/v1/sinks/{id}/replay"),
    ("get", "/v1/check"),
    ("get", "/v1/audit"),
    ("post", "/v1/node-tokens"),
    ("get", "/v1/node-certificates"),
    ("post", "/v1/nodes/{name}/revoke"),
    ("post", "/v1/node-join"),
    ("post", "/v1/node-renewal"),
    ("get", "/v1/node-session"),
    ("get", "/metrics"),
    ("get", "/v1/openapi.json"),
];

#[sqlx::test(migrations = "../migrations")]
async fn the_document_lists_every_path_and_every_reference_in_it_leads_somewhere(db: PgPool) {
    let door = Door::open(db).await;
    let answer = door.get("/v1/openapi.json").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.json["openapi"].as_str().unwrap().starts_with("3.1"));
    let listed = answer.json["paths"].as_object().unwrap();
    for (method, path) in PATHS {
        assert!(
            listed.get(*path).is_some_and(|item| item.get(*method).is_some()),
            "{method} {path} is not listed"
        );
    }
    let operations: usize = listed.values().map(|item| item.as_object().unwrap().len()).sum();
    assert_eq!(operations, PATHS.len());
    let mut references = 0;
    for piece in answer.text.split("\"$ref\":\"#").skip(1) {
        let pointer = piece.split('"').next().unwrap();
        assert!(answer.json.pointer(pointer).is_some(), "{pointer} leads nowhere");
        references += 1;
    }
    assert!(references > 20);
}

#[sqlx::test(migrations = "../migrations")]
async fn every_refusal_has_the_same_form(db: PgPool) {
    let door = Door::open(db).await;
    let unknown = submission(json!({ "cpuz": 2 }));
    let big = submission(json!({ "comment": "x".repeat(17 << 20) }));
    for (method, path, body, status, code, said) in [
        ("GET", "/v2/jobs", "", 404, "NOT_FOUND", "/v2/jobs"),
        ("GET", "/", "", 404, "NOT_FOUND", "there is no /"),
        ("DELETE", "/v1/jobs/12", "", 405, "INVALID_ARGUMENT", "does not take DELETE"),
        ("GET", "/v1/jobs/batch/", "", 404, "NOT_FOUND", "/v1/jobs/batch/"),
        ("POST", "/v1/jobs", &unknown, 400, "INVALID_ARGUMENT", "cpuz"),
        ("POST", "/v1/jobs/batch", "{\"jobs\": [{\"nam\": 1}]}", 400, "INVALID_ARGUMENT", "\"jobs[0].nam\""),
        ("POST", "/v1/jobs/batch", "{\"jobs\": []}", 400, "INVALID_ARGUMENT", "no jobs"),
        ("POST", "/v1/jobs", "{", 400, "INVALID_ARGUMENT", "EOF"),
        ("POST", "/v1/jobs", "", 400, "INVALID_ARGUMENT", "missing field"),
        ("POST", "/v1/jobs", &big, 413, "TOO_LARGE", "16 MiB"),
        ("GET", "/v1/jobs?user=alice", "", 400, "INVALID_ARGUMENT", "`user`"),
        ("GET", "/v1/jobs?limit=many", "", 400, "INVALID_ARGUMENT", "limit"),
        ("GET", "/v1/jobs?states=walking", "", 400, "INVALID_ARGUMENT", "\"walking\""),
        ("GET", "/v1/pools?verbose=1", "", 400, "INVALID_ARGUMENT", "`verbose`"),
        ("GET", "/v1/openapi.json?x=1", "", 400, "INVALID_ARGUMENT", "`x`"),
        ("GET", "/v1/jobs/brief?user=alice", "", 400, "INVALID_ARGUMENT", "`user`"),
        ("GET", "/v1/jobs/twelve", "", 400, "INVALID_ARGUMENT", "\"twelve\""),
        ("GET", "/v1/jobs/%FF", "", 400, "INVALID_ARGUMENT", "path"),
        ("GET", "/v1/jobs/12", "", 404, "NOT_FOUND", "job 12 is not known"),
        ("GET", "/v1/jobs/12/wait", "", 404, "NOT_FOUND", "job 12 is not known"),
        ("GET", "/v1/jobs/12/why", "", 404, "NOT_FOUND", "job 12 is not known"),
        ("GET", "/v1/jobs/12/wait?timeout_s=601", "", 400, "INVALID_ARGUMENT", "601"),
        ("GET", "/v1/nodes/n9", "", 404, "NOT_FOUND", "\"n9\""),
        ("POST", "/v1/jobs/hold", "{\"ids\": []}", 400, "INVALID_ARGUMENT", "no ids"),
        ("GET", "/v1/node-session", "", 400, "INVALID_ARGUMENT", "WebSocket"),
    ] {
        let answer = door.ask(method, path, body).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {}", answer.text);
        let (found, message) = answer.error();
        assert_eq!(found, code, "{method} {path}: {}", answer.text);
        assert!(message.contains(said), "{method} {path}: {message:?} does not say {said:?}");
        assert!(answer.json["error"]["retryable"].is_boolean(), "{}", answer.text);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn bodies_of_other_types_are_refused(db: PgPool) {
    use super::door::{connect, send};
    let door = Door::open(db).await;
    let request = hyper::Request::post("/v1/jobs/hold")
        .header("host", "ctld")
        .header("content-type", "text/plain")
        .body(http_body_util::Full::from("{\"ids\": [\"1\"]}"))
        .unwrap();
    let response = send(connect(&door.socket).await, request).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_database_that_is_away_is_try_again_later_without_details() {
    let nowhere = sqlx::postgres::PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(300))
        .connect_lazy("postgres:///secret-name?host=/nonexistent&user=nobody")
        .unwrap();
    let door = Door::over(nowhere, Limits::default());
    for path in ["/v1/jobs", "/v1/nodes", "/v1/jobs/3/wait?timeout_s=5", "/v1/jobs/3"] {
        let answer = door.get(path).await;
        assert_eq!((answer.status.as_u16(), answer.error().0), (503, "UNAVAILABLE"), "{}", answer.text);
        assert!(answer.retry_after.is_some());
        assert!(
            !answer.text.contains("secret-name") && !answer.text.contains("nonexistent"),
            "{}",
            answer.text
        );
    }
    let health = door.get("/v1/check").await;
    assert_eq!((health.status, &health.json["ok"]), (StatusCode::OK, &json!(false)));
    assert_eq!(health.json["checks"][0]["name"], "database");
    assert_eq!(door.get("/metrics").await.status, StatusCode::OK);
}

#[sqlx::test(migrations = "../migrations")]
async fn requests_are_counted_by_route_and_not_by_what_was_asked(db: PgPool) {
    let door = Door::open(db).await;
    door.get("/v1/jobs/4711").await;
    door.get("/no/such/path").await;
    let text = door.get("/metrics").await.text;
    for line in [
        "better_compute_api_requests_total{path=\"/v1/jobs/{id}\",status=\"404\"} 1",
        "better_compute_api_requests_total{path=\"unknown\",status=\"404\"} 1",
        "better_compute_database_up 1",
        "better_compute_jobs{state=\"pending\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?} is not in\n{text}");
    }
    assert!(!text.contains("4711") && !text.contains("no/such"));
}

#[sqlx::test(migrations = "../migrations")]
async fn where_the_database_is_is_told_to_operators_only(db: PgPool) {
    let door = Door::open(db).await;
    let mine = door.get("/v1/check").await;
    assert_eq!(mine.json["ok"], true, "{}", mine.text);
    assert_eq!(mine.json["database"]["embedded"], false);
    assert_eq!(mine.json["nodes_total"], 0);
    if super::door::can_be_nobody() {
        let theirs = door.ask_as_nobody("GET", "/v1/check", "").await;
        assert!(theirs.json.get("database").is_none(), "{}", theirs.text);
    }
}

#[test]
fn a_panic_is_an_internal_error_that_tells_nothing() {
    let response = panicked(Box::new("at line 7 of secrets.rs".to_owned()));
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_audit_is_told_to_operators_and_kept_for_check_and_metrics(db: PgPool) {
    let door = Door::open(db.clone()).await;
    let audit = door.get("/v1/audit").await;
    assert_eq!((audit.status, &audit.json["ok"]), (StatusCode::OK, &json!(true)), "{}", audit.text);
    let some = door.get("/v1/audit?invariant=devices,tasks").await;
    assert_eq!(some.json["invariants"].as_array().unwrap().len(), 2);
    assert_eq!(door.get("/v1/audit?invariant=none").await.status, StatusCode::NOT_FOUND);
    if super::door::can_be_nobody() {
        assert_eq!(door.ask_as_nobody("GET", "/v1/audit", "").await.status, StatusCode::FORBIDDEN);
    }
    // Somebody at psql.
    sqlx::query("INSERT INTO idempotency_keys VALUES (1, 'eve', 'k', '', 4711)").execute(&db).await.unwrap();
    crate::reconcile::audit::step(&door.app).await.unwrap();
    let text = door.get("/metrics").await.text;
    assert!(text.contains("better_compute_audit_violations{invariant=\"keys\"} 1\n"), "{text}");
    let health = door.get("/v1/check").await;
    assert!(health.text.contains("broken: keys (1 violations); see `bctl audit`"), "{}", health.text);
    assert_eq!(health.json["ok"], false);
}

#[sqlx::test(migrations = "../migrations")]
async fn answers_carry_the_position_they_show_and_a_read_may_ask_for_it(db: PgPool) {
    let door = Door::open(db).await;
    let first = door.get("/v1/jobs").await.position.unwrap();
    let submitted = door.ask("POST", "/v1/jobs", &submission(json!({}))).await;
    let position = submitted.position.unwrap();
    assert!(position > first, "{position} {first}");
    let at_least = |at: String| door.ask_with("GET", "/v1/jobs", vec![("bc-at-least", at)]);
    let read = at_least(position.to_string()).await;
    assert_eq!(read.json["jobs"].as_array().map(Vec::len), Some(1));
    assert!(read.position.unwrap() >= position);
    let error = at_least("soon".to_owned()).await;
    assert_eq!(error.error().0, "INVALID_ARGUMENT");
    assert!(error.position.is_none(), "a refusal shows nothing");
    // It waits for what may still come, and then says where it is.
    let never = "FFFFFFFF/0".parse().unwrap();
    let error = crate::api::position::wait(&door.app, never, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.code, proto::ErrorCode::Unavailable);
    let says = "position FFFFFFFF/0 is asked for, and the database is at ";
    assert!(error.message.starts_with(says), "{}", error.message);
}
