//! Holds begin and end in their time. Placements read the holds themselves; this keeps what is derived from them current.

use super::super::StoreError;
use super::super::leases::Authority;
use super::derive_eligible;
use proto::api::CONTROLLER;
use sqlx::PgPool;

/// The most nodes looked after in one transaction.
const NODES_MAX: i64 = 500;

/// What one look changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advanced {
    /// Holds whose time is over and that are closed now.
    pub ended: u64,
    /// Nodes and GPUs that take work again, or no more.
    pub changed: u64,
}

/// Closes the holds whose time is over, and derives anew whether their nodes and GPUs take work; and those of the holds that
/// have begun.
pub async fn advance(right: &impl Authority) -> Result<Advanced, StoreError> {
    let mut tx = right.begin().await?;
    // 1. Where something is due, under the locks that placements take, in their order.
    let due = sqlx::query!(
        r#"SELECT coalesce(g.node_id, h.node_id) AS "node_id!", h.gpu_id
           FROM holds h LEFT JOIN gpus g ON g.id = h.gpu_id JOIN nodes n ON n.id = coalesce(g.node_id, h.node_id)
           WHERE h.closed_at IS NULL AND (upper(h.during) <= compute_now() OR hold_in_effect(h)
               AND CASE WHEN h.gpu_id IS NULL THEN n.eligible ELSE g.eligible AND h.atom IS NULL END)
           ORDER BY h.id LIMIT $1"#,
        NODES_MAX
    )
    .fetch_all(&mut *tx)
    .await?;
    if due.is_empty() {
        return Ok(Advanced::default());
    }
    let node_ids: Vec<i64> = due.iter().map(|row| row.node_id).collect();
    let gpu_ids: Vec<i64> = due.iter().filter_map(|row| row.gpu_id).collect();
    sqlx::query!("SELECT id FROM nodes WHERE id = ANY($1) ORDER BY id FOR UPDATE", &node_ids)
        .fetch_all(&mut *tx)
        .await?;
    sqlx::query!("SELECT id FROM gpus WHERE id = ANY($1) ORDER BY id FOR UPDATE", &gpu_ids)
        .fetch_all(&mut *tx)
        .await?;
    // 2. What is over, and what follows for the rows.
    let ended = sqlx::query!(
        "UPDATE holds h SET closed_at = greatest(upper(h.during), h.opened_at), closed_by = $3
         WHERE h.closed_at IS NULL AND upper(h.during) <= compute_now()
             AND (h.gpu_id IS NULL AND h.node_id = ANY($1) OR h.gpu_id = ANY($2))",
        &node_ids,
        &gpu_ids,
        CONTROLLER
    )
    .execute(&mut *tx)
    .await?;
    let changed = derive_eligible(&mut tx, &node_ids, &gpu_ids).await?;
    tx.commit().await?;
    Ok(Advanced { ended: ended.rows_affected(), changed })
}

/// Seconds until the next hold begins or ends, if one is to.
pub async fn next_s(db: &PgPool) -> Result<Option<f64>, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT extract(epoch FROM min(at) - compute_now())::double precision AS s FROM (
               SELECT lower(during) AS at FROM holds WHERE closed_at IS NULL AND lower(during) > compute_now()
               UNION ALL
               SELECT upper(during) FROM holds WHERE closed_at IS NULL AND NOT upper_inf(during)) due"#
    )
    .fetch_one(db)
    .await?)
}
