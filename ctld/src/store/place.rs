//! Placements: a plan's tasks become attempts, allocations and bookings, in one transaction.
//!
//! The plan was made on a snapshot; here each placement is checked again under row locks and dropped if it no longer holds.
//! Jobs are locked first, then nodes and GPUs FOR SHARE (so that a hold and a placement are ordered: whichever commits
//! second sees the first), then node_resources; the counters' CHECK and the book's exclusion constraint stand behind that.
//! What was booked by somebody else meanwhile comes back as a conflict and is planned anew.
//!
//! Placements inside a reservation take from what it has booked: GPUs are carved out of its bookings, amounts counted
//! against its own, and the node's counters, which hold the whole reservation, stay as they are.
//!
//! What a placement gives beyond what its job was charged when it was submitted is charged last; one that the tenant cannot
//! be charged for is dropped like any other that no longer holds, and the next plan knows the use that refused it.

use super::books::books;
use super::holds::standing;
use super::leases::Authority;
use super::quotas::{self, Extra};
use super::reservations::carve::carve;
use super::steps::reached;
use super::{StoreError, index_set};
use ctld_core::holds::Holds;
use ctld_core::plan::{Amount, Amounts, Placement, Share};
use ctld_core::span::Span;
use ctld_core::timeline::During;
use proto::IndexSet;
use sqlx::PgConnection;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;

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

/// Where placements take their place from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// From what is free of the pool's nodes.
    Pool,
    /// From what this reservation has booked.
    Reservation(i64),
}

impl Scope {
    /// The reservation's id.
    pub fn reservation_id(self) -> Option<i64> {
        match self {
            Scope::Pool => None,
            Scope::Reservation(id) => Some(id),
        }
    }
}

/// How long a job with this limit is booked for, microseconds: limit, grace and clean-up.
pub fn booked_for_us(time_limit_s: Option<i64>, grace_s: u32) -> Option<u64> {
    let seconds = time_limit_s?.max(0).saturating_add(i64::from(grace_s) + CLEANUP_S);
    Some(seconds.unsigned_abs().saturating_mul(1_000_000))
}

/// Books what still holds of these placements, to start now.
pub async fn apply(
    right: &impl Authority,
    scope: Scope,
    placements: &[Placement],
    grace_s: u32,
) -> Result<Applied, StoreError> {
    let extras = quotas::extras(right.db(), placements).await?;
    let mut tx = right.begin().await?;
    reached("place: begun").await;
    // 1. What still holds of jobs, nodes and GPUs, under their locks.
    let mut standing = still_pending(&mut tx, scope, placements, grace_s).await?;
    reached("place: jobs locked").await;
    standing = still_eligible(&mut tx, standing).await?;
    reached("place: holds read").await;
    // 2. What fits the nodes' amounts, the book, and at last the quotas; each try under a savepoint.
    let mut applied = Applied::default();
    for _ in 0..TRIES {
        let fitting = within_resources(&mut tx, scope, &standing).await?;
        if fitting.is_empty() {
            break;
        }
        let mut savepoint = sqlx::Acquire::begin(&mut *tx).await?;
        let taken = match book(&mut savepoint, scope, &fitting, &extras).await {
            Ok(taken) if taken.is_empty() && scope == Scope::Pool => {
                over_quota(&mut savepoint, &fitting, &extras).await?
            }
            Ok(taken) => taken,
            // Two that booked overlapping ranges at once: one of them may be told so by an error in place of a missing row.
            Err(error) if error.is_conflict() => {
                savepoint.rollback().await?;
                break;
            }
            Err(error) => return Err(error),
        };
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
    reached("place: booked").await;
    tx.commit().await?;
    applied.conflicts = placements.len() - applied.placed;
    Ok(applied)
}

/// Charges what these placements give beyond what was charged. Returns those that the tenant cannot be charged for; if there
/// are any, the caller rolls all of it back.
async fn over_quota(
    tx: &mut PgConnection,
    placements: &[&Placement],
    extras: &HashMap<(i64, u32), Extra>,
) -> Result<HashSet<(i64, u32)>, StoreError> {
    let charged: Vec<((i64, u32), &Extra)> = placements
        .iter()
        .map(|p| (p.job_id, p.task))
        .filter_map(|task| Some((task, extras.get(&task)?)))
        .collect();
    let asks: Vec<_> = charged.iter().map(|(_, extra)| extra.ask()).collect();
    let answers = quotas::charge(tx, &asks).await?;
    Ok(charged
        .iter()
        .zip(answers)
        .filter(|(_, answer)| answer.is_err())
        .map(|((task, _), _)| *task)
        .collect())
}

/// Locks the jobs and keeps the placements whose task still waits, as it was, and that their throttle still allows.
async fn still_pending<'a>(
    tx: &mut PgConnection,
    scope: Scope,
    placements: &'a [Placement],
    grace_s: u32,
) -> Result<Vec<&'a Placement>, StoreError> {
    let ids: Vec<i64> = placements.iter().map(|p| p.job_id).collect();
    let rows = sqlx::query!(
        r#"SELECT id, pending::text AS "pending!", throttle, active, time_limit_s FROM jobs
           WHERE id = ANY($1) AND hold IS NULL AND NOT isempty(pending) AND reservation_id IS NOT DISTINCT FROM $2
           ORDER BY id FOR UPDATE"#,
        &ids,
        scope.reservation_id()
    )
    .fetch_all(tx)
    .await?;
    let mut waiting: HashMap<i64, (IndexSet, i64, Option<u64>)> = HashMap::with_capacity(rows.len());
    for row in rows {
        let left = row.throttle.map_or(i64::MAX, |limit| i64::from(limit - row.active));
        let lasts_us = booked_for_us(row.time_limit_s, grace_s);
        waiting.insert(row.id, (index_set("jobs", "pending", &row.pending)?, left, lasts_us));
    }
    Ok(placements
        .iter()
        .filter(|p| match waiting.get_mut(&p.job_id) {
            Some((pending, left, lasts_us))
                if *left > 0 && pending.contains(p.task) && *lasts_us == p.lasts_us =>
            {
                *left -= 1;
                true
            }
            _ => false,
        })
        .collect())
}

/// Locks nodes and GPUs against holds and keeps the placements all of whose nodes and GPUs take work for as long as they
/// last.
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
        .fetch_all(&mut *tx)
        .await?
        .into_iter()
        .collect()
    };
    // Read after the locks are held: whoever put a hold before has committed. One that begins later is no flag yet.
    let held = standing(tx, &node_ids).await?;
    let takes_work = |placement: &Placement, share: &Share| {
        nodes.contains(&share.node_id)
            && share.gpu_ids.iter().all(|id| gpus.contains(id))
            && held.get(&share.node_id).is_none_or(|holds| !refused(holds, share, placement.lasts_us))
    };
    Ok(placements.into_iter().filter(|p| p.shares.iter().all(|share| takes_work(p, share))).collect())
}

/// Whether a hold refuses a share that begins now and lasts so long.
fn refused(holds: &Holds, share: &Share, lasts_us: Option<u64>) -> bool {
    let work = During::lasting(0, lasts_us.and_then(NonZeroU64::new));
    holds.on_node(work).is_some()
        || share.gpu_ids.iter().any(|id| holds.on_part(*id, Span::ALL, work).is_some())
}

/// Locks the nodes' amounts and keeps, in order, the placements that fit them: now, and over what is booked for later.
async fn within_resources<'a>(
    tx: &mut PgConnection,
    scope: Scope,
    placements: &[&'a Placement],
) -> Result<Vec<&'a Placement>, StoreError> {
    let node_ids: Vec<i64> = placements.iter().flat_map(|p| p.shares.iter().map(|s| s.node_id)).collect();
    // No further than the longest of them lasts.
    let ahead_us = placements.iter().try_fold(0, |most, p| Some(p.lasts_us?.max(most)));
    let mut nodes = match scope {
        Scope::Pool => lock_nodes_amounts(tx, &node_ids, ahead_us).await?,
        Scope::Reservation(id) => lock_reserved_amounts(tx, id, &node_ids).await?,
    };
    Ok(placements
        .iter()
        .copied()
        .filter(|p| {
            let fits = p
                .shares
                .iter()
                .all(|s| nodes.get(&s.node_id).is_some_and(|amounts| amounts.fits(s, p.lasts_us)));
            if fits {
                for s in &p.shares {
                    if let Some(amounts) = nodes.get_mut(&s.node_id) {
                        amounts.take(s, p.lasts_us);
                    }
                }
            }
            fits
        })
        .collect())
}

/// What these nodes have for so many microseconds from now (`None` is for ever), locked until the end of the transaction.
pub(super) async fn lock_nodes_amounts(
    tx: &mut PgConnection,
    node_ids: &[i64],
    ahead_us: Option<u64>,
) -> Result<HashMap<i64, Amounts>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT node_id, resource, floor(allocatable * ratio)::bigint AS "total!", allocated
           FROM node_resources WHERE node_id = ANY($1) ORDER BY node_id, resource FOR UPDATE"#,
        node_ids
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut nodes: HashMap<i64, Amounts> = HashMap::new();
    for row in rows {
        let node = nodes.entry(row.node_id).or_default();
        let amount = Amount { free: row.total - row.allocated, total: row.total };
        match row.resource.as_str() {
            "cpus" => node.cpus = amount,
            "mem_mib" => node.mem_mib = amount,
            "disk_mib" => node.disk_mib = amount,
            other => return Err(super::row_error("node_resources", "resource", other)),
        }
    }
    // Read after the locks are held: whoever booked before has committed.
    for (node_id, book) in books(tx, node_ids, ahead_us).await? {
        if let Some(amounts) = nodes.remove(&node_id) {
            nodes.insert(node_id, amounts.with_book(book));
        }
    }
    Ok(nodes)
}

/// What a reservation has on these nodes beside what runs in it, locked until the end of the transaction.
async fn lock_reserved_amounts(
    tx: &mut PgConnection,
    reservation_id: i64,
    node_ids: &[i64],
) -> Result<HashMap<i64, Amounts>, StoreError> {
    // The reservation's end holds these while it moves what is inside to its own name: whoever is second sees the first.
    sqlx::query!(
        "SELECT resource FROM node_resources WHERE node_id = ANY($1) ORDER BY node_id, resource FOR UPDATE",
        node_ids
    )
    .fetch_all(&mut *tx)
    .await?;
    let rows = sqlx::query!(
        r#"SELECT node_id, cpus, mem_mib, disk_mib FROM node_bookings
           WHERE reservation_id = $1 AND allocation_id IS NULL AND node_id = ANY($2) AND during @> compute_now()
           ORDER BY id FOR UPDATE"#,
        reservation_id,
        node_ids
    )
    .fetch_all(&mut *tx)
    .await?;
    let inside = sqlx::query!(
        r#"SELECT node_id, sum(cpus)::bigint AS "cpus!", sum(mem_mib)::bigint AS "mem_mib!",
               sum(disk_mib)::bigint AS "disk_mib!"
           FROM node_bookings WHERE reservation_id = $1 AND allocation_id IS NOT NULL GROUP BY node_id"#,
        reservation_id
    )
    .fetch_all(tx)
    .await?;
    let whole = |total: i64| Amount { free: total, total };
    let mut nodes: HashMap<i64, Amounts> = rows
        .into_iter()
        .map(|row| {
            let amounts = Amounts::new(whole(i64::from(row.cpus)), whole(row.mem_mib), whole(row.disk_mib));
            (row.node_id, amounts)
        })
        .collect();
    for row in inside {
        if let Some(amounts) = nodes.get_mut(&row.node_id) {
            amounts.cpus.free -= row.cpus;
            amounts.mem_mib.free -= row.mem_mib;
            amounts.disk_mib.free -= row.disk_mib;
        }
    }
    Ok(nodes)
}

/// Writes attempts, allocations and bookings. Returns the tasks whose GPUs somebody else has booked; if there are any, the
/// caller rolls all of it back.
async fn book(
    tx: &mut PgConnection,
    scope: Scope,
    placements: &[&Placement],
    extras: &HashMap<(i64, u32), Extra>,
) -> Result<HashSet<(i64, u32)>, StoreError> {
    let shares: Vec<(&Placement, usize)> =
        placements.iter().flat_map(|p| (0..p.shares.len()).map(move |position| (*p, position))).collect();
    let (mut job, mut task, mut position, mut node) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut cpus, mut mem, mut disk, mut lasts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut charges = Vec::with_capacity(shares.len());
    for (p, at) in &shares {
        // The reservation is charged for what is inside it.
        let extra = extras.get(&(p.job_id, p.task)).filter(|_| scope == Scope::Pool);
        charges.push(extra.map_or_else(|| serde_json::json!({}), |extra| extra.part(*at)));
        let share = &p.shares[*at];
        job.push(p.job_id);
        task.push(p.task as i32);
        position.push(*at as i32);
        node.push(share.node_id);
        cpus.push(share.cpus as i32);
        mem.push(share.mem_mib);
        disk.push(share.disk_mib);
        lasts.push(p.lasts_us.map(|us| us as f64 / 1e6));
    }
    let booked = sqlx::query_file!(
        "src/store/sql/place.sql",
        &job,
        &task,
        &position,
        &node,
        &cpus,
        &mem,
        &disk,
        &lasts as &[Option<f64>],
        scope.reservation_id(),
        &charges
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
    if let Scope::Reservation(id) = scope {
        let carved = carve(tx, id, &gpu_ids, &allocation_ids).await?;
        let others: HashSet<_> =
            devices.iter().filter(|d| !carved.contains(&d.0)).map(|d| (d.2, d.3)).collect();
        if !others.is_empty() {
            return Ok(others);
        }
    }
    // The mode timeline decides with the constraint: a GPU is given whole only where it is whole for the whole time. What an
    // allocation has that is not released is not given either, even if its time is over.
    let won: HashSet<i64> = sqlx::query_scalar!(
        "INSERT INTO device_bookings (gpu_id, span, during, allocation_id, reservation_id, atom, kind)
         SELECT i.gpu_id, int4range(NULL, NULL), b.during, i.allocation_id, b.reservation_id, 'gpu', 'allocation'
         FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i(gpu_id, allocation_id, ord)
         JOIN node_bookings b ON b.allocation_id = i.allocation_id
         WHERE EXISTS (SELECT FROM gpu_modes m WHERE m.gpu_id = i.gpu_id AND m.mode = 'whole' AND m.during @> b.during)
             AND NOT EXISTS (SELECT FROM device_bookings l WHERE l.gpu_id = i.gpu_id AND l.kind = 'allocation'
                 AND upper(l.during) <= lower(b.during))
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
pub async fn record_waits(
    right: &impl Authority,
    waits: &[(i64, proto::Condition)],
) -> Result<(), StoreError> {
    if waits.is_empty() {
        return Ok(());
    }
    let mut waits: Vec<_> = waits.iter().collect();
    waits.sort_by_key(|w| w.0);
    let ids: Vec<i64> = waits.iter().map(|w| w.0).collect();
    let conditions: Vec<serde_json::Value> = waits.iter().map(|w| super::condition_value(&w.1)).collect();
    let mut tx = right.begin().await?;
    sqlx::query!(
        "WITH locked AS (SELECT id FROM jobs WHERE id = ANY($1) AND NOT isempty(pending) AND hold IS NULL
             ORDER BY id FOR UPDATE)
         UPDATE jobs j SET condition = i.condition
         FROM unnest($1::bigint[], $2::jsonb[]) AS i(id, condition), locked
         WHERE j.id = i.id AND locked.id = i.id",
        &ids,
        &conditions
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(())
}
