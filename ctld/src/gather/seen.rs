//! When nodes were last heard, written for all of them in one statement each few seconds.
//!
//! A session notes on its own monotonic clock that its node spoke; what is written is an age, which the database turns into an
//! instant. A session that no longer owns its node learns it here.

use crate::store::node::{Heard, Session, record_seen};
use sqlx::PgPool;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often "last seen" is written; in between it is a few seconds old.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// Every session of this controller. Cheap to clone.
#[derive(Clone, Default)]
pub struct Seen {
    lines: Arc<Mutex<Lines>>,
}

/// By node and epoch.
type Lines = HashMap<(i64, i64), Arc<Line>>;

struct Line {
    heard: Mutex<Instant>,
    observed: AtomicU64,
    superseded: Notify,
}

/// A session's end of it; the session is no longer written once this is dropped.
pub struct SeenLine {
    seen: Seen,
    key: (i64, i64),
    line: Arc<Line>,
}

impl Seen {
    /// Starts writing, for the controller of this name.
    pub fn start(db: PgPool, controller: &str) -> Seen {
        let seen = Seen::default();
        tokio::spawn(write(db, controller.to_owned(), seen.clone()));
        seen
    }

    /// A session that was opened now.
    pub fn session(&self, session: Session) -> SeenLine {
        let line = Arc::new(Line {
            heard: Mutex::new(Instant::now()),
            observed: AtomicU64::new(0),
            superseded: Notify::new(),
        });
        let key = (session.node_id, session.epoch);
        lock(&self.lines).insert(key, line.clone());
        SeenLine { seen: self.clone(), key, line }
    }

    fn heard(&self) -> Vec<Heard> {
        let lines = lock(&self.lines);
        lines
            .iter()
            .map(|((node_id, epoch), line)| Heard {
                session: Session { node_id: *node_id, epoch: *epoch },
                age_s: lock(&line.heard).elapsed().as_secs_f64(),
                observed_generation: line.observed.load(Ordering::Relaxed),
            })
            .collect()
    }
}

impl SeenLine {
    /// The node has spoken.
    pub fn heard(&self) {
        *lock(&self.line.heard) = Instant::now();
    }

    /// It has applied its target up to this generation.
    pub fn observed(&self, generation: u64) {
        self.line.observed.fetch_max(generation, Ordering::Relaxed);
    }

    /// Since when it has not.
    pub fn silent_for(&self) -> Duration {
        lock(&self.line.heard).elapsed()
    }

    /// Returns when another session is found to own the node.
    pub async fn superseded(&self) {
        self.line.superseded.notified().await;
    }
}

impl Drop for SeenLine {
    fn drop(&mut self) {
        lock(&self.seen.lines).remove(&self.key);
    }
}

async fn write(db: PgPool, controller: String, seen: Seen) {
    let mut tick = tokio::time::interval(WRITE_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !db.is_closed() {
        tick.tick().await;
        let heard = seen.heard();
        if heard.is_empty() {
            continue;
        }
        match record_seen(&db, &controller, &heard).await {
            Ok(owned) => {
                let lines = lock(&seen.lines);
                let gone = heard.iter().map(|h| (h.session.node_id, h.session.epoch));
                for key in gone.filter(|key| !owned.contains(&key.0)) {
                    if let Some(line) = lines.get(&key) {
                        line.superseded.notify_one();
                    }
                }
            }
            // The sessions outlive the database: jobs go on, and reports wait.
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "when nodes were seen is not written"
                );
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
