//! Changes of GPUs' modes are made in their time: looked after at each beginning, when one is booked, and every 10 s.

use crate::app::App;
use crate::leases::MODES;
use crate::store::leases::Under;
use crate::store::{StoreError, modes};
use std::time::Duration;

/// The longest between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The shortest: a change that is due but cannot be made yet is not asked after without a pause.
const LOOK_MIN: Duration = Duration::from_millis(200);

/// Runs until the controller stops.
pub async fn run(app: App) {
    let stopping = app.stopping.clone();
    loop {
        if let Err(error) = step(&app).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "modes of GPUs were not looked after; trying again"
            );
        }
        let next = modes::next_s(&app.db).await.ok().flatten();
        let pause = next.and_then(|s| Duration::try_from_secs_f64(s + 0.001).ok()).unwrap_or(LOOK_EVERY);
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = app.wakes.modes_woken() => {}
            () = tokio::time::sleep(pause.clamp(LOOK_MIN, LOOK_EVERY)) => {}
        }
    }
}

/// One look, where this controller has the lease.
pub async fn step(app: &App) -> Result<(), StoreError> {
    let Some(lease) = app.leases.held(MODES) else { return Ok(()) };
    let done = app.leases.heed(&lease, modes::complete_due(&Under { db: &app.db, lease: &lease }).await)?;
    if done > 0 {
        tracing::info!(done, "modes of GPUs changed");
        app.wakes.planner();
    }
    Ok(())
}
