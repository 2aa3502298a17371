//! Changes that find the GPU in use when they are to begin: they wait, and what was booked for the mode that they bring waits
//! behind them.

use super::super::StoreError;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;

/// A change whose beginning moves.
struct Moved {
    id: i64,
    old_at: DateTime<Utc>,
    new_at: DateTime<Utc>,
    end_at: DateTime<Utc>,
}

/// Moves the changes that are to begin on a node's GPUs before `until_at`, though an allocation that ends before `soon_at`, or
/// should have, is still there. Their windows keep their length. Returns the reservations that lost time to that.
///
/// The caller has locked the node's GPUs.
pub(in super::super) async fn push_changes(
    tx: &mut PgConnection,
    node_id: i64,
    soon_at: DateTime<Utc>,
    until_at: DateTime<Utc>,
) -> Result<Vec<i64>, StoreError> {
    let gpus = sqlx::query!(
        r#"SELECT l.gpu_id, min(lower(l.during)) AS "first_at!" FROM device_bookings l JOIN gpus g ON g.id = l.gpu_id
           WHERE g.node_id = $1 AND l.kind = 'mode_change' AND lower(l.during) < $3
               AND EXISTS (SELECT FROM device_bookings b WHERE b.gpu_id = l.gpu_id AND b.span && l.span
                   AND b.kind = 'allocation' AND upper(b.during) <= lower(l.during) AND upper(b.during) <= $2)
           GROUP BY l.gpu_id ORDER BY l.gpu_id"#,
        node_id,
        soon_at,
        until_at
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut late = Vec::new();
    for gpu in gpus {
        late.append(&mut push(tx, gpu.gpu_id, gpu.first_at, until_at).await?);
    }
    Ok(late)
}

async fn push(
    tx: &mut PgConnection,
    gpu_id: i64,
    first_at: DateTime<Utc>,
    until_at: DateTime<Utc>,
) -> Result<Vec<i64>, StoreError> {
    // 1. Which changes move, one behind the other.
    let changes = sqlx::query!(
        r#"SELECT id, lower(during) AS "begin_at!", upper(during) AS "end_at!" FROM gpu_changes
           WHERE gpu_id = $1 AND ended_at IS NULL AND lower(during) >= $2 ORDER BY lower(during) FOR UPDATE"#,
        gpu_id,
        first_at
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut moved: Vec<Moved> = Vec::new();
    let mut free_at = until_at;
    for change in changes {
        if change.begin_at >= free_at {
            break;
        }
        let end_at = free_at + (change.end_at - change.begin_at);
        moved.push(Moved { id: change.id, old_at: change.begin_at, new_at: free_at, end_at });
        free_at = end_at;
    }
    let Some(last) = moved.last() else { return Ok(vec![]) };

    // 2. What was booked behind them begins later; what was booked between two of them has no mode to be in any more.
    let ids: Vec<i64> = moved.iter().map(|change| change.id).collect();
    let late = sqlx::query_scalar!(
        r#"WITH behind AS (
               SELECT d.id, d.reservation_id, lower(d.during) >= $4 AND upper(d.during) > $3 AS stays, upper(d.during) AS end_at
               FROM device_bookings d
               WHERE d.gpu_id = $1 AND d.kind = 'reservation' AND lower(d.during) >= $2 AND lower(d.during) < $3
                   AND EXISTS (SELECT FROM device_bookings c WHERE c.change_id = ANY($5) AND c.span && d.span)
           ), later AS (
               UPDATE device_bookings d SET during = tstzrange($3, b.end_at) FROM behind b WHERE d.id = b.id AND b.stays
           ), gone AS (
               DELETE FROM device_bookings d USING behind b WHERE d.id = b.id AND NOT b.stays
           )
           SELECT DISTINCT reservation_id AS "id!" FROM behind"#,
        gpu_id,
        first_at,
        free_at,
        last.old_at,
        &ids
    )
    .fetch_all(&mut *tx)
    .await?;

    // 3. The changes, the last first, so that none runs into the next.
    for Moved { id, old_at, new_at, end_at } in moved.iter().rev() {
        for statement in [
            "UPDATE device_bookings SET during = tstzrange($3, $4) WHERE gpu_id = $1 AND lower(during) = $2 AND change_id = $5",
            "UPDATE gpu_changes SET during = tstzrange($3, $4) WHERE gpu_id = $1 AND lower(during) = $2 AND id = $5",
        ] {
            sqlx::query(statement)
                .bind(gpu_id)
                .bind(old_at)
                .bind(new_at)
                .bind(end_at)
                .bind(id)
                .execute(&mut *tx)
                .await?;
        }
        for statement in [
            "UPDATE gpu_modes SET during = tstzrange($3, upper(during)) WHERE gpu_id = $1 AND lower(during) = $2",
            "UPDATE gpu_modes SET during = tstzrange(lower(during), $3) WHERE gpu_id = $1 AND upper(during) = $2",
        ] {
            sqlx::query(statement).bind(gpu_id).bind(old_at).bind(new_at).execute(&mut *tx).await?;
        }
    }
    Ok(late)
}
