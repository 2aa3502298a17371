//! Nodes that are away: a row of the guide's table a test. Disconnected is not dead.

use super::*;
use crate::store::leases::{GATEWAY_TTL, Lease, Owner, Under, take};
use crate::store::liveness::{Looked, declare_lost, give_up, look};
use crate::store::node::{Heard, close_session, record_seen};
use crate::store::pools::DeclaredPool;
use crate::store::read;
use ctld_core::liveness::Absence;
use proto::HoldKind;
use proto::api::{Connection, Node};

/// A controller's gateway lease.
async fn gateway(db: &PgPool, controller: &str) -> Lease {
    let owner = Owner::new(controller, "1");
    take(db, &owner, &owner.gateway(), GATEWAY_TTL).await.unwrap().unwrap()
}

/// A database with one pool, a stopped clock, and node n1 connected to the controller "a" with a job on it.
async fn one_busy_node(db: &PgPool) -> (Session, Lease, i64) {
    with_pool(db).await;
    stop_clock(db).await;
    look(db).await.unwrap();
    let lease = gateway(db, "a").await;
    let session = open_session(&Under { db, lease: &lease }, &hello("n1", 8, 2)).await.unwrap();
    let id =
        submit_one(db, Submission { gpus: 1, time_limit_s: None, time_unlimited: true, ..job("k") }).await;
    assert_eq!(place(db).await.placed, 1);
    report(db, vec![started(session, live(db).await[0])]).await;
    (session, lease, id)
}

/// Seconds pass, with a look every five, the gateways of these controllers renewed.
async fn pass_looking(db: &PgPool, s: u64, alive: &[&str]) -> Looked {
    let mut all = Looked::default();
    for _ in 0..s / 5 {
        pass(db, 5).await;
        for controller in alive {
            gateway(db, controller).await;
        }
        let looked = look(db).await.unwrap();
        all.outage |= looked.outage;
        all.disconnected.extend(looked.disconnected);
        all.unreachable.extend(looked.unreachable);
        all.reachable.extend(looked.reachable);
        all.lost.extend(looked.lost);
    }
    all
}

async fn n1(db: &PgPool) -> Node {
    read::node(db, "n1").await.unwrap().nodes.remove(0)
}

/// What runs keeps its place and is neither released nor billed less.
async fn still_runs(db: &PgPool, job_id: i64) {
    assert_eq!(job_row(db, job_id).await.0, "running");
    let booked: i64 =
        sqlx::query_scalar("SELECT count(*) FROM device_bookings WHERE during @> compute_now()")
            .fetch_one(db)
            .await
            .unwrap();
    assert_eq!((live(db).await.len(), booked), (1, 1), "nothing is released");
    audit(db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_whose_session_closed_is_unreachable_after_forty_seconds_and_keeps_its_job(db: PgPool) {
    let (session, _, job_id) = one_busy_node(&db).await;
    close_session(&db, session, Absence::SessionClosed).await.unwrap();
    assert_eq!(n1(&db).await.connection, Connection::Disconnected);
    still_runs(&db, job_id).await;
    assert_eq!(pass_looking(&db, 35, &["a"]).await, Looked::default(), "disconnected is not unreachable");
    assert_eq!(pass_looking(&db, 5, &["a"]).await.unreachable, ["n1"]);
    let node = n1(&db).await;
    assert_eq!((node.connection, node.eligible), (Connection::Unreachable, false));
    assert_eq!(node.holds[0].kind, HoldKind::Unreachable);
    still_runs(&db, job_id).await;
    // Months later: bare metal is never given up by itself.
    pass(&db, 90 * 86_400).await;
    assert_eq!(pass_looking(&db, 60, &["a"]).await.lost, [0_i64; 0]);
    still_runs(&db, job_id).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_whose_gateway_is_lost_has_two_minutes_more_to_find_another(db: PgPool) {
    let (session, _, job_id) = one_busy_node(&db).await;
    let other = gateway(&db, "b").await;
    assert_eq!(pass_looking(&db, 15, &["b"]).await.disconnected, [""; 0], "the gateway's lease lives 20 s");
    assert_eq!(pass_looking(&db, 5, &["b"]).await.disconnected, ["n1"]);
    still_runs(&db, job_id).await;
    assert_eq!(pass_looking(&db, 155, &["b"]).await, Looked::default());
    assert_eq!(pass_looking(&db, 5, &["b"]).await.unreachable, ["n1"]);
    // It finds the other controller: the old session is superseded, and what was held is not.
    let next = open_session(&Under { db: &db, lease: &other }, &hello("n1", 8, 2)).await.unwrap();
    let node = n1(&db).await;
    assert_eq!((node.connection, node.eligible, node.holds.len()), (Connection::Connected, true, 0));
    let recorded = report(&db, vec![exited(session, live(&db).await[0], 0)]).await;
    assert_eq!(recorded.superseded, [(session.node_id, session.epoch)], "the zombie gateway is fenced");
    still_runs(&db, job_id).await;
    // Its journal is replayed to the new session.
    report(&db, vec![exited(next, live(&db).await[0], 0)]).await;
    assert_eq!(job_row(&db, job_id).await.0, "completed");
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn after_an_outage_every_node_that_is_away_has_five_minutes_anew(db: PgPool) {
    let (session, _, job_id) = one_busy_node(&db).await;
    close_session(&db, session, Absence::SessionClosed).await.unwrap();
    // No controller, or no database, for ten minutes: the node had nobody to come back to.
    pass(&db, 600).await;
    let looked = look(&db).await.unwrap();
    assert_eq!((looked.outage, looked.unreachable.len()), (true, 0));
    assert_eq!(pass_looking(&db, 335, &["a"]).await.unreachable, [""; 0]);
    assert_eq!(pass_looking(&db, 5, &["a"]).await.unreachable, ["n1"]);
    still_runs(&db, job_id).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_never_opened_a_session_counts_from_its_join(db: PgPool) {
    with_pool(&db).await;
    stop_clock(&db).await;
    look(&db).await.unwrap();
    pass_looking(&db, 600, &["a"]).await;
    sqlx::query("INSERT INTO nodes (name, pool_id) SELECT 'n1', id FROM pools").execute(&db).await.unwrap();
    assert_eq!(pass_looking(&db, 35, &["a"]).await.unreachable, [""; 0]);
    assert_eq!(pass_looking(&db, 5, &["a"]).await.unreachable, ["n1"]);
}

/// A controller that was stopped for long, whose node never left: it goes on as if nothing had been.
#[sqlx::test(migrations = "../migrations")]
async fn a_gateway_that_comes_back_to_its_node_has_it_again(db: PgPool) {
    let (session, _, job_id) = one_busy_node(&db).await;
    assert_eq!(pass_looking(&db, 200, &["b"]).await.unreachable, ["n1"]);
    gateway(&db, "a").await;
    let owned =
        record_seen(&db, "a", &[Heard { session, age_s: 1.0, observed_generation: 0 }]).await.unwrap();
    assert!(owned.contains(&session.node_id));
    assert_eq!(pass_looking(&db, 5, &["a", "b"]).await.reachable, ["n1"]);
    let node = n1(&db).await;
    assert_eq!((node.connection, node.eligible), (Connection::Connected, true));
    still_runs(&db, job_id).await;
}

/// The age is what counts: an hour that a gateway's clock is wrong by changes nothing, since it says how long ago and not when.
#[sqlx::test(migrations = "../migrations")]
async fn liveness_is_an_age_and_never_goes_back(db: PgPool) {
    let (session, _, _) = one_busy_node(&db).await;
    pass(&db, 10).await;
    record_seen(&db, "a", &[Heard { session, age_s: 3.0, observed_generation: 0 }]).await.unwrap();
    assert_eq!(n1(&db).await.last_seen_s, Some(3.0));
    record_seen(&db, "a", &[Heard { session, age_s: 9.0, observed_generation: 0 }]).await.unwrap();
    assert_eq!(n1(&db).await.last_seen_s, Some(3.0), "an older sign of life does not undo a newer one");
    record_seen(&db, "a", &[Heard { session, age_s: 0.0, observed_generation: 0 }]).await.unwrap();
    assert_eq!(n1(&db).await.last_seen_s, Some(0.0));
}

async fn hired(db: &PgPool, lost_after_s: i64) {
    let pool = DeclaredPool {
        name: "main".into(),
        is_default: true,
        time_limit_max_s: None,
        time_limit_default_s: None,
        mem_per_cpu_default_mib: 1024,
        ratios: Default::default(),
        kind: crate::config::PoolKind::Provider,
        lost_after_s: Some(lost_after_s),
    };
    declare(db, &[pool]).await.unwrap();
}

#[sqlx::test(migrations = "../migrations")]
async fn a_hired_node_is_lost_when_its_pool_says_so_and_its_job_goes_back_to_the_queue(db: PgPool) {
    let (session, _, job_id) = one_busy_node(&db).await;
    hired(&db, 600).await;
    close_session(&db, session, Absence::SessionClosed).await.unwrap();
    assert_eq!(pass_looking(&db, 635, &["a"]).await.lost, [0_i64; 0]);
    still_runs(&db, job_id).await;
    assert_eq!(pass_looking(&db, 5, &["a"]).await.lost, [session.node_id]);
    let recorded = give_up(&db, session.node_id).await.unwrap().unwrap();
    assert!(recorded.released);
    assert_eq!((job_row(&db, job_id).await.0.as_str(), live(&db).await.len()), ("pending", 0));
    let node = n1(&db).await;
    assert_eq!((node.connection, node.eligible), (Connection::Lost, false));
    audit(&db).await;
    // What it says of its old session does not count, and its new one is told to end what it still has.
    let late = report(&db, vec![exited(session, 1, 0)]).await;
    assert_eq!(late.applied, 0);
    let lease = gateway(&db, "a").await;
    open_session(&Under { db: &db, lease: &lease }, &hello("n1", 8, 2)).await.unwrap();
    assert_eq!(place(&db).await.placed, 1, "a second attempt");
    audit(&db).await;
}

/// The node comes back between being fenced and losing its allocations: it keeps them.
#[sqlx::test(migrations = "../migrations")]
async fn a_node_that_comes_back_while_it_is_given_up_keeps_its_jobs(db: PgPool) {
    let (session, _, job_id) = one_busy_node(&db).await;
    hired(&db, 60).await;
    close_session(&db, session, Absence::SessionClosed).await.unwrap();
    assert_eq!(pass_looking(&db, 100, &["a"]).await.lost, [session.node_id]);
    let lease = gateway(&db, "a").await;
    open_session(&Under { db: &db, lease: &lease }, &hello("n1", 8, 2)).await.unwrap();
    assert!(give_up(&db, session.node_id).await.unwrap().is_none(), "it is back");
    still_runs(&db, job_id).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_person_gives_a_dead_node_up_but_never_one_that_has_a_session(db: PgPool) {
    let (session, _, job_id) = one_busy_node(&db).await;
    let refused = declare_lost(&db, "n1", "root", "fire").await.unwrap_err();
    assert!(refused.to_string().contains("has a session"), "{refused}");
    close_session(&db, session, Absence::SessionClosed).await.unwrap();
    let refused = declare_lost(&db, "n1", "root", " ").await.unwrap_err();
    assert!(refused.to_string().contains("the reason is not accepted"), "{refused}");
    assert!(declare_lost(&db, "n1", "root", "fire").await.unwrap().released);
    assert!(!declare_lost(&db, "n1", "root", "fire").await.unwrap().released, "twice changes nothing");
    assert_eq!(job_row(&db, job_id).await.0, "pending");
    let why: String =
        sqlx::query_scalar("SELECT condition->>'message' FROM attempts").fetch_one(&db).await.unwrap();
    assert_eq!(why, "its node was given up: declared lost by root: fire");
    audit(&db).await;
}
