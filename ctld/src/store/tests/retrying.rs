//! Failures that may be a node's: tried again, within a limit and away from it; and nodes that fail what others run are held.

use super::*;
use crate::store::act::requeue;
use crate::store::holds::hold_suspects;
use crate::store::{holds, read};
use proto::HoldKind;

/// Two nodes, as sessions, of which the first is filled first.
async fn two_nodes(db: &PgPool) -> (Session, Session) {
    with_pool(db).await;
    (node(db, "n1", 4, 0).await, node(db, "n2", 8, 0).await)
}

/// The node of the newest live allocation.
async fn on(db: &PgPool) -> (i64, String) {
    let row: (i64, String) = sqlx::query_as(
        "SELECT a.id, n.name FROM allocations a JOIN nodes n ON n.id = a.node_id WHERE released_at IS NULL ORDER BY a.id DESC LIMIT 1",
    )
    .fetch_one(db)
    .await
    .unwrap();
    row
}

/// It cannot be launched where it is. Its state then.
async fn fails(db: &PgPool, session: Session, job_id: i64) -> String {
    let (allocation, _) = on(db).await;
    report(db, vec![ended(session, allocation, EndCause::LaunchFailed, None)]).await;
    job_row(db, job_id).await.0
}

fn not_started(mut fact: Fact) -> Fact {
    if let Event::Ended(ended) = &mut fact.event {
        ended.started_age_us = None;
        ended.message = Some("chdir \"/scratch\": no such file or directory".into());
    }
    fact
}

#[sqlx::test(migrations = "../migrations")]
async fn a_launch_that_fails_is_tried_on_another_node_and_then_has_failed(db: PgPool) {
    let (first, second) = two_nodes(&db).await;
    let third = node(&db, "n3", 16, 0).await;
    let id = submit_one(&db, job("k")).await;
    for (session, name, state) in
        [(first, "n1", "pending"), (second, "n2", "pending"), (third, "n3", "failed")]
    {
        assert_eq!(place(&db).await.placed, 1);
        assert_eq!(on(&db).await.1, name, "never where it failed before");
        assert_eq!(fails(&db, session, id).await, state, "{name}");
        audit(&db).await;
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn where_there_is_no_other_node_a_failed_launch_is_the_end(db: PgPool) {
    let (first, second) = two_nodes(&db).await;
    // The other is too small for it.
    let id = submit_one(&db, Submission { cpus: 8, ..job("k") }).await;
    place(&db).await;
    assert_eq!(on(&db).await.1, "n2");
    assert_eq!(fails(&db, second, id).await, "failed");
    // It may not be started again.
    let id = submit_one(&db, Submission { requeue: false, ..job("l") }).await;
    place(&db).await;
    assert_eq!(fails(&db, first, id).await, "failed");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_whose_node_failed_goes_elsewhere_where_it_can_and_back_where_it_cannot(db: PgPool) {
    let (first, second) = two_nodes(&db).await;
    let id = submit_one(&db, job("k")).await;
    place(&db).await;
    report(&db, vec![ended(first, on(&db).await.0, EndCause::Rebooted, None)]).await;
    place(&db).await;
    assert_eq!(on(&db).await.1, "n2");
    // Both have failed now: there is nowhere else, so it may go where it failed last.
    report(&db, vec![ended(second, on(&db).await.0, EndCause::Rebooted, None)]).await;
    place(&db).await;
    assert_eq!(on(&db).await.1, "n2");
    assert_eq!(job_row(&db, id).await.0, "running");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn who_sends_a_job_back_sends_it_anywhere(db: PgPool) {
    let (first, second) = two_nodes(&db).await;
    let id = submit_one(&db, job("k")).await;
    place(&db).await;
    fails(&db, first, id).await;
    place(&db).await;
    report(&db, vec![exited(second, on(&db).await.0, 1)]).await;
    requeue(&db, &caller("alice"), &[id.to_string()]).await.unwrap();
    place(&db).await;
    assert_eq!(on(&db).await.1, "n1");
}

/// Fails a job's launch on n1 and starts it on n2.
async fn runs_elsewhere(db: &PgPool, first: Session, second: Session, key: &str) {
    let id = submit_one(db, job(key)).await;
    place(db).await;
    let (allocation, name) = on(db).await;
    assert_eq!(name, "n1");
    report(db, vec![not_started(ended(first, allocation, EndCause::LaunchFailed, None))]).await;
    assert_eq!(job_row(db, id).await.0, "pending");
    place(db).await;
    let (allocation, _) = on(db).await;
    report(db, vec![started(second, allocation), exited(second, allocation, 0)]).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_fails_what_others_launch_is_held_with_the_evidence(db: PgPool) {
    let (first, second) = two_nodes(&db).await;
    for key in ["a", "b"] {
        runs_elsewhere(&db, first, second, key).await;
        assert!(hold_suspects(&db).await.unwrap().is_empty(), "one or two may have other causes");
    }
    runs_elsewhere(&db, first, second, "c").await;
    let held = hold_suspects(&db).await.unwrap();
    assert_eq!(held[0].0, "n1");
    assert!(
        held[0].1.starts_with("3 jobs could not be launched here and then started elsewhere: job 1: chdir")
    );
    assert!(hold_suspects(&db).await.unwrap().is_empty(), "once");
    let n1 = read::node(&db, "n1").await.unwrap().nodes.remove(0);
    assert!(!n1.eligible);
    assert_eq!((n1.holds[0].kind, n1.holds[0].owner.as_str()), (HoldKind::Quarantine, "launch-failures"));
    // Somebody mends it: what was before does not count again, what comes after does.
    let lift = ResumeRequest { owner: Some("launch-failures".into()), ..resume_of("n1") };
    holds::resume(&db, &caller("root"), &lift).await.unwrap();
    assert!(hold_suspects(&db).await.unwrap().is_empty());
    for key in ["d", "e", "f"] {
        runs_elsewhere(&db, first, second, key).await;
    }
    assert_eq!(hold_suspects(&db).await.unwrap().len(), 1);
    audit(&db).await;
}

/// The forbidden history: a hundred bad scripts, which fail wherever they go, empty the pool.
#[sqlx::test(migrations = "../migrations")]
async fn bad_scripts_never_empty_a_pool(db: PgPool) {
    let (first, second) = two_nodes(&db).await;
    for n in 0..8 {
        let id = submit_one(&db, job(&format!("k{n}"))).await;
        place(&db).await;
        assert_eq!(fails(&db, first, id).await, "pending");
        place(&db).await;
        assert_eq!(fails(&db, second, id).await, "failed", "there is no third node");
    }
    assert!(hold_suspects(&db).await.unwrap().is_empty());
    audit(&db).await;
}
