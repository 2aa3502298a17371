//! Gatherers: concurrent requests become one transaction, and each caller is answered after the commit that holds its
//! request, never before.
//!
//! There is no timer: a gatherer commits what is there as soon as the last commit is done, so an idle controller answers at
//! once and a busy one fills its batches by itself. Queues are bounded; a full one answers "try again".

mod facts;
mod submissions;

pub use facts::{Facts, Reported};
pub use submissions::Submissions;

use tokio::sync::mpsc;

/// Waits for the first item, then takes what else is there, at most `max`. Empty when every sender is gone.
async fn batch<T>(queue: &mut mpsc::Receiver<T>, max: usize) -> Vec<T> {
    let mut items = Vec::new();
    queue.recv_many(&mut items, max).await;
    items
}
