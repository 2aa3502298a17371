//! Placements: a plan's tasks become attempts, allocations and bookings, in one transaction.
//!
//! The plan was made on a snapshot; here each placement is checked again under row locks and dropped if it no longer holds.
//! Jobs are locked first, then nodes and GPUs FOR SHARE (so that a hold and a placement are ordered: whichever commits
//! second sees the first), then node_resources; the counters' CHECK and the book's exclusion constraint stand behind that.
//! What was booked by somebody else meanwhile comes back as a conflict and is planned anew.

use super::{StoreError, index_set};
use ctld_core::plan::Placement;
use proto::IndexSet;
use sqlx::{PgConnection, PgPool};
use std::collections::{HashMap, HashSet};

/// Seconds a booking lasts beyond limit and grace: what the node may need to clean up. A booking that is overrun all the
/// same becomes open-ended, see [`extend_overdue`].
const CLEANUP_S: i64 = 60;
/// How often a batch is tried again without the placements whose GPU was taken.
const TRIES: usize = 3;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Applied {
    /// How many tasks are placed.
    pub placed: usize,
    /// The nodes whose target changed.
    pub nodes: Vec<i64>,
    /// How many placements no longer held: a reason to plan anew.
    pub conflicts: usize,
}

/// Bookings of live allocations that reach, or have passed, their end become open-ended: what still runs still holds its
/// place. Runs every few seconds, well within the minute it looks ahead.
pub async fn extend_overdue(db: &PgPool) -> Result<u64, StoreError> {
    let devices = sqlx::query!(
        "UPDATE device_bookings SET during = tstzrange(lower(during), NULL)
         WHERE kind = 'allocation' AND upper(during) <= compute_now() + interval '60 s'"
    )
    .execute(db)
    .await?;
    let nodes = sqlx::query!(
        "UPDATE node_bookings SET during = tstzrange(lower(during), NULL)
         WHERE upper(during) <= compute_now() + interval '60 s'"
    )
    .execute(db)
    .await?;
    Ok(devices.rows_affected() + nodes.rows_affected())
}

/// Books what still holds of these placements, to start now.
pub async fn apply(db: &PgPool, placements: &[Placement], grace_s: u32) -> Result<Applied, StoreError> {
    let mut tx = db.begin().await?;
    // 1. What still holds of jobs, nodes and GPUs, under their locks.
    let mut standing = still_pending(&mut tx, placements).await?;
    standing = still_eligible(&mut tx, standing).await?;
    // 2. What fits the nodes' amounts, and the book; each try under a savepoint.
    let mut applied = Applied::default();
    for _ in 0..TRIES {
        let fitting = within_resources(&mut tx, &standing).await?;
        if fitting.is_empty() {
            break;
        }
        let mut savepoint = sqlx::Acquire::begin(&mut *tx).await?;
        let taken = book(&mut savepoint, &fitting, grace_s).await?;
        if taken.is_empty() {
            savepoint.commit().await?;
            applied.placed = fitting.len();
            applied.nodes = fitting.iter().flat_map(|p| p.shares.iter().map(|s| s.node_id)).collect();
            applied.nodes.sort_unstable();
            applied.nodes.dedup();
            break;
        }
        savepoint.rollback().await?;
        standing = fitting.into_iter().filter(|p| !taken.contains(&(p.job_id, p.task))).collect();
    }
    tx.commit().await?;
    applied.conflicts = placements.len() - applied.placed;
    Ok(applied)
}

/// Locks the jobs and keeps the placements whose task still waits and that their throttle still allows.
async fn still_pending<'a>(
    tx: &mut PgConnection,
    placements: &'a [Placement],
) -> Result<Vec<&'a Placement>, StoreError> {
    let ids: Vec<i64> = placements.iter().map(|p| p.job_id).collect();
    let rows = sqlx::query!(
        r#"SELECT id, pending::text AS "pending!", throttle, active FROM jobs
           WHERE id = ANY($1) AND hold IS NULL AND NOT isempty(pending) ORDER BY id FOR UPDATE"#,
        &ids
    )
    .fetch_all(tx)
    .await?;
    let mut waiting: HashMap<i64, (IndexSet, i64)> = HashMap::with_capacity(rows.len());
    for row in rows {
        let left = row.throttle.map_or(i64::MAX, |limit| i64::from(limit - row.active));
        waiting.insert(row.id, (index_set("jobs", "pending", &row.pending)?, left));
    }
    Ok(placements
        .iter()
        .filter(|p| match waiting.get_mut(&p.job_id) {
            Some((pending, left)) if *left > 0 && pending.contains(p.task) => {
                *left -= 1;
                true
            }
            _ => false,
        })
        .collect())
}

/// Locks nodes and GPUs against holds and keeps the placements all of whose nodes and GPUs take work.
async fn still_eligible<'a>(
    tx: &mut PgConnection,
    placements: Vec<&'a Placement>,
) -> Result<Vec<&'a Placement>, StoreError> {
    let shares = || placements.iter().flat_map(|p| &p.shares);
    let node_ids: Vec<i64> = shares().map(|s| s.node_id).collect();
    let gpu_ids: Vec<i64> = shares().flat_map(|s| s.gpu_ids.iter().copied()).collect();
    let nodes: HashSet<i64> = sqlx::query_scalar!(
        "SELECT id FROM nodes WHERE id = ANY($1) AND eligible ORDER BY id FOR SHARE",
        &node_ids
    )
    .fetch_all(&mut *tx)
    .await?
    .into_iter()
    .collect();
    let gpus: HashSet<i64> = if gpu_ids.is_empty() {
        HashSet::new()
    } else {
        sqlx::query_scalar!(
            "SELECT id FROM gpus WHERE id = ANY($1) AND eligible AND present AND mode = 'whole' ORDER BY id FOR SHARE",
            &gpu_ids
        )
        .fetch_all(tx)
        .await?
        .into_iter()
        .collect()
    };
    Ok(placements
        .into_iter()
        .filter(|p| {
            p.shares
                .iter()
                .all(|s| nodes.contains(&s.node_id) && s.gpu_ids.iter().all(|id| gpus.contains(id)))
        })
        .collect())
}

/// Locks the nodes' amounts and keeps, in order, the placements that fit them.
async fn within_resources<'a>(
    tx: &mut PgConnection,
    placements: &[&'a Placement],
) -> Result<Vec<&'a Placement>, StoreError> {
    let node_ids: Vec<i64> = placements.iter().flat_map(|p| p.shares.iter().map(|s| s.node_id)).collect();
    let rows = sqlx::query!(
        r#"SELECT node_id, resource, (floor(allocatable * ratio) - allocated)::bigint AS "free!"
           FROM node_resources WHERE node_id = ANY($1) ORDER BY node_id, resource FOR UPDATE"#,
        &node_ids
    )
    .fetch_all(tx)
    .await?;
    let mut cpus: HashMap<i64, i64> = HashMap::new();
    let mut mem: HashMap<i64, i64> = HashMap::new();
    for row in rows {
        let amounts = if row.resource == "cpus" { &mut cpus } else { &mut mem };
        amounts.insert(row.node_id, row.free);
    }
    Ok(placements
        .iter()
        .copied()
        .filter(|p| {
            let fits = p.shares.iter().all(|s| {
                cpus.get(&s.node_id).is_some_and(|free| *free >= s.cpus)
                    && mem.get(&s.node_id).is_some_and(|free| *free >= s.mem_mib)
            });
            if fits {
                for s in &p.shares {
                    *cpus.entry(s.node_id).or_default() -= s.cpus;
                    *mem.entry(s.node_id).or_default() -= s.mem_mib;
                }
            }
            fits
        })
        .collect())
}

/// Writes attempts, allocations and bookings. Returns the tasks whose GPUs somebody else has booked; if there are any, the
/// caller rolls all of it back.
async fn book(
    tx: &mut PgConnection,
    placements: &[&Placement],
    grace_s: u32,
) -> Result<HashSet<(i64, u32)>, StoreError> {
    let shares: Vec<(&Placement, usize)> =
        placements.iter().flat_map(|p| (0..p.shares.len()).map(move |position| (*p, position))).collect();
    let (mut job, mut task, mut position, mut node, mut cpus, mut mem) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (p, at) in &shares {
        let share = &p.shares[*at];
        job.push(p.job_id);
        task.push(p.task as i32);
        position.push(*at as i32);
        node.push(share.node_id);
        cpus.push(share.cpus as i32);
        mem.push(share.mem_mib);
    }
    let booked = sqlx::query_file!(
        "src/store/sql/place.sql",
        &job,
        &task,
        &position,
        &node,
        &cpus,
        &mem,
        f64::from(grace_s) + CLEANUP_S as f64
    )
    .fetch_all(&mut *tx)
    .await?;
    let allocation_of: HashMap<(i64, i32, i32), i64> =
        booked.into_iter().map(|row| ((row.job_id, row.task, row.position), row.allocation_id)).collect();

    let mut devices: Vec<(i64, i64, i64, u32)> = Vec::new();
    for (p, at) in &shares {
        for gpu_id in &p.shares[*at].gpu_ids {
            let allocation = allocation_of
                .get(&(p.job_id, p.task as i32, *at as i32))
                .ok_or(StoreError::Database(sqlx::Error::RowNotFound))?;
            devices.push((*gpu_id, *allocation, p.job_id, p.task));
        }
    }
    if devices.is_empty() {
        return Ok(HashSet::new());
    }
    devices.sort_unstable();
    let gpu_ids: Vec<i64> = devices.iter().map(|d| d.0).collect();
    let allocation_ids: Vec<i64> = devices.iter().map(|d| d.1).collect();
    let won: HashSet<i64> = sqlx::query_scalar!(
        "INSERT INTO device_bookings (gpu_id, span, during, allocation_id, atom, kind)
         SELECT i.gpu_id, int4range(NULL, NULL), b.during, i.allocation_id, 'gpu', 'allocation'
         FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i(gpu_id, allocation_id, ord)
         JOIN node_bookings b ON b.allocation_id = i.allocation_id
         ORDER BY i.ord
         ON CONFLICT DO NOTHING
         RETURNING gpu_id",
        &gpu_ids,
        &allocation_ids
    )
    .fetch_all(tx)
    .await?
    .into_iter()
    .collect();
    Ok(devices.into_iter().filter(|d| !won.contains(&d.0)).map(|d| (d.2, d.3)).collect())
}

/// Writes why jobs wait, where that changed.
pub async fn record_waits(db: &PgPool, waits: &[(i64, proto::Condition)]) -> Result<(), StoreError> {
    if waits.is_empty() {
        return Ok(());
    }
    let mut waits: Vec<_> = waits.iter().collect();
    waits.sort_by_key(|w| w.0);
    let ids: Vec<i64> = waits.iter().map(|w| w.0).collect();
    let conditions: Vec<serde_json::Value> = waits.iter().map(|w| super::condition_value(&w.1)).collect();
    sqlx::query!(
        "WITH locked AS (SELECT id FROM jobs WHERE id = ANY($1) AND NOT isempty(pending) AND hold IS NULL
             ORDER BY id FOR UPDATE)
         UPDATE jobs j SET condition = i.condition
         FROM unnest($1::bigint[], $2::jsonb[]) AS i(id, condition), locked
         WHERE j.id = i.id AND locked.id = i.id",
        &ids,
        &conditions
    )
    .execute(db)
    .await?;
    Ok(())
}
