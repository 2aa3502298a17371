//! The modes of GPUs over time: what each is set to, and the changes that are booked.
//!
//! A change of mode or layout books the whole GPU for its window, so it is accepted exactly when nothing is booked there;
//! and since what is booked behind it was booked for the mode before, it is accepted only when nothing is booked behind its
//! beginning that the new mode could not hold. The mode timeline then says the old mode up to the window and the new one
//! from its beginning on. The GPU's row is locked first, as a placement locks it: whichever commits second sees the first.

use super::StoreError;
use sqlx::PgConnection;

/// Takes a change that has not been made out of the book and the timeline.
pub(super) async fn end_change(tx: &mut PgConnection, change_id: i64, state: &str) -> Result<(), StoreError> {
    let ended = sqlx::query!(
        r#"UPDATE gpu_changes SET state = $2, ended_at = compute_now() WHERE id = $1 AND ended_at IS NULL
           RETURNING gpu_id, lower(during) AS "from_at!""#,
        change_id,
        state
    )
    .fetch_optional(&mut *tx)
    .await?;
    let Some(change) = ended else { return Ok(()) };
    sqlx::query!("DELETE FROM device_bookings WHERE change_id = $1", change_id).execute(&mut *tx).await?;
    // The entry before goes on for as long as the change's own would have held.
    let until = sqlx::query_scalar!(
        "DELETE FROM gpu_modes WHERE gpu_id = $1 AND lower(during) = $2 RETURNING upper(during)",
        change.gpu_id,
        change.from_at
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(until) = until {
        sqlx::query!(
            "UPDATE gpu_modes SET during = tstzrange(lower(during), $3) WHERE gpu_id = $1 AND upper(during) = $2",
            change.gpu_id,
            change.from_at,
            until
        )
        .execute(tx)
        .await?;
    }
    Ok(())
}
