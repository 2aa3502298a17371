//! The GPUs and parts of GPUs that a reservation names: what they are, and whether they can be had.

use super::super::StoreError;
use super::fleet::Fleet;
use super::reserve::invalid;
use chrono::{DateTime, Utc};
use ctld_core::atom::{Setting, taken};
use ctld_core::gpu_share::GpuShare;
use ctld_core::mig;
use ctld_core::plan::NodeFree;
use ctld_core::span::Span;
use ctld_core::timeline::During;
use proto::api::ReserveRequest;
use proto::{ApiError, Atom, ErrorCode, GpuAtom};
use sqlx::PgConnection;
use sqlx::postgres::types::PgRange;
use std::collections::HashSet;
use std::ops::Bound;

/// A part of a GPU.
#[derive(Clone)]
pub(super) struct Part {
    pub gpu_id: i64,
    pub atom: Atom,
    pub mode: &'static str,
    pub slots: i32,
    pub spans: Vec<Span>,
    /// What it counts against a quota.
    pub counts: GpuShare,
}

/// On which node.
pub(super) type Named = (i64, String, Part);

/// The parts of GPUs that are named: on which node, and what each covers.
pub(super) async fn parts(
    tx: &mut PgConnection,
    pool_id: i32,
    atoms: &[GpuAtom],
) -> Result<Vec<Named>, StoreError> {
    let mut parts = Vec::with_capacity(atoms.len());
    for named in atoms {
        let row = sqlx::query!(
            "SELECT g.id, g.node_id, n.name, g.model, g.mem_mib FROM gpus g JOIN nodes n ON n.id = g.node_id
             WHERE g.uuid = $1 AND n.pool_id = $2 AND g.present",
            named.gpu,
            pool_id
        )
        .fetch_optional(&mut *tx)
        .await?
        .ok_or_else(|| {
            ApiError::new(ErrorCode::NotFound, format!("the pool has no GPU \"{}\"", named.gpu))
        })?;
        let (setting, slots) = match named.atom {
            Atom::Whole => (Setting::Whole, 1),
            Atom::Mig { .. } => {
                let model = mig::model(&row.model, u64::try_from(row.mem_mib).ok())
                    .map_err(|e| invalid(&format!("GPU \"{}\": {e}", named.gpu)))?;
                (Setting::Mig(model), 1)
            }
            Atom::TimeSlice(slot) => (Setting::TimeSlice { slots: slot.of }, i32::from(slot.of)),
            Atom::Mps(slot) => (Setting::Mps { slots: slot.of }, i32::from(slot.of)),
        };
        let taken = taken(named.atom, setting).map_err(|e| invalid(&format!("\"{named}\": {e}")))?;
        let mut spans = vec![taken.span];
        spans.extend(taken.media);
        let mode = setting.mode().name();
        let part = Part { gpu_id: row.id, atom: named.atom, mode, slots, spans, counts: taken.share };
        parts.push((row.node_id, row.name, part));
    }
    Ok(parts)
}

/// Refuses a part of a GPU that is named and held.
pub(super) fn refuse_held(
    request: &ReserveRequest,
    fleet: &Fleet,
    parts: &[Named],
    range: During,
) -> Result<(), StoreError> {
    for ((node_id, node, part), atom) in parts.iter().zip(&request.atoms) {
        if let Some(kind) = fleet.held(*node_id, part.gpu_id, &part.spans, range) {
            let message =
                format!("reservation \"{}\" cannot have {atom}: a {kind} holds it then", request.name);
            return Err(ApiError::new(ErrorCode::Conflict, message)
                .hint(format!("see `bctl holds {node}`"))
                .into());
        }
    }
    Ok(())
}

/// Refuses parts that cannot be meant together with the rest of the request.
pub(super) fn refuse_odd(request: &ReserveRequest, parts: &[Named]) -> Result<(), StoreError> {
    if request.exclusive && !parts.is_empty() {
        return Err(invalid("whole nodes are asked for, and parts of their GPUs, which come with them"));
    }
    let mut seen = HashSet::new();
    for ((_, node, _), named) in parts.iter().zip(&request.atoms) {
        if !seen.insert(named) {
            return Err(invalid(&format!("\"{named}\" is named twice")));
        }
        if !request.node_names.is_empty() && !request.node_names.contains(node) {
            return Err(invalid(&format!(
                "\"{named}\" is on node {node}, which is not among the nodes that are named"
            )));
        }
    }
    Ok(())
}

/// What is left where the named parts' GPUs are not given whole.
pub(super) fn without(mut nodes: Vec<NodeFree>, parts: &[Named]) -> Vec<NodeFree> {
    for node in &mut nodes {
        node.gpus_free.retain(|gpu| !parts.iter().any(|(_, _, part)| part.gpu_id == gpu.id));
    }
    nodes
}

/// Refuses a part that somebody has in that time, or whose GPU is in no mode for it; it can be had nowhere else.
pub(super) async fn refuse_taken(
    tx: &mut PgConnection,
    request: &ReserveRequest,
    parts: &[Named],
    begin_at: DateTime<Utc>,
    end_at: DateTime<Utc>,
) -> Result<(), StoreError> {
    for ((_, _, part), named) in parts.iter().zip(&request.atoms) {
        let refuse = |why: String| {
            let message = format!("reservation \"{}\" cannot have {named}: {why}", request.name);
            StoreError::from(ApiError::new(ErrorCode::Conflict, message))
        };
        let spans: Vec<PgRange<i32>> = part.spans.iter().map(|span| range(*span)).collect();
        let booked = sqlx::query!(
            r#"SELECT b.atom, lower(b.during) AS "begin_at!", upper(b.during) AS end_at, r.name AS "reservation?",
                   t.job_id AS "job_id?"
               FROM device_bookings b
               LEFT JOIN reservations r ON r.id = b.reservation_id
               LEFT JOIN allocations a ON a.id = b.allocation_id LEFT JOIN attempts t ON t.id = a.attempt_id
               WHERE b.gpu_id = $1 AND b.span && ANY($2) AND b.during && tstzrange($3, $4)
               ORDER BY lower(b.during) LIMIT 1"#,
            part.gpu_id,
            &spans,
            begin_at,
            end_at
        )
        .fetch_optional(&mut *tx)
        .await?;
        if let Some(row) = booked {
            let who = match (row.job_id, row.reservation) {
                (Some(job), _) => format!("job {job}"),
                (None, Some(name)) => format!("reservation {name}"),
                (None, None) => "a change of its mode".to_owned(),
            };
            let until = row.end_at.map_or("without an end".to_owned(), |at| format!("until {}", shown(at)));
            return Err(refuse(format!("{who} has {} from {} {until}", row.atom, shown(row.begin_at))));
        }
        let modes = sqlx::query!(
            r#"SELECT mode, slots, layout, lower(during) AS "from_at!" FROM gpu_modes
               WHERE gpu_id = $1 AND during && tstzrange($2, $3)
                   AND NOT (mode = $4 AND ($4 IN ('whole', 'mig') OR slots = $5) AND (layout IS NULL OR $6 = ANY(layout)))
               ORDER BY lower(during) LIMIT 1"#,
            part.gpu_id,
            begin_at,
            end_at,
            part.mode,
            part.slots,
            part.atom.to_string()
        )
        .fetch_optional(&mut *tx)
        .await?;
        if let Some(row) = modes {
            let slots = if row.slots > 1 { format!(":{}", row.slots) } else { String::new() };
            let layout = row.layout.map_or(String::new(), |atoms| format!(" with {}", atoms.join(", ")));
            let from = shown(row.from_at.max(begin_at));
            return Err(refuse(format!("its GPU is in mode {}{slots}{layout} at {from}", row.mode)));
        }
    }
    Ok(())
}

/// A span as a column holds it.
pub(super) fn range(span: Span) -> PgRange<i32> {
    PgRange {
        start: span.lower().map_or(Bound::Unbounded, Bound::Included),
        end: span.upper().map_or(Bound::Unbounded, Bound::Excluded),
    }
}

fn shown(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}
