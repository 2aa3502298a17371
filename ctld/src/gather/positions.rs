//! Asks where the database is, once for all who want to know at the same time.

use crate::store::StoreError;
use crate::store::position::position;
use proto::position::Position;
use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};

/// Answers that wait for their position: as many as there may be requests.
const QUEUE: usize = 4096;
/// The most that one look serves.
const SHARE_MAX: usize = 1024;

/// Where to ask.
#[derive(Clone)]
pub struct Positions {
    queue: mpsc::Sender<oneshot::Sender<Option<Position>>>,
}

impl Positions {
    /// Starts looking when asked. Must be called in a tokio runtime.
    pub fn start(db: PgPool) -> Positions {
        let (queue, mut asked) = mpsc::channel(QUEUE);
        tokio::spawn(async move {
            loop {
                // A look begins after everything that it serves was seen.
                let waiting: Vec<oneshot::Sender<Option<Position>>> =
                    super::batch(&mut asked, SHARE_MAX).await;
                if waiting.is_empty() {
                    return;
                }
                let found = position(&db).await.map_err(log).ok();
                for one in waiting {
                    // Whoever has gone away does not mind.
                    let _ = one.send(found);
                }
            }
        });
        Positions { queue }
    }

    /// A position at or behind which everything was committed that the caller has seen so far; `None` if the database does
    /// not say.
    pub async fn now(&self) -> Option<Position> {
        let (answer, receiver) = oneshot::channel();
        self.queue.send(answer).await.ok()?;
        receiver.await.ok().flatten()
    }
}

fn log(error: StoreError) {
    tracing::debug!(error = &error as &dyn std::error::Error, "the database did not say its position");
}
