//! The holds that are open on some nodes, as the core's rule reads them.

use super::super::{StoreError, row_error};
use ctld_core::holds::{Hold, Holds};
use ctld_core::span::Span;
use ctld_core::timeline::During;
use sqlx::PgConnection;
use sqlx::postgres::types::PgRange;
use std::collections::HashMap;
use std::ops::Bound;

/// The open holds on these nodes, their GPUs and parts of them, by node; times in microseconds from now. A node without any
/// is not in it. For a decision the caller has locked the rows of the nodes and GPUs, and reads this after that.
pub(in crate::store) async fn standing(
    db: &mut PgConnection,
    node_ids: &[i64],
) -> Result<HashMap<i64, Holds>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT coalesce(g.node_id, h.node_id) AS "node_id!", h.kind, h.gpu_id, h.span,
               CASE WHEN lower(h.during) > h.opened_at
                   THEN (extract(epoch FROM lower(h.during) - compute_now()) * 1000000)::bigint END AS start_us,
               (extract(epoch FROM upper(h.during) - compute_now()) * 1000000)::bigint AS end_us
           FROM holds h LEFT JOIN gpus g ON g.id = h.gpu_id
           WHERE h.closed_at IS NULL AND (h.gpu_id IS NULL AND h.node_id = ANY($1)
               OR h.gpu_id IN (SELECT id FROM gpus WHERE node_id = ANY($1)))"#,
        node_ids
    )
    .fetch_all(db)
    .await?;
    let mut by_node: HashMap<i64, Holds> = HashMap::new();
    for row in rows {
        let kind = row.kind.parse().map_err(|_| row_error("holds", "kind", &*row.kind))?;
        let Some(during) = During::new(row.start_us.unwrap_or(i64::MIN), row.end_us) else { continue };
        let part = row.gpu_id.map(|id| (id, row.span.as_ref().and_then(span_of).unwrap_or(Span::ALL)));
        by_node.entry(row.node_id).or_default().extend([Hold { kind, during, part }]);
    }
    Ok(by_node)
}

/// A span as PostgreSQL gives it: `[lower, upper)` or without a bound.
pub(in crate::store) fn span_of(range: &PgRange<i32>) -> Option<Span> {
    let lower = match range.start {
        Bound::Included(lower) => Some(lower),
        Bound::Excluded(before) => Some(before.checked_add(1)?),
        Bound::Unbounded => None,
    };
    let upper = match range.end {
        Bound::Excluded(upper) => Some(upper),
        Bound::Included(last) => Some(last.checked_add(1)?),
        Bound::Unbounded => None,
    };
    Span::new(lower, upper)
}

/// The same for PostgreSQL.
pub(super) fn range_of(span: Span) -> PgRange<i32> {
    PgRange {
        start: span.lower().map_or(Bound::Unbounded, Bound::Included),
        end: span.upper().map_or(Bound::Unbounded, Bound::Excluded),
    }
}
