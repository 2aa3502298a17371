//! Draining is for operators, and shows at once.

use super::door::{Door, can_be_nobody};
use sqlx::PgPool;

#[sqlx::test(migrations = "../migrations")]
async fn operators_drain_and_resume_and_others_may_not(db: PgPool) {
    sqlx::query("INSERT INTO pools (name) VALUES ('lab')").execute(&db).await.unwrap();
    sqlx::query("INSERT INTO nodes (name, pool_id) SELECT 'n1', id FROM pools").execute(&db).await.unwrap();
    let door = Door::open(db).await;
    let drain = r#"{"reason": " new fan "}"#;
    if can_be_nobody() {
        for act in ["drain", "resume"] {
            let answer = door.ask_as_nobody("POST", &format!("/v1/nodes/n1/{act}"), drain).await;
            let body = answer.status.as_u16();
            assert_eq!((body, answer.error().0), (403, "PERMISSION_DENIED"), "{}", answer.text);
            assert!(
                answer.error().1.contains("\"nobody\"") && answer.text.contains("operator"),
                "{}",
                answer.text
            );
        }
    }
    for reason in ["", "  ", "two\nlines"] {
        let body = serde_json::json!({ "reason": reason }).to_string();
        assert_eq!(door.ask("POST", "/v1/nodes/n1/drain", &body).await.status.as_u16(), 400, "{reason:?}");
    }
    let drained = door.ask("POST", "/v1/nodes/n1/drain", drain).await;
    assert_eq!(drained.json["nodes"][0]["drain"], "drained", "{}", drained.text);
    assert_eq!(drained.json["nodes"][0]["holds"][0]["reason"], "new fan");
    let resumed = door.ask("POST", "/v1/nodes/n1/resume", "").await;
    assert_eq!(resumed.json["nodes"][0]["eligible"], true, "{}", resumed.text);
    let missing = door.ask("POST", "/v1/nodes/n2/drain", drain).await;
    assert_eq!((missing.status.as_u16(), missing.error().0), (404, "NOT_FOUND"));
}
