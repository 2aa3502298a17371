//! One reader of events for everybody in this controller who listens.
//!
//! It reads only while somebody listens, when a commit wakes it and at the latest every [`LOOK_EVERY`]. What is committed but
//! may still be overtaken by a transaction that runs is looked for again soon. Listeners share one ring of events: who falls
//! behind by more than [`RING`] is cut off, and goes on later from where it was, by its cursor.

use crate::app::App;
use crate::store::StoreError;
use crate::store::events::{BATCH_MAX, Filter, Placed, head, more, read};
use proto::Cursor;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, broadcast, watch};

/// How far a listener may fall behind.
const RING: usize = 8192;
/// How often the database is looked at when nothing wakes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How soon what could not be read yet is looked for again, at first.
const LOOK_AGAIN: Duration = Duration::from_millis(4);
/// How long commits are gathered that come one behind the other.
const GATHER: Duration = Duration::from_millis(2);

/// What this controller tells of events.
#[derive(Debug)]
pub struct Events {
    told: broadcast::Sender<Arc<Placed>>,
    /// Up to where it has told; `None` while nobody listens.
    at: watch::Sender<Option<Cursor>>,
    wanted: Notify,
}

/// Somebody who listens.
#[derive(Debug)]
pub struct Listening {
    /// Every event that can be read from now on, in order.
    pub events: broadcast::Receiver<Arc<Placed>>,
    /// Everything up to here is told to nobody who listens from now on: look in the database.
    pub from: Cursor,
}

impl Default for Events {
    fn default() -> Events {
        Events { told: broadcast::channel(RING).0, at: watch::channel(None).0, wanted: Notify::new() }
    }
}

impl Events {
    /// Listens from now on. Waits for the database where nobody listened before.
    pub async fn listen(&self) -> Listening {
        // The ring is joined before the position is read, so nothing falls between; what is in both is told twice.
        let mut at = self.at.subscribe();
        let events = self.told.subscribe();
        loop {
            self.wanted.notify_one();
            if let Some(from) = *at.borrow_and_update() {
                return Listening { events, from };
            }
            at.changed().await.expect("the sender is in self");
        }
    }

    /// How many listen now.
    pub fn listeners(&self) -> usize {
        self.told.receiver_count()
    }

    /// One look. Whether there is more that cannot be read yet.
    async fn step(&self, app: &App, at: Cursor) -> Result<Step, StoreError> {
        let batch = read(&app.db, at, &Filter::default(), BATCH_MAX).await?;
        let full = batch.len() as i64 == BATCH_MAX;
        let last = batch.last().map_or(at, |placed| placed.cursor);
        let some = !batch.is_empty();
        for placed in batch {
            // Nobody listening is not an error.
            let _ = self.told.send(Arc::new(placed));
        }
        let more = full || more(&app.db, last).await?;
        Ok(Step { at: last, some, full, more })
    }

    /// Stops reading if nobody listens; who comes later begins anew.
    fn rest_if_alone(&self) -> bool {
        self.at.send_if_modified(|at| {
            let alone = self.told.receiver_count() == 0;
            if alone {
                *at = None;
            }
            alone
        })
    }
}

struct Step {
    at: Cursor,
    some: bool,
    full: bool,
    more: bool,
}

/// Reads for all who listen, until the controller stops.
pub async fn run(app: App) {
    let stopping = app.stopping.clone();
    stopping.run_until_cancelled(tell(&app)).await;
}

async fn tell(app: &App) {
    let events = &app.events;
    let mut pause = LOOK_AGAIN;
    loop {
        let at = *events.at.borrow();
        let stepped = match at {
            None if events.told.receiver_count() == 0 => {
                events.wanted.notified().await;
                continue;
            }
            None => head(&app.db).await.map(|at| Step { at, some: false, full: false, more: true }),
            Some(at) => events.step(app, at).await,
        };
        match stepped {
            Ok(step) => {
                events.at.send_replace(Some(step.at));
                if events.rest_if_alone() || step.full {
                    continue;
                }
                pause = match (step.more, step.some) {
                    (false, _) => LOOK_EVERY,
                    (true, true) => LOOK_AGAIN,
                    (true, false) => (pause * 2).min(LOOK_EVERY),
                };
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "events could not be read");
                pause = LOOK_EVERY;
            }
        }
        tokio::select! {
            () = app.wakes.events_woken() => {
                tokio::time::sleep(GATHER).await;
                pause = LOOK_AGAIN;
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}
