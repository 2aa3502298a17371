use super::*;
use crate::store::act::{Acted, cancel, hold, release, requeue};
use crate::store::node::{Terms, Told, target};

use proto::ErrorCode;
use proto::api::{ActOutcome, CancelRequest};
use proto::session::Limit;

const TERMS: Terms<'static> = Terms { cluster: "test", grace_s: 30 };

fn ids(ids: &[&str]) -> CancelRequest {
    CancelRequest { ids: ids.iter().map(|id| (*id).to_owned()).collect(), ..CancelRequest::default() }
}

fn outcomes(acted: &Acted) -> Vec<ActOutcome> {
    acted.results.results.iter().map(|r| r.outcome).collect()
}

fn code(acted: &Acted) -> ErrorCode {
    acted.results.results[0].error.as_ref().expect("an error").code
}

#[sqlx::test(migrations = "../migrations")]
async fn cancelling_a_pending_job_ends_it_and_cancelling_it_again_is_no_error(db: PgPool) {
    with_pool(&db).await;
    let id = submit_one(&db, job("a")).await;
    let acted = cancel(&db, &caller("alice"), &ids(&[&id.to_string()])).await.unwrap();
    assert_eq!((outcomes(&acted), acted.ended), (vec![ActOutcome::Done], vec![id]));
    assert_eq!(job_row(&db, id).await.0, "cancelled");
    let again = cancel(&db, &caller("alice"), &ids(&[&id.to_string()])).await.unwrap();
    assert_eq!(outcomes(&again), [ActOutcome::Already]);
}

#[sqlx::test(migrations = "../migrations")]
async fn another_users_job_and_an_unknown_one_are_refused(db: PgPool) {
    with_pool(&db).await;
    let id = submit_one(&db, job("a")).await.to_string();
    assert_eq!(code(&cancel(&db, &caller("bob"), &ids(&[&id])).await.unwrap()), ErrorCode::PermissionDenied);
    assert_eq!(code(&cancel(&db, &caller("alice"), &ids(&["999"])).await.unwrap()), ErrorCode::NotFound);
    assert_eq!(code(&cancel(&db, &caller("alice"), &ids(&["x"])).await.unwrap()), ErrorCode::InvalidArgument);
    assert_eq!(outcomes(&cancel(&db, &caller("root"), &ids(&[&id])).await.unwrap()), [ActOutcome::Done]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_filter_touches_the_callers_own_jobs_only(db: PgPool) {
    with_pool(&db).await;
    let alices = submit_one(&db, job("a")).await;
    let bobs = submit(&db, "bob", vec![job("b")]).await.remove(0).unwrap().id;
    let by_name = CancelRequest { name: Some("test".into()), ..CancelRequest::default() };
    cancel(&db, &caller("bob"), &by_name).await.unwrap();
    assert_eq!(job_row(&db, alices).await.0, "pending");
    assert_eq!(job_row(&db, bobs).await.0, "cancelled");
    let alices_by_bob = CancelRequest { user: Some("alice".into()), ..CancelRequest::default() };
    assert!(cancel(&db, &caller("bob"), &alices_by_bob).await.is_err());
    assert!(
        cancel(&db, &caller("bob"), &CancelRequest::default()).await.is_err(),
        "nothing named is an error"
    );
}

#[sqlx::test(migrations = "../migrations")]
async fn ids_and_filters_together_must_both_match(db: PgPool) {
    with_pool(&db).await;
    let id = submit_one(&db, job("a")).await;
    let other_name = CancelRequest { name: Some("other".into()), ..ids(&[&id.to_string()]) };
    assert_eq!(code(&cancel(&db, &caller("alice"), &other_name).await.unwrap()), ErrorCode::NotFound);
    assert_eq!(job_row(&db, id).await.0, "pending");
    let its_name = CancelRequest { name: Some("test".into()), ..ids(&[&id.to_string()]) };
    assert_eq!(outcomes(&cancel(&db, &caller("alice"), &its_name).await.unwrap()), [ActOutcome::Done]);
}

#[sqlx::test(migrations = "../migrations")]
async fn tasks_of_an_array_are_cancelled_one_by_one_and_its_range_shrinks(db: PgPool) {
    with_pool(&db).await;
    let id = submit_one(&db, array("a", "60-98", None)).await;
    let acted =
        cancel(&db, &caller("alice"), &ids(&[&format!("{id}_90"), &format!("{id}_[95,200]")])).await.unwrap();
    assert_eq!(outcomes(&acted), [ActOutcome::Done, ActOutcome::Error]);
    assert_eq!(job_row(&db, id).await.2.to_string(), "60-89,91-98");
}

#[sqlx::test(migrations = "../migrations")]
async fn a_running_job_is_told_to_stop_and_ends_when_its_node_says_so(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    let id = submit_one(&db, job("a")).await;
    place(&db).await;
    let allocation = live(&db).await[0];
    let mut told = Told::default();
    assert_eq!(target(&db, session, &mut told, true, TERMS).await.unwrap().unwrap().run.len(), 1);
    report(&db, vec![started(session, allocation)]).await;
    let acted = cancel(&db, &caller("alice"), &ids(&[&id.to_string()])).await.unwrap();
    assert_eq!((acted.nodes, acted.ended.len()), (vec![session.node_id], 0));
    assert_eq!(job_row(&db, id).await.0, "running");
    let change = target(&db, session, &mut told, false, TERMS).await.unwrap().unwrap();
    assert_eq!((change.run.len(), change.stop[0].allocation_id), (0, allocation));
    assert_eq!(change.stop[0].banner, "CANCELLED BY alice");
    assert!(target(&db, session, &mut told, false, TERMS).await.unwrap().is_none(), "told once");
    report(&db, vec![ended(session, allocation, EndCause::Stopped, None)]).await;
    assert_eq!(job_row(&db, id).await.0, "cancelled");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_new_session_keeps_what_runs_launches_what_did_not_start_and_repeats_stops(db: PgPool) {
    with_pool(&db).await;
    let first = node(&db, "n1", 4, 0).await;
    let ids: Vec<i64> = [submit_one(&db, job("a")).await, submit_one(&db, job("b")).await].into();
    place(&db).await;
    let allocations = live(&db).await;
    report(&db, vec![started(first, allocations[0])]).await;
    cancel(&db, &caller("alice"), &super::users_acts::ids(&[&ids[0].to_string()])).await.unwrap();
    let second = node(&db, "n1", 4, 0).await;
    let whole = target(&db, second, &mut Told::default(), true, TERMS).await.unwrap().unwrap();
    assert!(whole.full);
    assert_eq!(whole.keep, [allocations[0]]);
    assert_eq!(whole.run.iter().map(|a| a.allocation_id).collect::<Vec<_>>(), [allocations[1]]);
    assert_eq!(whole.stop.iter().map(|s| s.allocation_id).collect::<Vec<_>>(), [allocations[0]]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_running_jobs_new_time_limit_is_told_once_and_again_to_a_new_session(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    let id = submit_one(&db, job("a")).await;
    submit_one(&db, job("b")).await;
    place(&db).await;
    let allocation = live(&db).await[0];
    let mut told = Told::default();
    let whole = target(&db, session, &mut told, true, TERMS).await.unwrap().unwrap();
    assert_eq!((whole.run[0].time_limit_s, whole.limits.len()), (Some(600), 0), "the assignment says it");
    report(&db, vec![started(session, allocation)]).await;
    for time_limit_s in [Some(7200), None, Some(60)] {
        sqlx::query("UPDATE jobs SET time_limit_s = $1 WHERE id = $2")
            .bind(time_limit_s)
            .bind(id)
            .execute(&db)
            .await
            .unwrap();
        let change = target(&db, session, &mut told, false, TERMS).await.unwrap().unwrap();
        let limit =
            Limit { allocation_id: allocation, time_limit_s: time_limit_s.map(|s: i64| s.unsigned_abs()) };
        assert_eq!((change.run.len(), change.stop.len(), change.limits), (0, 0, vec![limit]));
        assert!(target(&db, session, &mut told, false, TERMS).await.unwrap().is_none(), "told once");
    }
    // A node that missed it hears it when it comes back; what did not start is assigned with it.
    let second = node(&db, "n1", 4, 0).await;
    let whole = target(&db, second, &mut Told::default(), true, TERMS).await.unwrap().unwrap();
    assert_eq!((whole.keep.len(), whole.run.len()), (1, 1));
    assert_eq!(whole.limits, [Limit { allocation_id: allocation, time_limit_s: Some(60) }]);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_held_job_waits_and_an_operators_hold_is_the_operators_to_lift(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 4, 0).await;
    let id = submit_one(&db, job("a")).await.to_string();
    let named = [id.clone()];
    hold(&db, &caller("root"), &named).await.unwrap();
    assert_eq!(place(&db).await.placed, 0);
    assert_eq!(code(&release(&db, &caller("alice"), &named).await.unwrap()), ErrorCode::PermissionDenied);
    release(&db, &caller("root"), &named).await.unwrap();
    hold(&db, &caller("alice"), &named).await.unwrap();
    let released = release(&db, &caller("alice"), &named).await.unwrap();
    assert!(released.queue_changed);
    assert_eq!(place(&db).await.placed, 1);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_requeued_running_job_ends_its_attempt_and_goes_back_to_the_queue(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    let id = submit_one(&db, job("a")).await;
    place(&db).await;
    let allocation = live(&db).await[0];
    report(&db, vec![started(session, allocation)]).await;
    requeue(&db, &caller("alice"), &[id.to_string()]).await.unwrap();
    report(&db, vec![ended(session, allocation, EndCause::Stopped, None)]).await;
    assert_eq!(job_row(&db, id).await, ("pending".into(), 0, IndexSet::one(0)));
    place(&db).await;
    let number: i32 = sqlx::query_scalar("SELECT max(number) FROM attempts").fetch_one(&db).await.unwrap();
    assert_eq!(number, 2);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn ended_and_cancelled_tasks_can_be_requeued(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 1, 0).await;
    let id = submit_one(&db, array("a", "0-1", None)).await;
    place(&db).await;
    let allocation = live(&db).await[0];
    report(&db, vec![started(session, allocation), exited(session, allocation, 1)]).await;
    cancel(&db, &caller("alice"), &ids(&[&format!("{id}_1")])).await.unwrap();
    assert_eq!(job_row(&db, id).await.0, "failed");
    requeue(&db, &caller("alice"), &[id.to_string()]).await.unwrap();
    assert_eq!(job_row(&db, id).await, ("pending".into(), 0, "0-1".parse().unwrap()));
    audit(&db).await;
}
