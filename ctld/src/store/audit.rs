//! The audit: every invariant checked again, by SQL that shares nothing with the acts that keep it.
//!
//! One file an invariant in `audit/`; each selects the offending rows as (what, detail) and nothing when the invariant
//! holds. All of them read one snapshot. Nothing is locked and nothing repaired: a row found here is a fault of the store,
//! or the work of a person at psql.

use super::StoreError;
use proto::api::{Audit, Audited, Violation};
use proto::{ApiError, ErrorCode};
use sqlx::{Connection, PgConnection, PgPool};
use std::time::{Duration, Instant};

/// How many offending rows of an invariant are told; all are counted.
const ROWS_MAX: i64 = 100;

/// An invariant and how it is checked.
#[derive(Debug)]
pub struct Invariant {
    /// Its stable name.
    pub name: &'static str,
    /// What it says.
    pub says: &'static str,
    /// Counts what is looked at.
    counts: &'static str,
    /// Selects what offends it.
    offends: &'static str,
}

macro_rules! invariant {
    ($name:literal, $says:literal, $counts:literal) => {
        Invariant {
            name: $name,
            says: $says,
            counts: concat!("SELECT count(*) FROM ", $counts),
            offends: include_str!(concat!("audit/", $name, ".sql")),
        }
    };
}

/// Every invariant.
pub const INVARIANTS: &[Invariant] = &[
    invariant!("devices", "no part of a GPU is booked twice at any instant", "device_bookings"),
    invariant!(
        "history",
        "no part of a GPU was anybody's twice, the past included",
        "device_bookings_history"
    ),
    invariant!("modes", "a booking fits its GPU's mode over its whole time", "device_bookings"),
    invariant!("timeline", "a GPU is in one mode at every instant", "gpu_modes"),
    invariant!(
        "atoms",
        "a booking covers what its atom covers, where there may be such an atom",
        "device_bookings"
    ),
    invariant!(
        "amounts",
        "what is booked of a node is within what it has, at every instant",
        "node_bookings"
    ),
    invariant!("counters", "a node's counters say what is in use", "node_resources"),
    invariant!("overruns", "what is in use is booked", "node_bookings WHERE allocation_id IS NOT NULL"),
    invariant!(
        "shares",
        "an allocation has booked its share, no more and no less",
        "allocations WHERE released_at IS NULL"
    ),
    invariant!("holds", "nothing was placed where a hold was open", "holds"),
    invariant!("quotas", "a tenant is charged what it has that has not ended, and no more", "quota_usage"),
    invariant!("keys", "an idempotency key names one operation", "idempotency_keys"),
    invariant!("tasks", "a task waits, runs once, or has ended", "jobs"),
    invariant!("times", "what happened, happened in order", "attempts"),
    invariant!("released", "what has ended holds nothing", "attempts WHERE ended_at IS NOT NULL"),
    invariant!(
        "reservations",
        "a reservation has its place, and what runs inside takes no more",
        "reservations"
    ),
    invariant!("events", "what ended was told", "outbox"),
];

/// What an audit looks at.
#[derive(Clone, Debug, Default)]
pub struct Look<'a> {
    /// Only these invariants; none named is all.
    pub names: &'a [String],
    /// How long one invariant may take; one that takes longer is told as not checked.
    pub each_within: Option<Duration>,
}

/// Checks the invariants in one snapshot. An unknown name is refused.
pub async fn audit(db: &PgPool, scope: Look<'_>) -> Result<Audit, StoreError> {
    let chosen = choose(scope.names)?;
    let begun = Instant::now();
    let mut tx = db.begin_with("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    if let Some(each) = scope.each_within {
        sqlx::query("SELECT set_config('statement_timeout', $1, true)")
            .bind(format!("{}ms", each.as_millis().max(1)))
            .execute(&mut *tx)
            .await?;
    }
    // The statements are few and look at everything: each is planned for what the tables hold now.
    sqlx::query("SET LOCAL plan_cache_mode = force_custom_plan").execute(&mut *tx).await?;
    let invariants = audit_in(&mut tx, chosen).await?;
    tx.commit().await?;
    let ok = invariants.iter().all(|i| i.violations == Some(0));
    Ok(Audit { ok, took_s: begun.elapsed().as_secs_f64(), invariants })
}

/// Checks these invariants in a transaction that is under way.
pub(super) async fn audit_in(
    tx: &mut PgConnection,
    chosen: impl IntoIterator<Item = &'static Invariant>,
) -> Result<Vec<Audited>, StoreError> {
    let mut audited = Vec::new();
    for invariant in chosen {
        audited.push(check(tx, invariant).await?);
    }
    Ok(audited)
}

fn choose(names: &[String]) -> Result<Vec<&'static Invariant>, ApiError> {
    if names.is_empty() {
        return Ok(INVARIANTS.iter().collect());
    }
    let named = |name: &String| {
        INVARIANTS.iter().find(|i| i.name == name).ok_or_else(|| {
            let all = INVARIANTS.iter().map(|i| i.name).collect::<Vec<_>>().join(", ");
            ApiError::new(ErrorCode::NotFound, format!("no invariant is called \"{name}\""))
                .hint(format!("there are {all}"))
        })
    };
    names.iter().map(named).collect()
}

async fn check(tx: &mut PgConnection, invariant: &Invariant) -> Result<Audited, StoreError> {
    let mut savepoint = tx.begin().await?;
    match offending(&mut savepoint, invariant).await {
        Ok(audited) => {
            savepoint.commit().await?;
            Ok(audited)
        }
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("57014") => {
            savepoint.rollback().await?;
            Ok(Audited { violations: None, ..audited(invariant, 0) })
        }
        Err(error) => Err(error.into()),
    }
}

async fn offending(tx: &mut PgConnection, invariant: &Invariant) -> Result<Audited, sqlx::Error> {
    let checked: i64 = sqlx::query_scalar(invariant.counts).fetch_one(&mut *tx).await?;
    let select = format!(
        "SELECT what, detail, count(*) OVER () FROM (\n{}\n) AS v ORDER BY what, detail LIMIT {ROWS_MAX}",
        invariant.offends
    );
    let rows: Vec<(String, String, i64)> =
        sqlx::query_as(sqlx::AssertSqlSafe(select)).persistent(false).fetch_all(tx).await?;
    Ok(Audited {
        violations: Some(rows.first().map_or(0, |row| row.2.unsigned_abs())),
        rows: rows.into_iter().map(|(what, detail, _)| Violation { what, detail }).collect(),
        ..audited(invariant, checked)
    })
}

fn audited(invariant: &Invariant, checked: i64) -> Audited {
    Audited {
        name: invariant.name.to_owned(),
        says: invariant.says.to_owned(),
        checked: checked.unsigned_abs(),
        violations: Some(0),
        rows: vec![],
    }
}
