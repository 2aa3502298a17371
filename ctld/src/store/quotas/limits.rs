//! Setting limits, and looking at them.

use super::{StoreError, resource};
use crate::store::tenants;
use ctld_core::quota::Resource;
use proto::api::{Quota, QuotaList};
use sqlx::PgPool;

/// Sets limits of a tenant, or takes them away. A limit below what is in use takes nothing from what runs or waits; nothing new
/// is charged until the use has fallen below it.
pub async fn set(db: &PgPool, tenant: &str, max: &[(Resource, Option<u64>)]) -> Result<(), StoreError> {
    let tenant_id = tenants::id(db, tenant).await?;
    let resources: Vec<String> = max.iter().map(|(resource, _)| resource.column()).collect();
    let limits: Vec<Option<i64>> = max.iter().map(|(_, max)| max.map(super::saturating)).collect();
    let mut tx = db.begin().await?;
    sqlx::query!(
        "INSERT INTO quota_usage (tenant_id, resource) SELECT $1, r FROM unnest($2::text[]) r ORDER BY r ON CONFLICT DO NOTHING",
        tenant_id,
        &resources
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "WITH locked AS (
             SELECT resource FROM quota_usage WHERE tenant_id = $1 AND resource = ANY($2) ORDER BY resource FOR UPDATE
         )
         UPDATE quota_usage q SET max = i.max, ceiling = CASE WHEN i.max IS NOT NULL THEN GREATEST(i.max, q.used) END
         FROM unnest($2::text[], $3::bigint[]) AS i(resource, max) JOIN locked USING (resource)
         WHERE q.tenant_id = $1 AND q.resource = i.resource",
        tenant_id,
        &resources,
        &limits as &[Option<i64>]
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(())
}

/// What every tenant, or this one, has in use and may have, by tenant and in the order in which limits refuse.
pub async fn list(db: &PgPool, tenant: Option<&str>) -> Result<QuotaList, StoreError> {
    if let Some(tenant) = tenant {
        tenants::id(db, tenant).await?;
    }
    let rows = sqlx::query!(
        "SELECT t.name, q.resource, q.used, q.max FROM quota_usage q JOIN tenants t ON t.id = q.tenant_id
         WHERE ($1::text IS NULL OR t.name = $1) AND (q.used > 0 OR q.max IS NOT NULL)",
        tenant
    )
    .fetch_all(db)
    .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let max = row.max.map(i64::unsigned_abs);
        found.push((row.name, resource(&row.resource)?, row.used.unsigned_abs(), max));
    }
    found.sort();
    let quotas = found.into_iter().map(|(tenant, resource, used, max)| {
        let unit = resource.unit().to_owned();
        Quota { tenant, resource: resource.to_string(), unit, used, max }
    });
    Ok(QuotaList { quotas: quotas.collect() })
}
