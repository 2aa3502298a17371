//! Changes of GPUs' modes are made in their time: looked after at each beginning, when one is booked, and every 10 s.

use crate::app::App;
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

/// One look.
pub async fn step(app: &App) -> Result<(), StoreError> {
    let done = modes::complete_due(&app.db).await?;
    if done > 0 {
        tracing::info!(done, "modes of GPUs changed");
        app.wakes.planner();
    }
    Ok(())
}
