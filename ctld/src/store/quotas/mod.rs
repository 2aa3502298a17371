//! Quotas: what tenants are charged for what has not ended, and what they are given back, exactly once.
//!
//! A charge is part of the transaction that makes what is charged, a refund of the one that ends it, and both are its last
//! statements: the rows of `quota_usage` are what all of a tenant's work meets at, and are locked for as short as can be.
//! [`charge`] is what counts, under the rows' locks; [`standings`] is a look without, by which most of what is over the limit
//! is refused before anything is written. The CHECK on the table stands behind both.

mod given;
mod limits;

pub use given::allowances;
pub(super) use given::{Extra, extras, take_over};
pub use limits::{list, set};

use super::{StoreError, row_error};
use ctld_core::quota::{Charge, Exceeded, Limits, Resource, decide};
use proto::{ApiError, ErrorCode};
use sqlx::{PgConnection, PgPool};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Something to be charged.
pub(super) struct Ask<'a> {
    /// To whom.
    pub tenant_id: i32,
    /// What.
    pub charge: &'a Charge,
}

/// Where a tenant stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing {
    name: String,
    limits: Limits,
    used: Charge,
}

/// Where the tenants that ask stand with what is limited, by tenant; those without limits are missing. Makes the rows that a
/// charge of this needs: made by the charge itself they would come after locks that they belong before.
pub(super) async fn standings(db: &PgPool, asks: &[Ask<'_>]) -> Result<HashMap<i32, Standing>, StoreError> {
    let all = Totals::of(asks.iter().map(|ask| (ask.tenant_id, ask.charge)));
    let (tenants, resources, _) = all.columns();
    let rows = sqlx::query!(
        "SELECT q.tenant_id, t.name, q.resource, q.used, q.max
         FROM quota_usage q JOIN tenants t ON t.id = q.tenant_id
         WHERE q.tenant_id = ANY($1) AND (q.max IS NOT NULL OR q.resource = ANY($2))",
        &tenants,
        &resources
    )
    .fetch_all(db)
    .await?;
    let found: HashSet<(i32, &str)> = rows.iter().map(|row| (row.tenant_id, row.resource.as_str())).collect();
    if all.0.keys().any(|(tenant_id, resource)| !found.contains(&(*tenant_id, resource))) {
        all.make_rows(db).await?;
    }
    let mut standings: HashMap<i32, Standing> = HashMap::new();
    for row in rows {
        let Some(max) = row.max else { continue };
        let standing = standings.entry(row.tenant_id).or_default();
        let resource = resource(&row.resource)?;
        standing.limits.insert(resource.clone(), max.unsigned_abs());
        standing.used.add(&[(resource, row.used.unsigned_abs())].into_iter().collect());
        standing.name = row.name;
    }
    Ok(standings)
}

/// Whether a charge of this finds its rows.
pub(super) async fn has_rows(tx: &mut PgConnection, asks: &[Ask<'_>]) -> Result<bool, StoreError> {
    let all = Totals::of(asks.iter().map(|ask| (ask.tenant_id, ask.charge)));
    let (tenants, resources, _) = all.columns();
    let there = sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM unnest($1::int[], $2::text[]) AS i(tenant_id, resource)
           JOIN quota_usage USING (tenant_id, resource)"#,
        &tenants,
        &resources
    )
    .fetch_one(tx)
    .await?;
    Ok(there == saturating(all.0.len() as u64))
}

/// Which of these fit, in their order, beside what is used and the ones before.
pub(super) fn judge(standings: &HashMap<i32, Standing>, asks: &[Ask<'_>]) -> Vec<Result<(), ApiError>> {
    let mut answers: Vec<Result<(), ApiError>> = asks.iter().map(|_| Ok(())).collect();
    for (tenant_id, standing) in standings {
        let (at, charges): (Vec<usize>, Vec<&Charge>) = asks
            .iter()
            .enumerate()
            .filter(|(_, ask)| ask.tenant_id == *tenant_id)
            .map(|(at, ask)| (at, ask.charge))
            .unzip();
        let decision = decide(&standing.limits, standing.used.clone(), &charges);
        for (at, answer) in at.into_iter().zip(decision.answers) {
            answers[at] = answer.map_err(|exceeded| refusal(&standing.name, &exceeded));
        }
    }
    answers
}

/// Charges what fits, in order, and refuses the rest. The rows must be there ([`standings`] makes them), and stay locked until
/// the transaction ends: call it last.
pub(super) async fn charge(
    tx: &mut PgConnection,
    asks: &[Ask<'_>],
) -> Result<Vec<Result<(), ApiError>>, StoreError> {
    // 1. All of it at once, which nearly always fits.
    let all = Totals::of(asks.iter().map(|ask| (ask.tenant_id, ask.charge)));
    if all.is_empty() || all.charge(tx).await? {
        return Ok(asks.iter().map(|_| Ok(())).collect());
    }
    // 2. Something does not: one by one, by what stands under the locks.
    let standings = all.lock(tx).await?;
    let answers = judge(&standings, asks);
    let fits = asks.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
    let fits = Totals::of(fits.map(|(ask, _)| (ask.tenant_id, ask.charge)));
    if !fits.is_empty() && !fits.charge(tx).await? {
        // The rows are locked and were judged by the same numbers: one is missing.
        return Err(StoreError::Database(sqlx::Error::RowNotFound));
    }
    Ok(answers)
}

/// Gives back what these tenants were charged. Call it last, as [`charge`].
pub(super) async fn refund(tx: &mut PgConnection, charges: &[(i32, Charge)]) -> Result<(), StoreError> {
    settle(tx, charges, &[]).await
}

/// Gives back, and charges what goes on whatever the limits say, in one statement: the ceiling rises with a use above the
/// limit, and falls with it again. The rows must be there. Call it last, as [`charge`].
pub(super) async fn settle(
    tx: &mut PgConnection,
    given_back: &[(i32, Charge)],
    taken_over: &[(i32, Charge)],
) -> Result<(), StoreError> {
    let sum = |charges: &[(i32, Charge)]| {
        Totals::of(charges.iter().map(|(tenant_id, charge)| (*tenant_id, charge)))
    };
    let mut rows: BTreeMap<(i32, String), i64> =
        sum(given_back).0.into_iter().map(|(row, amount)| (row, saturating(amount))).collect();
    for (row, amount) in sum(taken_over).0 {
        let net = rows.entry(row).or_default();
        *net = net.saturating_sub(saturating(amount));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let tenants: Vec<i32> = rows.keys().map(|(tenant_id, _)| *tenant_id).collect();
    let resources: Vec<String> = rows.keys().map(|(_, resource)| resource.clone()).collect();
    let amounts: Vec<i64> = rows.into_values().collect();
    sqlx::query_file!("src/store/sql/refund.sql", &tenants, &resources, &amounts).execute(tx).await?;
    Ok(())
}

/// Gives back what these jobs' tasks were charged, so many of each job, which the caller has ended just now under its lock.
pub(super) async fn refund_tasks(tx: &mut PgConnection, ended: &[(i64, u64)]) -> Result<(), StoreError> {
    if ended.is_empty() {
        return Ok(());
    }
    let mut charges = Vec::with_capacity(ended.len());
    for (_, tenant_id, charge) in task_charges(tx, ended).await? {
        charges.push((tenant_id, charge));
    }
    refund(tx, &charges).await
}

/// What so many tasks of each of these jobs are charged: job, tenant and charge.
pub(super) async fn task_charges(
    tx: &mut PgConnection,
    tasks: &[(i64, u64)],
) -> Result<Vec<(i64, i32, Charge)>, StoreError> {
    let (ids, counts): (Vec<i64>, Vec<i64>) = tasks.iter().map(|(id, n)| (*id, saturating(*n))).unzip();
    let rows = sqlx::query!(
        r#"SELECT j.id, j.tenant_id, j.charge, i.tasks AS "tasks!"
           FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS i(id, tasks, ord) JOIN jobs j ON j.id = i.id
           ORDER BY i.ord"#,
        &ids,
        &counts
    )
    .fetch_all(tx)
    .await?;
    let mut charges = Vec::with_capacity(rows.len());
    for row in rows {
        let each = charge_from("jobs", &row.charge)?;
        let all = each.times(row.tasks.unsigned_abs());
        // All of the job's tasks were counted together when they were charged.
        let all = all.map_err(|_| row_error("jobs", "charge", row.charge.to_string()))?;
        charges.push((row.id, row.tenant_id, all));
    }
    Ok(charges)
}

/// A charge as a column holds it.
pub(super) fn charge_value(charge: &Charge) -> serde_json::Value {
    let amounts = charge.amounts().map(|(resource, amount)| (resource.column(), amount.into()));
    serde_json::Value::Object(amounts.collect())
}

/// A charge out of a column.
pub(super) fn charge_from(table: &'static str, value: &serde_json::Value) -> Result<Charge, StoreError> {
    let wrong = || row_error(table, "charge", value.to_string());
    let amounts = value.as_object().ok_or_else(wrong)?;
    amounts
        .iter()
        .map(|(name, amount)| Some((Resource::from_column(name)?, amount.as_u64()?)))
        .collect::<Option<Charge>>()
        .ok_or_else(wrong)
}

fn resource(column: &str) -> Result<Resource, StoreError> {
    Resource::from_column(column).ok_or_else(|| row_error("quota_usage", "resource", column))
}

fn refusal(tenant: &str, exceeded: &Exceeded) -> ApiError {
    ApiError::new(ErrorCode::QuotaExceeded, format!("tenant \"{tenant}\" has {exceeded}"))
        .hint(format!("submit it again when some of that has ended; `bctl quota show {tenant}` shows it all"))
}

fn saturating(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Sums by row of `quota_usage`, in the order in which the rows are locked.
struct Totals(BTreeMap<(i32, String), u64>);

impl Totals {
    fn of<'a>(charges: impl Iterator<Item = (i32, &'a Charge)>) -> Totals {
        let mut totals: BTreeMap<i32, Charge> = BTreeMap::new();
        for (tenant_id, charge) in charges {
            totals.entry(tenant_id).or_default().add(charge);
        }
        let rows = totals.iter().flat_map(|(tenant_id, charge)| {
            charge.amounts().map(|(resource, amount)| ((*tenant_id, resource.column()), amount))
        });
        Totals(rows.collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn columns(&self) -> (Vec<i32>, Vec<String>, Vec<i64>) {
        let tenants = self.0.keys().map(|(tenant_id, _)| *tenant_id).collect();
        let resources = self.0.keys().map(|(_, resource)| resource.clone()).collect();
        (tenants, resources, self.0.values().map(|amount| saturating(*amount)).collect())
    }

    /// Charges all of it, or nothing.
    async fn charge(&self, tx: &mut PgConnection) -> Result<bool, StoreError> {
        let (tenants, resources, amounts) = self.columns();
        let charged = sqlx::query_file!("src/store/sql/charge.sql", &tenants, &resources, &amounts);
        Ok(charged.execute(tx).await?.rows_affected() > 0)
    }

    /// Makes the rows that are missing.
    async fn make_rows(&self, db: &PgPool) -> Result<(), StoreError> {
        let (tenants, resources, _) = self.columns();
        sqlx::query!(
            "INSERT INTO quota_usage (tenant_id, resource) SELECT * FROM unnest($1::int[], $2::text[])
             ON CONFLICT DO NOTHING",
            &tenants,
            &resources
        )
        .execute(db)
        .await?;
        Ok(())
    }

    /// Locks the rows and reads them.
    async fn lock(&self, tx: &mut PgConnection) -> Result<HashMap<i32, Standing>, StoreError> {
        let (tenants, resources, _) = self.columns();
        let rows = sqlx::query!(
            r#"SELECT q.tenant_id, t.name, q.resource, q.used, q.max
               FROM quota_usage q JOIN tenants t ON t.id = q.tenant_id
               JOIN unnest($1::int[], $2::text[]) AS i(tenant_id, resource)
                   ON i.tenant_id = q.tenant_id AND i.resource = q.resource
               ORDER BY q.tenant_id, q.resource FOR UPDATE OF q"#,
            &tenants,
            &resources
        )
        .fetch_all(tx)
        .await?;
        let mut standings: HashMap<i32, Standing> = HashMap::new();
        for row in rows {
            let standing = standings.entry(row.tenant_id).or_default();
            let resource = resource(&row.resource)?;
            if let Some(max) = row.max {
                standing.limits.insert(resource.clone(), max.unsigned_abs());
            }
            standing.used.add(&[(resource, row.used.unsigned_abs())].into_iter().collect());
            standing.name = row.name;
        }
        Ok(standings)
    }
}
