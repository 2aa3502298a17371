//! Reservations begin and end in their time: looked after at each beginning and end, when one is made, and every 10 s.

use crate::app::App;
use crate::leases::RESERVATIONS;
use crate::store::StoreError;
use crate::store::leases::Under;
use crate::store::reservations::{Advanced, advance, next_s};
use std::time::Duration;

/// The longest between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Runs until the controller stops.
pub async fn run(app: App) {
    let stopping = app.stopping.clone();
    loop {
        if let Err(error) = step(&app).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "reservations were not looked after; trying again"
            );
        }
        let next = next_s(&app.db).await.ok().flatten();
        let pause = next.and_then(|s| Duration::try_from_secs_f64(s + 0.001).ok()).unwrap_or(LOOK_EVERY);
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = app.wakes.reservations_woken() => {}
            // One whose time has come but that cannot begin yet is not asked after without a pause.
            () = tokio::time::sleep(pause.clamp(Duration::from_millis(200), LOOK_EVERY)) => {}
        }
    }
}

/// One look, where this controller has the lease.
pub async fn step(app: &App) -> Result<(), StoreError> {
    let Some(lease) = app.leases.held(RESERVATIONS) else { return Ok(()) };
    let advanced = app.leases.heed(&lease, advance(&Under { db: &app.db, lease: &lease }).await)?;
    if advanced != Advanced::default() {
        tracing::info!(begun = advanced.begun, ended = advanced.ended, "reservations");
        app.wakes.planner();
    }
    Ok(())
}
