//! Nodes: what each has, what is booked of it, what holds it, and which jobs are there.

use super::snapshot;
use crate::store::holds::of_nodes;
use crate::store::{StoreError, row_error};
use proto::api::{Connection, Drain, Gpu, Hold, Node, NodeList};
use proto::{ApiError, ErrorCode, HoldKind};
use sqlx::{PgConnection, PgPool};
use std::collections::HashMap;

/// Every node, by name.
pub async fn nodes(db: &PgPool) -> Result<NodeList, StoreError> {
    let mut look = snapshot(db).await?;
    let nodes = look_at(&mut look, None).await?;
    look.commit().await?;
    Ok(NodeList { nodes })
}

/// The node of this name.
pub async fn node(db: &PgPool, name: &str) -> Result<NodeList, StoreError> {
    let mut look = snapshot(db).await?;
    let nodes = look_at(&mut look, Some(name)).await?;
    look.commit().await?;
    if nodes.is_empty() {
        return Err(unknown(name));
    }
    Ok(NodeList { nodes })
}

/// What is answered about a node that does not exist.
pub(in crate::store) fn unknown(name: &str) -> StoreError {
    ApiError::new(ErrorCode::NotFound, format!("node \"{name}\" is not known"))
        .hint("`bctl node list` shows the nodes")
        .into()
}

struct NodeRow {
    id: i64,
    name: String,
    pool: String,
    connection: String,
    last_seen_s: Option<f64>,
    agent_version: Option<String>,
    cgroup_mode: Option<String>,
    eligible: bool,
    cpus: i64,
    cpus_booked: i64,
    mem_mib: i64,
    mem_booked_mib: i64,
    disk_mib: i64,
    disk_booked_mib: i64,
    jobs: Vec<String>,
}

async fn look_at(db: &mut PgConnection, name: Option<&str>) -> Result<Vec<Node>, StoreError> {
    let rows = sqlx::query_as!(
        NodeRow,
        r#"SELECT n.id, n.name, p.name AS pool, n.connection,
               CASE WHEN n.last_seen_at IS NOT NULL THEN greatest(
                   extract(epoch FROM compute_now() - n.last_seen_at), 0)::float8 END AS last_seen_s,
               n.agent_version, n.cgroup_mode, n.eligible,
               coalesce(floor(c.allocatable * c.ratio)::bigint, 0) AS "cpus!", coalesce(c.allocated, 0) AS "cpus_booked!",
               coalesce(floor(m.allocatable * m.ratio)::bigint, 0) AS "mem_mib!", coalesce(m.allocated, 0) AS "mem_booked_mib!",
               coalesce(floor(d.allocatable * d.ratio)::bigint, 0) AS "disk_mib!", coalesce(d.allocated, 0) AS "disk_booked_mib!",
               ARRAY(SELECT CASE WHEN j.is_array THEN j.id || '_' || a.task ELSE j.id::text END
                   FROM allocations l JOIN attempts a ON a.id = l.attempt_id JOIN jobs j ON j.id = a.job_id
                   WHERE l.node_id = n.id AND l.released_at IS NULL ORDER BY j.id, a.task) AS "jobs!"
           FROM nodes n JOIN pools p ON p.id = n.pool_id
           LEFT JOIN node_resources c ON c.node_id = n.id AND c.resource = 'cpus'
           LEFT JOIN node_resources m ON m.node_id = n.id AND m.resource = 'mem_mib'
           LEFT JOIN node_resources d ON d.node_id = n.id AND d.resource = 'disk_mib'
           WHERE $1::text IS NULL OR n.name = $1
           ORDER BY n.name"#,
        name
    )
    .fetch_all(&mut *db)
    .await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let mut gpus = gpus(db, &ids).await?;
    let mut holds = of_nodes(db, &ids).await?;
    rows.into_iter()
        .map(|row| {
            let (gpus, holds) = (gpus.remove(&row.id), holds.remove(&row.name));
            node_of(row, gpus.unwrap_or_default(), holds.unwrap_or_default())
        })
        .collect()
}

fn node_of(row: NodeRow, gpus: Vec<Gpu>, holds: Vec<Hold>) -> Result<Node, StoreError> {
    let empties = |hold: &Hold| matches!(hold.kind, HoldKind::Drain | HoldKind::Maintenance);
    let draining = holds.iter().any(|hold| empties(hold) && hold.gpu.is_none() && hold.in_effect);
    Ok(Node {
        connection: match row.connection.as_str() {
            "connected" => Connection::Connected,
            "disconnected" => Connection::Disconnected,
            "unreachable" => Connection::Unreachable,
            "lost" => Connection::Lost,
            other => return Err(row_error("nodes", "connection", format!("{other} of node {}", row.name))),
        },
        last_seen_s: row.last_seen_s,
        version: row.agent_version,
        cgroup_mode: row.cgroup_mode,
        eligible: row.eligible,
        drain: draining.then_some(if row.jobs.is_empty() { Drain::Drained } else { Drain::Draining }),
        holds,
        cpus: amount("cpus", row.cpus)?,
        cpus_booked: amount("cpus", row.cpus_booked)?,
        mem_mib: row.mem_mib.unsigned_abs(),
        mem_booked_mib: row.mem_booked_mib.unsigned_abs(),
        disk_mib: row.disk_mib.unsigned_abs(),
        disk_booked_mib: row.disk_booked_mib.unsigned_abs(),
        gpus,
        jobs: row.jobs,
        name: row.name,
        pool: row.pool,
    })
}

fn amount(resource: &str, value: i64) -> Result<u32, StoreError> {
    u32::try_from(value)
        .map_err(|_| row_error("node_resources", "allocatable", format!("{value} {resource}")))
}

/// The GPUs present on these nodes, by node, each with the job that has it now.
async fn gpus(db: &mut PgConnection, nodes: &[i64]) -> Result<HashMap<i64, Vec<Gpu>>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT g.node_id, g.uuid, g.index, g.model, g.mem_mib, g.mode,
               g.eligible AND NOT (g.mode = 'whole' AND EXISTS (SELECT FROM holds h
                   WHERE h.gpu_id = g.id AND h.closed_at IS NULL AND hold_in_effect(h))) AS "eligible!", b.job AS "job?"
           FROM gpus g
           LEFT JOIN LATERAL (
               SELECT CASE WHEN j.is_array THEN j.id || '_' || a.task ELSE j.id::text END AS job
               FROM device_bookings d JOIN allocations l ON l.id = d.allocation_id AND l.released_at IS NULL
               JOIN attempts a ON a.id = l.attempt_id JOIN jobs j ON j.id = a.job_id
               WHERE d.gpu_id = g.id AND d.during @> compute_now()
               ORDER BY lower(d.span) LIMIT 1) b ON true
           WHERE g.node_id = ANY ($1) AND g.present
           ORDER BY g.node_id, g.index, g.id"#,
        nodes
    )
    .fetch_all(db)
    .await?;
    let mut by_node: HashMap<i64, Vec<Gpu>> = HashMap::new();
    for row in rows {
        by_node.entry(row.node_id).or_default().push(Gpu {
            uuid: row.uuid,
            index: row.index.unsigned_abs(),
            model: row.model,
            mem_mib: row.mem_mib.unsigned_abs(),
            mode: row.mode,
            eligible: row.eligible,
            job: row.job,
        });
    }
    Ok(by_node)
}
