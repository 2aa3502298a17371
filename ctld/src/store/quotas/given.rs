//! What placements give beyond what was charged at submission: the models of GPUs left open, the rest of a node taken whole.
//!
//! Each allocation holds its part, and it is given back when the allocation is released. A job inside a reservation is
//! charged as a job alone, since the reservation is charged; when that ends before the job, its allocations take over what
//! they hold, whatever the limits say: it runs already.

use super::{Ask, StoreError, charge_from, charge_value, standings};
use crate::store::place::Scope;
use ctld_core::plan::{Allowance, Placement};
use ctld_core::quota::{Charge, given};
use sqlx::{PgConnection, PgPool};
use std::collections::HashMap;

/// What a placement is charged beyond its job.
pub(in crate::store) struct Extra {
    tenant_id: i32,
    shares: Vec<Charge>,
    all: Charge,
}

/// What the planner may give the tenants that have limits, by tenant. What a reservation gives is charged already.
pub async fn allowances(db: &PgPool, scope: Scope) -> Result<HashMap<i32, Allowance>, StoreError> {
    if scope != Scope::Pool {
        return Ok(HashMap::new());
    }
    let rows = sqlx::query!(
        r#"SELECT q.tenant_id, t.name, q.resource, q.used, q.max AS "max!"
           FROM quota_usage q JOIN tenants t ON t.id = q.tenant_id WHERE q.max IS NOT NULL"#
    )
    .fetch_all(db)
    .await?;
    let mut allowances: HashMap<i32, Allowance> = HashMap::new();
    for row in rows {
        let allowance = allowances.entry(row.tenant_id).or_default();
        let resource = super::resource(&row.resource)?;
        allowance.limits.insert(resource.clone(), row.max.unsigned_abs());
        allowance.used.add(&[(resource, row.used.unsigned_abs())].into_iter().collect());
        allowance.tenant = row.name;
    }
    Ok(allowances)
}

/// What each of these placements gives beyond what its job was charged, by job and task. Makes the rows of `quota_usage` that
/// this takes, also for what a reservation's end will charge.
pub(in crate::store) async fn extras(
    db: &PgPool,
    placements: &[Placement],
) -> Result<HashMap<(i64, u32), Extra>, StoreError> {
    let job_ids: Vec<i64> = placements.iter().map(|p| p.job_id).collect();
    let jobs =
        sqlx::query!("SELECT id, tenant_id, charge, node_count FROM jobs WHERE id = ANY($1)", &job_ids)
            .fetch_all(db)
            .await?;
    let mut charged = HashMap::with_capacity(jobs.len());
    for job in jobs {
        let each = charge_from("jobs", &job.charge)?.on_each_of(job.node_count.unsigned_abs());
        charged.insert(job.id, (job.tenant_id, each));
    }
    let gpu_ids: Vec<i64> =
        placements.iter().flat_map(|p| p.shares.iter().flat_map(|s| s.gpu_ids.iter().copied())).collect();
    let models: HashMap<i64, String> = if gpu_ids.is_empty() {
        HashMap::new()
    } else {
        let rows = sqlx::query!("SELECT id, model FROM gpus WHERE id = ANY($1)", &gpu_ids);
        rows.fetch_all(db).await?.into_iter().map(|row| (row.id, row.model)).collect()
    };
    let mut extras = HashMap::new();
    for placement in placements {
        let Some((tenant_id, charged)) = charged.get(&placement.job_id) else { continue };
        let extra_of = |share: &ctld_core::plan::Share| {
            let models = share.gpu_ids.iter().filter_map(|id| models.get(id)).map(String::as_str);
            share.gives(models).beyond(charged)
        };
        let shares: Vec<Charge> = placement.shares.iter().map(extra_of).collect();
        let mut all = Charge::default();
        shares.iter().for_each(|share| all.add(share));
        if !all.is_empty() {
            let extra = Extra { tenant_id: *tenant_id, shares, all };
            extras.insert((placement.job_id, placement.task), extra);
        }
    }
    let asks: Vec<Ask<'_>> = extras.values().map(Extra::ask).collect();
    if !asks.is_empty() {
        standings(db, &asks).await?;
    }
    Ok(extras)
}

impl Extra {
    /// The charge of the whole placement.
    pub fn ask(&self) -> Ask<'_> {
        Ask { tenant_id: self.tenant_id, charge: &self.all }
    }

    /// The part of the allocation at this position, as its column holds it.
    pub fn part(&self, position: usize) -> serde_json::Value {
        self.shares.get(position).map_or_else(|| serde_json::json!({}), charge_value)
    }
}

/// Has the live allocations inside this reservation, which ends, hold the charge of what they have. Returns it, to be charged
/// with what the reservation gives back. The caller holds the amounts of their nodes, so that none of them is released
/// meanwhile.
pub(in crate::store) async fn take_over(
    tx: &mut PgConnection,
    reservation_id: i64,
) -> Result<Vec<(i32, Charge)>, StoreError> {
    let inside = sqlx::query!(
        r#"SELECT a.id, j.tenant_id, j.charge, j.node_count, a.cpus, a.mem_mib, a.disk_mib,
               ARRAY(SELECT g.model FROM gpus g WHERE g.id IN (
                   SELECT d.gpu_id FROM device_bookings d WHERE d.allocation_id = a.id)) AS "models!"
           FROM allocations a JOIN attempts t ON t.id = a.attempt_id JOIN jobs j ON j.id = t.job_id
           WHERE a.reservation_id = $1 AND a.released_at IS NULL
           ORDER BY a.id"#,
        reservation_id
    )
    .fetch_all(&mut *tx)
    .await?;
    let (mut ids, mut values, mut charges) = (Vec::new(), Vec::new(), Vec::new());
    for row in inside {
        let charged = charge_from("jobs", &row.charge)?.on_each_of(row.node_count.unsigned_abs());
        let models = row.models.iter().map(String::as_str);
        let cpus = u64::from(row.cpus.unsigned_abs());
        let holds = given(cpus, row.mem_mib.unsigned_abs(), row.disk_mib.unsigned_abs(), models);
        let charge = holds.beyond(&charged);
        ids.push(row.id);
        values.push(charge_value(&charge));
        charges.push((row.tenant_id, charge));
    }
    if !ids.is_empty() {
        sqlx::query!(
            "UPDATE allocations a SET charge = i.charge FROM unnest($1::bigint[], $2::jsonb[]) AS i(id, charge)
             WHERE a.id = i.id",
            &ids,
            &values
        )
        .execute(tx)
        .await?;
    }
    Ok(charges)
}
