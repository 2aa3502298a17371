//! What is old goes: events and dead letters, in batches, every minute; as long as there is more, at once.

use crate::app::App;
use crate::leases::RETENTION;
use crate::store::StoreError;
use crate::store::events::{PRUNE_MAX, Pruned, prune};
use crate::store::leases::Under;
use std::time::Duration;

/// How often what is old is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Between two batches, so that others get their turn.
const BREATH: Duration = Duration::from_millis(100);

/// Runs until the controller stops.
pub async fn run(app: App) {
    let stopping = app.stopping.clone();
    loop {
        let pause = match step(&app).await {
            Ok(pruned) if pruned.events.max(pruned.dead_letters) >= PRUNE_MAX => BREATH,
            Ok(_) => LOOK_EVERY,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "old events were not deleted; trying again");
                LOOK_EVERY
            }
        };
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// One batch, where this controller has the lease.
pub async fn step(app: &App) -> Result<Pruned, StoreError> {
    let Some(lease) = app.leases.held(RETENTION) else { return Ok(Pruned::default()) };
    app.leases.heed(&lease, prune(&Under { db: &app.db, lease: &lease }, app.config.keep).await)
}
