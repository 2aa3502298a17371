//! Keys used twice, for the same, for another thing, and at once.

use super::super::super::extend::extend;
use super::*;
use proto::api::ExtendRequest;

#[sqlx::test(migrations = "../migrations")]
async fn a_key_that_names_one_operation_names_no_other_kind(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 8, 0).await;
    let alice = caller("alice");
    let id = submit_one(&db, job("key")).await;
    place(&db).await;
    let request = ReserveRequest { cpus: 1, ..reservation("key", None, 60) };
    let error = ApiError::from(reserve(&db, &alice, &request).await.unwrap_err());
    assert_eq!(error.code, ErrorCode::Conflict);
    let more =
        ExtendRequest { idempotency_key: "key".into(), what: id.to_string(), by_s: Some(60), end_at: None };
    let error = ApiError::from(extend(&db, &alice, &more, GRACE_S).await.unwrap_err());
    assert_eq!(error.code, ErrorCode::Conflict);
    reserve(&db, &alice, &ReserveRequest { idempotency_key: "r".into(), ..request }).await.unwrap();
    let error = submit(&db, "alice", vec![job("r")]).await.remove(0).unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn the_same_asked_for_many_times_at_once_is_done_once(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 8, 0).await;
    let (alice, request) = (caller("alice"), ReserveRequest { cpus: 1, ..reservation("r", None, 60) });
    let asked = (0..8).map(|_| reserve(&db, &alice, &request));
    let ids: Vec<i64> = futures_util::future::join_all(asked)
        .await
        .into_iter()
        .map(|answer| answer.unwrap().reservations[0].id)
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let id = submit_one(&db, job("a")).await;
    place(&db).await;
    let (what, by_s) = (id.to_string(), Some(60));
    let more = ExtendRequest { idempotency_key: "more".into(), what, by_s, end_at: None };
    let asked = (0..8).map(|_| extend(&db, &alice, &more, GRACE_S));
    for answer in futures_util::future::join_all(asked).await {
        assert_eq!(answer.unwrap().extended.time_limit_s, Some(660), "once");
    }
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM reservations").fetch_one(&db).await.unwrap();
    assert_eq!(count, 1);
    audit(&db).await;
}
