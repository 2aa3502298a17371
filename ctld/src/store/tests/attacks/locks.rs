//! The order of locks: very different transactions over the same rows, again and again at once, and never a deadlock.

use super::super::super::act::cancel;
use super::super::super::extend::extend;
use super::super::super::holds::{put, resume};
use super::super::super::overrun::extend_overdue;
use super::*;
use proto::api::{CancelRequest, ExtendRequest};

/// How often they meet. Each meeting is another interleaving.
const MEETINGS: usize = 40;

async fn deadlocks(db: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        .fetch_one(db)
        .await
        .unwrap()
}

#[sqlx::test(migrations = "../migrations")]
async fn placing_releasing_reserving_draining_and_ending_never_deadlock(db: PgPool) {
    with_pool(&db).await;
    let one = node(&db, "n1", 16, 4).await;
    let two = node(&db, "n2", 16, 4).await;
    let root = caller("root");
    for n in 0..MEETINGS {
        let name = |what: &str| format!("{what}{n}");
        let running = submit_one(&db, Submission { nodes: 2, gpus: 1, ..job(&name("running")) }).await;
        place(&db).await;
        let facts: Vec<Fact> = allocations(&db, running)
            .await
            .into_iter()
            .map(|(id, node_id)| exited(if node_id == one.node_id { one } else { two }, id, 0))
            .collect();
        let waiting = submit_one(&db, Submission { nodes: 2, gpus: 1, ..job(&name("waiting")) }).await;
        let planned = plan(&db).await.placements;
        let now = ReserveRequest { cpus: 2, gpus: 1, nodes: Some(2), ..reservation(&name("r"), None, 60) };
        let old = ReserveRequest { cpus: 1, nodes: Some(2), ..reservation(&name("old"), None, 60) };
        reserve(&db, &root, &old).await.unwrap();
        let more = ExtendRequest {
            idempotency_key: name("x"),
            what: running.to_string(),
            by_s: Some(1),
            end_at: None,
        };
        let held = hold_of(["n1", "n2", "n1/0", "n2/1"][n % 4]);
        let cancels = CancelRequest { ids: vec![waiting.to_string()], ..CancelRequest::default() };
        // Which is polled first differs from meeting to meeting; from then on PostgreSQL decides.
        let (a, b, c, d, e, f, g, h) = tokio::join!(
            apply(&db, Scope::Pool, &planned, GRACE_S),
            record(&db, &facts),
            reserve(&db, &root, &now),
            put(&db, &root, &held),
            cancel_reservation(&db, &root, &old.name),
            extend(&db, &root, &more, GRACE_S),
            cancel(&db, &root, &cancels),
            extend_overdue(&db)
        );
        let faults = [
            a.err(),
            b.err(),
            c.err(),
            d.err(),
            e.err(),
            f.err(),
            g.err(),
            h.err(),
            advance(&db).await.err(),
        ];
        for fault in faults.into_iter().flatten() {
            assert!(matches!(fault, super::super::super::StoreError::Api(_)), "meeting {n}: {fault:?}");
        }
        resume(&db, &root, &resume_of(&held.target)).await.unwrap();
        finish(&db, one, two).await;
        let _ = cancel_reservation(&db, &root, &now.name).await;
        audit(&db).await;
    }
    assert_eq!(deadlocks(&db).await, 0);
}

/// The allocations of a job's live attempt, with their nodes.
async fn allocations(db: &PgPool, job: i64) -> Vec<(i64, i64)> {
    sqlx::query_as(
        "SELECT a.id, a.node_id FROM allocations a JOIN attempts t ON t.id = a.attempt_id
         WHERE t.job_id = $1 AND a.released_at IS NULL ORDER BY a.id",
    )
    .bind(job)
    .fetch_all(db)
    .await
    .unwrap()
}

/// Everything that runs ends.
async fn finish(db: &PgPool, one: Session, two: Session) {
    for id in live(db).await {
        // Only the session of its own node can say so.
        report(db, vec![exited(one, id, 0), exited(two, id, 0)]).await;
    }
}
