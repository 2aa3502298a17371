//! Bookings that are overrun: what still runs still holds its place, whatever was promised behind it.
//!
//! An allocation is booked for its limit, grace and clean-up. One that is not released by then (its node is cut off) keeps
//! its place, so that the book never says of a place in use that it is free. Where nothing follows it, its booking becomes
//! open-ended. Where a reservation follows, the overrun takes [`EXTENSION`] at a time from the reservation's beginning, and
//! the reservation's condition says who has it; a mode change that follows waits as well, and what is booked behind it.

mod push;

use super::StoreError;
use super::leases::Authority;
use super::modes::push_changes;
use super::place::lock_nodes_amounts;
use push::push_reservations;
use sqlx::PgConnection;

/// How far ahead is looked, seconds; and by how much a booking with something behind it is extended.
const AHEAD_S: f64 = 60.0;
/// See [`AHEAD_S`].
const EXTENSION_S: f64 = 300.0;

/// Extends the bookings of live allocations that reach, or have passed, their end. Runs every few seconds, well within the
/// minute it looks ahead. Returns how many it extended.
pub async fn extend_overdue(right: &impl Authority) -> Result<u64, StoreError> {
    let db = right.db();
    let mut extended = 0;
    if !due(&mut *db.acquire().await?).await?.is_empty() {
        extended += extend_where_free(right).await?;
    }
    for node_id in due(&mut *db.acquire().await?).await? {
        // What fails on one node does not keep the others from being looked after; it is tried again at the next look, and
        // until then what runs there is not given to anybody (`place::book`).
        match extend_before_others(right, node_id).await {
            Ok(some) => extended += some,
            Err(error) if error.transient() => return Err(error),
            Err(error) => tracing::error!(
                node.id = node_id,
                error = &error as &dyn std::error::Error,
                "bookings that reach their end could not be extended"
            ),
        }
    }
    Ok(extended)
}

/// The nodes on which something is overdue.
async fn due(db: &mut PgConnection) -> Result<Vec<i64>, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT b.node_id AS "node_id!" FROM node_bookings b
           WHERE b.allocation_id IS NOT NULL AND upper(b.during) <= compute_now() + make_interval(secs => $1)
           UNION
           SELECT g.node_id FROM device_bookings b JOIN gpus g ON g.id = b.gpu_id
           WHERE b.kind = 'allocation' AND upper(b.during) <= compute_now() + make_interval(secs => $1)
           ORDER BY 1"#,
        AHEAD_S
    )
    .fetch_all(db)
    .await?)
}

/// The locks under which the book of these nodes stands still: nobody books behind what is looked at.
async fn lock(tx: &mut PgConnection, nodes: &[i64]) -> Result<(), StoreError> {
    sqlx::query!(
        "SELECT id FROM reservations
         WHERE ended_at IS NULL AND id IN (SELECT reservation_id FROM node_bookings WHERE node_id = ANY($1))
         ORDER BY id FOR NO KEY UPDATE",
        nodes
    )
    .fetch_all(&mut *tx)
    .await?;
    sqlx::query!("SELECT id FROM nodes WHERE id = ANY($1) ORDER BY id FOR SHARE", nodes)
        .fetch_all(&mut *tx)
        .await?;
    sqlx::query!("SELECT id FROM gpus WHERE node_id = ANY($1) ORDER BY id FOR UPDATE", nodes)
        .fetch_all(&mut *tx)
        .await?;
    lock_nodes_amounts(tx, nodes, Some(0)).await?;
    Ok(())
}

/// Extends what nothing follows: without an end, or inside a reservation up to the reservation's.
async fn extend_where_free(right: &impl Authority) -> Result<u64, StoreError> {
    let mut tx = right.begin().await?;
    let nodes = due(&mut tx).await?;
    lock(&mut tx, &nodes).await?;
    let devices = sqlx::query!(
        "UPDATE device_bookings b SET during = tstzrange(lower(during), NULL)
         WHERE kind = 'allocation' AND upper(during) <= compute_now() + make_interval(secs => $1)
             AND gpu_id IN (SELECT id FROM gpus WHERE node_id = ANY($2))
             AND NOT EXISTS (SELECT FROM device_bookings l WHERE l.gpu_id = b.gpu_id AND l.span && b.span
                 AND lower(l.during) >= upper(b.during))",
        AHEAD_S,
        &nodes
    )
    .execute(&mut *tx)
    .await?;
    let inside = sqlx::query!(
        "UPDATE node_bookings b SET during = tstzrange(lower(b.during), upper(r.during))
         FROM reservations r
         WHERE b.reservation_id = r.id AND b.allocation_id IS NOT NULL AND b.node_id = ANY($2)
             AND upper(b.during) <= compute_now() + make_interval(secs => $1)
             AND upper(r.during) > compute_now() + make_interval(secs => $1)",
        AHEAD_S,
        &nodes
    )
    .execute(&mut *tx)
    .await?;
    let amounts = sqlx::query!(
        "UPDATE node_bookings b SET during = tstzrange(lower(during), NULL)
         WHERE allocation_id IS NOT NULL AND upper(during) <= compute_now() + make_interval(secs => $1)
             AND node_id = ANY($2)
             AND NOT EXISTS (SELECT FROM node_bookings l WHERE l.node_id = b.node_id AND lower(l.during) > compute_now())",
        AHEAD_S,
        &nodes
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(devices.rows_affected() + inside.rows_affected() + amounts.rows_affected())
}

/// Extends what is overdue on a node on which something follows, at the cost of what follows.
async fn extend_before_others(right: &impl Authority, node_id: i64) -> Result<u64, StoreError> {
    let mut tx = right.begin().await?;
    lock(&mut tx, &[node_id]).await?;
    let until = sqlx::query!(
        r#"SELECT compute_now() + make_interval(secs => $1) AS "soon_at!",
               compute_now() + make_interval(secs => $1::double precision + $2::double precision) AS "until_at!""#,
        AHEAD_S,
        EXTENSION_S
    )
    .fetch_one(&mut *tx)
    .await?;
    let late = push_changes(&mut tx, node_id, until.soon_at, until.until_at).await?;
    let pushed = push_reservations(&mut tx, node_id, late).await?;
    let devices = sqlx::query!(
        "UPDATE device_bookings b SET during = tstzrange(lower(b.during), compute_now() + make_interval(secs => $2::double precision + $3::double precision))
         FROM gpus g WHERE g.id = b.gpu_id AND g.node_id = $1 AND b.kind = 'allocation'
             AND upper(b.during) <= compute_now() + make_interval(secs => $2)",
        node_id,
        AHEAD_S,
        EXTENSION_S
    )
    .execute(&mut *tx)
    .await?;
    let nodes = sqlx::query!(
        "UPDATE node_bookings SET during = tstzrange(lower(during), compute_now() + make_interval(secs => $2::double precision + $3::double precision))
         WHERE node_id = $1 AND allocation_id IS NOT NULL AND upper(during) <= compute_now() + make_interval(secs => $2)",
        node_id,
        AHEAD_S,
        EXTENSION_S
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    tracing::warn!(node.id = node_id, reservations = ?pushed, "jobs overrun their time; what was booked behind them waits");
    Ok(devices.rows_affected() + nodes.rows_affected())
}
