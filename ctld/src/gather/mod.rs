//! Gatherers: concurrent requests become one transaction, and each caller is answered after the commit that holds its
//! request, never before.
//!
//! An idle controller answers at once: a gatherer commits what is there as soon as something is. A busy one fills its batches by
//! itself, while the last commit is under way and, for reports, in a gap of a few milliseconds behind it ([`Pace`]). Queues are
//! bounded; a full one answers "try again".

mod facts;
mod submissions;

pub use facts::{Facts, Reported};
pub use submissions::Submissions;

use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Waits for the first item, then takes what else is there, at most `max`. Empty when every sender is gone.
async fn batch<T>(queue: &mut mpsc::Receiver<T>, max: usize) -> Vec<T> {
    let mut items = Vec::new();
    queue.recv_many(&mut items, max).await;
    items
}

/// Keeps a busy loop from making a transaction of every single item: a batch that would begin less than `gap` after the last one
/// ended waits for the rest of it. After a pause it begins at once.
pub(crate) struct Pace {
    gap: Duration,
    ended: Option<Instant>,
}

impl Pace {
    /// A pace with this gap between batches.
    pub(crate) fn new(gap: Duration) -> Pace {
        Pace { gap, ended: None }
    }

    /// Waits for what is left of the gap.
    pub(crate) async fn wait(&self) {
        if let Some(left) = self.ended.and_then(|ended| self.gap.checked_sub(ended.elapsed())) {
            tokio::time::sleep(left).await;
        }
    }

    /// A batch has ended.
    pub(crate) fn ended(&mut self) {
        self.ended = Some(Instant::now());
    }
}
