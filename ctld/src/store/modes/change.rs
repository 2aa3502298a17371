//! Booking a change.

use super::super::operations::Operation;
use super::super::{StoreError, pools};
use super::complete::complete;
use super::gpu::{Booked, Entry, Gpu, booked, entry_at, lock, micros, mig_model, shown};
use super::read;
use crate::app::Caller;
use chrono::{DateTime, TimeDelta, Utc};
use ctld_core::mode_change::{Part, Target, books, in_the_way, layout};
use ctld_core::timeline::During;
use proto::api::{Begin, CHANGE_WINDOW_MAX_S, CHANGE_WINDOW_S, GpuChangeAnswer, GpuChangeRequest, InTheWay};
use proto::atom::{MPS_SLOTS_MAX, TIMESLICE_SLOTS_MAX};
use proto::{ApiError, Atom, ErrorCode, GpuMode};
use sqlx::postgres::types::PgRange;
use sqlx::{PgConnection, PgPool};
use std::ops::Bound;

/// How far ahead a change may be booked.
const AHEAD_MAX: TimeDelta = TimeDelta::days(3660);

/// Books a change; one that begins now of a declared GPU, behind which there is no device, is made at once.
pub async fn change(
    db: &PgPool,
    caller: &Caller,
    request: &GpuChangeRequest,
) -> Result<GpuChangeAnswer, StoreError> {
    let tenant_id = pools::tenant_id(db, &caller.tenant).await?.ok_or_else(|| {
        ApiError::new(ErrorCode::PermissionDenied, format!("no tenant is called \"{}\"", caller.tenant))
    })?;
    let operation = Operation::new(tenant_id, &caller.user, &request.idempotency_key, "gpu_mode", request)?;
    let mut tx = db.begin().await?;
    if let Some(answer) = operation.answered(&mut tx).await? {
        return Ok(answer);
    }
    let gpu = lock(&mut tx, &request.gpu).await?;
    // The same request may have been carried out while this one waited.
    if let Some(answer) = operation.answered(&mut tx).await? {
        return Ok(answer);
    }
    let (begin_at, end_at) = window(request, gpu.now)?;
    let entry = entry_at(&mut tx, gpu.id, begin_at).await?;
    let after = wanted(request, &gpu)?;
    if entry.set == after {
        let message = format!("GPU {} is set so already at {}", gpu.uuid, shown(begin_at));
        return Err(ApiError::new(ErrorCode::Conflict, message).into());
    }
    let parts = books(&entry.set, &after, mig_model(&gpu));
    let booked = booked(&mut tx, &gpu).await?;
    let until = entry.until_at.map(|at| micros(gpu.now, at));
    let ways = obstacles(&gpu, &booked, &parts, (begin_at, end_at), &after, until);
    let earliest_at = match ways.is_empty() {
        true => None,
        false => earliest(&gpu, &booked, &parts, (begin_at, end_at), &after, until),
    };
    if request.preview {
        return Ok(GpuChangeAnswer { change: None, in_the_way: ways, earliest_at });
    }
    if let Some(first) = ways.first() {
        return Err(refusal(&gpu, first, ways.len(), earliest_at));
    }
    if !gpu.declared {
        let message = format!("GPU {} is a device, whose mode nodes do not change yet", gpu.uuid);
        return Err(ApiError::new(ErrorCode::Conflict, message).into());
    }
    let id = book(&mut tx, caller, &gpu, &entry, &after, &parts, (begin_at, end_at)).await?;
    complete(&mut tx).await?;
    let change = read::by_ids(&mut tx, &[id]).await?.changes.pop();
    let answer = GpuChangeAnswer { change, in_the_way: vec![], earliest_at: None };
    operation.answer(&mut tx, &answer).await?;
    tx.commit().await?;
    Ok(answer)
}

/// When the change begins, and until when it has its parts to itself.
fn window(
    request: &GpuChangeRequest,
    now: DateTime<Utc>,
) -> Result<(DateTime<Utc>, DateTime<Utc>), StoreError> {
    let seconds = request.window_s.unwrap_or(CHANGE_WINDOW_S);
    if !(1..=CHANGE_WINDOW_MAX_S).contains(&seconds) {
        return Err(invalid(format!("a window of {seconds} s: 1 to {CHANGE_WINDOW_MAX_S} accepted")));
    }
    let begin_at = match &request.begin {
        None => now,
        Some(Begin::At(at)) if *at < now => {
            return Err(ApiError::new(ErrorCode::InvalidArgument, format!("{} has passed", shown(*at)))
                .hint("leave the time out to change it now")
                .into());
        }
        Some(Begin::At(at)) => *at,
        Some(Begin::AfterS(s)) => {
            let after = i64::try_from(*s).ok().and_then(TimeDelta::try_seconds);
            after.and_then(|after| now.checked_add_signed(after)).unwrap_or(DateTime::<Utc>::MAX_UTC)
        }
    };
    if begin_at - now > AHEAD_MAX {
        return Err(invalid("it is more than ten years from now".to_owned()));
    }
    Ok((begin_at, begin_at + TimeDelta::seconds(seconds as i64)))
}

/// The setting that is asked for, if this GPU can have it.
fn wanted(request: &GpuChangeRequest, gpu: &Gpu) -> Result<Target, StoreError> {
    let mode = request.mode;
    let slots = match (mode, request.slots) {
        (GpuMode::Whole | GpuMode::Mig, None) => 1,
        (GpuMode::Whole | GpuMode::Mig, Some(slots)) => {
            return Err(invalid(format!("mode {mode} has no slots, {slots} are asked for")));
        }
        (_, None) => return Err(invalid(format!("mode {mode} needs a number of slots, such as {mode}:4"))),
        (_, Some(slots)) => {
            let max = if mode == GpuMode::Mps { MPS_SLOTS_MAX } else { TIMESLICE_SLOTS_MAX };
            if !(1..=max).contains(&slots) {
                return Err(invalid(format!("{slots} slots are asked for: mode {mode} has 1 to {max}")));
            }
            slots
        }
    };
    let model = mig_model(gpu);
    if mode == GpuMode::Mig && model.is_none() {
        return Err(invalid(format!("GPU {} is a {}, which has no MIG", gpu.uuid, gpu.model)));
    }
    let layout = match (mode, &request.layout, model) {
        (_, None, _) => None,
        (GpuMode::Mig, Some(words), Some(model)) => {
            Some(layout(model, words).map_err(|e| invalid(e.to_string()))?)
        }
        (_, Some(_), _) => return Err(invalid(format!("mode {mode} has no layout: it is of mode mig"))),
    };
    Ok(Target { mode, slots, layout })
}

fn obstacles(
    gpu: &Gpu,
    booked: &[Booked],
    parts: &[Part],
    (begin_at, end_at): (DateTime<Utc>, DateTime<Utc>),
    after: &Target,
    until: Option<i64>,
) -> Vec<InTheWay> {
    let Some(window) = During::new(micros(gpu.now, begin_at), Some(micros(gpu.now, end_at))) else {
        return vec![];
    };
    let ways = booked.iter().filter(|b| in_the_way(b.for_rule(), parts, window, after, until));
    ways.map(|b| b.way.clone()).collect()
}

/// The first end of a booking behind which the change would find nothing in its way, before the next change.
fn earliest(
    gpu: &Gpu,
    booked: &[Booked],
    parts: &[Part],
    (begin_at, end_at): (DateTime<Utc>, DateTime<Utc>),
    after: &Target,
    until: Option<i64>,
) -> Option<DateTime<Utc>> {
    let mut ends: Vec<DateTime<Utc>> =
        booked.iter().filter_map(|b| b.way.end_at).filter(|at| *at > begin_at).collect();
    ends.sort_unstable();
    let length = end_at - begin_at;
    ends.into_iter()
        .filter(|at| until.is_none_or(|until| micros(gpu.now, *at + length) <= until))
        .find(|at| obstacles(gpu, booked, parts, (*at, *at + length), after, until).is_empty())
}

fn refusal(gpu: &Gpu, first: &InTheWay, count: usize, earliest_at: Option<DateTime<Utc>>) -> StoreError {
    let until = first.end_at.map_or("without an end".to_owned(), |at| format!("until {}", shown(at)));
    let more = if count > 1 { format!(", and {} more are in the way", count - 1) } else { String::new() };
    let message = format!(
        "GPU {} cannot be changed then: {} has {} from {} {until}{more}",
        gpu.uuid,
        first.whose,
        first.atom,
        shown(first.begin_at)
    );
    let hint = match earliest_at {
        Some(at) => format!("the earliest it can be changed is {}, as it is booked now", shown(at)),
        None => "drain the GPU, so that nothing more begins there".to_owned(),
    };
    ApiError::new(ErrorCode::Conflict, message).hint(hint).into()
}

async fn book(
    tx: &mut PgConnection,
    caller: &Caller,
    gpu: &Gpu,
    entry: &Entry,
    after: &Target,
    parts: &[Part],
    (begin_at, end_at): (DateTime<Utc>, DateTime<Utc>),
) -> Result<i64, StoreError> {
    let layout: Option<Vec<String>> =
        after.layout.as_ref().map(|atoms| atoms.iter().map(Atom::to_string).collect());
    let (mode, slots) = (after.mode.name(), i32::from(after.slots));
    let id = sqlx::query_scalar!(
        "INSERT INTO gpu_changes (gpu_id, mode, slots, layout, during, state, author, created_at)
         VALUES ($1, $2, $3, $4, tstzrange($5, $6), 'booked', $7, compute_now()) RETURNING id",
        gpu.id,
        mode,
        slots,
        layout.as_deref(),
        begin_at,
        end_at,
        caller.user
    )
    .fetch_one(&mut *tx)
    .await?;
    // An entry that begins at this very instant has never held.
    sqlx::query!("DELETE FROM gpu_modes WHERE gpu_id = $1 AND lower(during) = $2", gpu.id, begin_at)
        .execute(&mut *tx)
        .await?;
    sqlx::query!(
        "UPDATE gpu_modes SET during = tstzrange(lower(during), $3) WHERE gpu_id = $1 AND lower(during) = $2",
        gpu.id,
        entry.from_at,
        begin_at
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "INSERT INTO gpu_modes (gpu_id, mode, slots, layout, during) VALUES ($1, $2, $3, $4, tstzrange($5, $6))",
        gpu.id,
        mode,
        slots,
        layout.as_deref(),
        begin_at,
        entry.until_at
    )
    .execute(&mut *tx)
    .await?;
    for (atom, span) in parts {
        sqlx::query!(
            "INSERT INTO device_bookings (gpu_id, span, during, change_id, atom, kind)
             VALUES ($1, $2, tstzrange($3, $4), $5, $6, 'mode_change')",
            gpu.id,
            PgRange {
                start: span.lower().map_or(Bound::Unbounded, Bound::Included),
                end: span.upper().map_or(Bound::Unbounded, Bound::Excluded),
            },
            begin_at,
            end_at,
            id,
            atom.to_string()
        )
        .execute(&mut *tx)
        .await?;
    }
    Ok(id)
}

fn invalid(message: String) -> StoreError {
    ApiError::new(ErrorCode::InvalidArgument, message).into()
}
