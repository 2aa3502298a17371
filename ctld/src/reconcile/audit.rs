//! The audit by the way: every invariant is checked again each minute, for the metric and for `bctl check`.
//!
//! It repairs nothing. It is kept cheap: an invariant that takes too long is left unchecked, and after an audit that took long
//! the pause is longer in proportion.

use crate::app::App;
use crate::store::StoreError;
use crate::store::audit::{Look, audit};
use std::time::{Duration, Instant};

/// The shortest between two audits.
const AUDIT_EVERY: Duration = Duration::from_secs(60);
/// The pause is at least this many times what the audit took: one part in a hundred of one connection.
const PAUSE_TIMES: u32 = 100;
/// How long one invariant may take.
const EACH_WITHIN: Duration = Duration::from_secs(5);

/// Runs until the controller stops.
pub async fn run(app: App) {
    let stopping = app.stopping.clone();
    let mut pause = AUDIT_EVERY;
    loop {
        tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let begun = Instant::now();
        if let Err(error) = step(&app).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the audit could not be made");
        }
        pause = AUDIT_EVERY.max(begun.elapsed() * PAUSE_TIMES);
    }
}

/// One audit. What it finds is logged, counted, and kept for `bctl check`.
pub async fn step(app: &App) -> Result<(), StoreError> {
    let found = audit(&app.db, Look { each_within: Some(EACH_WITHIN), ..Look::default() }).await?;
    for invariant in found.invariants.iter().filter(|i| i.violations.is_some_and(|n| n > 0)) {
        let first = invariant.rows.first().map(|row| format!("{}: {}", row.what, row.detail));
        tracing::error!(
            invariant = invariant.name,
            violations = invariant.violations,
            first,
            "the audit found an invariant broken"
        );
    }
    app.metrics.audited(&found);
    Ok(())
}
