//! Pools: what the configuration declares, and the rules that admission reads.

use super::StoreError;
use ctld_core::admission::PoolRules;
use sqlx::PgPool;

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
}

/// Makes the pools be as declared. A pool that is no longer declared stays, with its jobs, but is no longer the default.
pub async fn declare(db: &PgPool, pools: &[DeclaredPool]) -> Result<(), StoreError> {
    let mut tx = db.begin().await?;
    sqlx::query!("UPDATE pools SET is_default = false WHERE is_default").execute(&mut *tx).await?;
    for pool in pools {
        sqlx::query!(
            "INSERT INTO pools (name, is_default, time_limit_max_s, time_limit_default_s, mem_per_cpu_default_mib)
             VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (name) DO UPDATE SET is_default = EXCLUDED.is_default,
                 time_limit_max_s = EXCLUDED.time_limit_max_s,
                 time_limit_default_s = EXCLUDED.time_limit_default_s,
                 mem_per_cpu_default_mib = EXCLUDED.mem_per_cpu_default_mib, version = pools.version + 1",
            pool.name,
            pool.is_default,
            pool.time_limit_max_s,
            pool.time_limit_default_s,
            pool.mem_per_cpu_default_mib,
        )
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await?;
    Ok(())
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
