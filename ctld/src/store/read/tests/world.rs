//! A small fleet and its jobs, written straight into the tables.

use crate::app::Caller;
use chrono::{DateTime, Utc};
use proto::api::{Job, JobQuery};
use proto::{Condition, Reason};
use sqlx::PgPool;

/// A database with two pools (main, other), the node n1 of main with two GPUs, and the empty node n2 of other.
pub(super) struct World {
    pub db: PgPool,
    pub n1: i64,
    pub gpus: Vec<i64>,
}

/// A job to write. What is not given is that of a plain job which waits.
pub(super) struct Given<'a> {
    pub name: &'a str,
    pub user: &'a str,
    pub pool: &'a str,
    pub account: Option<&'a str>,
    pub priority: i64,
    pub state: &'a str,
    /// The indices of an array; `None` is a plain job.
    pub array: Option<&'a str>,
    pub pending: &'a str,
    pub cancelled: &'a str,
    pub active: i32,
    pub throttle: Option<i32>,
    pub hold: Option<&'a str>,
    pub begin_at: Option<DateTime<Utc>>,
    pub condition: Condition,
}

impl Default for Given<'_> {
    fn default() -> Self {
        Given {
            name: "job",
            user: "alice",
            pool: "main",
            account: None,
            priority: 0,
            state: "pending",
            array: None,
            pending: "{[0,1)}",
            cancelled: "{}",
            active: 0,
            throttle: None,
            hold: None,
            begin_at: None,
            condition: Condition::plain(Reason::Priority),
        }
    }
}

/// An attempt to write: live if its state is.
pub(super) struct Attempted<'a> {
    pub task: i32,
    pub number: i32,
    pub state: &'a str,
    pub exit_code: Option<i32>,
    pub condition: Option<Condition>,
    /// Seconds ago it started, if it did; it ends now if it ended.
    pub started_ago_s: Option<f64>,
    /// Where, if placed on n1, and with how many of its GPUs.
    pub gpus: Option<usize>,
}

impl Default for Attempted<'_> {
    fn default() -> Self {
        Attempted {
            task: 0,
            number: 1,
            state: "running",
            exit_code: None,
            condition: None,
            started_ago_s: Some(90.5),
            gpus: Some(0),
        }
    }
}

impl World {
    pub async fn new(db: PgPool) -> World {
        sqlx::query("INSERT INTO pools (name, is_default) VALUES ('main', true), ('other', false)")
            .execute(&db)
            .await
            .unwrap();
        let n1 = node(&db, "n1", "main").await;
        node(&db, "n2", "other").await;
        let gpus = sqlx::query_scalar::<_, i64>(
            "INSERT INTO gpus (uuid, node_id, index, model, mem_mib, declared)
             SELECT 'GPU-' || i, $1, i, 'a100-80gb', 81920, true FROM generate_series(0, 1) i RETURNING id",
        )
        .bind(n1)
        .fetch_all(&db)
        .await
        .unwrap();
        World { db, n1, gpus }
    }

    pub async fn job(&self, given: Given<'_>) -> i64 {
        let id = sqlx::query_scalar::<_, i64>(
            "INSERT INTO jobs (tenant_id, account, user_name, uid, gid, pool_id, name, cpus, mem_mib, gpus, node_count,
                 time_limit_s, nice, priority, requeue, hold, begin_at, is_array, indices, throttle, pending, cancelled,
                 active, state, condition, submitted_at, ended_at, version)
             SELECT 1, $1, $2, 1000, 1000, p.id, $4, 2, 512, 0, 1, 3600, 0, $5, true, $6, $7, $8 IS NOT NULL,
                 coalesce($8, '{[0,1)}')::int4multirange, $9, $10::int4multirange, $11::int4multirange, $12, $13, $14,
                 compute_now(), CASE WHEN $13 IN ('pending', 'running') THEN NULL ELSE compute_now() END,
                 CASE WHEN $13 = 'pending' AND $15 THEN 1 ELSE 2 END
             FROM pools p WHERE p.name = $3 RETURNING id",
        )
        .bind(given.account)
        .bind(given.user)
        .bind(given.pool)
        .bind(given.name)
        .bind(given.priority)
        .bind(given.hold)
        .bind(given.begin_at)
        .bind(given.array)
        .bind(given.throttle)
        .bind(given.pending)
        .bind(given.cancelled)
        .bind(given.active)
        .bind(given.state)
        .bind(serde_json::to_value(&given.condition).unwrap())
        .bind(given.condition.reason == Reason::Priority)
        .fetch_one(&self.db)
        .await
        .unwrap();
        let submission = serde_json::json!({
            "idempotency_key": id.to_string(), "name": given.name, "script": "#!/bin/sh\nexit 0\n", "args": ["a", "b c"],
            "chdir": "/home/alice", "umask": 18, "cpus": 2, "nodes": 1, "submit_host": "login1", "input": "in-%j",
        });
        sqlx::query("INSERT INTO job_scripts (job_id, submission) VALUES ($1, $2)")
            .bind(id)
            .bind(submission)
            .execute(&self.db)
            .await
            .unwrap();
        id
    }

    pub async fn attempt(&self, job: i64, given: Attempted<'_>) -> i64 {
        let attempt = sqlx::query_scalar::<_, i64>(
            "INSERT INTO attempts (job_id, task, number, state, placed_at, started_at, ended_at, exit_code, condition, paths,
                 cpu_us, oom_kills)
             SELECT $1, $2, $3, $4, compute_now(), compute_now() - make_interval(secs => $5),
                 CASE WHEN live THEN NULL ELSE compute_now() END, $6, $7, ARRAY['/out/' || $2, '/err', '/dev/null'],
                 CASE WHEN live THEN NULL ELSE 1500000 END, CASE WHEN live THEN NULL ELSE 0 END
             FROM (SELECT $4 IN ('booked', 'starting', 'running', 'suspended', 'completing') AS live) l RETURNING id",
        )
        .bind(job)
        .bind(given.task)
        .bind(given.number)
        .bind(given.state)
        .bind(given.started_ago_s)
        .bind(given.exit_code)
        .bind(given.condition.map(|condition| serde_json::to_value(condition).unwrap()))
        .fetch_one(&self.db)
        .await
        .unwrap();
        let Some(gpus) = given.gpus else { return attempt };
        let live = given.state.parse::<proto::State>().unwrap().active();
        let allocation = sqlx::query_scalar::<_, i64>(
            "INSERT INTO allocations (attempt_id, node_id, position, cpus, mem_mib, released_at)
             VALUES ($1, $2, 0, 2, 512, CASE WHEN $3 THEN NULL ELSE compute_now() END) RETURNING id",
        )
        .bind(attempt)
        .bind(self.n1)
        .bind(live)
        .fetch_one(&self.db)
        .await
        .unwrap();
        let book = if live {
            "INSERT INTO device_bookings (gpu_id, span, during, allocation_id, atom, kind)
             SELECT id, '(,)', tstzrange(compute_now() - interval '1 minute', NULL), $2, 'gpu', 'allocation'
             FROM gpus WHERE id = ANY ($1)"
        } else {
            "INSERT INTO device_bookings_history (gpu_id, span, during, allocation_id, atom, kind)
             SELECT id, '(,)', tstzrange(compute_now() - interval '1 minute', compute_now()), $2, 'gpu', 'allocation'
             FROM gpus WHERE id = ANY ($1)"
        };
        sqlx::query(book).bind(&self.gpus[..gpus]).bind(allocation).execute(&self.db).await.unwrap();
        attempt
    }

    /// The list of a query that must be answered.
    pub async fn list(&self, query: JobQuery) -> Vec<Job> {
        super::super::jobs(&self.db, &query).await.unwrap().jobs
    }
}

async fn node(db: &PgPool, name: &str, pool: &str) -> i64 {
    let id = sqlx::query_scalar::<_, i64>(
        "INSERT INTO nodes (name, pool_id, connection, last_seen_at, agent_version, cgroup_mode, disconnected_at, unreachable_at)
         SELECT $1, id, 'connected', compute_now() - interval '3 seconds', '0.1.0', 'v2', NULL, NULL FROM pools WHERE name = $2
         RETURNING id",
    )
    .bind(name)
    .bind(pool)
    .fetch_one(db)
    .await
    .unwrap();
    sqlx::query(
        "INSERT INTO node_resources (node_id, resource, allocatable, allocated)
         VALUES ($1, 'cpus', 16, 2), ($1, 'mem_mib', 4096, 512), ($1, 'disk_mib', 9000, 70)",
    )
    .bind(id)
    .execute(db)
    .await
    .unwrap();
    id
}

/// Somebody who looks.
pub(super) fn viewer(uid: u32, operator: bool) -> Caller {
    Caller { uid, gid: uid, user: format!("user{uid}"), tenant: "default".into(), operator }
}

/// The display ids, in order.
pub(super) fn ids(jobs: &[Job]) -> Vec<&str> {
    jobs.iter().map(|job| job.display_id.as_str()).collect()
}
