//! Forbidden histories, each attempted deliberately. Next to each attack stands, where there is one, the naive form that the
//! same attack does break: without it a test that passes might not bite.
//!
//! Attacks on quotas are in `quotas`, drains against placements in `placing` and `holding`; what no one thought of is the
//! torture's.

mod bookings;
mod keys;
mod locks;
mod sessions;
mod skew;

use super::super::audit::{Look, audit as look};
use super::super::mig_placements;
use super::super::reservations::{advance, cancel as cancel_reservation, reserve};
use super::*;
use proto::ErrorCode;
use proto::api::{Begin, ReserveRequest};
use sqlx::{Postgres, Transaction};

/// A transaction of its own connection at an isolation level.
async fn at_level(db: &PgPool, level: &str) -> Transaction<'static, Postgres> {
    let begin = format!("BEGIN ISOLATION LEVEL {level}");
    db.begin_with(sqlx::AssertSqlSafe(begin)).await.unwrap()
}

/// How many rows offend this invariant.
async fn violations(db: &PgPool, name: &str) -> u64 {
    let names = [name.to_owned()];
    let audit = look(db, Look { names: &names, ..Look::default() }).await.unwrap();
    audit.invariants[0].violations.unwrap()
}

/// The SQLSTATE of an error of the database.
fn code(error: sqlx::Error) -> String {
    error.into_database_error().unwrap().code().unwrap().into_owned()
}

fn reservation(name: &str, begin: Option<Begin>, duration_s: u64) -> ReserveRequest {
    ReserveRequest {
        idempotency_key: name.into(),
        name: name.into(),
        begin,
        duration_s: Some(duration_s),
        ..ReserveRequest::default()
    }
}
