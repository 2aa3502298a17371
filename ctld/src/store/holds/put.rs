//! Putting a hold.

use super::super::operations::Operation;
use super::super::steps::reached;
use super::super::{StoreError, pools};
use super::target::{Target, find};
use super::{REASON_BYTES_MAX, check_owner, derive_eligible, invalid, read};
use crate::app::Caller;
use chrono::{DateTime, TimeDelta, Utc};
use proto::api::{Begin, HoldList, HoldRequest};
use proto::{ApiError, ErrorCode, HoldKind};
use sqlx::{PgConnection, PgPool};

/// How far ahead a hold may begin and end: ten years.
const AHEAD_MAX: TimeDelta = TimeDelta::days(3660);
/// How often a request is looked up again that was carried out meanwhile under its key.
const TRIES: usize = 3;

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The one hold that stands now.
    pub list: HoldList,
    /// Whether it is new: the owner may have had one of this kind there for that time.
    pub opened: bool,
}

/// Puts a hold. One of the same owner and kind that covers the same time stays as it is, with the reason it was given then.
pub async fn put(db: &PgPool, caller: &Caller, request: &HoldRequest) -> Result<Put, StoreError> {
    check(request)?;
    let tenant_id = pools::tenant_id(db, &caller.tenant).await?.ok_or_else(|| {
        ApiError::new(ErrorCode::PermissionDenied, format!("no tenant is called \"{}\"", caller.tenant))
    })?;
    let operation = Operation::new(tenant_id, &caller.user, &request.idempotency_key, "drain", request)?;
    for _ in 1..TRIES {
        match try_put(db, caller, request, &operation).await {
            Err(error) if error.is_duplicate() || error.is_conflict() => {}
            result => return result,
        }
    }
    try_put(db, caller, request, &operation).await
}

async fn try_put(
    db: &PgPool,
    caller: &Caller,
    request: &HoldRequest,
    operation: &Operation<'_>,
) -> Result<Put, StoreError> {
    let mut tx = db.begin().await?;
    if let Some(list) = operation.answered(&mut tx).await? {
        return Ok(Put { list, opened: false });
    }
    let target = find(&mut tx, &request.target).await?;
    reached("hold: found").await;
    // "Now" is read under the locks: what was placed before they were had began before.
    target.lock(&mut tx).await?;
    reached("hold: locked").await;
    let new = NewHold {
        kind: request.kind,
        owner: request.owner.as_deref().unwrap_or(&caller.user),
        author: &caller.user,
        reason: request.reason.trim(),
        times: times(&mut tx, request).await?,
    };
    let (id, opened) = open(&mut tx, &target, &new).await?;
    let list = HoldList { holds: read::by_ids(&mut tx, &[id]).await? };
    operation.answer(&mut tx, &list).await?;
    reached("hold: written").await;
    tx.commit().await?;
    Ok(Put { list, opened })
}

/// From when to when a hold is asked for, as things are now.
pub(super) struct Times {
    pub now: DateTime<Utc>,
    pub from: DateTime<Utc>,
    pub until: Option<DateTime<Utc>>,
}

/// A hold that is to stand.
pub(super) struct NewHold<'a> {
    pub kind: HoldKind,
    pub owner: &'a str,
    pub author: &'a str,
    pub reason: &'a str,
    pub times: Times,
}

/// Opens a hold on a target that is locked. Its id, and whether it is new.
pub(super) async fn open(
    tx: &mut PgConnection,
    target: &Target,
    new: &NewHold<'_>,
) -> Result<(i64, bool), StoreError> {
    let (gpu_id, atom) = (target.gpu_id(), target.atom());
    let standing = sqlx::query_scalar!(
        "SELECT id FROM holds
         WHERE node_id = $1 AND gpu_id IS NOT DISTINCT FROM $2 AND atom IS NOT DISTINCT FROM $3 AND kind = $4 AND owner = $5
             AND closed_at IS NULL AND during @> tstzrange($6, $7)
         ORDER BY id LIMIT 1",
        target.node_id,
        gpu_id,
        atom,
        new.kind.name(),
        new.owner,
        new.times.from,
        new.times.until
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(id) = standing {
        return Ok((id, false));
    }
    let id = sqlx::query_scalar!(
        "INSERT INTO holds (node_id, gpu_id, atom, span, kind, owner, author, reason, opened_at, during)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, tstzrange($10, $11)) RETURNING id",
        target.node_id,
        gpu_id,
        atom,
        target.span(),
        new.kind.name(),
        new.owner,
        new.author,
        new.reason,
        new.times.now,
        new.times.from,
        new.times.until
    )
    .fetch_one(&mut *tx)
    .await?;
    derive_eligible(tx, &[target.node_id], gpu_id.as_slice()).await?;
    Ok((id, true))
}

/// What of a request does not depend on what there is.
pub(super) fn check(request: &HoldRequest) -> Result<(), StoreError> {
    let reason = request.reason.trim();
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX || reason.contains(char::is_control) {
        return Err(invalid(format!(
            "the reason is not accepted: expected 1 to {REASON_BYTES_MAX} bytes in one line"
        )));
    }
    if !request.kind.is_for_people() {
        let kinds = HoldKind::all().filter(|kind| kind.is_for_people()).map(HoldKind::name);
        return Err(ApiError::new(
            ErrorCode::InvalidArgument,
            format!("a hold of kind \"{}\" is the controller's own finding", request.kind),
        )
        .hint(format!("expected one of {}", kinds.collect::<Vec<_>>().join(", ")))
        .into());
    }
    request.owner.as_deref().map_or(Ok(()), check_owner)
}

/// Beginning and end, by the database's clock.
pub(super) async fn times(tx: &mut PgConnection, request: &HoldRequest) -> Result<Times, StoreError> {
    let now = sqlx::query_scalar!(r#"SELECT compute_now() AS "now!""#).fetch_one(tx).await?;
    let after = |from: DateTime<Utc>, s: u64| {
        let end = i64::try_from(s).ok().and_then(TimeDelta::try_seconds);
        end.and_then(|delta| from.checked_add_signed(delta))
            .filter(|end| *end <= now + AHEAD_MAX)
            .ok_or_else(|| invalid(format!("{s} s is more than ten years ahead")))
    };
    let from = match &request.at {
        None => now,
        Some(Begin::At(at)) if *at < now => {
            let message = format!("it would begin at {}, which has passed", super::read::shown(*at));
            return Err(ApiError::new(ErrorCode::InvalidArgument, message)
                .hint("leave the beginning out to hold from now on")
                .into());
        }
        Some(Begin::At(at)) if *at > now + AHEAD_MAX => {
            return Err(invalid(format!("{} is more than ten years ahead", super::read::shown(*at))));
        }
        Some(Begin::At(at)) => *at,
        Some(Begin::AfterS(s)) => after(now, *s)?,
    };
    let until = match request.for_s {
        None => None,
        Some(0) => return Err(invalid("it would end before it begins: expected 1 s or more")),
        Some(s) => Some(after(from, s)?),
    };
    Ok(Times { now, from, until })
}
