//! Gatherers: concurrent requests become one transaction, and each caller is answered after the commit that holds its
//! request, never before.
//!
//! An idle controller answers at once: a gatherer commits what is there as soon as something is. A busy one fills its batches by
//! itself, while the last commit is under way and, for reports, in a gap of a few milliseconds behind it ([`Pace`]). Queues are
//! bounded; a full one answers "try again".

mod facts;
mod positions;
mod seen;
mod submissions;

pub use facts::{Facts, Reported};
pub use positions::Positions;
pub use seen::{Seen, SeenLine};
pub use submissions::Submissions;

use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Waits for the first item, then takes what else is there, at most `max`. Empty when every sender is gone.
async fn batch<T>(queue: &mut mpsc::Receiver<T>, max: usize) -> Vec<T> {
    let mut items = Vec::new();
    queue.recv_many(&mut items, max).await;
    items
}

/// Keeps a busy loop from making a transaction of every single item: the next batch begins no sooner after the last one than
/// a few times what that one took, so that the busier the machine, the more share a commit. After a pause it begins at once.
pub(crate) struct Pace {
    gap_max: Duration,
    last: Option<Last>,
}

struct Last {
    ended: Instant,
    took: Duration,
}

impl Pace {
    /// How many times the last batch's duration lies between it and the next.
    const RESTS: u32 = 3;

    /// A pace that never waits longer than `gap_max`.
    pub(crate) fn new(gap_max: Duration) -> Pace {
        Pace { gap_max, last: None }
    }

    /// Waits for what is left of the gap.
    pub(crate) async fn wait(&self) {
        let left = self
            .last
            .as_ref()
            .and_then(|last| (last.took * Self::RESTS).min(self.gap_max).checked_sub(last.ended.elapsed()));
        if let Some(left) = left {
            tokio::time::sleep(left).await;
        }
    }

    /// A batch that began then has ended.
    pub(crate) fn ended(&mut self, begun: Instant) {
        let ended = Instant::now();
        self.last = Some(Last { ended, took: ended - begun });
    }
}
