//! What the planner looks at: what is free on the nodes that take work, and the queue in its order, a page at a time.

use super::books::books;
use super::holds::standing;
use super::place::{Scope, booked_for_us};
use super::quotas::{allowances, charge_from};
use super::{StoreError, index_set};
use ctld_core::holds::Holds;
use ctld_core::plan::{Amount, Amounts, GpuFree, NodeFree, Payer, Request, Shape, why_not};
use ctld_core::span::Span;
use ctld_core::timeline::During;
use proto::JobRef;
use sqlx::PgPool;
use std::collections::HashMap;
use std::num::NonZeroU64;

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

/// A queue: that of a pool, or that of a reservation in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The pool.
    pub pool_id: i32,
    /// Where its jobs are placed.
    pub scope: Scope,
}

/// Every queue that has work waiting to be placed; reservations first, whose time is short.
pub async fn queues_with_work(db: &PgPool) -> Result<Vec<Queue>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT r.pool_id AS "pool_id!", r.id AS reservation_id FROM reservations r
           WHERE r.state = 'running' AND EXISTS (SELECT FROM jobs j WHERE j.reservation_id = r.id AND NOT isempty(j.pending)
               AND j.hold IS NULL AND (j.begin_at IS NULL OR j.begin_at <= compute_now()))
           UNION ALL
           SELECT p.id, NULL FROM pools p
           WHERE EXISTS (SELECT FROM jobs j WHERE j.pool_id = p.id AND NOT isempty(j.pending) AND j.hold IS NULL
               AND j.reservation_id IS NULL AND (j.begin_at IS NULL OR j.begin_at <= compute_now()))"#
    )
    .fetch_all(db)
    .await?;
    let scope = |id: Option<i64>| id.map_or(Scope::Pool, Scope::Reservation);
    Ok(rows.into_iter().map(|row| Queue { pool_id: row.pool_id, scope: scope(row.reservation_id) }).collect())
}

/// What this queue's jobs may take now.
pub async fn free(db: &PgPool, queue: Queue) -> Result<Vec<NodeFree>, StoreError> {
    let mut nodes = match queue.scope {
        Scope::Pool => nodes_free(db, queue.pool_id).await?,
        Scope::Reservation(id) => reserved_free(db, queue.pool_id, id).await?,
    };
    let ids: Vec<i64> = nodes.iter().map(|node| node.id).collect();
    let held = standing(&mut *db.acquire().await?, &ids).await?;
    nodes.retain_mut(|node| held.get(&node.id).is_none_or(|holds| leave_out(node, holds)));
    Ok(nodes)
}

/// Takes what is held out of what is free, and says until when the rest is. `false`: the whole node takes no work.
fn leave_out(node: &mut NodeFree, holds: &Holds) -> bool {
    let begins = During::lasting(0, NonZeroU64::new(1));
    node.maintenance_us = holds.node_until(0);
    node.gpus_free.retain(|gpu| holds.on_part(gpu.id, Span::ALL, begins).is_none());
    for gpu in &mut node.gpus_free {
        let held_us = holds.part_until(gpu.id, Span::ALL, 0);
        gpu.until_us = gpu.until_us.into_iter().chain(held_us).min();
    }
    holds.on_node(begins).is_none()
}

/// What is free on the nodes of a pool that take work now and have a session, and for how long.
async fn nodes_free(db: &PgPool, pool_id: i32) -> Result<Vec<NodeFree>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT n.id, n.name,
               floor(c.allocatable * c.ratio)::bigint AS "cpus!", c.allocated AS cpus_allocated,
               floor(m.allocatable * m.ratio)::bigint AS "mem!", m.allocated AS mem_allocated,
               coalesce(floor(d.allocatable * d.ratio)::bigint, 0) AS "disk!", coalesce(d.allocated, 0) AS "disk_allocated!"
           FROM nodes n
           JOIN node_resources c ON c.node_id = n.id AND c.resource = 'cpus'
           JOIN node_resources m ON m.node_id = n.id AND m.resource = 'mem_mib'
           LEFT JOIN node_resources d ON d.node_id = n.id AND d.resource = 'disk_mib'
           WHERE n.pool_id = $1 AND n.eligible AND n.connection = 'connected'
           ORDER BY n.id"#,
        pool_id
    )
    .fetch_all(db)
    .await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let mut books = books(&mut *db.acquire().await?, &ids, None).await?;
    let mut nodes: Vec<NodeFree> = rows
        .into_iter()
        .map(|row| {
            let amount = |total: i64, allocated: i64| Amount { free: total - allocated, total };
            let amounts = Amounts::new(
                amount(row.cpus, row.cpus_allocated),
                amount(row.mem, row.mem_allocated),
                amount(row.disk, row.disk_allocated),
            );
            NodeFree {
                id: row.id,
                name: row.name,
                pool_id,
                amounts: amounts.with_book(books.remove(&row.id).unwrap_or_default()),
                until_us: None,
                maintenance_us: None,
                gpus_free: Vec::new(),
                gpu_models: Vec::new(),
            }
        })
        .collect();
    let gpus = sqlx::query!(
        r#"SELECT g.id, g.node_id, g.model,
               g.eligible AND g.mode = 'whole' AND NOT EXISTS (
                   SELECT FROM device_bookings b
                   -- What an allocation has, it has until it is released, even if its time is over.
                   WHERE b.gpu_id = g.id AND (b.during @> compute_now()
                       OR b.kind = 'allocation' AND lower(b.during) <= compute_now())) AS "free!",
               (SELECT (extract(epoch FROM min(lower(b.during)) - compute_now()) * 1000000)::bigint
                FROM device_bookings b WHERE b.gpu_id = g.id AND lower(b.during) > compute_now()) AS until_us
           FROM gpus g JOIN nodes n ON n.id = g.node_id
           WHERE n.pool_id = $1 AND n.eligible AND n.connection = 'connected' AND g.present
           ORDER BY g.id"#,
        pool_id
    )
    .fetch_all(db)
    .await?;
    let index: HashMap<i64, usize> = nodes.iter().enumerate().map(|(i, n)| (n.id, i)).collect();
    for gpu in gpus {
        let Some(&at) = index.get(&gpu.node_id) else { continue };
        nodes[at].gpu_models.push(gpu.model.clone());
        if gpu.free {
            nodes[at].gpus_free.push(GpuFree { id: gpu.id, model: gpu.model, until_us: gpu.until_us });
        }
    }
    Ok(nodes)
}

/// What a running reservation has booked that no job in it has, until it ends.
async fn reserved_free(db: &PgPool, pool_id: i32, reservation_id: i64) -> Result<Vec<NodeFree>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT n.id, n.name, b.cpus, b.mem_mib, b.disk_mib,
               (extract(epoch FROM upper(b.during) - compute_now()) * 1000000)::bigint AS "until_us!",
               coalesce(i.cpus, 0) AS "cpus_inside!", coalesce(i.mem_mib, 0) AS "mem_inside!",
               coalesce(i.disk_mib, 0) AS "disk_inside!"
           FROM node_bookings b JOIN nodes n ON n.id = b.node_id
           LEFT JOIN LATERAL (SELECT sum(i.cpus)::bigint AS cpus, sum(i.mem_mib)::bigint AS mem_mib,
                   sum(i.disk_mib)::bigint AS disk_mib
               FROM node_bookings i
               WHERE i.reservation_id = $1 AND i.node_id = b.node_id AND i.allocation_id IS NOT NULL) i ON true
           WHERE b.reservation_id = $1 AND b.allocation_id IS NULL AND b.during @> compute_now()
               AND n.eligible AND n.connection = 'connected'
           ORDER BY n.id"#,
        reservation_id
    )
    .fetch_all(db)
    .await?;
    let mut nodes: Vec<NodeFree> = rows
        .into_iter()
        .map(|row| {
            let amount = |total: i64, inside: i64| Amount { free: total - inside, total };
            NodeFree {
                id: row.id,
                name: row.name,
                pool_id,
                amounts: Amounts::new(
                    amount(i64::from(row.cpus), row.cpus_inside),
                    amount(row.mem_mib, row.mem_inside),
                    amount(row.disk_mib, row.disk_inside),
                ),
                until_us: Some(row.until_us),
                maintenance_us: None,
                gpus_free: Vec::new(),
                gpu_models: Vec::new(),
            }
        })
        .collect();
    let gpus = sqlx::query!(
        r#"SELECT DISTINCT ON (g.id) g.id, g.node_id, g.model,
               g.eligible AND b.kind = 'reservation' AND b.during @> compute_now() AS "free!",
               (extract(epoch FROM upper(b.during) - compute_now()) * 1000000)::bigint AS until_us
           FROM device_bookings b JOIN gpus g ON g.id = b.gpu_id
           WHERE b.reservation_id = $1 AND b.atom = 'gpu' AND g.present
           ORDER BY g.id, lower(b.during)"#,
        reservation_id
    )
    .fetch_all(db)
    .await?;
    for gpu in gpus {
        let Some(node) = nodes.iter_mut().find(|node| node.id == gpu.node_id) else { continue };
        node.gpu_models.push(gpu.model.clone());
        if gpu.free {
            node.gpus_free.push(GpuFree { id: gpu.id, model: gpu.model, until_us: gpu.until_us });
        }
    }
    Ok(nodes)
}

/// The next page of a queue: jobs that are not held and whose begin time has come. `grace_s` is what a job gets beyond its
/// limit before it is killed.
pub async fn queue_page(
    db: &PgPool,
    queue: Queue,
    after: Option<Cursor>,
    limit: i64,
    grace_s: u32,
) -> Result<Page, StoreError> {
    let Queue { pool_id, scope } = queue;
    let after = after.unwrap_or(Cursor { priority: i64::MAX, job_id: 0 });
    let rows = sqlx::query!(
        r#"SELECT id, tenant_id, charge, cpus, mem_mib, disk_mib, time_limit_s, exclusive, mem_all, gpus, gpu_type, node_count, avoid,
               pending::text AS "pending!", throttle, active, priority, condition->>'reason' AS "reason!", condition->>'message' AS "message!"
           FROM jobs
           WHERE pool_id = $1 AND reservation_id IS NOT DISTINCT FROM $5 AND NOT isempty(pending) AND hold IS NULL
               AND (begin_at IS NULL OR begin_at <= compute_now())
               AND priority <= $2 AND (priority < $2 OR id > $3)
           ORDER BY priority DESC, id
           LIMIT $4"#,
        pool_id,
        after.priority,
        after.job_id,
        limit,
        scope.reservation_id()
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
            tenant_id: row.tenant_id,
            charged: charge_from("jobs", &row.charge)?.on_each_of(row.node_count.unsigned_abs()),
            shape: Shape {
                pool_id,
                node_count: row.node_count.unsigned_abs(),
                cpus: i64::from(row.cpus),
                mem_mib: row.mem_mib,
                disk_mib: row.disk_mib,
                lasts_us: booked_for_us(row.time_limit_s, grace_s),
                gpus: row.gpus.unsigned_abs(),
                gpu_type: row.gpu_type,
                exclusive: row.exclusive,
                mem_all: row.mem_all,
                avoid: ascending(row.avoid),
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

fn ascending(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_unstable();
    ids
}

/// The job as listed, with its reason worked out now by the planner's own code.
pub async fn why(db: &PgPool, id: &JobRef, grace_s: u32) -> Result<proto::api::JobList, StoreError> {
    let mut list = super::read::jobs_of(db, id).await?;
    for job in list.jobs.iter_mut().filter(|job| job.state == proto::State::Pending) {
        let row = sqlx::query!(
            r#"SELECT j.pool_id, j.reservation_id, j.tenant_id, j.charge, cpus, mem_mib, disk_mib, time_limit_s, exclusive, mem_all, gpus, gpu_type,
                 node_count, avoid, r.name AS "reservation?", r.state AS "reservation_state?", lower(r.during) AS begins_at
             FROM jobs j LEFT JOIN reservations r ON r.id = j.reservation_id WHERE j.id = $1"#,
            job.id
        )
        .fetch_one(db)
        .await?;
        // A hold, a begin time or a throttle stands before any lack of room; the lack is told after it.
        let waits_for_room = |c: &proto::Condition| {
            matches!(
                c.reason,
                proto::Reason::Priority | proto::Reason::Unschedulable | proto::Reason::QuotaExceeded
            )
        };
        job.reasons.retain(|c| !waits_for_room(c));
        // What stands in the way of one whose reservation does not run is the reservation, not any lack of room.
        if let (Some(name), Some(state), Some(begins_at)) =
            (row.reservation, row.reservation_state.filter(|state| state != "running"), row.begins_at)
        {
            if state == "booked" {
                job.reasons.retain(|c| c.reason != proto::Reason::Reservation);
                let at = begins_at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
                let message = format!("its reservation, {name}, begins at {at}");
                job.reasons.push(proto::Condition::new(proto::Reason::Reservation, message));
            }
            continue;
        }
        let shape = Shape {
            pool_id: row.pool_id,
            node_count: row.node_count.unsigned_abs(),
            cpus: i64::from(row.cpus),
            mem_mib: row.mem_mib,
            disk_mib: row.disk_mib,
            lasts_us: booked_for_us(row.time_limit_s, grace_s),
            gpus: row.gpus.unsigned_abs(),
            gpu_type: row.gpu_type,
            exclusive: row.exclusive,
            mem_all: row.mem_all,
            avoid: ascending(row.avoid),
        };
        let scope = row.reservation_id.map_or(Scope::Pool, Scope::Reservation);
        let queue = Queue { pool_id: row.pool_id, scope };
        let charged = charge_from("jobs", &row.charge)?.on_each_of(shape.node_count);
        let allowances = allowances(db, queue.scope).await?;
        let allowance = allowances.get(&row.tenant_id);
        let payer = allowance.map(|allowance| Payer { allowance, charged: &charged });
        match why_not(&free(db, queue).await?, &shape, payer) {
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
