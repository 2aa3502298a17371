//! A GPU as a change looks at it: its setting at an instant, and what is booked of it.

use super::super::{StoreError, row_error};
use super::target;
use chrono::{DateTime, Utc};
use ctld_core::mig::{Model, model};
use ctld_core::mode_change::Target;
use ctld_core::span::Span;
use ctld_core::timeline::During;
use proto::api::InTheWay;
use proto::{ApiError, Atom, ErrorCode};
use sqlx::PgConnection;
use sqlx::postgres::types::PgRange;
use std::ops::Bound;

/// A GPU that its caller has locked, and the setting it has at an instant.
pub(super) struct Gpu {
    pub(super) id: i64,
    pub(super) uuid: String,
    pub(super) model: String,
    pub(super) mem_mib: i64,
    pub(super) declared: bool,
    pub(super) now: DateTime<Utc>,
}

/// An entry of a GPU's mode timeline.
pub(super) struct Entry {
    pub(super) set: Target,
    pub(super) from_at: DateTime<Utc>,
    pub(super) until_at: Option<DateTime<Utc>>,
}

/// What is booked of a GPU.
pub(super) struct Booked {
    pub(super) way: InTheWay,
    pub(super) span: Span,
    pub(super) during: During,
    pub(super) change: Option<i64>,
}

impl Booked {
    /// As the core's rule takes it.
    pub(super) fn for_rule(&self) -> (Option<Atom>, Span, During) {
        (self.change.is_none().then_some(self.way.atom), self.span, self.during)
    }
}

/// The GPU, locked against placements, reservations and other changes.
pub(super) async fn lock(tx: &mut PgConnection, uuid: &str) -> Result<Gpu, StoreError> {
    let row = sqlx::query!(
        r#"SELECT id, uuid, model, mem_mib, declared, compute_now() AS "now!" FROM gpus
           WHERE uuid = $1 AND present FOR UPDATE"#,
        uuid
    )
    .fetch_optional(tx)
    .await?
    .ok_or_else(|| {
        ApiError::new(ErrorCode::NotFound, format!("there is no GPU \"{uuid}\""))
            .hint("`binfo --gpus` lists them")
    })?;
    Ok(Gpu {
        id: row.id,
        uuid: row.uuid,
        model: row.model,
        mem_mib: row.mem_mib,
        declared: row.declared,
        now: row.now,
    })
}

pub(super) fn mig_model(gpu: &Gpu) -> Option<&'static Model> {
    model(&gpu.model, u64::try_from(gpu.mem_mib).ok()).ok()
}

pub(super) async fn entry_at(
    tx: &mut PgConnection,
    gpu_id: i64,
    at: DateTime<Utc>,
) -> Result<Entry, StoreError> {
    let row = sqlx::query!(
        r#"SELECT mode, slots, layout, lower(during) AS "from_at!", upper(during) AS until_at FROM gpu_modes
           WHERE gpu_id = $1 AND during @> $2::timestamptz"#,
        gpu_id,
        at
    )
    .fetch_one(tx)
    .await?;
    Ok(Entry { set: target(&row.mode, row.slots, row.layout)?, from_at: row.from_at, until_at: row.until_at })
}

/// What is booked of the GPU from now on, by its beginning. What an allocation that is not released has, it has until it is,
/// even if its time is over.
pub(super) async fn booked(tx: &mut PgConnection, gpu: &Gpu) -> Result<Vec<Booked>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT b.atom, b.span, b.change_id, lower(b.during) AS "begin_at!",
               CASE WHEN b.kind <> 'allocation' OR upper(b.during) > compute_now() THEN upper(b.during) END AS end_at,
               r.name AS "reservation?", t.job_id AS "job_id?"
           FROM device_bookings b
           LEFT JOIN reservations r ON r.id = b.reservation_id
           LEFT JOIN allocations a ON a.id = b.allocation_id LEFT JOIN attempts t ON t.id = a.attempt_id
           WHERE b.gpu_id = $1 ORDER BY lower(b.during), b.id"#,
        gpu.id
    )
    .fetch_all(tx)
    .await?;
    let mut booked = Vec::with_capacity(rows.len());
    for row in rows {
        let during = During::new(micros(gpu.now, row.begin_at), row.end_at.map(|at| micros(gpu.now, at)));
        let whose = match (row.job_id, row.reservation, row.change_id) {
            (Some(job), ..) => format!("job {job}"),
            (None, Some(name), _) => format!("reservation {name}"),
            (None, None, Some(change)) => format!("change {change} of its mode"),
            (None, None, None) => "nobody".to_owned(),
        };
        booked.push(Booked {
            way: InTheWay {
                whose,
                atom: row.atom.parse().map_err(|_| row_error("device_bookings", "atom", &*row.atom))?,
                begin_at: row.begin_at,
                end_at: row.end_at,
            },
            span: span(&row.span).ok_or_else(|| row_error("device_bookings", "span", gpu.uuid.as_str()))?,
            during: during.ok_or_else(|| row_error("device_bookings", "during", gpu.uuid.as_str()))?,
            change: row.change_id,
        });
    }
    Ok(booked)
}

fn span(range: &PgRange<i32>) -> Option<Span> {
    match (range.start, range.end) {
        (Bound::Unbounded, Bound::Unbounded) => Some(Span::ALL),
        (Bound::Included(start), Bound::Excluded(end)) => {
            Span::sized(u16::try_from(start).ok()?, u16::try_from(end - start).ok()?)
        }
        _ => None,
    }
}

pub(super) fn micros(now: DateTime<Utc>, at: DateTime<Utc>) -> i64 {
    (at - now).num_microseconds().unwrap_or(i64::MAX)
}

pub(super) fn shown(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}
