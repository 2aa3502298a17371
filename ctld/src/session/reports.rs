//! Reports of a session that are being recorded, in the order they came: acknowledged in that order.

use crate::gather::Reported;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use std::future::Future;
use std::pin::Pin;
use tokio::sync::oneshot;

/// Another session owns the node.
#[derive(Debug)]
pub struct Superseded;

type Answer = Pin<Box<dyn Future<Output = (u64, Option<Reported>)> + Send>>;

/// Reports waiting for their commit.
#[derive(Default)]
pub struct InFlight {
    answers: FuturesOrdered<Answer>,
}

impl InFlight {
    /// Adds a report.
    pub fn push(&mut self, seq: u64, answer: oneshot::Receiver<Reported>) {
        self.answers.push_back(Box::pin(async move { (seq, answer.await.ok()) }));
    }

    /// Waits for the oldest report to be recorded; its number. Waits for ever when there is none.
    pub async fn next(&mut self) -> Result<u64, Superseded> {
        loop {
            match self.answers.next().await {
                Some((seq, Some(Reported::Recorded))) => return Ok(seq),
                Some((_, Some(Reported::Superseded))) => return Err(Superseded),
                // The gatherer is gone: the controller is stopping, and the node will report again.
                Some((_, None)) | None => std::future::pending().await,
            }
        }
    }
}
