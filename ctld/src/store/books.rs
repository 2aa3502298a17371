//! The books of nodes: what is booked of their amounts, when.

use super::StoreError;
use ctld_core::plan::Booked;
use ctld_core::timeline::During;
use sqlx::PgConnection;
use std::collections::HashMap;

/// The whole book of those of these nodes (named once or more) on which something begins later than now, or is to have begun
/// and is not counted as in use yet; the others need none, since what is free on them now is free for ever. What runs inside a reservation is left out: the reservation has it.
pub(super) async fn books(
    db: &mut PgConnection,
    node_ids: &[i64],
) -> Result<HashMap<i64, Vec<Booked>>, StoreError> {
    read(db, node_ids, false).await
}

/// The whole book of these nodes.
pub(super) async fn whole_books(
    db: &mut PgConnection,
    node_ids: &[i64],
) -> Result<HashMap<i64, Vec<Booked>>, StoreError> {
    read(db, node_ids, true).await
}

async fn read(
    db: &mut PgConnection,
    node_ids: &[i64],
    all: bool,
) -> Result<HashMap<i64, Vec<Booked>>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT b.node_id, b.cpus, b.mem_mib, b.disk_mib,
               (extract(epoch FROM lower(b.during) - compute_now()) * 1000000)::bigint AS "start_us!",
               (extract(epoch FROM upper(b.during) - compute_now()) * 1000000)::bigint AS end_us
           FROM node_bookings b
           WHERE b.node_id = ANY($1) AND (b.allocation_id IS NULL OR b.reservation_id IS NULL)
               AND ($2 OR b.node_id IN (
                   SELECT l.node_id FROM node_bookings l
                   WHERE l.node_id = ANY($1) AND lower(l.during) > compute_now()
                   UNION ALL
                   SELECT l.node_id FROM reservations r
                   JOIN node_bookings l ON l.reservation_id = r.id AND l.allocation_id IS NULL
                   WHERE r.ended_at IS NULL AND r.state = 'booked' AND lower(r.during) <= compute_now()))"#,
        node_ids,
        all
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
