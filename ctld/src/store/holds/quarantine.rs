//! Quarantines: the controller's own holds on GPUs that may be broken.

use super::super::StoreError;
use super::put::{NewHold, Times, open};
use super::resume::close;
use super::target::find;
use proto::HoldKind;
use proto::api::CONTROLLER;
use sqlx::PgPool;

/// Puts a GPU, named by its UUID, under quarantine; `false` if it is already.
pub async fn quarantine(db: &PgPool, gpu: &str, reason: &str) -> Result<bool, StoreError> {
    let mut tx = db.begin().await?;
    let target = find(&mut tx, gpu).await?;
    target.lock(&mut tx).await?;
    let now = sqlx::query_scalar!(r#"SELECT compute_now() AS "now!""#).fetch_one(&mut *tx).await?;
    let new = NewHold {
        kind: HoldKind::Quarantine,
        owner: CONTROLLER,
        author: CONTROLLER,
        reason,
        times: Times { now, from: now, until: None },
    };
    let (_, opened) = open(&mut tx, &target, &new).await?;
    tx.commit().await?;
    Ok(opened)
}

/// Ends the controller's quarantine of a GPU; `false` if there is none. Those that people put stay.
pub async fn end_quarantine(db: &PgPool, gpu: &str) -> Result<bool, StoreError> {
    let mut tx = db.begin().await?;
    let target = find(&mut tx, gpu).await?;
    target.lock(&mut tx).await?;
    let ids = sqlx::query_scalar!(
        "SELECT id FROM holds WHERE gpu_id = $1 AND atom IS NULL AND kind = 'quarantine' AND owner = $2 AND closed_at IS NULL",
        target.gpu_id(),
        CONTROLLER
    )
    .fetch_all(&mut *tx)
    .await?;
    close(&mut tx, &target, &ids, CONTROLLER).await?;
    tx.commit().await?;
    Ok(!ids.is_empty())
}
