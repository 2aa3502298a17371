//! Nodes' reports gathered into batches. A report that is not recorded is never acknowledged, and its node sends it again.

use super::{Pace, batch};
use crate::metrics::Metrics;
use crate::store::facts::{Fact, Recorded, record};
use crate::wake::Wakes;
use proto::session::Event;
use sqlx::PgPool;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The most reports in one transaction.
const BATCH_MAX: usize = 256;
/// Reports waiting to be recorded; a session that finds the queue full waits, and its node with it.
const QUEUE_MAX: usize = 1024;
/// What a job's start or end may wait at most so that others share its commit.
const GAP_MAX: Duration = Duration::from_millis(30);
/// How long to wait before a batch that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// It is recorded, now or earlier: acknowledge it.
    Recorded,
    /// Another session owns the node: close this one.
    Superseded,
}

struct Item {
    facts: Vec<Fact>,
    received: Instant,
    answer: oneshot::Sender<Reported>,
}

/// Where nodes' reports are gathered and recorded. Cheap to clone.
#[derive(Clone)]
pub struct Facts {
    queue: mpsc::Sender<Item>,
}

impl Facts {
    /// Starts the gatherer.
    pub fn start(db: PgPool, wakes: Arc<Wakes>, metrics: Arc<Metrics>) -> Facts {
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(gather(db, items, wakes, metrics));
        Facts { queue }
    }

    /// Queues a report; the receiver answers after its commit. `None`: the controller is stopping.
    pub async fn report(&self, facts: Vec<Fact>) -> Option<oneshot::Receiver<Reported>> {
        let (answer, receiver) = oneshot::channel();
        self.queue.send(Item { facts, received: Instant::now(), answer }).await.ok()?;
        Some(receiver)
    }
}

async fn gather(db: PgPool, mut items: mpsc::Receiver<Item>, wakes: Arc<Wakes>, metrics: Arc<Metrics>) {
    let mut pace = Pace::new(GAP_MAX);
    loop {
        pace.wait().await;
        let batch = batch(&mut items, BATCH_MAX).await;
        if batch.is_empty() {
            return;
        }
        let begun = Instant::now();
        let recorded = loop {
            // Ages count up to the moment of recording, however often it is tried.
            let facts: Vec<Fact> = batch
                .iter()
                .flat_map(|item| item.facts.iter().map(|f| aged(f, item.received.elapsed())))
                .collect();
            match record(&db, &facts).await {
                Ok(recorded) => break recorded,
                Err(error) => {
                    // A report that the database refuses for good must not be lost silently either: it stays, loudly.
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "reports cannot be recorded; trying again"
                    );
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        };
        metrics.batch("facts", batch.iter().map(|i| i.facts.len()).sum(), begun.elapsed());
        pace.ended(begun);
        announce(&wakes, &recorded);
        for item in batch {
            let superseded = item
                .facts
                .first()
                .is_some_and(|f| recorded.superseded.contains(&(f.node_id, f.session_epoch)));
            // A session that is gone needs no answer: its node reports again.
            let _ = item.answer.send(if superseded { Reported::Superseded } else { Reported::Recorded });
        }
    }
}

fn announce(wakes: &Wakes, recorded: &Recorded) {
    if recorded.released {
        wakes.planner();
    }
    if recorded.applied > 0 {
        wakes.events();
    }
    wakes.nodes(recorded.nodes.iter().copied());
    wakes.ended(recorded.ended_jobs.iter().copied());
}

fn aged(fact: &Fact, by: Duration) -> Fact {
    let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
    let mut fact = fact.clone();
    match &mut fact.event {
        Event::Started { age_us, .. } => *age_us = age_us.saturating_add(by),
        Event::Completing => {}
        Event::Ended(ended) => {
            ended.age_us = ended.age_us.saturating_add(by);
            ended.started_age_us = ended.started_age_us.map(|us| us.saturating_add(by));
        }
    }
    fact
}
