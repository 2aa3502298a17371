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
    /// Nodes without one, not yet for long.
    pub nodes_disconnected: i64,
    /// Nodes that have been away for too long.
    pub nodes_unreachable: i64,
    /// Nodes that were given up.
    pub nodes_lost: i64,
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
               n.unreachable AS "nodes_unreachable!", n.lost AS "nodes_lost!",
               (SELECT count(*) FROM gpus WHERE present) AS "gpus!",
               (SELECT count(DISTINCT gpu_id) FROM device_bookings WHERE during @> compute_now()) AS "gpus_booked!"
           FROM (SELECT count(*) FILTER (WHERE state = 'pending') AS pending,
                     count(*) FILTER (WHERE state = 'running') AS running,
                     coalesce(sum(CASE WHEN is_array
                         THEN (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest(pending) r)
                         WHEN state = 'pending' THEN 1 ELSE 0 END), 0)::bigint AS tasks
                 FROM jobs WHERE ended_at IS NULL) j,
                (SELECT count(*) FILTER (WHERE connection = 'connected') AS connected,
                     count(*) FILTER (WHERE connection = 'disconnected') AS disconnected,
                     count(*) FILTER (WHERE connection = 'unreachable') AS unreachable,
                     count(*) FILTER (WHERE connection = 'lost') AS lost
                 FROM nodes) n"#
    )
    .fetch_one(db)
    .await?;
    Ok(counts)
}

/// How many nodes have a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Nodes with a session.
    pub connected: u32,
    /// Nodes known.
    pub total: u32,
    /// Nodes without a session on which no person put a hold, by name, with their state where that is graver; at most ten.
    pub missing: Vec<String>,
}

/// Counts the nodes' sessions.
pub async fn node_counts(db: &PgPool) -> Result<NodeCounts, StoreError> {
    let row = sqlx::query!(
        r#"SELECT count(*) FILTER (WHERE connection = 'connected') AS "connected!", count(*) AS "total!",
               ARRAY(SELECT CASE connection WHEN 'disconnected' THEN name ELSE format('%s (%s)', name, connection) END
                   FROM nodes n WHERE connection <> 'connected' AND NOT EXISTS (SELECT FROM holds h
                       WHERE h.node_id = n.id AND h.gpu_id IS NULL AND h.kind <> 'unreachable' AND hold_in_effect(h))
                   ORDER BY name LIMIT 10) AS "missing!"
           FROM nodes"#
    )
    .fetch_one(db)
    .await?;
    let count = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(NodeCounts { connected: count(row.connected), total: count(row.total), missing: row.missing })
}

/// Asks the server for its version: the simplest question.
pub async fn server_version(db: &PgPool) -> Result<String, StoreError> {
    let version =
        sqlx::query_scalar!(r#"SELECT split_part(current_setting('server_version'), ' ', 1) AS "version!""#);
    Ok(version.fetch_one(db).await?)
}
