//! Reserving: the whole of what is asked, for every occurrence, or nothing.
//!
//! A place is found in the fleet's book as it was read, and then booked under the locks that placements and holds take, in
//! the same order; what somebody else took meanwhile is a conflict, after which the search begins anew, at most three times.
//! What does not fit is refused with both numbers and the earliest time at which it would.

use super::super::operations::Operation;
use super::super::place::lock_nodes_amounts;
use super::super::quotas::{self, Ask};
use super::super::{StoreError, pools, tenants};
use super::fleet::Fleet;
use super::parts::{Named, Part, parts, range, refuse_held, refuse_odd, refuse_taken, without};
use super::read;
use crate::app::Caller;
use chrono::{DateTime, TimeDelta, Utc};
use ctld_core::gpu_share::GpuShare;
use ctld_core::plan::{Shape, Share, place, why_not};
use ctld_core::quota::{Charge, Resource};
use ctld_core::recurrence::beginnings;
use ctld_core::span::Span;
use ctld_core::timeline::During;
use proto::api::{Begin, RESERVE_NAMES_MAX, ReservationList, ReserveRequest, SERIES_MAX};
use proto::{ApiError, ErrorCode};
use sqlx::{PgConnection, PgPool};
use std::collections::HashMap;

/// How often a place is sought anew after somebody else took it.
const TRIES: usize = 3;
/// The longest reservation, and how far ahead its last occurrence may end: ten years.
pub(in super::super) const AHEAD_MAX: TimeDelta = TimeDelta::days(3660);
/// How many later beginnings are tried for a hint.
const HINTS_MAX: usize = 500;

/// Reserves what is asked for the caller, or for another if the caller is an operator.
pub async fn reserve(
    db: &PgPool,
    caller: &Caller,
    request: &ReserveRequest,
) -> Result<ReservationList, StoreError> {
    let tenant_id = tenant_of(db, &caller.tenant).await?;
    let operation = Operation::new(tenant_id, &caller.user, &request.idempotency_key, "reserve", request)?;
    check(caller, request)?;
    let pool_id = pool_of(db, request.pool.as_deref()).await?;
    for _ in 0..TRIES {
        if let Some(answer) = operation.answered(&mut *db.acquire().await?).await? {
            return Ok(answer);
        }
        match try_reserve(db, caller, request, &operation, pool_id).await {
            Ok(Some(list)) => return Ok(list),
            Ok(None) => {}
            Err(error) if error.is_conflict() || error.is_duplicate() => {}
            // What is in the way may be this very request, made by another at the same time.
            Err(error) => {
                let answered = operation.answered(&mut *db.acquire().await?).await?;
                return answered.ok_or(error);
            }
        }
    }
    Err(ApiError::new(
        ErrorCode::Conflict,
        format!("others booked what reservation \"{}\" asks for, {TRIES} times in a row", request.name),
    )
    .hint("try again; nothing is reserved")
    .into())
}

/// What is booked for one occurrence on one node.
struct Piece {
    share: Share,
    atoms: Vec<Part>,
}

/// `None`: somebody else was faster.
async fn try_reserve(
    db: &PgPool,
    caller: &Caller,
    request: &ReserveRequest,
    operation: &Operation<'_>,
    pool_id: i32,
) -> Result<Option<ReservationList>, StoreError> {
    let mut tx = db.begin().await?;
    let fleet = Fleet::read(&mut tx, pool_id).await?;
    if let Some(name) = request.node_names.iter().find(|name| !fleet.has(name)) {
        let message = format!("the pool has no node called \"{name}\"");
        return Err(ApiError::new(ErrorCode::NotFound, message).into());
    }
    let times = times(request, fleet.now)?;
    let parts = parts(&mut tx, pool_id, &request.atoms).await?;
    refuse_odd(request, &parts)?;
    let names = node_names(request, &parts);
    let shape = shape(request, pool_id, &names)?;

    // 1. Where each occurrence goes.
    let mut all: Vec<(DateTime<Utc>, DateTime<Utc>, Vec<Piece>)> = Vec::new();
    for (begin_at, end_at) in times {
        let range = During::new(fleet.micros(begin_at), Some(fleet.micros(end_at)))
            .ok_or_else(|| invalid("it would end before it begins"))?;
        refuse_held(request, &fleet, &parts, range)?;
        refuse_taken(&mut tx, request, &parts, begin_at, end_at).await?;
        let mut nodes = without(fleet.free_over(range, &names), &parts);
        let (shares, _) = place(&mut nodes, &shape, None)
            .map_err(|why| refusal(request, &fleet, range, (&shape, &names, &parts), why.message))?;
        let pieces = shares.into_iter().map(|share| {
            let atoms = parts.iter().filter(|(node_id, _, _)| *node_id == share.node_id);
            Piece { atoms: atoms.map(|(_, _, part)| part.clone()).collect(), share }
        });
        all.push((begin_at, end_at, pieces.collect()));
    }

    // 2. Under the locks: holds, amounts, then the book.
    let node_ids = sorted(all.iter().flat_map(|(_, _, pieces)| pieces.iter().map(|p| p.share.node_id)));
    let gpu_ids = sorted(all.iter().flat_map(|(_, _, pieces)| pieces.iter()).flat_map(|piece| {
        piece.share.gpu_ids.iter().copied().chain(piece.atoms.iter().map(|part| part.gpu_id))
    }));
    sqlx::query!("SELECT id FROM nodes WHERE id = ANY($1) ORDER BY id FOR SHARE", &node_ids)
        .fetch_all(&mut *tx)
        .await?;
    let gpus = sqlx::query!("SELECT id, model FROM gpus WHERE id = ANY($1) ORDER BY id FOR SHARE", &gpu_ids)
        .fetch_all(&mut *tx)
        .await?;
    let models: HashMap<i64, String> = gpus.into_iter().map(|gpu| (gpu.id, gpu.model)).collect();
    lock_nodes_amounts(&mut tx, &node_ids, Some(0)).await?;
    // Read anew under the locks: what the search saw may have been taken since.
    let fleet = Fleet::read(&mut tx, pool_id).await?;
    let owner = request.owner.as_deref().unwrap_or(&caller.user);
    // Whoever makes it, it is its owner's, and charged there.
    let tenant_id = match owner == caller.user {
        true => operation.tenant_id,
        false => tenants::id(db, &tenants::of_user(db, owner).await?).await?,
    };
    let charges: Vec<Charge> = all.iter().map(|(_, _, pieces)| charge_of(pieces, &models)).collect();
    let mut total = Charge::default();
    charges.iter().for_each(|charge| total.add(charge));
    let asks = [Ask { tenant_id, charge: &total }];
    if !quotas::has_rows(&mut tx, &asks).await? {
        tx.rollback().await?;
        quotas::standings(db, &asks).await?;
        return Ok(None);
    }
    let mut ids: Vec<i64> = Vec::new();
    for (occurrence, (begin_at, end_at, pieces)) in all.iter().enumerate() {
        let during = During::new(fleet.micros(*begin_at), Some(fleet.micros(*end_at)));
        let during = during.ok_or_else(|| invalid("it would end before it begins"))?;
        let free = fleet.free_over(during, &[]);
        let held =
            |node_id: i64, gpu_id: i64, spans: &[Span]| fleet.held(node_id, gpu_id, spans, during).is_some();
        let fits = |piece: &Piece| {
            let node_id = piece.share.node_id;
            !piece.share.gpu_ids.iter().any(|gpu_id| held(node_id, *gpu_id, &[Span::ALL]))
                && !piece.atoms.iter().any(|part| held(node_id, part.gpu_id, &part.spans))
                && free
                    .iter()
                    .any(|node| node.id == piece.share.node_id && node.amounts.fits(&piece.share, None))
        };
        if !pieces.iter().all(fits) {
            return Ok(None);
        }
        let id = sqlx::query_scalar!(
            "INSERT INTO reservations (tenant_id, pool_id, name, owner, author, users, accounts, during, state, series_id,
                 occurrence, request, charge, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, tstzrange($8, $9), 'booked', $10, $11, $12, $13, compute_now())
             RETURNING id",
            tenant_id,
            pool_id,
            request.name,
            owner,
            caller.user,
            &request.users,
            &request.accounts,
            begin_at,
            end_at,
            ids.first().copied(),
            occurrence as i32 + 1,
            serde_json::to_value(request).map_err(|e| sqlx::Error::Encode(e.into()))?,
            quotas::charge_value(&charges[occurrence])
        )
        .fetch_one(&mut *tx)
        .await
        .map_err(|error| name_taken(error, &request.name))?;
        ids.push(id);
        for piece in pieces {
            if !book(&mut tx, id, piece, *begin_at, *end_at).await? {
                return Ok(None);
            }
        }
    }
    super::lifecycle::begin_due(&mut tx, &ids).await?;
    let list = read::by_ids(&mut tx, &ids).await?;
    operation.answer(&mut tx, &list).await?;

    // 3. What its tenant is charged until it ends: every occurrence, since every one is held.
    for answer in quotas::charge(&mut tx, &asks).await? {
        answer?;
    }
    tx.commit().await?;
    Ok(Some(list))
}

/// What one occurrence is charged: what it books.
fn charge_of(pieces: &[Piece], models: &HashMap<i64, String>) -> Charge {
    let mut amounts: Vec<(Resource, u64)> = Vec::new();
    for piece in pieces {
        let Share { cpus, mem_mib, disk_mib, gpu_ids, .. } = &piece.share;
        let booked = [(Resource::Cpus, cpus), (Resource::MemMib, mem_mib), (Resource::DiskMib, disk_mib)];
        amounts.extend(booked.map(|(resource, amount)| (resource, amount.unsigned_abs())));
        let whole = gpu_ids.iter().map(|id| (*id, GpuShare::ONE));
        for (gpu_id, share) in whole.chain(piece.atoms.iter().map(|part| (part.gpu_id, part.counts))) {
            amounts.extend([(Resource::Gpus, share.units()), (Resource::Atoms, 1)]);
            let names = models.get(&gpu_id).map(|model| Resource::of_model(model)).unwrap_or_default();
            amounts.extend(names.into_iter().map(|name| (name, share.units())));
        }
    }
    amounts.into_iter().collect()
}

/// Books one node's piece; `false` if a part of a GPU is somebody else's or not in the mode that it needs.
async fn book(
    tx: &mut PgConnection,
    reservation_id: i64,
    piece: &Piece,
    begin_at: DateTime<Utc>,
    end_at: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let share = &piece.share;
    sqlx::query!(
        "INSERT INTO node_bookings (reservation_id, node_id, cpus, mem_mib, disk_mib, during)
         VALUES ($1, $2, $3, $4, $5, tstzrange($6, $7))",
        reservation_id,
        share.node_id,
        share.cpus as i32,
        share.mem_mib,
        share.disk_mib,
        begin_at,
        end_at
    )
    .execute(&mut *tx)
    .await?;
    let whole = share.gpu_ids.iter().map(|id| (*id, "gpu".to_owned(), "whole", 1, range(Span::ALL)));
    let parts = piece.atoms.iter().flat_map(|part| {
        let one = |span: &Span| (part.gpu_id, part.atom.to_string(), part.mode, part.slots, range(*span));
        part.spans.iter().map(one).collect::<Vec<_>>()
    });
    for (gpu_id, atom, mode, slots, span) in whole.chain(parts) {
        let booked = sqlx::query!(
            "INSERT INTO device_bookings (gpu_id, span, during, reservation_id, atom, kind)
             SELECT $1, $2, tstzrange($3, $4), $5, $6, 'reservation'
             WHERE EXISTS (SELECT FROM gpu_modes m WHERE m.gpu_id = $1 AND m.mode = $7 AND ($7 IN ('whole', 'mig') OR m.slots = $8)
                 AND (m.layout IS NULL OR $6 = ANY(m.layout)) AND m.during @> tstzrange($3, $4))
             ON CONFLICT DO NOTHING",
            gpu_id,
            span,
            begin_at,
            end_at,
            reservation_id,
            atom,
            mode,
            slots
        )
        .execute(&mut *tx)
        .await?;
        if booked.rows_affected() == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn node_names(request: &ReserveRequest, parts: &[Named]) -> Vec<String> {
    if !request.node_names.is_empty() {
        return request.node_names.clone();
    }
    let mut names: Vec<String> = parts.iter().map(|(_, name, _)| name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn shape(request: &ReserveRequest, pool_id: i32, names: &[String]) -> Result<Shape, StoreError> {
    let named = names.len() as u32;
    let node_count = match request.nodes {
        Some(nodes) if named > 0 && nodes != named => {
            return Err(invalid(&format!("{nodes} nodes are asked for, and {named} are named")));
        }
        Some(nodes) => nodes,
        None => named.max(1),
    };
    if node_count == 0 {
        return Err(invalid("0 nodes are asked for: expected 1 or more"));
    }
    Ok(Shape {
        pool_id,
        node_count,
        cpus: i64::from(request.cpus),
        mem_mib: i64::try_from(request.mem_mib).unwrap_or(i64::MAX),
        disk_mib: i64::try_from(request.disk_mib).unwrap_or(i64::MAX),
        lasts_us: None,
        gpus: request.gpus,
        gpu_type: request.gpu_type.clone(),
        exclusive: request.exclusive,
        mem_all: false,
        avoid: Vec::new(),
    })
}

/// When it begins and ends.
type Occurrence = (DateTime<Utc>, DateTime<Utc>);

/// Beginnings and ends of all occurrences, by the database's clock.
fn times(request: &ReserveRequest, now: DateTime<Utc>) -> Result<Vec<Occurrence>, StoreError> {
    let too_far = || invalid("it ends more than ten years from now");
    let begin_at = match &request.begin {
        None => now,
        Some(Begin::At(at)) if *at < now => {
            let message = format!("it would begin at {}, which has passed", shown(*at));
            return Err(ApiError::new(ErrorCode::InvalidArgument, message)
                .hint("leave the beginning out to begin now")
                .into());
        }
        Some(Begin::At(at)) => *at,
        Some(Begin::AfterS(s)) => i64::try_from(*s)
            .ok()
            .and_then(TimeDelta::try_seconds)
            .and_then(|after| now.checked_add_signed(after))
            .ok_or_else(too_far)?,
    };
    let length = match (request.duration_s, request.end_at) {
        (Some(s), None) => i64::try_from(s).ok().and_then(TimeDelta::try_seconds).ok_or_else(too_far)?,
        (None, Some(end_at)) => end_at - begin_at,
        _ => return Err(invalid("either a duration or an end is needed, not both")),
    };
    if length <= TimeDelta::zero() {
        return Err(invalid("it would end before it begins"));
    }
    let begins = match &request.repeat {
        None => vec![begin_at],
        Some(repeat) if (1..=SERIES_MAX).contains(&repeat.times) => {
            beginnings(begin_at, repeat.every, repeat.times).ok_or_else(too_far)?
        }
        Some(repeat) => {
            return Err(invalid(&format!(
                "{} occurrences are asked for: 1 to {SERIES_MAX} accepted",
                repeat.times
            )));
        }
    };
    if length > AHEAD_MAX {
        return Err(too_far());
    }
    let mut times: Vec<Occurrence> = Vec::with_capacity(begins.len());
    for begin_at in begins {
        let end_at = begin_at.checked_add_signed(length).ok_or_else(too_far)?;
        if end_at - now > AHEAD_MAX {
            return Err(too_far());
        }
        if times.last().is_some_and(|(_, before)| begin_at < *before) {
            return Err(invalid("each occurrence would begin before the one before it ends"));
        }
        times.push((begin_at, end_at));
    }
    Ok(times)
}

fn check(caller: &Caller, request: &ReserveRequest) -> Result<(), StoreError> {
    let name_ok = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = &request.name;
    let numeric = name.chars().all(|c| c.is_ascii_digit());
    if !(1..=63).contains(&name.len())
        || !name.starts_with(|c: char| c.is_ascii_alphanumeric())
        || !name.chars().all(name_ok)
        || numeric
    {
        return Err(invalid(&format!(
            "{name:?} is not a reservation's name: 1 to 63 letters, digits, \".\", \"_\" and \"-\", not digits alone"
        )));
    }
    let other = request.owner.as_deref().filter(|owner| *owner != caller.user);
    if let Some(owner) = other.filter(|_| !caller.operator) {
        let message =
            format!("user \"{}\" may not reserve for \"{owner}\": it needs an operator", caller.user);
        return Err(ApiError::new(ErrorCode::PermissionDenied, message).into());
    }
    let lists = [request.node_names.len(), request.atoms.len(), request.users.len(), request.accounts.len()];
    if lists.iter().any(|len| *len > RESERVE_NAMES_MAX) {
        let message = format!("a list has more than {RESERVE_NAMES_MAX} names");
        return Err(ApiError::new(ErrorCode::TooLarge, message).into());
    }
    let asks = request.cpus > 0 || request.mem_mib > 0 || request.disk_mib > 0 || request.gpus > 0;
    if !asks && !request.exclusive && request.atoms.is_empty() {
        return Err(ApiError::new(ErrorCode::InvalidArgument, "it reserves nothing")
            .hint("ask for CPUs, memory, GPUs, parts of GPUs, or whole nodes")
            .into());
    }
    Ok(())
}

/// Why it does not fit, and from when on it would.
fn refusal(
    request: &ReserveRequest,
    fleet: &Fleet,
    range: During,
    (shape, names, parts): (&Shape, &[String], &[Named]),
    why: String,
) -> StoreError {
    let length = range.end().unwrap_or(range.start()) - range.start();
    let fits = |begin: &i64| {
        During::new(*begin, Some(begin + length)).is_some_and(|range| {
            why_not(&without(fleet.free_over(range, names), parts), shape, None).is_none()
        })
    };
    let earliest = fleet.ends_after(range.start()).into_iter().take(HINTS_MAX).find(fits);
    let error =
        ApiError::new(ErrorCode::Conflict, format!("reservation \"{}\" does not fit: {why}", request.name));
    match earliest.and_then(|us| fleet.now.checked_add_signed(TimeDelta::microseconds(us))) {
        Some(at) => error.hint(format!("the earliest it would fit is {}", shown(at))),
        None => error.hint("it fits at no later time either, as things are booked now"),
    }
    .into()
}

fn shown(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}

pub(super) fn invalid(message: &str) -> StoreError {
    ApiError::new(ErrorCode::InvalidArgument, message).into()
}

fn name_taken(error: sqlx::Error, name: &str) -> StoreError {
    let taken = error.as_database_error().and_then(|e| e.constraint()) == Some("reservations_named");
    if !taken {
        return error.into();
    }
    ApiError::new(ErrorCode::Conflict, format!("there is a reservation called \"{name}\" already"))
        .hint("use another name, or cancel that one")
        .into()
}

fn sorted(ids: impl Iterator<Item = i64>) -> Vec<i64> {
    let mut ids: Vec<i64> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

async fn tenant_of(db: &PgPool, tenant: &str) -> Result<i32, StoreError> {
    pools::tenant_id(db, tenant).await?.ok_or_else(|| {
        ApiError::new(ErrorCode::PermissionDenied, format!("no tenant is called \"{tenant}\"")).into()
    })
}

async fn pool_of(db: &PgPool, name: Option<&str>) -> Result<i32, StoreError> {
    let id = sqlx::query_scalar!(
        "SELECT id FROM pools WHERE CASE WHEN $1::text IS NULL THEN is_default ELSE name = $1 END",
        name
    )
    .fetch_optional(db)
    .await?;
    id.ok_or_else(|| match name {
        Some(name) => ApiError::new(ErrorCode::NotFound, format!("no pool is called \"{name}\"")).into(),
        None => invalid("no pool is named and there is no default pool"),
    })
}
