//! The two attacks: two sixes that meet, and eight buyers who press on one event after the other.

use crate::forms::{Answer, Bought, Buyer, Form, Wanted};
use crate::ledger::{Ledger, OWNERS};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// Two of these do not fit the eight there are.
const SIX: i64 = 6;
/// How many buy at once when they contend.
const BUYERS: i64 = 8;
/// More events a second than PostgreSQL could sell out without syncing anything.
const EVENTS_PER_SECOND: i64 = 5_000;
/// Keys of a buyer begin at multiples of this.
const KEYS_PER_BUYER: i64 = 1 << 32;

/// How much.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub seed: u64,
    pub seconds: u64,
    /// How often two sixes meet: each time at an event of its own, the first ones.
    pub rounds: i64,
}

/// What buyers were told, and how long that took.
#[derive(Default)]
pub struct Figures {
    pub accepted: i64,
    pub refused: i64,
    pub gave_up: i64,
    pub retries: i64,
    /// Of every answer, with all its tries.
    pub latencies_ms: Vec<f64>,
    pub seconds: f64,
}

impl Load {
    /// How many events this may take.
    pub fn events(self) -> i64 {
        self.rounds + self.seconds as i64 * EVENTS_PER_SECOND
    }

    /// Two buyers of six at once, of an event with eight, for each round.
    pub async fn two_sixes(self, form: Form, ledger: &Ledger) -> Result<Figures, sqlx::Error> {
        let (start, meet) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let mut buyers = JoinSet::new();
        for number in 0..2 {
            let mut buyer = self.buyer(ledger, number).await?;
            let (start, meet) = (start.clone(), meet.clone());
            buyers.spawn(async move {
                let mut figures = Figures::default();
                for event in 1..=self.rounds {
                    let key = (BUYERS + number) * KEYS_PER_BUYER + event;
                    start.wait().await;
                    let began = Instant::now();
                    let bought =
                        form.buy(&mut buyer, Wanted { key, event, amount: SIX }, Some(&meet)).await?;
                    figures.count(bought, began.elapsed());
                }
                Ok(figures)
            });
        }
        all(buyers).await
    }

    /// Eight buyers of one to six at once, all of the same event until it is sold out for one of them, and then of the next.
    pub async fn contended(self, form: Form, ledger: &Ledger) -> Result<Figures, sqlx::Error> {
        let start = Arc::new(Barrier::new(BUYERS as usize));
        let current = Arc::new(AtomicI64::new(self.rounds + 1));
        let mut buyers = JoinSet::new();
        for number in 0..BUYERS {
            let mut buyer = self.buyer(ledger, number).await?;
            let (start, current) = (start.clone(), current.clone());
            buyers.spawn(async move {
                let mut figures = Figures::default();
                start.wait().await;
                let began_all = Instant::now();
                for key in number * KEYS_PER_BUYER.. {
                    let event = current.load(Ordering::Relaxed);
                    if began_all.elapsed() >= Duration::from_secs(self.seconds) || event > self.events() {
                        break;
                    }
                    let wanted = Wanted { key, event, amount: buyer.rng.random_range(1..=SIX) };
                    let began = Instant::now();
                    let bought = form.buy(&mut buyer, wanted, None).await?;
                    figures.count(bought, began.elapsed());
                    if bought.answer == Answer::Refused {
                        current.fetch_max(event + 1, Ordering::Relaxed);
                    }
                }
                figures.seconds = began_all.elapsed().as_secs_f64();
                Ok(figures)
            });
        }
        all(buyers).await
    }

    async fn buyer(self, ledger: &Ledger, number: i64) -> Result<Buyer, sqlx::Error> {
        let rng = StdRng::seed_from_u64(self.seed.wrapping_add(number as u64));
        Ok(Buyer { db: ledger.connect().await?, rng, owner: number % OWNERS, epoch: (0, 0) })
    }
}

impl Figures {
    fn count(&mut self, bought: Bought, took: Duration) {
        match bought.answer {
            Answer::Accepted => self.accepted += 1,
            Answer::Refused => self.refused += 1,
            Answer::GaveUp => self.gave_up += 1,
        }
        self.retries += i64::from(bought.retries);
        self.latencies_ms.push(took.as_secs_f64() * 1e3);
    }

    /// The time within which this share of the answers came.
    pub fn percentile_ms(&self, percent: usize) -> f64 {
        let last = self.latencies_ms.len().saturating_sub(1);
        self.latencies_ms.get((self.latencies_ms.len() * percent / 100).min(last)).copied().unwrap_or(0.0)
    }
}

/// Adds up what the buyers counted. The first error ends all of them: one alone would wait for the others for ever.
async fn all(mut buyers: JoinSet<Result<Figures, sqlx::Error>>) -> Result<Figures, sqlx::Error> {
    let mut total = Figures::default();
    while let Some(joined) = buyers.join_next().await {
        let figures = joined.expect("a buyer does not panic")?;
        total.accepted += figures.accepted;
        total.refused += figures.refused;
        total.gave_up += figures.gave_up;
        total.retries += figures.retries;
        total.latencies_ms.extend(figures.latencies_ms);
        total.seconds = total.seconds.max(figures.seconds);
    }
    total.latencies_ms.sort_by(f64::total_cmp);
    Ok(total)
}
