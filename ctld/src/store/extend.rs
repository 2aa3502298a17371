//! More time for a job or a reservation: granted exactly if the book is free.
//!
//! The bookings are lengthened and the book decides: its exclusion constraint for GPUs, the peak under the nodes' locks for
//! amounts. A refusal names what is in the way and from when on, and changes nothing.

use super::holds::{span_of, standing};
use super::operations::Operation;
use super::place::{booked_for_us, lock_nodes_amounts};
use super::reservations::AHEAD_MAX;
use super::{StoreError, pools};
use crate::app::Caller;
use chrono::{DateTime, TimeDelta, Utc};
use ctld_core::admission::TIME_LIMIT_MAX_S;
use ctld_core::span::Span;
use ctld_core::timeline::During;
use proto::api::{ExtendRequest, Extended};
use proto::{ApiError, ErrorCode};
use sqlx::{Acquire, PgConnection, PgPool};

/// What was extended, and whose targets changed.
#[derive(Debug)]
pub struct Done {
    /// The answer.
    pub extended: Extended,
    /// Nodes on which the job runs.
    pub nodes: Vec<i64>,
}

/// Extends a job, by its id, or a reservation, by its name.
pub async fn extend(
    db: &PgPool,
    caller: &Caller,
    request: &ExtendRequest,
    grace_s: u32,
) -> Result<Done, StoreError> {
    let tenant_id = pools::tenant_id(db, &caller.tenant).await?.ok_or_else(|| {
        ApiError::new(ErrorCode::PermissionDenied, format!("no tenant is called \"{}\"", caller.tenant))
    })?;
    let operation = Operation::new(tenant_id, &caller.user, &request.idempotency_key, "extend", request)?;
    if request.by_s.is_some() == request.end_at.is_some() {
        return Err(invalid("either a number of seconds or an end is needed, not both"));
    }
    match try_extend(db, caller, request, grace_s, &operation).await {
        // What is in the way may be this very request, made by another at the same time.
        Err(error) => {
            let answered = operation.answered(&mut *db.acquire().await?).await?;
            answered.map(|extended| Done { extended, nodes: vec![] }).ok_or(error)
        }
        done => done,
    }
}

async fn try_extend(
    db: &PgPool,
    caller: &Caller,
    request: &ExtendRequest,
    grace_s: u32,
    operation: &Operation<'_>,
) -> Result<Done, StoreError> {
    let mut tx = db.begin().await?;
    if let Some(extended) = operation.answered(&mut tx).await? {
        return Ok(Done { extended, nodes: vec![] });
    }
    let done = match request.what.parse::<i64>() {
        Ok(job_id) => extend_job(&mut tx, caller, job_id, request, grace_s).await?,
        Err(_) => {
            let extended = extend_reservation(&mut tx, caller, request).await?;
            Done { extended, nodes: vec![] }
        }
    };
    operation.answer(&mut tx, &done.extended).await?;
    tx.commit().await?;
    Ok(done)
}

async fn extend_job(
    tx: &mut PgConnection,
    caller: &Caller,
    job_id: i64,
    request: &ExtendRequest,
    grace_s: u32,
) -> Result<Done, StoreError> {
    let job = sqlx::query!(
        r#"SELECT j.user_name, j.time_limit_s, j.ended_at IS NOT NULL AS "ended!", j.is_array, j.active, p.name AS pool,
               p.time_limit_max_s, compute_now() AS "now!",
               (SELECT min(coalesce(t.started_at, t.placed_at)) FROM attempts t WHERE t.job_id = j.id AND t.ended_at IS NULL)
                   AS started_at
           FROM jobs j JOIN pools p ON p.id = j.pool_id WHERE j.id = $1 FOR UPDATE OF j"#,
        job_id
    )
    .fetch_optional(&mut *tx)
    .await?
    .ok_or_else(|| ApiError::new(ErrorCode::NotFound, format!("no job has the id {job_id}")))?;
    if job.user_name != caller.user && !caller.operator {
        let message = format!("job {job_id} belongs to {}", job.user_name);
        return Err(ApiError::new(ErrorCode::PermissionDenied, message).into());
    }
    if job.ended {
        return Err(conflict(format!("job {job_id} has ended: there is nothing to extend")));
    }
    let Some(limit_s) = job.time_limit_s else {
        return Err(conflict(format!("job {job_id} has no time limit: there is nothing to extend")));
    };

    // 1. The new limit.
    let new_limit_s = match (request.by_s, request.end_at, job.started_at) {
        (Some(by_s), ..) => limit_s.saturating_add(i64::try_from(by_s).unwrap_or(i64::MAX)),
        (None, Some(end_at), Some(started_at)) if !job.is_array => (end_at - started_at).num_seconds(),
        _ => {
            return Err(invalid(
                "an end can be given for a job that runs and is no array: give a time to add",
            ));
        }
    };
    if new_limit_s <= limit_s {
        let message = format!("job {job_id} has a limit of {limit_s} s; {new_limit_s} s are no extension");
        return Err(invalid(&message));
    }
    let max = job.time_limit_max_s.filter(|_| !caller.operator).unwrap_or(TIME_LIMIT_MAX_S as i64);
    if new_limit_s > max {
        let message =
            format!("pool \"{}\" allows at most {max} s per job, {new_limit_s} s requested", job.pool);
        return Err(ApiError::new(ErrorCode::InvalidArgument, message)
            .hint("ask for less, or an operator")
            .into());
    }

    // 2. The book.
    let lasts_us = booked_for_us(Some(new_limit_s), grace_s).unwrap_or(u64::MAX);
    let live = sqlx::query!(
        r#"SELECT b.id, b.allocation_id AS "allocation_id!", b.node_id, b.reservation_id, upper(b.during) AS end_at,
               lower(b.during) + make_interval(secs => $2) AS "new_end_at!"
           FROM node_bookings b JOIN allocations a ON a.id = b.allocation_id JOIN attempts t ON t.id = a.attempt_id
           WHERE t.job_id = $1 AND t.ended_at IS NULL AND a.released_at IS NULL AND NOT upper_inf(b.during)
           ORDER BY b.id"#,
        job_id,
        lasts_us as f64 / 1e6
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut nodes: Vec<i64> = live.iter().map(|row| row.node_id).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let allocations: Vec<i64> = live.iter().map(|row| row.allocation_id).collect();
    let ends: Vec<DateTime<Utc>> = live.iter().map(|row| row.new_end_at).collect();
    let latest = ends.iter().copied().max();
    // Reservations come before nodes in the order of locks.
    sqlx::query!(
        "SELECT id FROM reservations WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE",
        &live.iter().filter_map(|row| row.reservation_id).collect::<Vec<_>>()
    )
    .fetch_all(&mut *tx)
    .await?;
    refuse_maintenance(tx, &nodes, &allocations, None, latest).await?;
    lock_nodes_amounts(tx, &nodes, Some(0)).await?;
    if let Some(reservation_id) = live.iter().find_map(|row| row.reservation_id) {
        make_room_in_reservation(tx, reservation_id, &allocations, &ends).await?;
    }
    sqlx::query!(
        "UPDATE node_bookings b SET during = tstzrange(lower(b.during), i.end_at)
         FROM unnest($1::bigint[], $2::timestamptz[]) AS i(allocation_id, end_at)
         WHERE b.allocation_id = i.allocation_id AND upper(b.during) < i.end_at",
        &allocations,
        &ends
    )
    .execute(&mut *tx)
    .await?;
    lengthen(
        tx,
        "UPDATE device_bookings b SET during = tstzrange(lower(b.during), i.end_at)
         FROM unnest($1::bigint[], $2::timestamptz[]) AS i(id, end_at)
         WHERE b.allocation_id = i.id AND upper(b.during) < i.end_at",
        &allocations,
        &ends,
        "allocation",
    )
    .await?;
    refuse_over_amounts(tx, &nodes, latest).await?;
    sqlx::query!(
        "UPDATE jobs SET time_limit_s = $2, version = version + 1 WHERE id = $1",
        job_id,
        new_limit_s
    )
    .execute(tx)
    .await?;
    let end_at = job.started_at.and_then(|at| at.checked_add_signed(TimeDelta::seconds(new_limit_s)));
    let time_limit_s = Some(new_limit_s.unsigned_abs());
    Ok(Done { extended: Extended { what: request.what.clone(), time_limit_s, end_at }, nodes })
}

/// A job inside a reservation takes its time from the reservation, which must last as long.
async fn make_room_in_reservation(
    tx: &mut PgConnection,
    reservation_id: i64,
    allocations: &[i64],
    ends: &[DateTime<Utc>],
) -> Result<(), StoreError> {
    let row = sqlx::query!(
        r#"SELECT name, upper(during) AS "end_at!" FROM reservations WHERE id = $1 FOR NO KEY UPDATE"#,
        reservation_id
    )
    .fetch_one(&mut *tx)
    .await?;
    if let Some(end) = ends.iter().find(|end| **end > row.end_at) {
        let message = format!(
            "it would be booked until {}, and its reservation {} ends at {}",
            shown(*end),
            row.name,
            shown(row.end_at)
        );
        return Err(ApiError::new(ErrorCode::Conflict, message)
            .hint(format!("extend the reservation first: bctl extend {}", row.name))
            .into());
    }
    sqlx::query!(
        "WITH behind AS (
             SELECT d.id, i.end_at FROM unnest($2::bigint[], $3::timestamptz[]) AS i(allocation_id, end_at)
             JOIN device_bookings b ON b.allocation_id = i.allocation_id
             JOIN device_bookings d ON d.gpu_id = b.gpu_id AND d.span = b.span AND d.reservation_id = $1
                 AND d.kind = 'reservation' AND lower(d.during) >= upper(b.during) AND lower(d.during) < i.end_at
         ), gone AS (
             DELETE FROM device_bookings d USING behind WHERE d.id = behind.id AND upper(d.during) <= behind.end_at
         )
         UPDATE device_bookings d SET during = tstzrange(behind.end_at, upper(d.during))
         FROM behind WHERE d.id = behind.id AND upper(d.during) > behind.end_at",
        reservation_id,
        allocations,
        ends
    )
    .execute(tx)
    .await?;
    Ok(())
}

async fn extend_reservation(
    tx: &mut PgConnection,
    caller: &Caller,
    request: &ExtendRequest,
) -> Result<Extended, StoreError> {
    let name = &request.what;
    let row = sqlx::query!(
        r#"SELECT id, owner, upper(during) AS "end_at!", compute_now() AS "now!" FROM reservations
           WHERE name = $1 AND ended_at IS NULL ORDER BY upper(during) LIMIT 1 FOR NO KEY UPDATE"#,
        name
    )
    .fetch_optional(&mut *tx)
    .await?
    .ok_or_else(|| {
        ApiError::new(ErrorCode::NotFound, format!("no reservation is called \"{name}\""))
            .hint("see `bctl reservation list`; a job is named by its id")
    })?;
    if row.owner != caller.user && !caller.operator {
        let message = format!("reservation \"{name}\" belongs to {}", row.owner);
        return Err(ApiError::new(ErrorCode::PermissionDenied, message).into());
    }
    let by = |s: u64| i64::try_from(s).ok().and_then(TimeDelta::try_seconds);
    let end_at = match (request.by_s, request.end_at) {
        (Some(s), _) => by(s).and_then(|by| row.end_at.checked_add_signed(by)),
        (None, end_at) => end_at,
    };
    let Some(end_at) = end_at.filter(|end_at| *end_at > row.end_at) else {
        return Err(invalid(&format!("reservation \"{name}\" ends at {} already", shown(row.end_at))));
    };
    if end_at - row.now > AHEAD_MAX {
        return Err(invalid(&format!("it would end at {}, more than ten years from now", shown(end_at))));
    }
    let nodes = sqlx::query_scalar!(
        "SELECT DISTINCT node_id FROM node_bookings WHERE reservation_id = $1 ORDER BY node_id",
        row.id
    )
    .fetch_all(&mut *tx)
    .await?;
    refuse_maintenance(tx, &nodes, &[], Some(row.id), Some(end_at)).await?;
    lock_nodes_amounts(tx, &nodes, Some(0)).await?;
    sqlx::query!(
        "UPDATE node_bookings SET during = tstzrange(lower(during), $2)
         WHERE reservation_id = $1 AND allocation_id IS NULL AND upper(during) = $3",
        row.id,
        end_at,
        row.end_at
    )
    .execute(&mut *tx)
    .await?;
    lengthen(
        tx,
        "UPDATE device_bookings b SET during = tstzrange(lower(b.during), i.end_at)
         FROM unnest($1::bigint[], $2::timestamptz[]) AS i(id, end_at)
         WHERE b.reservation_id = i.id AND b.kind = 'reservation'
             AND upper(b.during) = (SELECT upper(r.during) FROM reservations r WHERE r.id = i.id)",
        &[row.id],
        &[end_at],
        "reservation",
    )
    .await?;
    // Behind a job that has the reservation's last moment of a GPU, the new time begins with its end.
    sqlx::query!(
        "INSERT INTO device_bookings (gpu_id, span, during, reservation_id, atom, kind)
         SELECT b.gpu_id, b.span, tstzrange(upper(b.during), $2), $1, b.atom, 'reservation'
         FROM device_bookings b WHERE b.reservation_id = $1 AND b.kind = 'allocation' AND upper(b.during) = $3
         ORDER BY b.gpu_id, b.span",
        row.id,
        end_at,
        row.end_at
    )
    .execute(&mut *tx)
    .await?;
    refuse_over_amounts(tx, &nodes, Some(end_at)).await?;
    sqlx::query!(
        "UPDATE reservations SET during = tstzrange(lower(during), $2), version = version + 1 WHERE id = $1",
        row.id,
        end_at
    )
    .execute(tx)
    .await?;
    Ok(Extended { what: name.clone(), time_limit_s: None, end_at: Some(end_at) })
}

/// Lengthens bookings of GPUs, or names what is in the way.
async fn lengthen(
    tx: &mut PgConnection,
    statement: &'static str,
    ids: &[i64],
    ends: &[DateTime<Utc>],
    kind: &str,
) -> Result<(), StoreError> {
    let mut savepoint = tx.begin().await?;
    let done = sqlx::query(statement).bind(ids).bind(ends).execute(&mut *savepoint).await;
    match done.map_err(StoreError::from) {
        Ok(_) => Ok(savepoint.commit().await?),
        Err(error) if error.is_conflict() => {
            savepoint.rollback().await?;
            Err(in_the_way(tx, ids, ends, kind).await?)
        }
        Err(error) => Err(error),
    }
}

async fn in_the_way(
    tx: &mut PgConnection,
    ids: &[i64],
    ends: &[DateTime<Utc>],
    kind: &str,
) -> Result<StoreError, StoreError> {
    let row = sqlx::query!(
        r#"SELECT g.uuid, lower(o.during) AS "from_at!", o.kind, r.name AS "reservation?", t.job_id AS "job_id?"
           FROM unnest($1::bigint[], $2::timestamptz[]) AS i(id, end_at)
           JOIN device_bookings b ON b.kind = $3 AND CASE $3 WHEN 'allocation' THEN b.allocation_id ELSE b.reservation_id END = i.id
           JOIN device_bookings o ON o.gpu_id = b.gpu_id AND o.span && b.span AND o.id <> b.id
               AND o.during && tstzrange(upper(b.during), greatest(i.end_at, upper(b.during)))
           JOIN gpus g ON g.id = o.gpu_id
           LEFT JOIN reservations r ON r.id = o.reservation_id
           LEFT JOIN allocations a ON a.id = o.allocation_id LEFT JOIN attempts t ON t.id = a.attempt_id
           ORDER BY lower(o.during) LIMIT 1"#,
        ids,
        ends,
        kind
    )
    .fetch_optional(tx)
    .await?;
    let Some(row) = row else { return Ok(conflict("somebody else booked its GPUs just now".to_owned())) };
    let who = match (row.job_id, row.reservation) {
        (Some(job), _) => format!("job {job}"),
        (None, Some(name)) => format!("reservation {name}"),
        (None, None) => "a change of its mode".to_owned(),
    };
    Ok(conflict(format!("GPU {} is booked by {who} from {} on", row.uuid, shown(row.from_at))))
}

/// Whether the nodes' amounts hold until the new end; read under their locks, with the bookings lengthened.
async fn refuse_over_amounts(
    tx: &mut PgConnection,
    nodes: &[i64],
    end_at: Option<DateTime<Utc>>,
) -> Result<(), StoreError> {
    let Some(end_at) = end_at else { return Ok(()) };
    let now = sqlx::query_scalar!(r#"SELECT compute_now() AS "now!""#).fetch_one(&mut *tx).await?;
    let lasts_us = u64::try_from((end_at - now).num_microseconds().unwrap_or(i64::MAX)).unwrap_or(1);
    for (node_id, amounts) in lock_nodes_amounts(tx, nodes, Some(lasts_us)).await? {
        let over =
            amounts.free_over(Some(lasts_us)).into_iter().zip(["CPUs", "MiB of memory", "MiB of disk"]);
        if let Some((free, what)) = over.into_iter().find(|(free, _)| *free < 0) {
            let node =
                sqlx::query_scalar!("SELECT name FROM nodes WHERE id = $1", node_id).fetch_one(tx).await?;
            return Err(conflict(format!(
                "node {node} has {} {what} too few before {}: they are booked",
                -free,
                shown(end_at)
            )));
        }
    }
    Ok(())
}

/// Work may not be made to run into a maintenance of its nodes or its GPUs: those of these allocations and this reservation.
async fn refuse_maintenance(
    tx: &mut PgConnection,
    nodes: &[i64],
    allocations: &[i64],
    reservation_id: Option<i64>,
    end_at: Option<DateTime<Utc>>,
) -> Result<(), StoreError> {
    let Some(end_at) = end_at else { return Ok(()) };
    let parts = sqlx::query!(
        r#"SELECT DISTINCT g.node_id, d.gpu_id, d.span FROM device_bookings d JOIN gpus g ON g.id = d.gpu_id
           WHERE d.allocation_id = ANY($1) OR d.reservation_id = $2"#,
        allocations,
        reservation_id
    )
    .fetch_all(&mut *tx)
    .await?;
    let gpus: Vec<i64> = parts.iter().map(|part| part.gpu_id).collect();
    sqlx::query!("SELECT id FROM nodes WHERE id = ANY($1) ORDER BY id FOR SHARE", nodes)
        .fetch_all(&mut *tx)
        .await?;
    sqlx::query!("SELECT id FROM gpus WHERE id = ANY($1) ORDER BY id FOR SHARE", &gpus)
        .fetch_all(&mut *tx)
        .await?;
    let held = standing(tx, nodes).await?;
    let now = sqlx::query_scalar!(r#"SELECT compute_now() AS "now!""#).fetch_one(&mut *tx).await?;
    let Some(work) = During::new(0, Some((end_at - now).num_microseconds().unwrap_or(i64::MAX))) else {
        return Ok(());
    };
    for (node_id, holds) in held {
        let parts = parts.iter().filter(|part| part.node_id == node_id);
        let parts = parts.map(|part| (part.gpu_id, span_of(&part.span).unwrap_or(Span::ALL)));
        let Some(hold) = holds.against_longer(parts, work) else { continue };
        let node =
            sqlx::query_scalar!("SELECT name FROM nodes WHERE id = $1", node_id).fetch_one(&mut *tx).await?;
        let what = if hold.part.is_some() { "a GPU of " } else { "" };
        let from = now + TimeDelta::microseconds(hold.during.start().max(0));
        let message = format!("{what}node {node} is under maintenance from {} on", shown(from));
        return Err(ApiError::new(ErrorCode::Conflict, message)
            .hint(format!("`bctl holds {node}` says why and until when"))
            .into());
    }
    Ok(())
}

fn shown(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

fn conflict(message: String) -> StoreError {
    ApiError::new(ErrorCode::Conflict, message).into()
}

fn invalid(message: &str) -> StoreError {
    ApiError::new(ErrorCode::InvalidArgument, message).into()
}
