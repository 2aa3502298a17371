//! What the planner looks at: what is free on the nodes that take work, and the queue in its order, a page at a time.

use super::{StoreError, index_set};
use ctld_core::plan::{Amount, GpuFree, NodeFree, Request, Shape, why_not};
use proto::JobRef;
use sqlx::PgPool;
use std::collections::HashMap;

/// Where a page of the queue ends: the next begins behind it.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    priority: i64,
    job_id: i64,
}

/// A page of the queue.
#[derive(Debug)]
pub struct Page {
    /// Jobs with tasks to place, in the order to try them.
    pub requests: Vec<Request>,
    /// The stored reason of each, so that only what changes is written.
    pub reasons: Vec<(i64, String, String)>,
    /// Where it ends; `None` when nothing is behind it.
    pub next: Option<Cursor>,
}

/// The ids of every pool that has work waiting to be placed.
pub async fn pools_with_work(db: &PgPool) -> Result<Vec<i32>, StoreError> {
    Ok(sqlx::query_scalar!(
        "SELECT p.id FROM pools p
         WHERE EXISTS (SELECT FROM jobs j WHERE j.pool_id = p.id AND NOT isempty(j.pending) AND j.hold IS NULL
             AND (j.begin_at IS NULL OR j.begin_at <= compute_now()))
         ORDER BY p.id"
    )
    .fetch_all(db)
    .await?)
}

/// What is free on the nodes of a pool that take work now and have a session.
pub async fn nodes_free(db: &PgPool, pool_id: i32) -> Result<Vec<NodeFree>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT n.id, n.name,
               floor(c.allocatable * c.ratio)::bigint AS "cpus!", c.allocated AS cpus_allocated,
               floor(m.allocatable * m.ratio)::bigint AS "mem!", m.allocated AS mem_allocated
           FROM nodes n
           JOIN node_resources c ON c.node_id = n.id AND c.resource = 'cpus'
           JOIN node_resources m ON m.node_id = n.id AND m.resource = 'mem_mib'
           WHERE n.pool_id = $1 AND n.eligible AND n.connection = 'connected'
           ORDER BY n.id"#,
        pool_id
    )
    .fetch_all(db)
    .await?;
    let mut nodes: Vec<NodeFree> = rows
        .into_iter()
        .map(|row| NodeFree {
            id: row.id,
            name: row.name,
            pool_id,
            cpus: Amount { free: row.cpus - row.cpus_allocated, total: row.cpus },
            mem_mib: Amount { free: row.mem - row.mem_allocated, total: row.mem },
            gpus_free: Vec::new(),
            gpu_models: Vec::new(),
        })
        .collect();
    let index: HashMap<i64, usize> = nodes.iter().enumerate().map(|(i, n)| (n.id, i)).collect();
    let gpus = sqlx::query!(
        r#"SELECT g.id, g.node_id, g.model,
               g.eligible AND g.mode = 'whole' AND NOT EXISTS (
                   SELECT FROM device_bookings b
                   WHERE b.gpu_id = g.id AND b.during && tstzrange(compute_now(), NULL)) AS "free!"
           FROM gpus g JOIN nodes n ON n.id = g.node_id
           WHERE n.pool_id = $1 AND n.eligible AND n.connection = 'connected' AND g.present
           ORDER BY g.id"#,
        pool_id
    )
    .fetch_all(db)
    .await?;
    for gpu in gpus {
        let Some(&at) = index.get(&gpu.node_id) else { continue };
        nodes[at].gpu_models.push(gpu.model.clone());
        if gpu.free {
            nodes[at].gpus_free.push(GpuFree { id: gpu.id, model: gpu.model });
        }
    }
    Ok(nodes)
}

/// The next page of a pool's queue: jobs that are not held and whose begin time has come.
pub async fn queue_page(
    db: &PgPool,
    pool_id: i32,
    after: Option<Cursor>,
    limit: i64,
) -> Result<Page, StoreError> {
    let after = after.unwrap_or(Cursor { priority: i64::MAX, job_id: 0 });
    let rows = sqlx::query!(
        r#"SELECT id, cpus, mem_mib, exclusive, mem_all, gpus, gpu_type, node_count, pending::text AS "pending!",
               throttle, active, priority, condition->>'reason' AS "reason!", condition->>'message' AS "message!"
           FROM jobs
           WHERE pool_id = $1 AND NOT isempty(pending) AND hold IS NULL
               AND (begin_at IS NULL OR begin_at <= compute_now())
               AND priority <= $2 AND (priority < $2 OR id > $3)
           ORDER BY priority DESC, id
           LIMIT $4"#,
        pool_id,
        after.priority,
        after.job_id,
        limit
    )
    .fetch_all(db)
    .await?;
    let full = rows.len() as i64 == limit;
    let next = rows.last().filter(|_| full).map(|row| Cursor { priority: row.priority, job_id: row.id });
    let mut page =
        Page { requests: Vec::with_capacity(rows.len()), reasons: Vec::with_capacity(rows.len()), next };
    for row in rows {
        page.reasons.push((row.id, row.reason, row.message));
        page.requests.push(Request {
            job_id: row.id,
            shape: Shape {
                pool_id,
                node_count: row.node_count.unsigned_abs(),
                cpus: i64::from(row.cpus),
                mem_mib: row.mem_mib,
                gpus: row.gpus.unsigned_abs(),
                gpu_type: row.gpu_type,
                exclusive: row.exclusive,
                mem_all: row.mem_all,
            },
            pending: index_set("jobs", "pending", &row.pending)?,
            throttle_left: row.throttle.map(|limit| (limit - row.active).max(0).unsigned_abs()),
        });
    }
    Ok(page)
}

/// Seconds until the next begin time that has not come, if there is one.
pub async fn next_begin_s(db: &PgPool) -> Result<Option<f64>, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT extract(epoch FROM min(begin_at) - compute_now())::double precision AS s
           FROM jobs WHERE NOT isempty(pending) AND begin_at > compute_now()"#
    )
    .fetch_one(db)
    .await?)
}

/// The job as listed, with its reason worked out now by the planner's own code.
pub async fn why(db: &PgPool, id: &JobRef) -> Result<proto::api::JobList, StoreError> {
    let mut list = super::read::jobs_of(db, id).await?;
    for job in list.jobs.iter_mut().filter(|job| job.state == proto::State::Pending) {
        let row = sqlx::query!(
            "SELECT pool_id, cpus, mem_mib, exclusive, mem_all, gpus, gpu_type, node_count FROM jobs WHERE id = $1",
            job.id
        )
        .fetch_one(db)
        .await?;
        let shape = Shape {
            pool_id: row.pool_id,
            node_count: row.node_count.unsigned_abs(),
            cpus: i64::from(row.cpus),
            mem_mib: row.mem_mib,
            gpus: row.gpus.unsigned_abs(),
            gpu_type: row.gpu_type,
            exclusive: row.exclusive,
            mem_all: row.mem_all,
        };
        // A hold, a begin time or a throttle stands before any lack of room; the lack is told after it.
        let waits_for_room =
            |c: &proto::Condition| matches!(c.reason, proto::Reason::Priority | proto::Reason::Unschedulable);
        job.reasons.retain(|c| !waits_for_room(c));
        match why_not(&nodes_free(db, row.pool_id).await?, &shape) {
            Some(lack) => job.reasons.push(lack),
            None if job.reasons.is_empty() => job.reasons.push(proto::Condition::new(
                proto::Reason::Priority,
                "fits what is free now; it is placed when its turn comes",
            )),
            None => {}
        }
    }
    Ok(list)
}
