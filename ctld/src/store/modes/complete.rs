//! Making changes whose time has come.

use super::super::StoreError;
use super::super::leases::Authority;
use sqlx::PgConnection;

/// Carries out every change whose window has begun, of GPUs without a device behind them. Returns how many.
pub async fn complete_due(right: &impl Authority) -> Result<usize, StoreError> {
    let mut tx = right.begin().await?;
    let done = complete(&mut tx).await?;
    tx.commit().await?;
    Ok(done)
}

/// See [`complete_due`].
pub(super) async fn complete(tx: &mut PgConnection) -> Result<usize, StoreError> {
    let gpus = sqlx::query_scalar!(
        "SELECT id FROM gpus g WHERE declared AND EXISTS (SELECT FROM gpu_changes c
             WHERE c.gpu_id = g.id AND c.ended_at IS NULL AND lower(c.during) <= compute_now())
         ORDER BY id FOR UPDATE"
    )
    .fetch_all(&mut *tx)
    .await?;
    let due = sqlx::query!(
        // One that finds an allocation still there waits: it is moved when that is looked after, see `push_changes`.
        "SELECT id, gpu_id, mode, slots, layout FROM gpu_changes g
         WHERE gpu_id = ANY($1) AND ended_at IS NULL AND lower(during) <= compute_now()
             AND NOT EXISTS (SELECT FROM device_bookings c JOIN device_bookings b ON b.gpu_id = c.gpu_id AND b.span && c.span
                 WHERE c.change_id = g.id AND b.kind = 'allocation' AND lower(b.during) <= lower(g.during))
         ORDER BY lower(during) FOR UPDATE",
        &gpus
    )
    .fetch_all(&mut *tx)
    .await?;
    for row in &due {
        sqlx::query!(
            "UPDATE gpus SET mode = $2, slots = $3, layout = $4, version = version + 1 WHERE id = $1",
            row.gpu_id,
            row.mode,
            row.slots,
            row.layout.as_deref()
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            "WITH gone AS (DELETE FROM device_bookings WHERE change_id = $1 RETURNING *)
             INSERT INTO device_bookings_history (change_id, gpu_id, span, during, atom, kind)
             SELECT change_id, gpu_id, span, tstzrange(lower(during), LEAST(upper(during), compute_now())), atom, kind
             FROM gone WHERE lower(during) < compute_now()",
            row.id
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("UPDATE gpu_changes SET state = 'done', ended_at = compute_now() WHERE id = $1", row.id)
            .execute(&mut *tx)
            .await?;
    }
    Ok(due.len())
}
