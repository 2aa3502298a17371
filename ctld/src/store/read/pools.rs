//! The pools, and how much waits and runs in each.

use crate::store::StoreError;
use proto::api::{Pool, PoolList};
use sqlx::PgPool;

struct PoolRow {
    name: String,
    is_default: bool,
    time_limit_max_s: Option<i64>,
    time_limit_default_s: Option<i64>,
    mem_per_cpu_default_mib: i64,
    nodes: Vec<String>,
    pending: i64,
    running: i64,
}

/// Every pool, by name.
pub async fn pools(db: &PgPool) -> Result<PoolList, StoreError> {
    let rows = sqlx::query_as!(
        PoolRow,
        r#"SELECT p.name, p.is_default, p.time_limit_max_s, p.time_limit_default_s, p.mem_per_cpu_default_mib,
               ARRAY(SELECT n.name FROM nodes n WHERE n.pool_id = p.id ORDER BY n.name) AS "nodes!",
               coalesce(w.pending, 0)::bigint AS "pending!", coalesce(w.running, 0)::bigint AS "running!"
           FROM pools p
           LEFT JOIN (
               SELECT pool_id, sum(active) AS running,
                   sum(CASE WHEN is_array THEN (SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM unnest(pending) r)
                       WHEN state = 'pending' THEN 1 ELSE 0 END) AS pending
               FROM jobs WHERE ended_at IS NULL GROUP BY pool_id) w ON w.pool_id = p.id
           ORDER BY p.name"#
    )
    .fetch_all(db)
    .await?;
    let pools = rows.into_iter().map(|row| Pool {
        name: row.name,
        default: row.is_default,
        time_limit_max_s: row.time_limit_max_s.map(i64::unsigned_abs),
        time_limit_default_s: row.time_limit_default_s.map(i64::unsigned_abs),
        mem_per_cpu_default_mib: row.mem_per_cpu_default_mib.unsigned_abs(),
        nodes: row.nodes,
        pending: row.pending.unsigned_abs(),
        running: row.running.unsigned_abs(),
    });
    Ok(PoolList { pools: pools.collect() })
}
