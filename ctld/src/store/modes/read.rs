//! Looking at changes.

use super::super::{StoreError, row_error};
use super::target;
use proto::api::{GpuChange, GpuChangeList};
use sqlx::{PgConnection, PgPool};

/// The changes that are booked, or with `ended` also the latest that were, by their beginning.
pub async fn list(db: &PgPool, ended: bool) -> Result<GpuChangeList, StoreError> {
    let mut db = db.acquire().await?;
    let ids = sqlx::query_scalar!(
        "SELECT id FROM gpu_changes WHERE $1 OR ended_at IS NULL ORDER BY id DESC LIMIT 10000",
        ended
    )
    .fetch_all(&mut *db)
    .await?;
    by_ids(&mut db, &ids).await
}

/// These changes, by their beginning.
pub(super) async fn by_ids(db: &mut PgConnection, ids: &[i64]) -> Result<GpuChangeList, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT c.id, n.name, g.index, g.uuid, c.mode, c.slots, c.layout, c.state, c.author,
               lower(c.during) AS "begin_at!", upper(c.during) AS "end_at!"
           FROM gpu_changes c JOIN gpus g ON g.id = c.gpu_id JOIN nodes n ON n.id = g.node_id
           WHERE c.id = ANY($1) ORDER BY lower(c.during), c.id"#,
        ids
    )
    .fetch_all(db)
    .await?;
    let mut list = GpuChangeList::default();
    for row in rows {
        let set = target(&row.mode, row.slots, row.layout)?;
        list.changes.push(GpuChange {
            id: row.id,
            node: row.name,
            index: u32::try_from(row.index).map_err(|_| row_error("gpus", "index", row.index.to_string()))?,
            gpu: row.uuid,
            mode: set.mode,
            slots: set.slots,
            layout: set.layout,
            state: row.state,
            author: row.author,
            begin_at: row.begin_at,
            end_at: row.end_at,
        });
    }
    Ok(list)
}
