//! What people ask: lists of jobs, nodes and pools, and one job in full.
//!
//! Reads only, each answer from one snapshot of the database, so that a task which starts meanwhile is seen either pending or
//! started, never both and never neither. Decides nothing: a pending entry's reason is what the planner last stored, unless a
//! hold, a begin time or the array's throttle says more plainly why it waits. Statements are few and fixed; none runs once a
//! row, because a queue of ten thousand jobs is an ordinary answer.

mod attempts;
mod brief;
mod counts;
mod detail;
mod ended;
mod entry;
mod filter;
mod jobs;
mod nodes;
mod pools;
mod stored;
#[cfg(test)]
mod tests;

pub use brief::brief;
pub use counts::{FleetCounts, NodeCounts, fleet_counts, node_counts, server_version};
pub use ended::ended;
pub use filter::{Filter, LIMIT_MAX};
pub use jobs::{job, jobs, jobs_of};
pub(in crate::store) use nodes::unknown as unknown_node;
pub use nodes::{node, nodes};
pub use pools::pools;

use crate::store::StoreError;
use sqlx::{PgPool, Postgres, Transaction};

/// A read-only look at one state of the database.
pub(super) async fn snapshot(db: &PgPool) -> Result<Transaction<'static, Postgres>, StoreError> {
    Ok(db.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?)
}
