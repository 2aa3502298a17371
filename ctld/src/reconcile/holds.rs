//! Holds begin and end in their time: looked after at each beginning and end, when one is put or lifted, and every 10 s.

use crate::app::App;
use crate::leases::HOLDS;
use crate::store::StoreError;
use crate::store::holds::{Advanced, advance, next_s};
use crate::store::leases::Under;
use std::time::Duration;

/// The longest between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The shortest, whatever is due.
const LOOK_AFTER: Duration = Duration::from_millis(200);

/// Runs until the controller stops.
pub async fn run(app: App) {
    let stopping = app.stopping.clone();
    loop {
        if let Err(error) = step(&app).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "holds were not looked after; trying again");
        }
        let next = next_s(&app.db).await.ok().flatten();
        let pause = next.and_then(|s| Duration::try_from_secs_f64(s + 0.001).ok()).unwrap_or(LOOK_EVERY);
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = app.wakes.holds_woken() => {}
            () = tokio::time::sleep(pause.clamp(LOOK_AFTER, LOOK_EVERY)) => {}
        }
    }
}

/// One look, where this controller has the lease.
pub async fn step(app: &App) -> Result<(), StoreError> {
    let Some(lease) = app.leases.held(HOLDS) else { return Ok(()) };
    let advanced = app.leases.heed(&lease, advance(&Under { db: &app.db, lease: &lease }).await)?;
    if advanced != Advanced::default() {
        tracing::info!(ended = advanced.ended, changed = advanced.changed, "holds");
        // A hold that ends sets something free; one that begins is another reason to wait.
        app.wakes.planner();
    }
    Ok(())
}
