use super::*;
use proto::ErrorCode;

#[sqlx::test(migrations = "../migrations")]
async fn a_key_names_one_job_for_ever_and_another_body_is_a_conflict(db: PgPool) {
    with_pool(&db).await;
    let first = submit_one(&db, job("k")).await;
    let again = submit(&db, "alice", vec![job("k")]).await.remove(0).unwrap();
    assert_eq!((again.id, again.replayed), (first, true));
    let other = Submission { name: "other".into(), ..job("k") };
    let refused = submit(&db, "alice", vec![other]).await.remove(0).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains("\"k\"") && refused.message.contains(&first.to_string()));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_key_belongs_to_its_user(db: PgPool) {
    with_pool(&db).await;
    let alices = submit(&db, "alice", vec![job("k")]).await.remove(0).unwrap();
    let bobs = submit(&db, "bob", vec![job("k")]).await.remove(0).unwrap();
    assert_ne!(alices.id, bobs.id);
    assert!(!bobs.replayed);
}

#[sqlx::test(migrations = "../migrations")]
async fn the_same_key_twice_in_one_batch_is_one_job(db: PgPool) {
    with_pool(&db).await;
    let other = Submission { name: "other".into(), ..job("k") };
    let answers = submit(&db, "alice", vec![job("k"), job("k"), other, job("l")]).await;
    let ids: Vec<Option<i64>> = answers.iter().map(|a| a.as_ref().ok().map(|s| s.id)).collect();
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[2], None);
    assert!(ids[3].is_some() && ids[3] != ids[0]);
    let jobs: i64 = sqlx::query_scalar("SELECT count(*) FROM jobs").fetch_one(&db).await.unwrap();
    assert_eq!(jobs, 2);
}

#[sqlx::test(migrations = "../migrations")]
async fn concurrent_batches_with_the_same_keys_in_opposite_order_neither_deadlock_nor_double(db: PgPool) {
    with_pool(&db).await;
    let keys: Vec<String> = (0..50).map(|i| format!("k{i}")).collect();
    let forward: Vec<Submission> = keys.iter().map(|k| job(k)).collect();
    let backward: Vec<Submission> = keys.iter().rev().map(|k| job(k)).collect();
    let (a, b) = tokio::join!(submit(&db, "alice", forward), submit(&db, "alice", backward));
    let ids = |answers: Vec<Result<Submitted, ApiError>>| -> Vec<i64> {
        answers.into_iter().map(|a| a.unwrap().id).collect()
    };
    let (a, mut b) = (ids(a), ids(b));
    b.reverse();
    assert_eq!(a, b);
}

#[sqlx::test(migrations = "../migrations")]
async fn an_array_of_a_million_is_one_row(db: PgPool) {
    with_pool(&db).await;
    let id = submit_one(&db, array("k", "0-999999", None)).await;
    assert_eq!(job_row(&db, id).await.2.len(), 1_000_000);
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM jobs").fetch_one(&db).await.unwrap();
    assert_eq!(rows, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn disk_is_kept_of_a_job_and_of_a_node(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 4, 0).await;
    let id = submit_one(&db, Submission { disk_mib: 700, ..job("a") }).await;
    let disk: i64 =
        sqlx::query_scalar("SELECT disk_mib FROM jobs WHERE id = $1").bind(id).fetch_one(&db).await.unwrap();
    let listed = crate::store::read::jobs_of(&db, &id.to_string().parse().unwrap()).await.unwrap().jobs;
    assert_eq!((disk, listed[0].disk_mib), (700, 700));
    let node = crate::store::read::node(&db, "n1").await.unwrap().nodes.remove(0);
    assert_eq!((node.disk_mib, node.disk_booked_mib), (10_000, 0));
}

/// What the server lacks passes: the client is told to try again, and nothing of ours is at fault.
#[sqlx::test(migrations = "../migrations")]
async fn a_full_disk_is_try_again_later_and_no_fault_of_ours(db: PgPool) {
    for (code, passes) in [("53100", true), ("53200", true), ("57P03", true), ("22012", false)] {
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$");
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(raise)).execute(&db).await.unwrap_err();
        let error = crate::store::StoreError::from(error);
        assert_eq!(error.transient(), passes, "{code}");
        let expected = if passes { proto::ErrorCode::Unavailable } else { proto::ErrorCode::Internal };
        assert_eq!(ApiError::from(error).code, expected, "{code}");
    }
}
