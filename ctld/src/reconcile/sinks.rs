//! Sinks are served: a task each, where this controller has the sink's lease.
//!
//! A round tries again what waits, then takes new events from the sink's place on, and is saved in one fenced transaction before
//! the next begins. An event that is not taken is tried again by [`again_in_s`], 12 times over about two and a half hours, and then
//! is a dead letter; meanwhile only later events of its subject wait for it. A sink that takes nothing three times in a row is
//! left alone until the next try is due. One that answers 410 is paused.

use crate::app::App;
use crate::store::StoreError;
use crate::store::events::{Placed, read};
use crate::store::leases::{Lease, Under};
use crate::store::sinks::{Failed, Round, Serving, Waiting, active, due, next_s, save, waiting_subjects};
use crate::webhook::{Letter, Outcome, Receiver};
use ipnet::IpNet;
use rustls::ClientConfig;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often sinks that were made or paused are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The most events of one round.
const ROUND_MAX: i64 = 100;
/// The longest that a round goes on before it is saved.
const ROUND_WITHIN: Duration = Duration::from_secs(5);
/// After so many refusals in a row a sink is left alone until the next try is due.
const REFUSALS_MAX: usize = 3;
/// How often an event is tried.
pub const ATTEMPTS_MAX: i32 = 12;
/// The pause behind the first try; each next is twice as long, up to the longest.
const AGAIN_FIRST_S: f64 = 5.0;
const AGAIN_MAX_S: f64 = 3600.0;

/// The lease under which a sink is served.
pub fn lease_name(id: i64) -> String {
    format!("singleton:outbox-dispatch:{id}")
}

/// Runs until the controller stops.
pub async fn run(app: App) {
    let tls = match roots(&app).await {
        Ok(tls) => Arc::new(tls),
        Err(error) => {
            tracing::error!(error, "webhooks cannot be sent: webhooks_ca cannot be read");
            return;
        }
    };
    let mut tasks: HashMap<i64, (i64, JoinHandle<()>)> = HashMap::new();
    loop {
        match active(&app.db).await {
            Ok(sinks) => tend(&app, &tls, &mut tasks, sinks),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "sinks could not be read")
            }
        }
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// TLS with the administrator's roots.
pub async fn roots(app: &App) -> Result<ClientConfig, String> {
    let extra = match &app.config.webhooks_ca {
        Some(path) => tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()))?,
        None => Vec::new(),
    };
    crate::webhook::tls(&extra)
}

/// Starts what is to run and ends what is not.
fn tend(
    app: &App,
    tls: &Arc<ClientConfig>,
    tasks: &mut HashMap<i64, (i64, JoinHandle<()>)>,
    sinks: Vec<Serving>,
) {
    let wanted: HashMap<i64, i64> = sinks.iter().map(|sink| (sink.id, sink.version)).collect();
    tasks.retain(|id, (version, task)| {
        let keeps = wanted.get(id) == Some(version) && !task.is_finished();
        if !keeps {
            // A round that is not saved is made again.
            task.abort();
        }
        if !wanted.contains_key(id) {
            app.leases.unwant(&lease_name(*id));
        }
        keeps
    });
    for sink in sinks {
        let name = lease_name(sink.id);
        app.leases.want(&name);
        if !tasks.contains_key(&sink.id) && app.leases.held(&name).is_some() {
            let (id, version) = (sink.id, sink.version);
            tasks.insert(id, (version, tokio::spawn(serve(app.clone(), tls.clone(), sink))));
        }
    }
}

/// Serves one sink for as long as this controller has its lease.
async fn serve(app: App, tls: Arc<ClientConfig>, mut sink: Serving) {
    let allow: Arc<[IpNet]> = app.config.webhooks_allow.clone().into();
    let mut receiver = match Receiver::new(&sink.url, &sink.secret, allow, tls) {
        Ok(receiver) => receiver,
        Err(error) => {
            tracing::error!(sink.id = sink.id, error, "a sink cannot be served");
            return;
        }
    };
    let mut events = app.events.listen().await.events;
    while let Some(lease) = app.leases.held(&lease_name(sink.id)) {
        let rest = match round(&app, &lease, &mut sink, &mut receiver).await {
            Ok(Rest::None) => continue,
            Ok(rest) => rest,
            Err(StoreError::Fenced { .. }) => return,
            Err(error) => {
                tracing::warn!(
                    sink.id = sink.id,
                    error = &error as &dyn std::error::Error,
                    "a round is made again"
                );
                Rest::Until(LOOK_EVERY)
            }
        };
        let pause = match rest {
            Rest::UntilToldOr(pause) | Rest::Until(pause) => {
                pause.clamp(Duration::from_millis(50), Duration::from_secs(5))
            }
            Rest::None => Duration::ZERO,
        };
        tokio::select! {
            () = app.stopping.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            _ = events.recv(), if matches!(rest, Rest::UntilToldOr(_)) => {}
        }
    }
}

/// How long to wait before the next round.
#[derive(Debug, PartialEq)]
pub enum Rest {
    /// Not at all.
    None,
    /// Until something is told, so long at most.
    UntilToldOr(Duration),
    /// So long.
    Until(Duration),
}

/// A round: what waits, then what is new; saved at its end.
pub async fn round(
    app: &App,
    lease: &Lease,
    sink: &mut Serving,
    receiver: &mut Receiver,
) -> Result<Rest, StoreError> {
    let begun = Instant::now();
    let waiting = due(&app.db, sink.id, ROUND_MAX).await?;
    let held_back: HashSet<String> = waiting_subjects(&app.db, sink.id).await?.into_iter().collect();
    let new = read(&app.db, sink.cursor, &sink.filter, ROUND_MAX).await?;
    let full = new.len() as i64 == ROUND_MAX;
    let mut round = UnderWay {
        app,
        receiver,
        refusals: 0,
        held_back,
        round: Round { cursor: sink.cursor, ..Round::default() },
    };
    for letter in waiting {
        if !round.goes_on(begun) {
            break;
        }
        round.again(letter).await;
    }
    let mut left = false;
    for placed in new {
        if !round.goes_on(begun) {
            left = true;
            break;
        }
        round.first(placed).await;
    }
    let (round, refusals) = (round.round, round.refusals);
    let under = Under { db: &app.db, lease };
    app.leases.heed(lease, save(&under, sink.id, &round).await)?;
    sink.cursor = round.cursor;
    if refusals >= REFUSALS_MAX || round.pause.is_some() {
        let next = next_s(&app.db, sink.id).await?.unwrap_or(AGAIN_FIRST_S);
        return Ok(Rest::Until(Duration::try_from_secs_f64(next).unwrap_or_default().max(LOOK_EVERY)));
    }
    if full || left {
        return Ok(Rest::None);
    }
    let next = next_s(&app.db, sink.id).await?.and_then(|s| Duration::try_from_secs_f64(s.max(0.0)).ok());
    Ok(Rest::UntilToldOr(next.unwrap_or(Duration::from_secs(5))))
}

/// A round under way.
struct UnderWay<'a> {
    app: &'a App,
    receiver: &'a mut Receiver,
    /// In a row.
    refusals: usize,
    held_back: HashSet<String>,
    round: Round,
}

impl UnderWay<'_> {
    fn goes_on(&self, begun: Instant) -> bool {
        self.refusals < REFUSALS_MAX && self.round.pause.is_none() && begun.elapsed() < ROUND_WITHIN
    }

    /// Tries again what was not taken before.
    async fn again(&mut self, mut letter: Waiting) {
        match self.send(&letter.event).await {
            Outcome::Taken => self.round.taken.push(letter.cursor),
            outcome => {
                letter.attempts += 1;
                self.refused(letter, outcome);
            }
        }
    }

    /// Sends a new event, or puts it behind an earlier one of its subject.
    async fn first(&mut self, placed: Placed) {
        let subject = placed.event.subject.clone();
        let event = serde_json::to_value(&placed.event).expect("an event is plain data");
        let mut letter = Waiting { cursor: placed.cursor, subject, event, attempts: 0 };
        if self.held_back.contains(&letter.subject) {
            self.round.cursor = letter.cursor;
            self.round.failed.push(Failed { waiting: letter, again_in_s: Some(0.0), error: None });
            return;
        }
        match self.send(&letter.event).await {
            Outcome::Taken => self.round.cursor = letter.cursor,
            Outcome::Gone => self.gone(),
            outcome => {
                letter.attempts = 1;
                self.round.cursor = letter.cursor;
                self.held_back.insert(letter.subject.clone());
                self.refused(letter, outcome);
            }
        }
    }

    async fn send(&mut self, event: &serde_json::Value) -> Outcome {
        let id = event["id"].as_str().unwrap_or_default();
        let timestamp = self.app.clock.now().map_or(0, |now| now.timestamp());
        let body = serde_json::to_vec(event).expect("a JSON value can be written");
        let outcome = self.receiver.deliver(&Letter { id, timestamp, body }).await;
        let counted = match outcome {
            Outcome::Taken => "taken",
            Outcome::Failed { .. } => "failed",
            Outcome::Gone => "gone",
        };
        self.app.metrics.delivery(counted);
        if outcome == Outcome::Taken {
            self.refusals = 0;
        } else {
            self.refusals += 1;
        }
        outcome
    }

    fn refused(&mut self, waiting: Waiting, outcome: Outcome) {
        let Outcome::Failed { why, retry_after } = outcome else { return self.gone() };
        let again_in_s = again_in_s(waiting.attempts, retry_after, rand::random_range(0.8..1.2));
        if again_in_s.is_none() {
            self.app.metrics.delivery("dead");
        }
        self.round.failed.push(Failed { waiting, again_in_s, error: Some(why) });
    }

    fn gone(&mut self) {
        self.round.pause = Some("the receiver answered 410: it wants no more".to_owned());
    }
}

/// Seconds until the next try after so many; `None`: it was the last.
fn again_in_s(attempts: i32, retry_after: Option<Duration>, jitter: f64) -> Option<f64> {
    if attempts >= ATTEMPTS_MAX {
        return None;
    }
    let doubled = AGAIN_FIRST_S * f64::from(2_u32.saturating_pow(attempts.clamp(1, 30) as u32 - 1));
    Some((doubled.min(AGAIN_MAX_S) * jitter).max(retry_after.unwrap_or_default().as_secs_f64()))
}

#[cfg(test)]
mod tests;
