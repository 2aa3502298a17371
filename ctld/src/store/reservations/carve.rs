//! Jobs inside a reservation: their GPUs are carved out of its bookings, and what they do not use goes back.
//!
//! A carve cuts the reservation's booking in three: what has passed goes to history as the reservation's own, what the job
//! takes becomes the job's booking, and the rest stays. The exclusion constraint holds throughout: at no instant is a part
//! of a GPU booked twice, nor, between carve and give-back, left for others to take.

use super::super::StoreError;
use sqlx::PgConnection;
use std::collections::HashSet;

/// Cuts what these allocations will book out of what the reservation has booked of these whole GPUs. Returns the GPUs of
/// which it had all that was asked; the others are not its own to give.
pub(in super::super) async fn carve(
    tx: &mut PgConnection,
    reservation_id: i64,
    gpu_ids: &[i64],
    allocation_ids: &[i64],
) -> Result<HashSet<i64>, StoreError> {
    let held = sqlx::query!(
        "SELECT d.id, d.gpu_id, i.allocation_id
         FROM unnest($2::bigint[], $3::bigint[]) AS i(gpu_id, allocation_id)
         JOIN node_bookings b ON b.allocation_id = i.allocation_id
         JOIN device_bookings d ON d.gpu_id = i.gpu_id AND d.reservation_id = $1 AND d.kind = 'reservation'
             AND d.atom = 'gpu' AND d.during @> b.during
         ORDER BY d.id FOR UPDATE OF d",
        reservation_id,
        gpu_ids,
        allocation_ids
    )
    .fetch_all(&mut *tx)
    .await?;
    let ids: Vec<i64> = held.iter().map(|row| row.id).collect();
    let takers: Vec<Option<i64>> = held.iter().map(|row| row.allocation_id).collect();
    sqlx::query!(
        "WITH cut AS (
             SELECT d.*, b.during AS taken
             FROM unnest($1::bigint[], $2::bigint[]) AS i(id, allocation_id)
             JOIN device_bookings d ON d.id = i.id JOIN node_bookings b ON b.allocation_id = i.allocation_id
         ), past AS (
             INSERT INTO device_bookings_history (gpu_id, span, during, reservation_id, atom, kind)
             SELECT gpu_id, span, tstzrange(lower(during), lower(taken)), reservation_id, atom, kind
             FROM cut WHERE lower(during) < lower(taken)
         ), rest AS (
             UPDATE device_bookings d SET during = tstzrange(upper(cut.taken), upper(cut.during))
             FROM cut WHERE d.id = cut.id AND upper(cut.taken) < upper(cut.during)
         )
         DELETE FROM device_bookings d USING cut WHERE d.id = cut.id AND upper(cut.taken) = upper(cut.during)",
        &ids,
        &takers as &[Option<i64>]
    )
    .execute(tx)
    .await?;
    Ok(held.into_iter().map(|row| row.gpu_id).collect())
}

/// Gives what these released allocations did not use of their GPUs back to the reservations they were carved from, as far
/// as those have not ended.
pub(in super::super) async fn give_back(
    tx: &mut PgConnection,
    allocation_ids: &[i64],
) -> Result<(), StoreError> {
    if allocation_ids.is_empty() {
        return Ok(());
    }
    let devices = sqlx::query!(
        r#"SELECT h.gpu_id, h.span, h.atom, r.id AS reservation_id, upper(h.during) AS "from_at!",
               upper(r.during) AS "until_at!",
               (SELECT d.id FROM device_bookings d
                WHERE d.gpu_id = h.gpu_id AND d.span = h.span AND d.reservation_id = r.id AND d.kind = 'reservation'
                    AND lower(d.during) >= upper(h.during)
                ORDER BY lower(d.during) LIMIT 1) AS rest_id
           FROM device_bookings_history h JOIN reservations r ON r.id = h.reservation_id
           WHERE h.allocation_id = ANY($1) AND r.ended_at IS NULL AND upper(h.during) < upper(r.during)
           ORDER BY h.gpu_id, h.span"#,
        allocation_ids
    )
    .fetch_all(&mut *tx)
    .await?;
    for device in devices {
        match device.rest_id {
            // Only the allocation lay between the release and the rest, and it is gone.
            Some(id) => {
                sqlx::query!(
                    "UPDATE device_bookings SET during = tstzrange($2, upper(during)) WHERE id = $1",
                    id,
                    device.from_at
                )
                .execute(&mut *tx)
                .await?;
            }
            None => {
                sqlx::query!(
                    "INSERT INTO device_bookings (gpu_id, span, during, reservation_id, atom, kind)
                     VALUES ($1, $2, tstzrange($3, $4), $5, $6, 'reservation') ON CONFLICT DO NOTHING",
                    device.gpu_id,
                    device.span,
                    device.from_at,
                    device.until_at,
                    device.reservation_id,
                    device.atom
                )
                .execute(&mut *tx)
                .await?;
            }
        }
    }
    Ok(())
}
