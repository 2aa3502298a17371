//! Taking a change back before it is made.

use super::super::{StoreError, row_error};
use super::gpu::{Booked, booked, entry_at, lock, micros};
use super::read;
use chrono::TimeDelta;
use ctld_core::mode_change::in_the_way;
use ctld_core::timeline::During;
use proto::api::GpuChangeList;
use proto::{ApiError, ErrorCode};
use sqlx::PgPool;

/// Takes a change that has not been made out of the book and the timeline.
pub async fn cancel(db: &PgPool, id: i64) -> Result<GpuChangeList, StoreError> {
    let mut tx = db.begin().await?;
    let unknown = || ApiError::new(ErrorCode::NotFound, format!("there is no change {id} of a GPU's mode"));
    let uuid = sqlx::query_scalar!(
        "SELECT g.uuid FROM gpu_changes c JOIN gpus g ON g.id = c.gpu_id WHERE c.id = $1",
        id
    )
    .fetch_optional(&mut *tx)
    .await?
    .ok_or_else(unknown)?;
    let gpu = lock(&mut tx, &uuid).await?;
    let row = sqlx::query!(
        r#"SELECT state, lower(during) AS "begin_at!" FROM gpu_changes WHERE id = $1 FOR UPDATE"#,
        id
    )
    .fetch_one(&mut *tx)
    .await?;
    if row.state == "cancelled" {
        return read::by_ids(&mut tx, &[id]).await;
    }
    if row.state != "booked" {
        let message = format!("change {id} is {} and cannot be cancelled", row.state);
        return Err(ApiError::new(ErrorCode::Conflict, message)
            .hint("book another to change the mode back")
            .into());
    }
    // What is booked behind it was booked for the setting that it brings.
    let own = entry_at(&mut tx, gpu.id, row.begin_at).await?;
    let before = entry_at(&mut tx, gpu.id, row.begin_at - TimeDelta::microseconds(1)).await?;
    let from = During::new(micros(gpu.now, row.begin_at), own.until_at.map(|at| micros(gpu.now, at)));
    let from = from.ok_or_else(|| row_error("gpu_modes", "during", gpu.uuid.as_str()))?;
    let booked = booked(&mut tx, &gpu).await?;
    let others = booked.iter().filter(|b| b.change != Some(id));
    let relies = others.filter(|b| in_the_way(b.for_rule(), &[], from, &before.set, from.end()));
    let relies: Vec<&Booked> = relies.filter(|b| b.change.is_none()).collect();
    if let Some(first) = relies.first() {
        let message = format!(
            "change {id} cannot be cancelled: {} is booked for the mode that it brings",
            first.way.whose
        );
        return Err(ApiError::new(ErrorCode::Conflict, message).hint("cancel that first").into());
    }
    sqlx::query!("DELETE FROM device_bookings WHERE change_id = $1", id).execute(&mut *tx).await?;
    sqlx::query!("DELETE FROM gpu_modes WHERE gpu_id = $1 AND lower(during) = $2", gpu.id, own.from_at)
        .execute(&mut *tx)
        .await?;
    sqlx::query!(
        "UPDATE gpu_modes SET during = tstzrange(lower(during), $3) WHERE gpu_id = $1 AND lower(during) = $2",
        gpu.id,
        before.from_at,
        own.until_at
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!("UPDATE gpu_changes SET state = 'cancelled', ended_at = compute_now() WHERE id = $1", id)
        .execute(&mut *tx)
        .await?;
    let list = read::by_ids(&mut tx, &[id]).await?;
    tx.commit().await?;
    Ok(list)
}
