//! Nodes that are away or launch nothing, and commands that wait for them: looked after every few seconds by whoever has the lease.

use crate::app::App;
use crate::leases::LIVENESS;
use crate::store::StoreError;
use crate::store::commands::expire;
use crate::store::holds::hold_suspects;
use crate::store::leases::Under;
use crate::store::liveness::{give_up, look};
use std::time::Duration;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Runs until the controller stops.
pub async fn run(app: App) {
    let stopping = app.stopping.clone();
    loop {
        if let Err(error) = step(&app).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "nodes that are away were not looked after; trying again");
        }
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// One look, where this controller has the lease.
pub async fn step(app: &App) -> Result<(), StoreError> {
    let Some(lease) = app.leases.held(LIVENESS) else { return Ok(()) };
    let right = Under { db: &app.db, lease: &lease };
    let looked = app.leases.heed(&lease, look(&right).await)?;
    if looked.outage {
        tracing::warn!(
            "no controller or no database was there for a while; nodes that are away have their grace anew"
        );
    }
    for name in &looked.disconnected {
        tracing::warn!(node.name = %name, "disconnected: its controller is gone");
    }
    for name in &looked.unreachable {
        tracing::warn!(node.name = %name, "NodeUnreachable: it takes no new work; what is on it keeps its place");
    }
    for name in &looked.reachable {
        tracing::info!(node.name = %name, "reachable again");
    }
    for id in &looked.lost {
        let Some(recorded) = app.leases.heed(&lease, give_up(&right, *id).await)? else { continue };
        tracing::error!(node.id = id, jobs = recorded.ended_jobs.len(), "a node was given up as lost");
        app.wakes.nodes(recorded.nodes);
        app.wakes.ended(recorded.ended_jobs);
    }
    for (name, reason) in app.leases.heed(&lease, hold_suspects(&right).await)? {
        tracing::error!(node.name = %name, reason, "a node is held, since it cannot launch jobs");
    }
    let expired = app.leases.heed(&lease, expire(&right).await)?;
    if expired > 0 {
        tracing::warn!(expired, "commands could not be carried out in time");
    }
    if !looked.reachable.is_empty() || !looked.lost.is_empty() {
        app.wakes.planner();
    }
    Ok(())
}
