//! Lifting holds.

use super::super::operations::Operation;
use super::super::{StoreError, pools};
use super::target::{Target, find};
use super::{check_owner, derive_eligible, read};
use crate::app::Caller;
use proto::api::{CONTROLLER, Hold, HoldList, ResumeRequest};
use proto::{ApiError, ErrorCode};
use sqlx::{PgConnection, PgPool};

/// How often a request is looked up again that was carried out meanwhile under its key.
const TRIES: usize = 3;

/// Lifts the caller's holds that are in effect on exactly this target, or another owner's, or every person's; with `planned`
/// those to come, too. Answers what was lifted. A target that nobody holds stays as it is; one that only others hold is a
/// CONFLICT that names them.
pub async fn resume(db: &PgPool, caller: &Caller, request: &ResumeRequest) -> Result<HoldList, StoreError> {
    request.owner.as_deref().map_or(Ok(()), check_owner)?;
    let tenant_id = pools::tenant_id(db, &caller.tenant).await?.ok_or_else(|| {
        ApiError::new(ErrorCode::PermissionDenied, format!("no tenant is called \"{}\"", caller.tenant))
    })?;
    let operation = Operation::new(tenant_id, &caller.user, &request.idempotency_key, "resume", request)?;
    for _ in 1..TRIES {
        match try_resume(db, caller, request, &operation).await {
            Err(error) if error.is_duplicate() || error.is_conflict() => {}
            result => return result,
        }
    }
    try_resume(db, caller, request, &operation).await
}

async fn try_resume(
    db: &PgPool,
    caller: &Caller,
    request: &ResumeRequest,
    operation: &Operation<'_>,
) -> Result<HoldList, StoreError> {
    let mut tx = db.begin().await?;
    if let Some(list) = operation.answered(&mut tx).await? {
        return Ok(list);
    }
    let target = find(&mut tx, &request.target).await?;
    target.lock(&mut tx).await?;
    // The same request may have been carried out while this one waited.
    if let Some(list) = operation.answered(&mut tx).await? {
        return Ok(list);
    }
    let owner = request.owner.as_deref().unwrap_or(&caller.user);
    let open = open_on(&mut tx, &target).await?;
    let lifted: Vec<Hold> = open
        .iter()
        .filter(|hold| hold.owner != CONTROLLER && (request.all || hold.owner == owner))
        .filter(|hold| request.planned || hold.in_effect)
        .cloned()
        .collect();
    if lifted.is_empty() && !open.is_empty() {
        return Err(refusal(&target, &open, owner, request));
    }
    let ids: Vec<i64> = lifted.iter().map(|hold| hold.id).collect();
    close(&mut tx, &target, &ids, &caller.user).await?;
    let list = HoldList { holds: lifted };
    operation.answer(&mut tx, &list).await?;
    tx.commit().await?;
    Ok(list)
}

/// Closes these holds on a target that is locked.
pub(super) async fn close(
    tx: &mut PgConnection,
    target: &Target,
    ids: &[i64],
    by: &str,
) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE holds SET closed_at = greatest(compute_now(), opened_at), closed_by = $2
         WHERE id = ANY($1) AND closed_at IS NULL",
        ids,
        by
    )
    .execute(&mut *tx)
    .await?;
    derive_eligible(tx, &[target.node_id], target.gpu_id().as_slice()).await?;
    Ok(())
}

/// What is open on exactly this target.
async fn open_on(tx: &mut PgConnection, target: &Target) -> Result<Vec<Hold>, StoreError> {
    let ids = sqlx::query_scalar!(
        "SELECT id FROM holds WHERE node_id = $1 AND gpu_id IS NOT DISTINCT FROM $2 AND atom IS NOT DISTINCT FROM $3
             AND closed_at IS NULL ORDER BY id",
        target.node_id,
        target.gpu_id(),
        target.atom()
    )
    .fetch_all(&mut *tx)
    .await?;
    read::by_ids(tx, &ids).await
}

/// Why nothing was lifted though something holds.
fn refusal(target: &Target, open: &[Hold], owner: &str, request: &ResumeRequest) -> StoreError {
    let name = target.name();
    let mine = open.iter().find(|hold| hold.owner == owner || request.all && hold.owner != CONTROLLER);
    if let Some(planned) = mine {
        let message = format!(
            "\"{name}\" is not held now; a {} by {} begins at {}",
            planned.kind,
            planned.owner,
            read::shown(planned.from)
        );
        return ApiError::new(ErrorCode::Conflict, message)
            .hint("lift what has not begun, too, with `bctl resume --planned`")
            .into();
    }
    if open.iter().all(|hold| hold.owner == CONTROLLER) {
        let message = format!("\"{name}\" is held by the controller: {}: {}", open[0].kind, open[0].reason);
        return ApiError::new(ErrorCode::Conflict, message)
            .hint("it lifts its own holds when their cause is gone")
            .into();
    }
    let mut owners: Vec<String> = open
        .iter()
        .filter(|hold| hold.owner != CONTROLLER)
        .map(|hold| format!("\"{}\"", hold.owner))
        .collect();
    owners.sort_unstable();
    owners.dedup();
    let who = if request.owner.is_some() { format!("\"{owner}\"") } else { "you".to_owned() };
    let message = format!("\"{name}\" is held by {}, not by {who}", owners.join(", "));
    ApiError::new(ErrorCode::Conflict, message)
        .hint("lift another owner's holds with `bctl resume --owner NAME`, or everybody's with `--all`")
        .into()
}
