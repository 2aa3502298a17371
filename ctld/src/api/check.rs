//! The controller's health. Always answered: a check that fails is an answer, not an error.

use super::caller::Anybody;
use super::error::Answer;
use super::extract::{NoParams, Params};
use crate::app::App;
use crate::clock::Clock;
use crate::store::events::{HoldingBack, holding_back};
use crate::store::leases::{Owner, Seen, look};
use crate::store::read::{NodeCounts, node_counts, server_version};
use axum::Json;
use axum::extract::State;
use proto::ApiError;
use proto::api::{Audit, DatabaseHealth, Health, HealthCheck};
use proto::error::ErrorBody;
use std::time::{Duration, Instant};

/// A database slower than this to answer the simplest question is not well.
const SLOW: Duration = Duration::from_secs(1);

/// A lease that has expired is another's within moments; longer than this nobody sees to it.
const TAKEN_OVER_WITHIN_S: f64 = 5.0;

/// A transaction that is older than this holds events back.
const HOLDS_BACK_S: f64 = 30.0;

/// The controller's health
///
/// Where the database is, is told to operators.
#[utoipa::path(get, path = "/v1/check", tag = "controller", responses(
    (status = 200, description = "what was found, well or not", body = Health),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn check(
    State(app): State<App>,
    Anybody(caller): Anybody,
    _: Params<NoParams>,
) -> Answer<Health> {
    let begun = Instant::now();
    let database = match server_version(&app.db).await {
        Ok(version) => {
            let took = begun.elapsed();
            let message = format!("PostgreSQL {version} answered in {:.1} ms", took.as_secs_f64() * 1e3);
            found("database", took < SLOW, message)
        }
        Err(error) => found("database", false, ApiError::from(error).message),
    };
    let nodes = if database.ok { node_counts(&app.db).await.ok() } else { None };
    let leases = if database.ok { look(&app.db).await.ok() } else { None };
    let behind = if database.ok { holding_back(&app.db, HOLDS_BACK_S).await.ok() } else { None };
    let audit = app.metrics.last_audit();
    let checks = vec![
        database,
        clock_check(&app.clock),
        leases_check(leases.as_deref(), app.leases.owner()),
        nodes_check(nodes.as_ref()),
        events_check(behind.as_deref()),
        audit_check(audit.as_ref()),
    ];
    let nodes = nodes.unwrap_or_default();
    Ok(Json(Health {
        ok: checks.iter().all(|check| check.ok),
        checks,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        database: caller.operator.then(|| where_it_is(&app)),
        nodes_connected: nodes.connected,
        nodes_total: nodes.total,
    }))
}

fn found(name: &str, ok: bool, message: String) -> HealthCheck {
    HealthCheck { name: name.to_owned(), ok, message }
}

/// The database's clock and this process's run alike.
fn clock_check(clock: &Clock) -> HealthCheck {
    let message = format!("the database's clock gained {:.3} s on the controller's lately", clock.drift_s());
    found("clock.skew", clock.steady(), message)
}

/// Every pool and every singleton has a controller that sees to it.
fn leases_check(leases: Option<&[Seen]>, me: &Owner) -> HealthCheck {
    let Some(leases) = leases else {
        return found("leases", false, "unknown: the database does not answer".to_owned());
    };
    let (gateways, work): (Vec<&Seen>, Vec<&Seen>) =
        leases.iter().partition(|lease| lease.name.starts_with("gateway:"));
    let alive = gateways.iter().filter(|lease| lease.left_s > 0.0).count();
    let idle: Vec<String> = work
        .iter()
        // Nobody sees to a sink that was paused or deleted.
        .filter(|lease| !lease.name.starts_with("singleton:outbox-dispatch:"))
        .filter(|lease| lease.left_s <= -TAKEN_OVER_WITHIN_S)
        .map(|lease| format!("{} ({:.0} s ago)", lease.name, -lease.left_s))
        .collect();
    if !idle.is_empty() {
        return found("leases", false, format!("expired and not taken over: {}", idle.join(", ")));
    }
    let mine = work.iter().filter(|lease| lease.owner == me.to_string()).count();
    let oldest = work.iter().map(|lease| lease.age_s).fold(0.0, f64::max);
    let message = format!(
        "{alive} controllers live; this one has {mine} of {} leases, the oldest renewed {oldest:.1} s ago",
        work.len()
    );
    found("leases", alive > 0 && !work.is_empty(), message)
}

/// Every node that nobody holds has a session.
fn nodes_check(nodes: Option<&NodeCounts>) -> HealthCheck {
    let Some(nodes) = nodes else {
        return found("nodes", false, "unknown: the database does not answer".to_owned());
    };
    let NodeCounts { connected, total, missing } = nodes;
    let message = match missing.as_slice() {
        [] => format!("{connected} of {total} nodes have a session"),
        some => format!("{connected} of {total} nodes have a session: not {}", some.join(", ")),
    };
    found("nodes", missing.is_empty(), message)
}

/// No old transaction keeps events from being read.
fn events_check(behind: Option<&[HoldingBack]>) -> HealthCheck {
    let Some(behind) = behind else {
        return found("events", false, "unknown: the database does not answer".to_owned());
    };
    if behind.is_empty() {
        return found("events", true, format!("no transaction over {HOLDS_BACK_S:.0} s holds them back"));
    }
    let each = behind.iter().map(|one| {
        let who = one.pid.map_or("prepared transaction".to_owned(), |pid| format!("process {pid}"));
        let HoldingBack { user, database, application, state, age_s, .. } = one;
        format!("{who} of user {user} in database {database} (\"{application}\", {state}), {age_s:.0} s old")
    });
    found("events", false, format!("held back until these end: {}", each.collect::<Vec<_>>().join("; ")))
}

/// Every invariant held when it was last looked at.
fn audit_check(last: Option<&(Duration, Audit)>) -> HealthCheck {
    let Some((ago, audit)) = last else {
        return found(
            "audit",
            true,
            "not made since the controller started; `bctl audit` makes one".to_owned(),
        );
    };
    let broken: Vec<String> = audit
        .invariants
        .iter()
        .filter_map(|i| i.violations.filter(|n| *n > 0).map(|n| format!("{} ({n} violations)", i.name)))
        .collect();
    let held = audit.invariants.iter().filter(|i| i.violations == Some(0)).count();
    let message = match broken.as_slice() {
        [] => {
            format!("{held} of {} invariants hold, looked at {} s ago", audit.invariants.len(), ago.as_secs())
        }
        some => format!("broken: {}; see `bctl audit`", some.join(", ")),
    };
    found("audit", broken.is_empty(), message)
}

fn where_it_is(app: &App) -> DatabaseHealth {
    match &app.embedded {
        Some(server) => DatabaseHealth { url: server.url(), embedded: true, pid: server.pid() },
        None => DatabaseHealth { url: app.config.database.shown(), embedded: false, pid: None },
    }
}
