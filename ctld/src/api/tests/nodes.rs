//! Holding is for operators, and shows at once.

use super::door::{Door, can_be_nobody};
use serde_json::{Value, json};
use sqlx::PgPool;

async fn door(db: PgPool) -> Door {
    sqlx::query("INSERT INTO pools (name) VALUES ('lab')").execute(&db).await.unwrap();
    sqlx::query("INSERT INTO nodes (name, pool_id) SELECT 'n1', id FROM pools").execute(&db).await.unwrap();
    Door::open(db).await
}

fn body(key: &str, more: Value) -> String {
    let mut body = json!({ "idempotency_key": key, "target": "n1" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

#[sqlx::test(migrations = "../migrations")]
async fn operators_hold_and_resume_and_others_may_not(db: PgPool) {
    let door = door(db).await;
    let drain = body("a", json!({ "reason": " new fan " }));
    if can_be_nobody() {
        for path in ["/v1/holds", "/v1/holds/preview", "/v1/holds/resume"] {
            let answer = door.ask_as_nobody("POST", path, &drain).await;
            let status = answer.status.as_u16();
            assert_eq!((status, answer.error().0), (403, "PERMISSION_DENIED"), "{}", answer.text);
            assert!(answer.error().1.contains("\"nobody\"") && answer.text.contains("operator"), "{path}");
        }
    }
    for reason in ["", "  ", "two\nlines"] {
        let answer = door.ask("POST", "/v1/holds", &body("b", json!({ "reason": reason }))).await;
        assert_eq!(answer.status.as_u16(), 400, "{reason:?}");
    }
    let preview = door.ask("POST", "/v1/holds/preview", &drain).await;
    assert_eq!(preview.json["target"], "n1", "{}", preview.text);
    assert_eq!(door.get("/v1/holds").await.json, json!({ "holds": [] }), "a look changes nothing");
    let held = door.ask("POST", "/v1/holds", &drain).await;
    assert_eq!(held.json["holds"][0]["reason"], "new fan", "{}", held.text);
    let node = door.get("/v1/nodes/n1").await;
    assert_eq!(node.json["nodes"][0]["drain"], "drained", "{}", node.text);
    assert_eq!(door.get("/v1/holds?target=n1").await.json, held.json);
    let again = door.ask("POST", "/v1/holds", &drain).await;
    assert_eq!(again.text, held.text, "the same key and body");
    let other = door.ask("POST", "/v1/holds", &body("a", json!({ "reason": "another" }))).await;
    assert_eq!((other.status.as_u16(), other.error().0), (409, "CONFLICT"));
    let resumed = door.ask("POST", "/v1/holds/resume", &body("r", json!({}))).await;
    assert_eq!(resumed.json["holds"][0]["id"], held.json["holds"][0]["id"], "{}", resumed.text);
    let node = door.get("/v1/nodes/n1").await;
    assert_eq!(node.json["nodes"][0]["eligible"], true, "{}", node.text);
    let nowhere = json!({ "idempotency_key": "m", "target": "n2", "reason": "x" }).to_string();
    let missing = door.ask("POST", "/v1/holds", &nowhere).await;
    assert_eq!((missing.status.as_u16(), missing.error().0), (404, "NOT_FOUND"));
}
