//! Pools: what the configuration declares, and the rules that admission reads.

use super::StoreError;
use crate::config::{PoolKind, Ratios};
use ctld_core::admission::PoolRules;
use sqlx::{PgConnection, PgPool};

/// A pool as the configuration declares it.
#[derive(Clone, Debug)]
pub struct DeclaredPool {
    /// Its name.
    pub name: String,
    /// Whether jobs that name no pool go here.
    pub is_default: bool,
    /// The longest time limit, seconds.
    pub time_limit_max_s: Option<i64>,
    /// The time limit of a job that names none.
    pub time_limit_default_s: Option<i64>,
    /// Memory per CPU of a job that names none, MiB.
    pub mem_per_cpu_default_mib: i64,
    /// How much more is given out than its nodes have.
    pub ratios: Ratios,
    /// What its machines are.
    pub kind: PoolKind,
    /// Seconds as unreachable after which a node is given up.
    pub lost_after_s: Option<i64>,
}

/// Makes the pools be as declared. A pool that is no longer declared stays, with its jobs, but is no longer the default.
pub async fn declare(db: &PgPool, pools: &[DeclaredPool]) -> Result<(), StoreError> {
    let mut tx = db.begin().await?;
    sqlx::query!("UPDATE pools SET is_default = false WHERE is_default").execute(&mut *tx).await?;
    for pool in pools {
        sqlx::query!(
            "INSERT INTO pools (name, is_default, time_limit_max_s, time_limit_default_s, mem_per_cpu_default_mib,
                 cpu_ratio, mem_ratio, disk_ratio, kind, lost_after_s)
             VALUES ($1, $2, $3, $4, $5, $6::int::numeric / 100, $7::int::numeric / 100, $8::int::numeric / 100, $9, $10)
             ON CONFLICT (name) DO UPDATE SET is_default = EXCLUDED.is_default,
                 time_limit_max_s = EXCLUDED.time_limit_max_s,
                 time_limit_default_s = EXCLUDED.time_limit_default_s,
                 mem_per_cpu_default_mib = EXCLUDED.mem_per_cpu_default_mib,
                 cpu_ratio = EXCLUDED.cpu_ratio, mem_ratio = EXCLUDED.mem_ratio, disk_ratio = EXCLUDED.disk_ratio,
                 kind = EXCLUDED.kind, lost_after_s = EXCLUDED.lost_after_s, version = pools.version + 1",
            pool.name,
            pool.is_default,
            pool.time_limit_max_s,
            pool.time_limit_default_s,
            pool.mem_per_cpu_default_mib,
            pool.ratios.cpus as i32,
            pool.ratios.mem as i32,
            pool.ratios.disk as i32,
            pool.kind.name(),
            pool.lost_after_s,
        )
        .execute(&mut *tx)
        .await?;
    }
    raise_ratios(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

/// Raises the nodes' ratios to their pools'. A lower one takes effect when the node opens its next session, which keeps what is
/// booked by then: every node opens one after the controller has started.
async fn raise_ratios(tx: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query!(
        "WITH declared AS (
             SELECT r.node_id, r.resource,
                 CASE r.resource WHEN 'cpus' THEN p.cpu_ratio WHEN 'mem_mib' THEN p.mem_ratio ELSE p.disk_ratio END AS ratio
             FROM node_resources r JOIN nodes n ON n.id = r.node_id JOIN pools p ON p.id = n.pool_id
             ORDER BY r.node_id, r.resource FOR UPDATE OF r)
         UPDATE node_resources r SET ratio = d.ratio FROM declared d
         WHERE r.node_id = d.node_id AND r.resource = d.resource AND r.ratio < d.ratio"
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// The ids of every pool.
pub async fn ids(db: &PgPool) -> Result<Vec<i32>, StoreError> {
    Ok(sqlx::query_scalar!("SELECT id FROM pools ORDER BY id").fetch_all(db).await?)
}

/// The rules of every pool, by id.
pub async fn rules(db: &PgPool) -> Result<Vec<PoolRules>, StoreError> {
    let rows = sqlx::query!(
        "SELECT id, name, is_default, time_limit_max_s, time_limit_default_s, mem_per_cpu_default_mib
         FROM pools ORDER BY id"
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| PoolRules {
            id: row.id,
            name: row.name,
            is_default: row.is_default,
            // CHECK constraints keep these above 0.
            time_limit_max_s: row.time_limit_max_s.map(i64::unsigned_abs),
            time_limit_default_s: row.time_limit_default_s.map(i64::unsigned_abs),
            mem_per_cpu_default_mib: row.mem_per_cpu_default_mib.unsigned_abs(),
        })
        .collect())
}

/// The id of a tenant.
pub async fn tenant_id(db: &PgPool, name: &str) -> Result<Option<i32>, StoreError> {
    Ok(sqlx::query_scalar!("SELECT id FROM tenants WHERE name = $1", name).fetch_optional(db).await?)
}
