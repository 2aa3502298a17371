//! Nodes, pools, counts, and what is seen of holds.

use super::super::{fleet_counts, node, node_counts, nodes, pools};
use super::world::{Attempted, Given, World};
use crate::store::holds::resume;
use crate::store::tests::{caller, drain, resume_of};
use proto::ErrorCode;
use proto::api::{Connection, Drain};
use sqlx::PgPool;

#[sqlx::test(migrations = "../migrations")]
async fn a_node_shows_what_it_has_and_who_is_there(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job(Given { state: "running", pending: "{}", active: 1, ..Given::default() }).await;
    world.attempt(id, Attempted { gpus: Some(1), ..Attempted::default() }).await;
    let array = world
        .job(Given { state: "running", array: Some("{[0,8)}"), pending: "{}", active: 1, ..Given::default() })
        .await;
    world.attempt(array, Attempted { task: 7, ..Attempted::default() }).await;
    let over = world.job(Given { state: "completed", pending: "{}", ..Given::default() }).await;
    world.attempt(over, Attempted { state: "completed", gpus: Some(2), ..Attempted::default() }).await;

    let list = nodes(&world.db).await.unwrap().nodes;
    assert_eq!(list.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["n1", "n2"]);
    let n1 = &list[0];
    assert_eq!((n1.pool.as_str(), n1.connection, n1.eligible), ("main", Connection::Connected, true));
    assert!((3.0..60.0).contains(&n1.last_seen_s.unwrap()), "{:?}", n1.last_seen_s);
    assert_eq!((n1.cpus, n1.cpus_booked, n1.mem_mib, n1.mem_booked_mib), (16, 2, 4096, 512));
    assert_eq!((n1.disk_mib, n1.disk_booked_mib), (9000, 70));
    assert_eq!(n1.jobs, [id.to_string(), format!("{array}_7")]);
    let gpus: Vec<_> = n1.gpus.iter().map(|gpu| (gpu.uuid.as_str(), gpu.job.as_deref())).collect();
    assert_eq!(gpus, [("GPU-0", Some(id.to_string().as_str())), ("GPU-1", None)]);
    assert_eq!((n1.drain, n1.holds.len()), (None, 0));

    assert_eq!(node(&world.db, "n2").await.unwrap().nodes[0].jobs.len(), 0);
    let error = proto::ApiError::from(node(&world.db, "n3").await.unwrap_err());
    assert_eq!(error.code, ErrorCode::NotFound);
    assert!(error.message.contains("\"n3\""), "{error}");
}

#[sqlx::test(migrations = "../migrations")]
async fn pools_count_tasks_and_the_fleet_is_counted(db: PgPool) {
    let world = World::new(db).await;
    world.job(Given::default()).await;
    let array = world
        .job(Given {
            state: "running",
            array: Some("{[0,1000000)}"),
            pending: "{[1,10),[20,1000000)}",
            active: 1,
            ..Given::default()
        })
        .await;
    world.attempt(array, Attempted { gpus: Some(1), ..Attempted::default() }).await;
    let list = pools(&world.db).await.unwrap().pools;
    let numbers: Vec<_> = list.iter().map(|p| (p.name.as_str(), p.pending, p.running, p.default)).collect();
    assert_eq!(numbers, [("main", 1 + 9 + 999_980, 1, true), ("other", 0, 0, false)]);
    assert_eq!(list[0].nodes, ["n1"]);

    let counts = fleet_counts(&world.db).await.unwrap();
    assert_eq!((counts.jobs_pending, counts.jobs_running, counts.tasks_pending), (1, 1, 999_990));
    assert_eq!((counts.nodes_connected, counts.gpus, counts.gpus_booked), (2, 2, 1));
}

#[sqlx::test(migrations = "../migrations")]
async fn a_drain_is_done_when_nothing_runs_there(db: PgPool) {
    let world = World::new(db).await;
    let id = world.job(Given { state: "running", pending: "{}", active: 1, ..Given::default() }).await;
    world.attempt(id, Attempted::default()).await;
    drain(&world.db, "root", "n1").await;
    assert_eq!(node(&world.db, "n1").await.unwrap().nodes[0].drain, Some(Drain::Draining));
    sqlx::query("UPDATE allocations SET released_at = compute_now()").execute(&world.db).await.unwrap();
    assert_eq!(node(&world.db, "n1").await.unwrap().nodes[0].drain, Some(Drain::Drained));
    resume(&world.db, &caller("root"), &resume_of("n1")).await.unwrap();
    assert_eq!(node(&world.db, "n1").await.unwrap().nodes[0].drain, None);
}

#[sqlx::test(migrations = "../migrations")]
async fn a_gpu_that_is_held_or_of_which_a_part_is_takes_no_work_and_its_node_does(db: PgPool) {
    let world = World::new(db).await;
    drain(&world.db, "root", "n1/0").await;
    drain(&world.db, "root", "GPU-1/slot:2/8").await;
    let n1 = node(&world.db, "n1").await.unwrap().nodes.remove(0);
    assert!(n1.eligible && n1.drain.is_none());
    assert_eq!(n1.gpus.iter().map(|gpu| gpu.eligible).collect::<Vec<_>>(), [false, false]);
    let targets: Vec<_> = n1.holds.iter().map(|hold| hold.target.as_str()).collect();
    assert_eq!(targets, ["n1/0", "n1/1/slot:2/8"]);
}

#[sqlx::test(migrations = "../migrations")]
async fn nodes_without_a_session_that_nobody_holds_are_named(db: PgPool) {
    let world = World::new(db).await;
    sqlx::query("UPDATE nodes SET connection = 'disconnected', disconnected_at = compute_now(), unreachable_at = compute_now()").execute(&world.db).await.unwrap();
    drain(&world.db, "root", "n2").await;
    let counts = node_counts(&world.db).await.unwrap();
    assert_eq!((counts.connected, counts.total), (0, 2));
    assert_eq!(counts.missing, ["n1"]);
}
