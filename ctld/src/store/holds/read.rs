//! Looking at holds.

use super::super::{StoreError, row_error};
use super::target::{find, name};
use chrono::{DateTime, SecondsFormat, Utc};
use proto::api::{Hold, HoldList};
use sqlx::{PgConnection, PgPool};
use std::collections::HashMap;

/// The open holds, those to come among them; with a target, those that keep it or a part of it from work.
pub async fn list(db: &PgPool, target: Option<&str>) -> Result<HoldList, StoreError> {
    let mut tx = super::super::read::snapshot(db).await?;
    let target = match target {
        Some(text) => Some(find(&mut tx, text).await?),
        None => None,
    };
    let (node_id, gpu_id, span) = match &target {
        Some(target) => (Some(target.node_id), target.gpu_id(), target.span()),
        None => (None, None, None),
    };
    let ids = sqlx::query_scalar!(
        "SELECT h.id FROM holds h LEFT JOIN gpus g ON g.id = h.gpu_id
         WHERE h.closed_at IS NULL AND ($1::bigint IS NULL OR coalesce(g.node_id, h.node_id) = $1)
             AND ($2::bigint IS NULL OR h.gpu_id IS NULL OR h.gpu_id = $2 AND h.span && $3)
         ORDER BY h.id LIMIT 10000",
        node_id,
        gpu_id,
        span
    )
    .fetch_all(&mut *tx)
    .await?;
    let holds = by_ids(&mut tx, &ids).await?;
    tx.commit().await?;
    Ok(HoldList { holds })
}

/// The open holds on these nodes, their GPUs and parts of them, by node's name.
pub(in crate::store) async fn of_nodes(
    db: &mut PgConnection,
    node_ids: &[i64],
) -> Result<HashMap<String, Vec<Hold>>, StoreError> {
    let ids = sqlx::query_scalar!(
        "SELECT h.id FROM holds h LEFT JOIN gpus g ON g.id = h.gpu_id
         WHERE h.closed_at IS NULL AND coalesce(g.node_id, h.node_id) = ANY($1)",
        node_ids
    )
    .fetch_all(&mut *db)
    .await?;
    let mut by_node: HashMap<String, Vec<Hold>> = HashMap::new();
    for hold in by_ids(db, &ids).await? {
        by_node.entry(hold.node.clone()).or_default().push(hold);
    }
    Ok(by_node)
}

/// These holds, by node, oldest first.
pub(super) async fn by_ids(db: &mut PgConnection, ids: &[i64]) -> Result<Vec<Hold>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT h.id, h.kind, n.name AS node, g.uuid AS "gpu?", g.index AS "index?", h.atom, h.owner, h.author, h.reason,
               lower(h.during) AS "from_at!", upper(h.during) AS until_at, hold_in_effect(h) AS "in_effect!"
           FROM holds h LEFT JOIN gpus g ON g.id = h.gpu_id JOIN nodes n ON n.id = coalesce(g.node_id, h.node_id)
           WHERE h.id = ANY($1) ORDER BY n.name, h.opened_at, h.id"#,
        ids
    )
    .fetch_all(db)
    .await?;
    let mut holds = Vec::with_capacity(rows.len());
    for row in rows {
        let atom = row.atom.as_deref().map(str::parse).transpose();
        holds.push(Hold {
            id: row.id,
            kind: row.kind.parse().map_err(|_| row_error("holds", "kind", &*row.kind))?,
            target: name(&row.node, row.index, row.atom.as_deref()),
            node: row.node,
            gpu: row.gpu,
            atom: atom.map_err(|_| row_error("holds", "atom", format!("of hold {}", row.id)))?,
            owner: row.owner,
            author: row.author,
            reason: row.reason,
            from: row.from_at,
            until: row.until_at,
            in_effect: row.in_effect,
        });
    }
    Ok(holds)
}

/// An instant in a message.
pub(super) fn shown(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}
