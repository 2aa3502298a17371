//! The store's acts on a real database, one of its own for each test. Nodes and jobs are made through the store's own
//! functions, so that what is tested is what runs.

mod attacks;
mod auditing;
mod away;
mod commanding;
pub(crate) mod events;
mod giving;
mod holding;
mod leasing;
mod modes;
mod overcommitting;
mod placing;
mod quotas;
mod random_books;
mod reporting;
mod reserving;
mod retrying;
mod submitting;
mod torture;
mod users_acts;

use super::facts::{Fact, Recorded, record};
use super::holds::{Put, put};
use super::node::{Session, open_session};
use super::place::{Applied, Scope, apply};
use super::pools::{DeclaredPool, declare, rules, tenant_id};
use super::snapshot::{Queue, free, queue_page};
use super::submit::{Prepared, commit};
use crate::app::Caller;
use ctld_core::admission::admit;
use ctld_core::plan::{Plan, Planner};
use proto::api::{ArraySpec, HoldRequest, ResumeRequest, Submission, Submitted, Usage};
use proto::session::{EndCause, Ended, Event, GpuFacts, Hello, Inventory, PROTOCOL};
use proto::{ApiError, IndexSet};
use sqlx::PgPool;
use std::collections::BTreeMap;

/// What a job gets beyond its limit.
const GRACE_S: u32 = 30;

/// A user.
pub(crate) fn caller(user: &str) -> Caller {
    Caller { uid: 1000, gid: 1000, user: user.into(), tenant: "default".into(), operator: user == "root" }
}

/// A small job under this key.
fn job(key: &str) -> Submission {
    Submission {
        idempotency_key: key.into(),
        name: "test".into(),
        pool: None,
        account: None,
        script: "#!/bin/sh\ntrue\n".into(),
        args: vec![],
        env: BTreeMap::new(),
        chdir: "/".into(),
        output: None,
        error: None,
        input: None,
        open_mode: Default::default(),
        umask: 0o22,
        rlimits: BTreeMap::new(),
        cpus: 1,
        mem_mib: Some(100),
        disk_mib: 0,
        exclusive: false,
        mem_all: false,
        gpus: 0,
        gpu_type: None,
        nodes: 1,
        ntasks: None,
        cpus_per_task: None,
        time_limit_s: Some(600),
        time_unlimited: false,
        warn: None,
        array: None,
        hold: false,
        begin: None,
        reservation: None,
        comment: None,
        nice: 0,
        requeue: true,
        submit_host: String::new(),
        submit_dir: String::new(),
    }
}

fn array(key: &str, indices: &str, throttle: Option<u32>) -> Submission {
    Submission { array: Some(ArraySpec { indices: indices.parse().unwrap(), throttle }), ..job(key) }
}

/// A database with one pool.
async fn with_pool(db: &PgPool) {
    let pool = DeclaredPool {
        name: "main".into(),
        is_default: true,
        time_limit_max_s: None,
        time_limit_default_s: None,
        mem_per_cpu_default_mib: 1024,
        ratios: Default::default(),
        kind: Default::default(),
        lost_after_s: None,
    };
    declare(db, &[pool]).await.unwrap();
}

/// A node with a session.
async fn node(db: &PgPool, name: &str, cpus: u32, gpus: u32) -> Session {
    open_session(db, &hello(name, cpus, gpus)).await.unwrap()
}

/// What a node says of itself.
fn hello(name: &str, cpus: u32, gpus: u32) -> Hello {
    let gpus = (0..gpus)
        .map(|index| GpuFacts {
            uuid: format!("GPU-{name}-{index}"),
            index,
            model: "a100-80gb".into(),
            mem_mib: 81920,
            declared: true,
        })
        .collect();
    Hello {
        protocol: PROTOCOL,
        node: name.into(),
        pool: "main".into(),
        version: "test".into(),
        boot_id: "boot".into(),
        journal_id: "journal".into(),
        cgroup_mode: "v1".into(),
        inventory: Inventory { cpus, mem_mib: 1000, disk_mib: 10_000, gpus },
    }
}

/// From here on time stands still until [`pass`].
pub(in crate::store) async fn stop_clock(db: &PgPool) {
    sqlx::raw_sql(
        "INSERT INTO compute_sim_clock (id, ts) VALUES (1, compute_now());
         CREATE OR REPLACE FUNCTION compute_now() RETURNS timestamptz LANGUAGE sql STABLE
             AS $$ SELECT ts FROM compute_sim_clock WHERE id = 1 $$",
    )
    .execute(db)
    .await
    .unwrap();
}

/// Seconds pass.
async fn pass(db: &PgPool, s: u64) {
    sqlx::query("UPDATE compute_sim_clock SET ts = ts + make_interval(secs => $1)")
        .bind(s as f64)
        .execute(db)
        .await
        .unwrap();
}

/// A request for a drain of this target by this user, under a key of its own.
pub(in crate::store) fn hold_of(target: &str) -> HoldRequest {
    let idempotency_key = uuid::Uuid::now_v7().to_string();
    HoldRequest { idempotency_key, target: target.into(), reason: "new fan".into(), ..HoldRequest::default() }
}

/// A request that lifts this user's holds of this target.
pub(in crate::store) fn resume_of(target: &str) -> ResumeRequest {
    let idempotency_key = uuid::Uuid::now_v7().to_string();
    ResumeRequest { idempotency_key, target: target.into(), ..ResumeRequest::default() }
}

/// Drains this target from now on.
pub(in crate::store) async fn drain(db: &PgPool, user: &str, target: &str) -> Put {
    put(db, &caller(user), &hold_of(target)).await.unwrap()
}

/// Submits as this user; one answer each.
async fn submit(db: &PgPool, user: &str, jobs: Vec<Submission>) -> Vec<Result<Submitted, ApiError>> {
    let pools = rules(db).await.unwrap();
    let tenant_id = tenant_id(db, "default").await.unwrap().unwrap();
    let batch: Vec<Prepared> = jobs
        .into_iter()
        .map(|submission| Prepared {
            tenant_id,
            user: user.into(),
            uid: 1000,
            gid: 1000,
            admitted: admit(&submission, &pools, false).unwrap(),
            reservation_id: None,
            submission,
        })
        .collect();
    commit(db, &batch).await.unwrap()
}

/// Submits one job as alice; its id.
async fn submit_one(db: &PgPool, job: Submission) -> i64 {
    submit(db, "alice", vec![job]).await.remove(0).unwrap().id
}

/// What the planner would do now.
async fn plan(db: &PgPool) -> Plan {
    plan_of(db, Queue { pool_id: rules(db).await.unwrap()[0].id, scope: Scope::Pool }).await
}

async fn plan_of(db: &PgPool, queue: Queue) -> Plan {
    let mut planner = Planner::new(free(db, queue).await.unwrap(), 1000)
        .within(super::quotas::allowances(db, queue.scope).await.unwrap());
    planner.consider(&queue_page(db, queue, None, 1000, GRACE_S).await.unwrap().requests);
    planner.finish()
}

/// Plans and applies.
async fn place(db: &PgPool) -> Applied {
    apply(db, Scope::Pool, &plan(db).await.placements, GRACE_S).await.unwrap()
}

/// The live allocations, oldest first.
async fn live(db: &PgPool) -> Vec<i64> {
    sqlx::query_scalar("SELECT id FROM allocations WHERE released_at IS NULL ORDER BY id")
        .fetch_all(db)
        .await
        .unwrap()
}

fn started(session: Session, allocation_id: i64) -> Fact {
    let paths = ["/o".to_owned(), "/e".to_owned(), "/dev/null".to_owned()];
    fact(session, allocation_id, Event::Started { age_us: 1000, paths })
}

fn exited(session: Session, allocation_id: i64, code: i32) -> Fact {
    ended(session, allocation_id, EndCause::Exited, Some(code))
}

fn ended(session: Session, allocation_id: i64, cause: EndCause, exit_code: Option<i32>) -> Fact {
    let usage = Usage { cpu_us: 5, mem_peak_bytes: Some(6), oom_kills: 0 };
    let ended =
        Ended { age_us: 10, started_age_us: Some(500), cause, exit_code, signal: None, message: None, usage };
    fact(session, allocation_id, Event::Ended(ended))
}

fn fact(session: Session, allocation_id: i64, event: Event) -> Fact {
    Fact { node_id: session.node_id, session_epoch: session.epoch, allocation_id, event }
}

async fn report(db: &PgPool, facts: Vec<Fact>) -> Recorded {
    record(db, &facts).await.unwrap()
}

/// `state`, `active`, `pending` of a job.
async fn job_row(db: &PgPool, id: i64) -> (String, i32, IndexSet) {
    let (state, active, pending): (String, i32, String) =
        sqlx::query_as("SELECT state, active, pending::text FROM jobs WHERE id = $1")
            .bind(id)
            .fetch_one(db)
            .await
            .unwrap();
    (state, active, IndexSet::from_multirange(&pending).unwrap())
}

/// What must hold whatever happened: every invariant.
async fn audit(db: &PgPool) {
    let audit = super::audit::audit(db, Default::default()).await.unwrap();
    let broken: Vec<_> = audit.invariants.iter().filter(|i| i.violations != Some(0)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}
