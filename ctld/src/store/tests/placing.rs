use super::*;
use crate::store::snapshot::why;
use proto::Reason;
use std::collections::HashSet;

#[sqlx::test(migrations = "../migrations")]
async fn a_placed_job_is_booked_and_what_does_not_fit_stays_pending(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 2, 0).await;
    let ids: Vec<i64> = submit(&db, "alice", (0..3).map(|i| job(&format!("k{i}"))).collect())
        .await
        .into_iter()
        .map(|a| a.unwrap().id)
        .collect();
    assert_eq!(place(&db).await.placed, 2);
    assert_eq!(job_row(&db, ids[0]).await.0, "running");
    assert_eq!(job_row(&db, ids[2]).await.0, "pending");
    assert_eq!(plan(&db).await.waits[0].1.reason, Reason::Unschedulable);
    audit(&db).await;
}

/// Two planners that saw the same snapshot: the book decides, nothing is booked twice, the loser plans anew.
#[sqlx::test(migrations = "../migrations")]
async fn one_plan_applied_by_two_planners_at_once_books_each_task_once(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 8, 4).await;
    for i in 0..4 {
        submit_one(&db, Submission { gpus: 1, ..job(&format!("k{i}")) }).await;
    }
    let plan = plan(&db).await;
    assert_eq!(plan.placements.len(), 4);
    let (a, b) = tokio::join!(
        apply(&db, Scope::Pool, &plan.placements, 30),
        apply(&db, Scope::Pool, &plan.placements, 30)
    );
    assert_eq!(a.unwrap().placed + b.unwrap().placed, 4);
    let gpus: Vec<i64> =
        sqlx::query_scalar("SELECT gpu_id FROM device_bookings").fetch_all(&db).await.unwrap();
    assert_eq!((gpus.len(), gpus.iter().collect::<HashSet<_>>().len()), (4, 4));
    audit(&db).await;
}

/// Two jobs planned onto the same GPU, by planners that do not know of each other.
#[sqlx::test(migrations = "../migrations")]
async fn two_jobs_planned_onto_one_gpu_get_one_booking_and_one_conflict(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 8, 1).await;
    submit_one(&db, Submission { gpus: 1, ..job("a") }).await;
    let first = plan(&db).await;
    let second_job = submit_one(&db, Submission { gpus: 1, ..job("b") }).await;
    let mut second = first.placements.clone();
    second[0].job_id = second_job;
    let (a, b) =
        tokio::join!(apply(&db, Scope::Pool, &first.placements, 30), apply(&db, Scope::Pool, &second, 30));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.placed + b.placed, a.conflicts + b.conflicts), (1, 1));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_plan_over_what_the_node_has_is_cut_to_what_fits(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 2, 0).await;
    submit_one(&db, array("a", "0-3", None)).await;
    let mut placements = plan(&db).await.placements;
    let mut more = placements.clone();
    more.iter_mut().for_each(|p| p.task += 2);
    placements.extend(more);
    let applied = apply(&db, Scope::Pool, &placements, 30).await.unwrap();
    assert_eq!((applied.placed, applied.conflicts), (2, 2));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_drain_that_commits_first_is_seen_by_a_placement_planned_before_it(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 2, 0).await;
    submit_one(&db, job("a")).await;
    let plan = plan(&db).await;
    drain(&db, "root", "n1").await;
    assert_eq!(apply(&db, Scope::Pool, &plan.placements, 30).await.unwrap().placed, 0);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_throttle_holds_also_against_a_stale_plan(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 8, 0).await;
    let id = submit_one(&db, array("a", "0-9", Some(2))).await;
    let stale = plan(&db).await;
    assert_eq!(apply(&db, Scope::Pool, &stale.placements, 30).await.unwrap().placed, 2);
    let mut later = stale.placements.clone();
    later.iter_mut().for_each(|p| p.task += 5);
    assert_eq!(apply(&db, Scope::Pool, &later, 30).await.unwrap().placed, 0);
    assert_eq!(job_row(&db, id).await.1, 2);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_of_several_nodes_gets_all_of_them_or_none(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 2, 0).await;
    node(&db, "n2", 2, 0).await;
    submit_one(&db, Submission { nodes: 2, cpus: 2, ..job("a") }).await;
    submit_one(&db, Submission { nodes: 2, cpus: 1, ..job("b") }).await;
    assert_eq!(place(&db).await.placed, 1);
    assert_eq!(live(&db).await.len(), 2);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn why_tells_both_numbers_from_what_is_free_now(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 2, 0).await;
    let id = submit_one(&db, Submission { cpus: 3, ..job("a") }).await;
    let list = why(&db, &id.to_string().parse().unwrap(), 30).await.unwrap();
    let check = &list.jobs[0].reasons[0].checks[0];
    assert_eq!((check.resource.as_str(), check.asked, check.free, check.total), ("cpus", 3, 2, 2));
}

/// The constraint is the backstop: also a hand at psql cannot book what is booked.
#[sqlx::test(migrations = "../migrations")]
async fn the_book_refuses_any_second_claim_on_a_part_of_a_gpu(db: PgPool) {
    with_pool(&db).await;
    node(&db, "n1", 8, 1).await;
    submit_one(&db, Submission { gpus: 1, ..job("a") }).await;
    place(&db).await;
    let error = sqlx::query(
        "INSERT INTO device_bookings (gpu_id, span, during, allocation_id, atom, kind)
         SELECT gpu_id, int4range(2, 3), tstzrange(compute_now() + interval '1 minute', NULL), allocation_id, 'slot:2/8', 'allocation'
         FROM device_bookings",
    )
    .execute(&db)
    .await
    .unwrap_err();
    assert_eq!(error.into_database_error().unwrap().code().unwrap(), "23P01");
}
