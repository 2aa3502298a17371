//! The one clock of this process: anchored to the database's `compute_now()`, carried on by the monotonic clock.
//!
//! Reading the system's clock is refused elsewhere. The anchor is taken at start and with every renewal of leases, each five seconds; when the two
//! have drifted apart by more than a second since the last anchor, that is logged as ClockSkew and shown by `bctl check`.

use chrono::{DateTime, Utc};
use sqlx::PgPool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// More drift than this between two anchors is an alarm.
pub const DRIFT_MAX: Duration = Duration::from_secs(1);

/// The clock.
#[derive(Debug, Default)]
pub struct Clock {
    anchor: Mutex<Option<Anchor>>,
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    at: Instant,
    now: DateTime<Utc>,
    drift_s: f64,
}

impl Clock {
    /// The time, or `None` before the first anchor.
    pub fn now(&self) -> Option<DateTime<Utc>> {
        self.anchor().map(|a| a.now + a.at.elapsed())
    }

    /// Seconds by which the database's clock ran ahead of this process's between the last two anchors.
    pub fn drift_s(&self) -> f64 {
        self.anchor().map_or(0.0, |a| a.drift_s)
    }

    /// Whether the drift is within bounds.
    pub fn steady(&self) -> bool {
        self.drift_s().abs() <= DRIFT_MAX.as_secs_f64()
    }

    /// Anchors the clock to the database's time.
    pub async fn anchor_to(&self, db: &PgPool) -> Result<(), crate::store::StoreError> {
        let asked = Instant::now();
        let now = crate::store::database_now(db).await?;
        // The answer was true somewhere between asking and hearing: half of that is the error.
        self.set(asked + asked.elapsed() / 2, now);
        Ok(())
    }

    fn set(&self, at: Instant, now: DateTime<Utc>) {
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let drift_s = anchor.map_or(0.0, |last| {
            let expected = last.now + at.saturating_duration_since(last.at);
            (now - expected).as_seconds_f64()
        });
        *anchor = Some(Anchor { at, now, drift_s });
        drop(anchor);
        if !self.steady() {
            tracing::error!(drift_s, "ClockSkew: the database's clock and this process's have drifted apart");
        }
    }

    fn anchor(&self) -> Option<Anchor> {
        *self.anchor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instant(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn a_database_clock_that_steps_is_seen_and_its_new_time_is_taken() {
        let clock = Clock::default();
        let begun = Instant::now();
        clock.set(begun, instant("2026-01-01T00:00:00Z"));
        clock.set(begun + Duration::from_secs(5), instant("2026-01-01T00:00:05.4Z"));
        assert!(clock.steady());
        clock.set(begun + Duration::from_secs(10), instant("2026-01-01T01:00:10Z"));
        assert!(!clock.steady());
        assert!(clock.drift_s() > 3590.0);
        clock.set(begun + Duration::from_secs(15), instant("2026-01-01T01:00:15Z"));
        assert!(clock.steady(), "one step is one alarm");
    }
}
