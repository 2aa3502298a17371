//! What reservations have booked behind an overrun: it begins later.

use super::super::books::whole_books;
use super::super::place::lock_nodes_amounts;
use super::super::{StoreError, condition_value};
use super::{AHEAD_S, EXTENSION_S};
use ctld_core::plan::Booked;
use ctld_core::timeline::{During, Held, Timeline};
use proto::{Condition, Reason};
use sqlx::PgConnection;

/// Moves the beginnings of what reservations have booked behind the extension: of GPUs where they follow on the same part, of
/// the node's amounts where they do not last for both. What would have ended by then is gone. `late` are those that lost time
/// already. Returns all that did, each told who has it.
pub(super) async fn push_reservations(
    tx: &mut PgConnection,
    node_id: i64,
    mut late: Vec<i64>,
) -> Result<Vec<i64>, StoreError> {
    let jobs: Vec<i64> = sqlx::query_scalar!(
        "SELECT DISTINCT t.job_id FROM node_bookings b JOIN allocations a ON a.id = b.allocation_id
         JOIN attempts t ON t.id = a.attempt_id
         WHERE b.node_id = $1 AND upper(b.during) <= compute_now() + make_interval(secs => $2) ORDER BY 1",
        node_id,
        AHEAD_S
    )
    .fetch_all(&mut *tx)
    .await?;
    late.append(&mut push_parts(tx, node_id).await?);
    if !amounts_last(tx, node_id).await? {
        late.append(&mut push_amounts(tx, node_id).await?);
    }
    let names = jobs.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    let message = format!("job {names} has overrun its time on what is booked here");
    sqlx::query!(
        "UPDATE reservations SET condition = $2, version = version + 1 WHERE id = ANY($1)",
        &late,
        condition_value(&Condition::new(Reason::Unschedulable, message))
    )
    .execute(tx)
    .await?;
    Ok(late)
}

/// Parts of GPUs.
async fn push_parts(tx: &mut PgConnection, node_id: i64) -> Result<Vec<i64>, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"WITH ends AS (
               SELECT compute_now() + make_interval(secs => $2) AS soon_at,
                   compute_now() + make_interval(secs => $2::double precision + $3::double precision) AS from_at
           ), following AS (
               SELECT l.id, l.reservation_id, e.from_at, upper(l.during) AS until_at
               FROM ends e, device_bookings l JOIN gpus g ON g.id = l.gpu_id
               WHERE g.node_id = $1 AND l.kind = 'reservation' AND lower(l.during) < e.from_at
                   AND EXISTS (SELECT FROM device_bookings b WHERE b.gpu_id = l.gpu_id AND b.span && l.span
                       AND b.kind = 'allocation' AND upper(b.during) <= e.soon_at AND upper(b.during) <= lower(l.during))
           ), later AS (
               UPDATE device_bookings d SET during = tstzrange(f.from_at, f.until_at)
               FROM following f WHERE d.id = f.id AND f.from_at < f.until_at
           ), none AS (
               DELETE FROM device_bookings d USING following f WHERE d.id = f.id AND f.from_at >= f.until_at
           )
           SELECT DISTINCT reservation_id AS "id!" FROM following"#,
        node_id,
        AHEAD_S,
        EXTENSION_S
    )
    .fetch_all(tx)
    .await?)
}

/// CPUs, memory and disk.
async fn push_amounts(tx: &mut PgConnection, node_id: i64) -> Result<Vec<i64>, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"WITH ends AS (
               SELECT compute_now() + make_interval(secs => $2) AS soon_at,
                   compute_now() + make_interval(secs => $2::double precision + $3::double precision) AS from_at
           ), following AS (
               SELECT l.id, l.reservation_id, e.from_at, upper(l.during) AS until_at
               FROM ends e, node_bookings l
               WHERE l.node_id = $1 AND l.allocation_id IS NULL
                   AND lower(l.during) > compute_now() AND lower(l.during) < e.from_at
                   AND EXISTS (SELECT FROM node_bookings b
                       WHERE b.node_id = $1 AND b.allocation_id IS NOT NULL AND upper(b.during) <= e.soon_at)
           ), later AS (
               UPDATE node_bookings d SET during = tstzrange(f.from_at, f.until_at)
               FROM following f WHERE d.id = f.id AND f.from_at < f.until_at
           ), none AS (
               DELETE FROM node_bookings d USING following f WHERE d.id = f.id AND f.from_at >= f.until_at
           )
           SELECT DISTINCT reservation_id AS "id!" FROM following"#,
        node_id,
        AHEAD_S,
        EXTENSION_S
    )
    .fetch_all(tx)
    .await?)
}

/// Whether the node has room for what is overdue beside what else is booked there. Whatever ends soon counts as overdue.
async fn amounts_last(tx: &mut PgConnection, node_id: i64) -> Result<bool, StoreError> {
    let (ahead, until) = ((AHEAD_S * 1e6) as i64, ((AHEAD_S + EXTENSION_S) * 1e6) as i64);
    let totals = lock_nodes_amounts(tx, &[node_id], Some(0)).await?;
    let book = whole_books(tx, &[node_id]).await?.remove(&node_id).unwrap_or_default();
    let lengthened: Vec<Booked> = book
        .into_iter()
        .map(|booked| match booked.during.end() {
            Some(end) if end <= ahead => {
                let during = During::new(booked.during.start(), Some(until));
                Booked { during: during.unwrap_or(booked.during), ..booked }
            }
            _ => booked,
        })
        .collect();
    let Some(range) = During::new(0, Some(until)) else { return Ok(true) };
    let within = |total: i64, of: fn(&Booked) -> i64| {
        let held = lengthened.iter().map(|b| Held { amount: of(b).max(0).unsigned_abs(), during: b.during });
        i64::try_from(Timeline::new(held).peak(range)).is_ok_and(|peak| peak <= total)
    };
    Ok(totals.get(&node_id).is_some_and(|amounts| {
        within(amounts.cpus.total, |b| b.cpus)
            && within(amounts.mem_mib.total, |b| b.mem_mib)
            && within(amounts.disk_mib.total, |b| b.disk_mib)
    }))
}
