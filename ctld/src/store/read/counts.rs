//! The numbers that `/metrics` shows about the fleet and its queue.

use crate::store::StoreError;
use sqlx::PgPool;

/// How much there is, and how much of it is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetCounts {
    /// Jobs with nothing placed yet.
    pub jobs_pending: i64,
    /// Jobs with at least one task placed.
    pub jobs_running: i64,
    /// Tasks not yet placed, those of arrays counted one by one.
    pub tasks_pending: i64,
    /// Nodes with a session.
    pub nodes_connected: i64,
    /// Nodes without one.
    pub nodes_disconnected: i64,
    /// GPUs that their nodes reported.
    pub gpus: i64,
    /// GPUs of which some part is booked now.
    pub gpus_booked: i64,
}

/// Counts the fleet. Costs a pass over the live jobs and the bookings.
pub async fn fleet_counts(db: &PgPool) -> Result<FleetCounts, StoreError> {
    let counts = sqlx::query_as!(
        FleetCounts,
        r#"SELECT j.pending AS "jobs_pending!", j.running AS "jobs_running!", j.tasks AS "tasks_pending!",
               n.connected AS "nodes_connected!", n.disconnected AS "nodes_disconnected!",
               (SELECT count(*) FROM gpus WHERE present) AS "gpus!",
               (SELECT count(DISTINCT gpu_id) FROM device_bookings WHERE during @> compute_now()) AS "gpus_booked!"
           FROM (SELECT count(*) FILTER (WHERE state = 'pending') AS pending,
                     count(*) FILTER (WHERE state = 'running') AS running,
                     coalesce(sum(CASE WHEN is_array
                         THEN (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest(pending) r)
                         WHEN state = 'pending' THEN 1 ELSE 0 END), 0)::bigint AS tasks
                 FROM jobs WHERE ended_at IS NULL) j,
                (SELECT count(*) FILTER (WHERE connection = 'connected') AS connected,
                     count(*) FILTER (WHERE connection = 'disconnected') AS disconnected
                 FROM nodes) n"#
    )
    .fetch_one(db)
    .await?;
    Ok(counts)
}
