//! What is given beyond what was asked for is charged with the placement, or not given, and given back once.

use super::super::act::requeue;
use super::super::reservations::{admit as admit_into, advance, reserve};
use super::quotas::{limit, used};
use super::*;
use ctld_core::quota::Resource;
use proto::Reason;
use proto::api::{Begin, ReserveRequest};

const GPU: i64 = 5040;

/// A node whose GPUs are of this model.
async fn node_of(db: &PgPool, name: &str, gpus: u32, model: &str) -> Session {
    let mut hello = hello(name, 8, gpus);
    hello.inventory.gpus.iter_mut().for_each(|gpu| gpu.model = model.into());
    open_session(db, &hello).await.unwrap()
}

fn open(key: &str, n: u32) -> Submission {
    Submission { gpus: n, ..job(key) }
}

#[sqlx::test(migrations = "../migrations")]
async fn an_open_request_gets_no_gpu_of_a_model_its_tenant_may_not_have_and_others_are_placed(db: PgPool) {
    with_pool(&db).await;
    node_of(&db, "n1", 2, "h100-80gb").await;
    limit(&db, "gpus:h100", 0).await;
    let waits = submit_one(&db, open("a", 1)).await;
    submit_one(&db, job("b")).await;
    let plan = plan(&db).await;
    assert_eq!((plan.placements.len(), plan.waits.len()), (1, 1));
    assert_eq!((plan.waits[0].0, plan.waits[0].1.reason), (waits, Reason::QuotaExceeded));
    let message = &plan.waits[0].1.message;
    assert!(message.ends_with("0 of at most 0 gpus:h100 in use; 1 more asked"), "{message}");
    let applied = apply(&db, Scope::Pool, &plan.placements, GRACE_S).await.unwrap();
    assert_eq!((applied.placed, applied.conflicts, used(&db, "gpus:h100").await), (1, 0, 0));
    // Elsewhere there is another model.
    node_of(&db, "n2", 1, "a100-80gb").await;
    assert_eq!(place(&db).await.placed, 1);
    assert_eq!((used(&db, "gpus:a100").await, used(&db, "gpu_units").await), (GPU, GPU));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_placement_over_a_quota_that_fell_since_the_plan_is_dropped_alone(db: PgPool) {
    with_pool(&db).await;
    node_of(&db, "n1", 2, "h100-80gb").await;
    submit_one(&db, open("a", 1)).await;
    submit_one(&db, job("b")).await;
    let stale = plan(&db).await;
    limit(&db, "gpus:h100", 0).await;
    let applied = apply(&db, Scope::Pool, &stale.placements, GRACE_S).await.unwrap();
    assert_eq!((applied.placed, applied.conflicts), (1, 1));
    let again = plan(&db).await;
    assert!(again.placements.is_empty(), "what the quota refused is not offered again");
    assert_eq!(again.waits[0].1.reason, Reason::QuotaExceeded);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_with_a_whole_node_is_charged_all_of_it_while_it_runs_and_refunded_once(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 8, 2).await;
    submit_one(&db, Submission { exclusive: true, ..job("a") }).await;
    assert_eq!((used(&db, "cpus").await, used(&db, "atoms").await), (1, 0));
    place(&db).await;
    let charged =
        || async { (used(&db, "cpus").await, used(&db, "mem_mib").await, used(&db, "gpus:a100").await) };
    assert_eq!((charged().await, used(&db, "atoms").await), ((8, 1000, 2 * GPU), 2));
    audit(&db).await;
    let allocation = live(&db).await[0];
    let facts = vec![started(session, allocation), exited(session, allocation, 0)];
    for _ in 0..2 {
        report(&db, facts.clone()).await;
        assert_eq!((charged().await, used(&db, "jobs").await), ((0, 0, 0), 0));
    }
    // What does not fit waits; what asks for all of the memory is charged it.
    limit(&db, "cpus", 4).await;
    submit_one(&db, Submission { exclusive: true, ..job("b") }).await;
    submit_one(&db, Submission { mem_all: true, ..job("c") }).await;
    assert_eq!(plan(&db).await.waits[0].1.reason, Reason::QuotaExceeded);
    assert_eq!((place(&db).await.placed, charged().await), (1, (2, 1100, 0)));
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_requeued_task_gives_back_what_it_was_given_and_keeps_what_it_asked_for(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 8, 2).await;
    let id = submit_one(&db, open("a", 1)).await.to_string();
    for end in [EndCause::Lost, EndCause::Stopped] {
        place(&db).await;
        assert_eq!((used(&db, "gpu_units").await, used(&db, "gpus:a100").await), (GPU, GPU));
        if end == EndCause::Stopped {
            requeue(&db, &caller("alice"), std::slice::from_ref(&id)).await.unwrap();
        }
        report(&db, vec![ended(session, live(&db).await[0], end, None)]).await;
        assert_eq!((used(&db, "gpu_units").await, used(&db, "gpus:a100").await), (GPU, 0));
        audit(&db).await;
    }
}

#[sqlx::test(migrations = "../migrations")]
async fn two_planners_at_once_give_no_more_than_the_quota_allows(db: PgPool) {
    with_pool(&db).await;
    node_of(&db, "n1", 2, "h100-80gb").await;
    node_of(&db, "n2", 2, "h100-80gb").await;
    limit(&db, "gpus:h100", GPU).await;
    for key in ["a", "b"] {
        submit_one(&db, open(key, 1)).await;
    }
    // Each plans for one of them, on a node of its own: nothing but the quota is between them.
    let nodes =
        free(&db, Queue { pool_id: rules(&db).await.unwrap()[0].id, scope: Scope::Pool }).await.unwrap();
    let queue = Queue { pool_id: nodes[0].pool_id, scope: Scope::Pool };
    let requests = queue_page(&db, queue, None, 10, GRACE_S).await.unwrap().requests;
    let plans: Vec<Plan> = requests
        .iter()
        .zip(&nodes)
        .map(|(request, node)| {
            let mut planner = Planner::new(vec![node.clone()], 10);
            planner.consider(std::slice::from_ref(request));
            planner.finish()
        })
        .collect();
    let (one, other) = tokio::join!(
        apply(&db, Scope::Pool, &plans[0].placements, GRACE_S),
        apply(&db, Scope::Pool, &plans[1].placements, GRACE_S)
    );
    assert_eq!(one.unwrap().placed + other.unwrap().placed, 1);
    assert_eq!(used(&db, "gpus:h100").await, GPU);
    audit(&db).await;
}

#[sqlx::test(migrations = "../migrations")]
async fn a_job_that_outlives_its_reservation_takes_over_the_charge_of_what_it_holds(db: PgPool) {
    with_pool(&db).await;
    let session = node(&db, "n1", 8, 2).await;
    stop_clock(&db).await;
    let request = ReserveRequest {
        idempotency_key: "r".into(),
        name: "r".into(),
        begin: Some(Begin::AfterS(0)),
        duration_s: Some(3600),
        cpus: 4,
        mem_mib: 500,
        gpus: 2,
        ..ReserveRequest::default()
    };
    reserve(&db, &caller("alice"), &request).await.unwrap();
    advance(&db).await.unwrap();
    let inside = admit_into(&db, &caller("alice"), None, "r").await.unwrap().id;
    let submission = Submission { gpus: 1, cpus: 2, ..job("a") };
    let prepared = Prepared {
        tenant_id: tenant_id(&db, "default").await.unwrap().unwrap(),
        user: "alice".into(),
        uid: 1000,
        gid: 1000,
        admitted: admit(&submission, &rules(&db).await.unwrap(), false).unwrap(),
        reservation_id: Some(inside),
        submission,
    };
    commit(&db, &[prepared]).await.unwrap().remove(0).unwrap();
    let scope = Scope::Reservation(inside);
    let plan = plan_of(&db, Queue { pool_id: rules(&db).await.unwrap()[0].id, scope }).await;
    assert_eq!(apply(&db, scope, &plan.placements, GRACE_S).await.unwrap().placed, 1);
    let allocation = live(&db).await[0];
    report(&db, vec![started(session, allocation)]).await;
    let charged =
        || async { (used(&db, "cpus").await, used(&db, "gpus:a100").await, used(&db, "jobs").await) };
    assert_eq!(charged().await, (4, 2 * GPU, 1), "the reservation is charged, the job as a job alone");
    // Its limit falls meanwhile: the job goes on, and nothing new is taken.
    limit(&db, "cpus", 1).await;
    reservations_cancel(&db).await;
    assert_eq!(charged().await, (2, GPU, 1));
    audit(&db).await;
    let more = [(Resource::Cpus, 1)].into_iter().collect();
    let mut tx = db.begin().await.unwrap();
    let ask = super::super::quotas::Ask { tenant_id: 1, charge: &more };
    assert!(super::super::quotas::charge(&mut tx, &[ask]).await.unwrap()[0].is_err());
    tx.rollback().await.unwrap();
    report(&db, vec![exited(session, allocation, 0)]).await;
    assert_eq!(charged().await, (0, 0, 0));
    audit(&db).await;
}

async fn reservations_cancel(db: &PgPool) {
    super::super::reservations::cancel(db, &caller("alice"), "r").await.unwrap();
}
