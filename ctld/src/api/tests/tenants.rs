//! Tenants and quotas: operators set them, a caller's tenant is charged from the next request on, and others see their own.

use super::door::{Door, can_be_nobody, own_name, submission};
use serde_json::json;
use sqlx::PgPool;

async fn with_tenant(db: PgPool) -> Door {
    let door = Door::open(db).await;
    let made = door.ask("POST", "/v1/tenants", r#"{"name": "physics"}"#).await;
    assert_eq!(made.status.as_u16(), 201, "{}", made.text);
    door
}

#[sqlx::test(migrations = "../migrations")]
async fn who_is_moved_is_charged_in_the_new_tenant_from_the_next_request_on(db: PgPool) {
    let door = with_tenant(db).await;
    let submit =
        async |key: &str| door.ask("POST", "/v1/jobs", &submission(json!({ "idempotency_key": key }))).await;
    assert_eq!(submit("a").await.status.as_u16(), 201);
    let users = json!({ "add": [own_name()] }).to_string();
    let moved = door.ask("POST", "/v1/tenants/physics/users", &users).await;
    assert_eq!(moved.json["tenants"][0]["users"], json!([own_name()]), "{}", moved.text);
    let max = r#"{"max": {"jobs": 1, "mem": 65536, "gpus:A100": 5040}}"#;
    let set = door.ask("POST", "/v1/tenants/physics/quota", max).await;
    let jobs = json!({ "tenant": "physics", "resource": "jobs", "unit": "1", "used": 0, "max": 1 });
    assert_eq!((&set.json["quotas"][0], &set.json["quotas"][2]["resource"]), (&jobs, &json!("gpus:a100")));
    assert_eq!(submit("b").await.status.as_u16(), 201);
    let refused = submit("c").await;
    assert_eq!((refused.status.as_u16(), refused.error().0), (409, "QUOTA_EXCEEDED"));
    assert_eq!(refused.error().1, "tenant \"physics\" has 1 of at most 1 jobs in use; 1 more asked");
    let none = r#"{"max": {"jobs": null}}"#;
    assert_eq!(door.ask("POST", "/v1/tenants/physics/quota", none).await.status.as_u16(), 200);
    assert_eq!(submit("c").await.status.as_u16(), 201);
    let all = door.get("/v1/quotas").await;
    let of_jobs = |tenant: &str| {
        let quotas = all.json["quotas"].as_array().unwrap().iter();
        quotas.filter(|q| q["tenant"] == tenant && q["resource"] == "jobs").map(|q| q["used"].clone()).next()
    };
    assert_eq!((of_jobs("default"), of_jobs("physics")), (Some(json!(1)), Some(json!(2))));
    let out = json!({ "remove": [own_name()] }).to_string();
    assert_eq!(door.ask("POST", "/v1/tenants/physics/users", &out).await.status.as_u16(), 200);
    let again = door.ask("POST", "/v1/tenants/physics/users", &out).await;
    assert_eq!((again.status.as_u16(), again.error().0), (404, "NOT_FOUND"));
}

#[sqlx::test(migrations = "../migrations")]
async fn what_cannot_be_set_is_refused_by_name(db: PgPool) {
    let door = with_tenant(db).await;
    for (path, body, status, said) in [
        ("/v1/tenants", r#"{"name": "a b"}"#, 400, "a b"),
        ("/v1/tenants/chemistry/users", r#"{"add": ["x"]}"#, 404, "chemistry"),
        ("/v1/tenants/physics/users", r#"{"add": [""]}"#, 400, "user's name"),
        ("/v1/tenants/chemistry/quota", r#"{"max": {"jobs": 1}}"#, 404, "chemistry"),
        ("/v1/tenants/physics/quota", r#"{"max": {"gpuz": 1}}"#, 400, "gpuz"),
        (
            "/v1/tenants/physics/quota",
            r#"{"max": {"jobs": 9223372036854775808}}"#,
            400,
            "9223372036854775808",
        ),
        ("/v1/tenants/physics/quota", r#"{"max": {"gpus:a": 1, "gpus:A": 2}}"#, 400, "twice"),
    ] {
        let answer = door.ask("POST", path, body).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {body}: {}", answer.text);
        assert!(answer.text.contains(said), "{}", answer.text);
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn others_see_their_own_tenant_and_change_none(db: PgPool) {
    if !can_be_nobody() {
        return;
    }
    let door = with_tenant(db).await;
    let listed = door.ask_as_nobody("GET", "/v1/tenants", "").await;
    assert_eq!(listed.json["tenants"], json!([{ "name": "default", "users": [] }]));
    for (method, path, body) in [
        ("GET", "/v1/tenants/physics", ""),
        ("GET", "/v1/tenants/physics/quota", ""),
        ("POST", "/v1/tenants", r#"{"name": "mine"}"#),
        ("POST", "/v1/tenants/default/users", r#"{"add": ["nobody"]}"#),
        ("POST", "/v1/tenants/default/quota", r#"{"max": {"jobs": null}}"#),
    ] {
        let answer = door.ask_as_nobody(method, path, body).await;
        assert_eq!((answer.status.as_u16(), answer.error().0), (403, "PERMISSION_DENIED"), "{path}");
    }
    assert_eq!(door.ask_as_nobody("GET", "/v1/tenants/default/quota", "").await.status.as_u16(), 200);
}
