//! Quotas: what is over one leaves nothing, what is within it is charged until it has ended, and no two controllers together
//! pass it.

use super::super::act::{cancel, requeue};
use super::super::quotas::Ask;
use super::super::reservations;
use super::*;
use proto::ErrorCode;
use proto::api::{ActOutcome, Begin, CancelRequest, Repeat, RepeatEvery, ReserveRequest};
use proto::quota::Resource;

/// Limits of tenant "default", as an administrator sets them.
pub(super) async fn limit(db: &PgPool, resource: &str, max: i64) {
    sqlx::query(
        "INSERT INTO quota_usage AS q (tenant_id, resource, max, ceiling)
         SELECT id, $1, $2, $2 FROM tenants WHERE name = 'default'
         ON CONFLICT (tenant_id, resource) DO UPDATE SET max = $2, ceiling = GREATEST($2, q.used)",
    )
    .bind(resource)
    .bind(max)
    .execute(db)
    .await
    .unwrap();
}

pub(super) async fn used(db: &PgPool, resource: &str) -> i64 {
    sqlx::query_scalar("SELECT coalesce((SELECT used FROM quota_usage WHERE resource = $1), 0)")
        .bind(resource)
        .fetch_one(db)
        .await
        .unwrap()
}

async fn cancel_ids(db: &PgPool, ids: &[&str]) {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    cancel(db, &caller("alice"), &CancelRequest { ids, ..CancelRequest::default() }).await.unwrap();
}

fn gpus(key: &str, n: u32) -> Submission {
    Submission { gpus: n, gpu_type: Some("a100-80gb".into()), ..job(key) }
}

/// How many of these were accepted; the others were over the quota.
fn accepted(answers: &[Result<Submitted, ApiError>]) -> usize {
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    refused.for_each(|error| assert_eq!(error.code, ErrorCode::QuotaExceeded, "{error}"));
    answers.iter().filter(|answer| answer.is_ok()).count()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_charge_is_held_while_pending_and_a_refusal_names_use_limit_and_what_was_asked(db: PgPool) {
    with_pool(&db).await;
    limit(&db, "gpu_units", 8 * 5040).await;
    submit_one(&db, gpus("a", 7)).await;
    let refused = submit(&db, "bob", vec![gpus("b", 2)]).await.remove(0).unwrap_err();
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    assert_eq!(refused.message, "tenant \"default\" has 7 of at most 8 gpus in use; 2 more asked");
    assert!(refused.hint.unwrap().contains("bctl quota show default"));
    submit_one(&db, gpus("b", 1)).await;
    assert_eq!(used(&db, "gpus:a100").await, 8 * 5040, "each name of the model counts");
    assert_eq!((used(&db, "jobs").await, used(&db, "cpus").await, used(&db, "mem_mib").await), (2, 2, 200));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_refusal_leaves_nothing_and_its_key_is_free(db: PgPool) {
    with_pool(&db).await;
    limit(&db, "jobs", 2).await;
    let answers = submit(&db, "alice", ["a", "b", "c", "d"].map(job).into()).await;
    assert_eq!((accepted(&answers), answers[2].is_err(), answers[3].is_err()), (2, true, true));
    let rows: (i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM job_scripts), (SELECT count(*) FROM idempotency_keys)",
    )
    .fetch_one(&db)
    .await
    .unwrap();
    assert_eq!(rows, (2, 2, 2));
    cancel_ids(&db, &["1"]).await;
    let again = submit(&db, "alice", vec![Submission { cpus: 3, ..job("c") }]).await;
    assert_eq!(accepted(&again), 1, "a key that was refused names nothing");
    audit(&db).await;
}

/// The look refuses in the order of the batch; what is locked decides in the same order.
#[sqlx::test(migrations = "../migrations")]
async fn in_a_batch_exactly_those_that_do_not_fit_are_refused(db: PgPool) {
    with_pool(&db).await;
    limit(&db, "cpus", 10).await;
    let sizes = [4, 8, 3, 2, 4, 1, 1].iter().enumerate();
    let batch = sizes.map(|(i, cpus)| Submission { cpus: *cpus, ..job(&format!("k{i}")) }).collect();
    let fits: Vec<bool> = submit(&db, "alice", batch).await.iter().map(Result::is_ok).collect();
    assert_eq!(fits, [true, false, true, true, false, true, false]);
    assert_eq!(used(&db, "cpus").await, 10);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn an_array_is_charged_for_all_its_tasks_at_once(db: PgPool) {
    with_pool(&db).await;
    limit(&db, "jobs", 1000).await;
    let answers = submit(&db, "alice", vec![array("a", "0-1000", None), array("b", "0-999", None)]).await;
    assert_eq!((accepted(&answers), answers[1].is_ok()), (1, true));
    assert_eq!(used(&db, "mem_mib").await, 100_000);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_replay_is_answered_and_not_charged_though_the_quota_is_spent(db: PgPool) {
    with_pool(&db).await;
    limit(&db, "jobs", 1).await;
    let first = submit_one(&db, job("a")).await;
    let answers = submit(&db, "alice", vec![job("b"), job("a"), job("a")]).await;
    assert!(answers[0].is_err());
    for again in &answers[1..] {
        assert_eq!(again.as_ref().map(|s| (s.id, s.replayed)), Ok((first, true)));
    }
    assert_eq!(used(&db, "jobs").await, 1);
    audit(&db).await;
}

/// Each pool is a controller of its own: nothing is shared but the database.
#[sqlx::test(migrations = "../migrations")]
async fn two_controllers_fill_a_quota_exactly_and_never_pass_it(db: PgPool) {
    with_pool(&db).await;
    limit(&db, "gpu_units", 100 * 5040).await;
    let other = PgPool::connect_with((*db.connect_options()).clone()).await.unwrap();
    let run = |db: PgPool, who: &'static str| async move {
        let mut accepted_here = 0;
        for round in 0..20 {
            let batch = (0..10).map(|i| gpus(&format!("{who}{round}.{i}"), 1 + i % 2)).collect();
            accepted_here += accepted(&submit(&db, who, batch).await);
        }
        accepted_here
    };
    let tasks = [(&db, "alice"), (&other, "bob"), (&db, "carol"), (&other, "dan")]
        .map(|(db, who)| tokio::spawn(run(db.clone(), who)));
    let mut all = 0;
    for task in tasks {
        all += task.await.unwrap();
    }
    assert!((50..=100).contains(&all), "{all}");
    assert_eq!(used(&db, "gpu_units").await, 100 * 5040, "filled to the last");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn an_end_is_refunded_once_though_it_is_reported_twice(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 2).await;
    submit_one(&db, gpus("a", 2)).await;
    place(&db).await;
    let allocation = live(&db).await[0];
    assert_eq!(used(&db, "gpu_units").await, 2 * 5040, "charged once, not again when it is placed");
    let facts = vec![started(session, allocation), exited(session, allocation, 0)];
    report(&db, facts.clone()).await;
    assert_eq!((used(&db, "gpu_units").await, used(&db, "jobs").await), (0, 0));
    submit_one(&db, gpus("b", 1)).await;
    report(&db, facts).await;
    assert_eq!(used(&db, "gpu_units").await, 5040);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_cancel_that_races_an_end_refunds_once(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    for i in 0..10 {
        let id = submit_one(&db, job(&format!("k{i}"))).await.to_string();
        place(&db).await;
        let allocation = live(&db).await[0];
        let facts = vec![started(session, allocation), exited(session, allocation, 0)];
        let ids = [id.as_str()];
        tokio::join!(
            cancel_ids(&db, &ids),
            cancel_ids(&db, &ids),
            report(&db, facts.clone()),
            report(&db, facts)
        );
        assert_eq!(used(&db, "jobs").await, 0);
    }
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn the_tasks_of_an_array_are_refunded_one_by_one(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 2, 0).await;
    let id = submit_one(&db, array("a", "0-9", None)).await;
    place(&db).await;
    cancel_ids(&db, &[&format!("{id}_[5-6]"), &format!("{id}_6"), &format!("{id}_0")]).await;
    assert_eq!(used(&db, "jobs").await, 8, "the running one that is to stop still counts");
    let running = live(&db).await;
    report(&db, vec![exited(session, running[1], 1)]).await;
    assert_eq!(used(&db, "jobs").await, 7);
    report(&db, vec![ended(session, running[0], EndCause::Stopped, None)]).await;
    assert_eq!(used(&db, "jobs").await, 6);
    cancel_ids(&db, &[&id.to_string()]).await;
    assert_eq!((used(&db, "jobs").await, used(&db, "mem_mib").await), (0, 0));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_requeue_keeps_its_charge_and_its_last_failure_gives_it_back(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    submit_one(&db, job("a")).await;
    for _ in 0..4 {
        assert_eq!(used(&db, "jobs").await, 1);
        place(&db).await;
        report(&db, vec![ended(session, live(&db).await[0], EndCause::Lost, None)]).await;
    }
    assert_eq!(used(&db, "jobs").await, 0);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn an_ended_job_that_is_requeued_is_charged_anew_or_refused(db: PgPool) {
    with_pool(&db).await;
    limit(&db, "jobs", 2).await;
    let id = submit_one(&db, array("a", "0-1", None)).await.to_string();
    cancel_ids(&db, &[&id]).await;
    let other = submit_one(&db, job("b")).await.to_string();
    let refused = requeue(&db, &caller("alice"), std::slice::from_ref(&id)).await.unwrap().results.results;
    let error = refused[0].error.as_ref().unwrap();
    assert_eq!((refused[0].outcome, error.code), (ActOutcome::Error, ErrorCode::QuotaExceeded));
    assert_eq!(error.message, "tenant \"default\" has 1 of at most 2 jobs in use; 2 more asked");
    cancel_ids(&db, &[&other]).await;
    requeue(&db, &caller("alice"), &[id.clone(), id.clone(), format!("{id}_1")]).await.unwrap();
    assert_eq!(used(&db, "jobs").await, 2);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_limit_set_below_the_use_lets_nothing_new_in_until_use_is_below_it(db: PgPool) {
    with_pool(&db).await;
    let ids: Vec<String> = submit(&db, "alice", ["a", "b", "c"].map(job).into())
        .await
        .into_iter()
        .map(|answer| answer.unwrap().id.to_string())
        .collect();
    limit(&db, "jobs", 1).await;
    for id in &ids {
        let refused = submit(&db, "alice", vec![job("d")]).await.remove(0).unwrap_err();
        assert!(refused.message.contains("of at most 1 jobs"), "{refused}");
        cancel_ids(&db, &[id]).await;
        audit(&db).await;
    }
    submit_one(&db, job("d")).await;
    assert_eq!(accepted(&submit(&db, "alice", vec![job("e")]).await), 0);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_reservation_is_charged_until_it_ends_and_jobs_inside_count_as_jobs_alone(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 8, 2).await;
    limit(&db, "gpus:a100-80gb", 3 * 5040).await;
    let request = |name: &str, gpus, times| ReserveRequest {
        idempotency_key: name.into(),
        name: name.into(),
        begin: Some(Begin::AfterS(3600)),
        duration_s: Some(3600),
        cpus: 4,
        gpus,
        repeat: Some(Repeat { every: RepeatEvery::Day, times }),
        ..ReserveRequest::default()
    };
    let refused = reservations::reserve(&db, &caller("alice"), &request("r", 1, 4)).await.unwrap_err();
    let refused = ApiError::from(refused);
    assert_eq!(refused.code, ErrorCode::QuotaExceeded);
    assert!(refused.message.ends_with("0 of at most 3 gpus:a100-80gb in use; 4 more asked"), "{refused}");
    for _ in 0..2 {
        reservations::reserve(&db, &caller("alice"), &request("r", 1, 3)).await.unwrap();
        assert_eq!(
            (used(&db, "gpus:a100").await, used(&db, "cpus").await, used(&db, "jobs").await),
            (3 * 5040, 12, 0)
        );
    }
    audit(&db).await;
    let inside = reservations::admit(&db, &caller("alice"), None, "r").await.unwrap().id;
    let pools = rules(&db).await.unwrap();
    let submission = gpus("a", 1);
    let prepared = Prepared {
        tenant_id: tenant_id(&db, "default").await.unwrap().unwrap(),
        user: "alice".into(),
        uid: 1000,
        gid: 1000,
        admitted: admit(&submission, &pools, false).unwrap(),
        reservation_id: Some(inside),
        submission,
    };
    commit(&db, &[prepared]).await.unwrap().remove(0).unwrap();
    assert_eq!((used(&db, "gpu_units").await, used(&db, "jobs").await), (3 * 5040, 1));
    audit(&db).await;
    reservations::cancel(&db, &caller("alice"), "r").await.unwrap();
    assert_eq!((used(&db, "gpu_units").await, used(&db, "cpus").await, used(&db, "jobs").await), (0, 0, 1));
    audit(&db).await;
}

/// Whatever the code does, the table takes no use beyond the ceiling.
#[sqlx::test(migrations = "../migrations")]
async fn the_check_stands_behind_the_guarded_update(db: PgPool) {
    with_pool(&db).await;
    limit(&db, "jobs", 1).await;
    for wrong in [
        "UPDATE quota_usage SET used = used + 2 WHERE resource = 'jobs'",
        "UPDATE quota_usage SET used = used - 1 WHERE resource = 'jobs'",
        "UPDATE quota_usage SET ceiling = 0 WHERE resource = 'jobs'",
    ] {
        let error = sqlx::query(wrong).execute(&db).await.unwrap_err();
        assert_eq!(error.into_database_error().unwrap().code().unwrap(), "23514", "{wrong}");
    }
}

/// What the rows of `quota_usage` are for: without a row that both must change, neither isolation level keeps two who read the
/// same use from passing the limit together. Should this test fail, those above prove nothing.
#[sqlx::test(migrations = "../migrations")]
async fn charges_that_only_read_and_compare_pass_the_limit(db: PgPool) {
    sqlx::raw_sql("CREATE TABLE naive (gpus int NOT NULL)").execute(&db).await.unwrap();
    for level in ["READ COMMITTED", "REPEATABLE READ"] {
        sqlx::raw_sql("TRUNCATE naive").execute(&db).await.unwrap();
        let mut open = Vec::new();
        for _ in 0..2 {
            let mut tx = db.begin().await.unwrap();
            let set = format!("SET TRANSACTION ISOLATION LEVEL {level}");
            sqlx::query(sqlx::AssertSqlSafe(set)).execute(&mut *tx).await.unwrap();
            let used: i64 = sqlx::query_scalar("SELECT coalesce(sum(gpus), 0) FROM naive")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            open.push((tx, used));
        }
        for (mut tx, used) in open {
            assert!(used + 6 <= 8, "each alone fits");
            sqlx::query("INSERT INTO naive VALUES (6)").execute(&mut *tx).await.unwrap();
            tx.commit().await.unwrap();
        }
        let sold: i64 = sqlx::query_scalar("SELECT sum(gpus) FROM naive").fetch_one(&db).await.unwrap();
        assert_eq!(sold, 12, "{level}: two sixes out of eight");
    }
}

/// A charge that waits for a refund is judged and written by what the refund left, not by what stood before the wait.
#[sqlx::test(migrations = "../migrations")]
async fn a_charge_that_waits_for_a_refund_gets_what_that_gave_back(db: PgPool) {
    with_pool(&db).await;
    limit(&db, "jobs", 1).await;
    submit_one(&db, job("first")).await;
    let mut refund = db.begin().await.unwrap();
    sqlx::query("UPDATE quota_usage SET used = 0 WHERE resource = 'jobs'")
        .execute(&mut *refund)
        .await
        .unwrap();
    let other = db.clone();
    let charge = tokio::spawn(async move {
        let charge = [(Resource::Jobs, 1)].into_iter().collect();
        let mut tx = other.begin().await.unwrap();
        let answers =
            crate::store::quotas::charge(&mut tx, &[Ask { tenant_id: 1, charge: &charge }]).await.unwrap();
        tx.commit().await.unwrap();
        answers
    });
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
    while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&db).await.unwrap() {
        tokio::task::yield_now().await;
    }
    refund.commit().await.unwrap();
    assert_eq!(charge.await.unwrap(), [Ok(())]);
    assert_eq!(used(&db, "jobs").await, 1);
}

/// The new row is written from the locked one whole: half of it from before the wait would meet the CHECK.
#[sqlx::test(migrations = "../migrations")]
async fn a_refund_and_a_charge_that_wait_for_a_new_limit_are_written_under_it(db: PgPool) {
    with_pool(&db).await;
    submit_one(&db, job("first")).await;
    for (amount, set) in
        [(1, "max = 5, ceiling = 5"), (-1, "max = NULL, ceiling = NULL"), (0, "max = 3, ceiling = 3")]
    {
        let mut limit = db.begin().await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("UPDATE quota_usage SET {set} WHERE resource = 'jobs'")))
            .execute(&mut *limit)
            .await
            .unwrap();
        let other = db.clone();
        let waiting = tokio::spawn(async move {
            let one: ctld_core::quota::Charge = [(Resource::Jobs, 1)].into_iter().collect();
            let mut tx = other.begin().await.unwrap();
            if amount > 0 {
                crate::store::quotas::refund(&mut tx, &[(1, one)]).await.unwrap();
            } else {
                let asks = [Ask { tenant_id: 1, charge: &one }];
                assert_eq!(crate::store::quotas::charge(&mut tx, &asks).await.unwrap(), [Ok(())]);
            }
            tx.commit().await.unwrap();
        });
        let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
        while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&db).await.unwrap() {
            tokio::task::yield_now().await;
        }
        limit.commit().await.unwrap();
        waiting.await.unwrap();
    }
    assert_eq!(used(&db, "jobs").await, 2);
}
