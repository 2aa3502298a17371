//! The controller's own hold on nodes that it hears nothing of.

use super::super::StoreError;
use super::derive_eligible;
use proto::api::CONTROLLER;
use sqlx::PgConnection;

/// Holds these nodes, whose rows the caller has locked, as unreachable. One that is held so already stays as it is.
pub async fn unreachable(tx: &mut PgConnection, node_ids: &[i64]) -> Result<(), StoreError> {
    if node_ids.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO holds (node_id, kind, owner, author, reason, opened_at, during)
         SELECT n.id, 'unreachable', $2, $2, format('no session since %s',
                 to_char(n.disconnected_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')),
             compute_now(), tstzrange(compute_now(), NULL)
         FROM nodes n WHERE n.id = ANY($1) AND NOT EXISTS (SELECT FROM holds h WHERE h.node_id = n.id
             AND h.kind = 'unreachable' AND h.owner = $2 AND h.gpu_id IS NULL AND h.closed_at IS NULL)",
        node_ids,
        CONTROLLER
    )
    .execute(&mut *tx)
    .await?;
    derive_eligible(tx, node_ids, &[]).await?;
    Ok(())
}

/// Lifts that hold from these nodes, whose rows the caller has locked.
pub async fn reachable(tx: &mut PgConnection, node_ids: &[i64]) -> Result<(), StoreError> {
    let lifted = sqlx::query!(
        "UPDATE holds SET closed_at = greatest(compute_now(), opened_at), closed_by = $2
         WHERE node_id = ANY($1) AND kind = 'unreachable' AND owner = $2 AND gpu_id IS NULL AND closed_at IS NULL",
        node_ids,
        CONTROLLER
    )
    .execute(&mut *tx)
    .await?;
    if lifted.rows_affected() > 0 {
        derive_eligible(tx, node_ids, &[]).await?;
    }
    Ok(())
}
