use super::*;
use proto::State;

async fn one_running(db: &PgPool, job: Submission) -> (Session, i64, i64) {
    with_pool(db).await;
    let session = node(db, "n1", 4, 2).await;
    let id = submit_one(db, job).await;
    place(db).await;
    let allocation = live(db).await[0];
    report(db, vec![started(session, allocation)]).await;
    (session, id, allocation)
}

#[sqlx::test(migrations = "../migrations")]
async fn an_end_releases_everything_at_once_and_moves_the_bookings_to_history(db: PgPool) {
    let (session, id, allocation) = one_running(&db, Submission { gpus: 1, ..job("a") }).await;
    let recorded = report(&db, vec![exited(session, allocation, 3)]).await;
    assert_eq!(recorded.ended_jobs, [id]);
    assert!(recorded.released);
    assert_eq!(job_row(&db, id).await.0, "failed");
    let past: (i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM device_bookings_history), (SELECT count(*) FROM node_bookings_history)",
    )
    .fetch_one(&db)
    .await
    .unwrap();
    assert_eq!(past, (1, 1));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_report_that_comes_twice_changes_nothing_the_second_time(db: PgPool) {
    let (session, id, allocation) = one_running(&db, job("a")).await;
    let facts = vec![started(session, allocation), exited(session, allocation, 0)];
    report(&db, facts.clone()).await;
    let again = report(&db, facts).await;
    assert_eq!((again.applied, again.released), (0, false));
    assert_eq!(job_row(&db, id).await.0, "completed");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn start_and_end_in_one_report_leave_a_true_attempt(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    submit_one(&db, job("a")).await;
    place(&db).await;
    let allocation = live(&db).await[0];
    report(&db, vec![started(session, allocation), exited(session, allocation, 7)]).await;
    let row: (String, i32, bool, Vec<String>) =
        sqlx::query_as("SELECT state, exit_code, started_at <= ended_at, paths FROM attempts")
            .fetch_one(&db)
            .await
            .unwrap();
    assert_eq!(row, ("failed".into(), 7, true, vec!["/o".into(), "/e".into(), "/dev/null".into()]));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_superseded_session_cannot_report(db: PgPool) {
    let (old, id, allocation) = one_running(&db, job("a")).await;
    let new = node(&db, "n1", 4, 2).await;
    assert!(new.epoch > old.epoch);
    let recorded = report(&db, vec![exited(old, allocation, 0)]).await;
    assert_eq!(recorded.superseded, [(old.node_id, old.epoch)]);
    assert_eq!(job_row(&db, id).await.0, "running");
    report(&db, vec![exited(new, allocation, 0)]).await;
    assert_eq!(job_row(&db, id).await.0, "completed");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_cannot_report_another_nodes_allocation(db: PgPool) {
    let (_, id, allocation) = one_running(&db, job("a")).await;
    let other = node(&db, "n2", 4, 0).await;
    report(&db, vec![exited(other, allocation, 0)]).await;
    assert_eq!(job_row(&db, id).await.0, "running");
}

#[sqlx::test(migrations = "../migrations")]
async fn an_arrays_end_is_the_worst_of_its_tasks(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    let id = submit_one(&db, array("a", "1-3", None)).await;
    assert_eq!(place(&db).await.placed, 3);
    for (n, allocation) in live(&db).await.into_iter().enumerate() {
        assert!(job_row(&db, id).await.0.parse::<State>().is_ok_and(|s| !s.terminal()));
        report(&db, vec![started(session, allocation), exited(session, allocation, i32::from(n == 1))]).await;
    }
    assert_eq!(job_row(&db, id).await.0, "failed");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn the_script_s_end_stops_the_job_s_other_nodes_and_the_job_ends_with_the_last(db: PgPool) {
    with_pool(&db).await;
    let sessions = [node(&db, "n1", 2, 0).await, node(&db, "n2", 2, 0).await];
    let id = submit_one(&db, Submission { nodes: 2, cpus: 2, ..job("a") }).await;
    place(&db).await;
    let rows: Vec<(i64, i64)> =
        sqlx::query_as("SELECT id, node_id FROM allocations ORDER BY position").fetch_all(&db).await.unwrap();
    let session_of = |node: i64| *sessions.iter().find(|s| s.node_id == node).unwrap();
    let (script, member) = (rows[0], rows[1]);
    report(&db, vec![started(session_of(script.1), script.0), started(session_of(member.1), member.0)]).await;
    let recorded = report(&db, vec![exited(session_of(script.1), script.0, 0)]).await;
    assert_eq!(recorded.nodes, [member.1], "the other node has something to stop");
    assert_eq!(job_row(&db, id).await.0, "running");
    report(&db, vec![ended(session_of(member.1), member.0, EndCause::Stopped, None)]).await;
    assert_eq!(job_row(&db, id).await.0, "completed");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_never_started_has_no_start(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 4, 0).await;
    let id = submit_one(&db, job("a")).await;
    place(&db).await;
    let mut fact = ended(session, live(&db).await[0], EndCause::LaunchFailed, None);
    if let Event::Ended(ended) = &mut fact.event {
        ended.started_age_us = None;
        ended.message = Some("chdir \"/nonesuch\": no such file or directory".into());
    }
    report(&db, vec![fact]).await;
    let row: (String, Option<String>, String) = sqlx::query_as(
        "SELECT state, started_at::text, condition->>'message' FROM attempts WHERE job_id = $1",
    )
    .bind(id)
    .fetch_one(&db)
    .await
    .unwrap();
    assert_eq!(row, ("failed".into(), None, "chdir \"/nonesuch\": no such file or directory".into()));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_whose_node_failed_goes_back_to_the_queue_unless_it_may_not(db: PgPool) {
    let (session, id, allocation) = one_running(&db, job("a")).await;
    report(&db, vec![ended(session, allocation, EndCause::Rebooted, None)]).await;
    assert_eq!(job_row(&db, id).await, ("pending".into(), 0, IndexSet::one(0)));
    let once = submit_one(&db, Submission { requeue: false, ..job("b") }).await;
    place(&db).await;
    let lost: Vec<Fact> =
        live(&db).await.into_iter().map(|a| ended(session, a, EndCause::Lost, None)).collect();
    report(&db, lost).await;
    assert_eq!(job_row(&db, once).await.0, "node_fail");
    assert_eq!(job_row(&db, id).await.0, "pending");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_whose_node_fails_again_and_again_ends(db: PgPool) {
    let (session, id, first) = one_running(&db, job("a")).await;
    report(&db, vec![ended(session, first, EndCause::Lost, None)]).await;
    for _ in 0..3 {
        assert_eq!(job_row(&db, id).await.0, "pending");
        place(&db).await;
        let allocation = live(&db).await[0];
        report(&db, vec![ended(session, allocation, EndCause::Lost, None)]).await;
    }
    assert_eq!(job_row(&db, id).await.0, "node_fail");
    audit(&db).await;
}
