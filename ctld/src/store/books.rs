//! The books of nodes: what is booked of their amounts, when.

use super::StoreError;
use ctld_core::plan::Booked;
use ctld_core::timeline::During;
use sqlx::PgConnection;
use std::collections::HashMap;

/// The book, for so many microseconds from now, of those of these nodes (named once or more) on which something begins in that
/// time, or is to have begun and is not counted as in use yet; the others need none, since what is free on them now is free
/// until then. `None` is for ever. What runs inside a reservation is left out: the reservation has it.
pub(super) async fn books(
    db: &mut PgConnection,
    node_ids: &[i64],
    ahead_us: Option<u64>,
) -> Result<HashMap<i64, Vec<Booked>>, StoreError> {
    read(db, node_ids, ahead_us, false).await
}

/// The whole book of these nodes.
pub(super) async fn whole_books(
    db: &mut PgConnection,
    node_ids: &[i64],
) -> Result<HashMap<i64, Vec<Booked>>, StoreError> {
    read(db, node_ids, None, true).await
}

async fn read(
    db: &mut PgConnection,
    node_ids: &[i64],
    ahead_us: Option<u64>,
    all: bool,
) -> Result<HashMap<i64, Vec<Booked>>, StoreError> {
    let ahead_s = ahead_us.map(|us| us as f64 / 1e6);
    // Written for the index by node and beginning, which is read as far as is asked and no further: with a million bookings
    // there, a hundred placements waited a tenth of a second for what now takes a millisecond.
    let rows = sqlx::query!(
        r#"SELECT b.node_id, b.cpus, b.mem_mib, b.disk_mib,
               (extract(epoch FROM lower(b.during) - compute_now()) * 1000000)::bigint AS "start_us!",
               (extract(epoch FROM upper(b.during) - compute_now()) * 1000000)::bigint AS end_us
           FROM node_bookings b
           WHERE b.node_id = ANY($1) AND lower(b.during) < coalesce(compute_now() + make_interval(secs => $3), 'infinity')
               AND (b.allocation_id IS NULL OR b.reservation_id IS NULL)
               AND ($2 OR b.node_id IN (
                   SELECT l.node_id FROM node_bookings l
                   WHERE l.node_id = ANY($1) AND lower(l.during) > compute_now()
                       AND lower(l.during) < coalesce(compute_now() + make_interval(secs => $3), 'infinity')
                   UNION ALL
                   SELECT l.node_id FROM node_bookings l
                   WHERE l.node_id = ANY($1) AND lower(l.during) <= compute_now() AND l.allocation_id IS NULL
                       AND (SELECT r.state FROM reservations r WHERE r.id = l.reservation_id) = 'booked'))"#,
        node_ids,
        all,
        ahead_s
    )
    .fetch_all(db)
    .await?;
    let mut books: HashMap<i64, Vec<Booked>> = HashMap::new();
    for row in rows {
        let during = During::new(row.start_us, row.end_us)
            .ok_or_else(|| super::row_error("node_bookings", "during", format!("node {}", row.node_id)))?;
        let (cpus, mem_mib, disk_mib) = (i64::from(row.cpus), row.mem_mib, row.disk_mib);
        books.entry(row.node_id).or_default().push(Booked { during, cpus, mem_mib, disk_mib });
    }
    Ok(books)
}
