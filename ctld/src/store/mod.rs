//! All SQL. One function is one business act: it takes a connection or pool, reads `compute_now()` for the time, guards its
//! updates by the state it expects, and says what happened.
//!
//! Transactions that lock several tables take them in one order: jobs, attempts, allocations, reservations, nodes, gpus,
//! node_resources, then bookings, and quota_usage last; within a table by primary key. Rows are private structs; one that
//! cannot become a domain value is an error that names table, column and row.

pub mod act;
pub mod audit;
mod books;
pub mod commands;
pub mod events;
pub mod extend;
pub mod facts;
pub mod holds;
pub mod leases;
pub mod liveness;
pub mod mig_placements;
pub mod modes;
pub mod node;
pub mod node_certificates;
mod operations;
pub mod overrun;
pub mod place;
pub mod pools;
pub mod position;
pub mod quotas;
pub mod read;
pub mod reservations;
pub mod servers;
pub mod sinks;
pub mod snapshot;
mod steps;
pub mod submit;
pub mod tenants;
pub mod wakes;

#[cfg(test)]
pub(crate) mod tests;

use proto::{ApiError, ErrorCode};
use servers::Servers;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use std::sync::Arc;
use std::time::Duration;

/// The most connections one controller opens.
const CONNECTIONS_MAX: u32 = 16;
/// How long a request waits for a connection before it is answered "try again".
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// What the store may answer instead of a result.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database could not be reached or refused a statement.
    #[error("database")]
    Database(#[from] sqlx::Error),
    /// The migrations could not be applied.
    #[error("migrations")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// An answer for the caller.
    #[error("{0}")]
    Api(#[from] ApiError),
    /// The lease that an act needs is another's by now.
    #[error("the lease {lease}, epoch {epoch}, is another's by now")]
    Fenced {
        /// The lease.
        lease: String,
        /// The epoch in which it was held.
        epoch: i64,
    },
    /// A row that is no value of ours.
    #[error("row of {table}, column {column}: {value:?} cannot be read")]
    Row {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// What stands there.
        value: String,
    },
}

impl StoreError {
    /// Whether the same act may succeed when tried again: the connection failed, the server is going down or coming up, or
    /// PostgreSQL broke a deadlock (40P01), a serialization cycle (40001), a wait for a lock that took too long (55P03) or a
    /// transaction that did nothing for too long (25P03), or lacks disk, memory or connections (class 53).
    pub fn transient(&self) -> bool {
        let StoreError::Database(error) = self else { return false };
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_)
            | sqlx::Error::Tls(_) => true,
            sqlx::Error::Database(db) => db.code().is_some_and(|code| {
                matches!(
                    code.as_ref(),
                    "40P01" | "40001" | "55P03" | "57P01" | "57P02" | "57P03" | "25006" | "25P03"
                ) || code.starts_with("08")
                    || code.starts_with("53")
            }),
            _ => false,
        }
    }
}

impl StoreError {
    /// Whether the act may have been committed all the same: its connection was lost on the way, or the server was told to stop, which
    /// also ends a commit that waits for a standby. Other errors end the transaction, or come before it.
    pub fn maybe_done(&self) -> bool {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let StoreError::Database(error) = self else { return false };
        match error {
            // These two are of connecting.
            sqlx::Error::Io(io) => !matches!(io.kind(), ConnectionRefused | NotFound),
            sqlx::Error::WorkerCrashed | sqlx::Error::Protocol(_) => true,
            sqlx::Error::Database(db) => db
                .code()
                .is_some_and(|code| matches!(code.as_ref(), "57P01" | "57P02") || code.starts_with("08")),
            _ => false,
        }
    }
}

impl StoreError {
    /// Whether a unique key was there already.
    pub fn is_duplicate(&self) -> bool {
        let StoreError::Database(sqlx::Error::Database(error)) = self else { return false };
        error.is_unique_violation()
    }

    /// Whether somebody else came first: a deadlock (40P01), a serialization failure (40001) or an exclusion (23P01), which
    /// PostgreSQL may raise also under `ON CONFLICT DO NOTHING` when two overlapping ranges race.
    pub fn is_conflict(&self) -> bool {
        let StoreError::Database(sqlx::Error::Database(error)) = self else { return false };
        error.code().is_some_and(|code| matches!(code.as_ref(), "40P01" | "40001" | "23P01"))
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> ApiError {
        match error {
            StoreError::Api(api) => api,
            StoreError::Fenced { .. } => {
                ApiError::new(ErrorCode::Unavailable, "another controller has taken this over")
                    .hint("try again in a moment")
            }
            error if error.transient() => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the database cannot be reached");
                ApiError::new(ErrorCode::Unavailable, "the database cannot be reached now")
                    .hint("try again in a moment; the controller reconnects by itself")
            }
            error => {
                tracing::error!(error = &error as &dyn std::error::Error, "a statement failed");
                ApiError::new(ErrorCode::Internal, "the controller met a fault of its own")
                    .hint("the controller's log says which")
            }
        }
    }
}

/// A pool of connections to the one server of `url`, or to whichever of several takes writes. Connects when first used. Where there
/// are several, they have to be watched.
pub fn connect(url: &str) -> Result<(PgPool, Option<Arc<Servers>>), String> {
    let mut all = servers::read(url)?;
    if all.len() > 1 {
        let (pool, servers) = Servers::pool(all);
        return Ok((pool, Some(servers)));
    }
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS_MAX)
        .min_connections(2)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .test_before_acquire(false)
        .connect_lazy_with(application(all.remove(0)));
    Ok((pool, None))
}

/// How our connections are set.
fn application(options: PgConnectOptions) -> PgConnectOptions {
    options.application_name("ctld").options([
        // A controller must not hold a transaction open while it is stuck.
        ("idle_in_transaction_session_timeout", "10s"),
        ("lock_timeout", "30s"),
        // The statements are few, go by index whatever their arguments, and some are long: planning them anew costs more than
        // running them.
        ("plan_cache_mode", "force_generic_plan"),
    ])
}

/// Applies the migrations, under a lock that several controllers starting at once share.
pub async fn migrate(db: &PgPool) -> Result<(), StoreError> {
    sqlx::migrate!("../migrations").run(db).await?;
    Ok(())
}

/// The time, by the one clock.
pub async fn database_now(db: &PgPool) -> Result<chrono::DateTime<chrono::Utc>, StoreError> {
    Ok(sqlx::query_scalar!(r#"SELECT compute_now() AS "now!""#).fetch_one(db).await?)
}

/// What a row held that could not be read.
fn row_error(table: &'static str, column: &'static str, value: impl Into<String>) -> StoreError {
    StoreError::Row { table, column, value: value.into() }
}

/// Reads an `int4multirange` that a query selected as text.
fn index_set(table: &'static str, column: &'static str, text: &str) -> Result<proto::IndexSet, StoreError> {
    proto::IndexSet::from_multirange(text).ok_or_else(|| row_error(table, column, text))
}

/// The value of a condition column.
fn condition_value(condition: &proto::Condition) -> serde_json::Value {
    serde_json::to_value(condition).unwrap_or_else(|error| {
        // A condition is strings and integers: it always serialises.
        unreachable!("condition: {error}")
    })
}
