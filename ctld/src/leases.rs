//! The leases this controller wants and has.
//!
//! One loop renews what it has, takes what is free, and anchors the clock by the way. What it has in memory is a hint that
//! saves asking: the fence in the database decides. So [`Leases::held`] stops answering a second before a lease could expire,
//! by the monotonic clock, and a lease that is lost is simply no longer there.
//!
//! Every controller wants the lease of each pool and of each singleton; its own gateway's is nobody else's.

use crate::app::App;
use crate::metrics::Metrics;
use crate::store::StoreError;
use crate::store::leases::{GATEWAY_TTL, LEASE_TTL, Lease, Owner, Seen, look, release, renew, take};
use crate::store::pools;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often leases are renewed.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// How soon a look that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// The shortest between two looks, whatever expires.
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// A lease counts as lost this long before it may be.
const MARGIN: Duration = Duration::from_secs(1);
/// After another's lease expires, for so long at most the takeover waits, so that several do not come at one instant.
const JITTER: Duration = Duration::from_millis(200);

/// The lease under which reservations begin and end.
pub const RESERVATIONS: &str = "singleton:reservations";
/// The lease under which modes of GPUs change.
pub const MODES: &str = "singleton:modes";
/// The lease under which holds begin and end.
pub const HOLDS: &str = "singleton:holds";
/// The lease under which nodes that are away are looked after.
pub const LIVENESS: &str = "singleton:liveness";

/// The lease under which what is old is deleted.
pub const RETENTION: &str = "singleton:retention";

/// The lease of planning a pool.
pub fn pool(id: i32) -> String {
    format!("pool:{id}")
}

/// What one controller has of the leases.
#[derive(Debug)]
pub struct Leases {
    owner: Owner,
    wanted: Mutex<BTreeSet<String>>,
    held: Mutex<BTreeMap<String, Held>>,
    others: Mutex<Others>,
    look_now: Notify,
    metrics: Arc<Metrics>,
}

#[derive(Clone, Debug)]
struct Held {
    lease: Lease,
    until: Instant,
}

/// What the last look said of other controllers.
#[derive(Clone, Debug, Default)]
struct Others {
    /// Those whose gateway lease is valid.
    alive: usize,
    /// When the first of their leases expires that this controller wants.
    next_expiry: Option<Instant>,
}

impl Leases {
    /// No lease yet, but these are wanted: the gateway and the singletons of every controller.
    pub fn new(owner: Owner, metrics: Arc<Metrics>) -> Leases {
        let wanted = [RESERVATIONS, MODES, HOLDS, LIVENESS, RETENTION]
            .map(str::to_owned)
            .into_iter()
            .chain([owner.gateway()]);
        Leases {
            wanted: Mutex::new(wanted.collect()),
            owner,
            held: Mutex::default(),
            others: Mutex::default(),
            look_now: Notify::new(),
            metrics,
        }
    }

    /// Who this controller is.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Wants one more lease from now on, soon taken if it is free.
    pub fn want(&self, name: &str) {
        if lock(&self.wanted).insert(name.to_owned()) {
            self.look_now.notify_one();
        }
    }

    /// Wants this lease no longer; it is left to expire.
    pub fn unwant(&self, name: &str) {
        lock(&self.wanted).remove(name);
        lock(&self.held).remove(name);
    }

    /// The lease, while this controller has it.
    pub fn held(&self, name: &str) -> Option<Lease> {
        let held = lock(&self.held);
        held.get(name).filter(|held| Instant::now() < held.until).map(|held| held.lease.clone())
    }

    /// Forgets a lease that the fence refused: it is another's.
    pub fn lost(&self, lease: &Lease) {
        let mut held = lock(&self.held);
        if held.get(&lease.name).is_some_and(|held| held.lease == *lease) {
            held.remove(&lease.name);
            tracing::warn!(lease = %lease.name, lease.epoch, "a lease was lost");
        }
    }

    /// Passes the result of an act under a lease on; one that the fence refused is forgotten.
    pub fn heed<T>(&self, lease: &Lease, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(result, Err(StoreError::Fenced { .. })) {
            self.metrics.fenced(kind(&lease.name));
            self.lost(lease);
        }
        result
    }

    /// How many other controllers live.
    pub fn others_alive(&self) -> usize {
        lock(&self.others).alive
    }

    /// One look: renews what it has, takes what it wants and is free. Whether it took something.
    pub async fn step(&self, app: &App) -> Result<bool, StoreError> {
        for id in pools::ids(&app.db).await? {
            lock(&self.wanted).insert(pool(id));
        }
        let wanted = lock(&self.wanted).clone();
        self.renew(app, &wanted).await?;
        let asked = Instant::now();
        let seen = look(&app.db).await?;
        let mut took = false;
        for name in wanted.iter().filter(|name| self.held(name).is_none() && self.may_take(&seen, name)) {
            let begun = Instant::now();
            if let Some(lease) = take(&app.db, &self.owner, name, ttl(name)).await? {
                tracing::info!(lease = %lease.name, lease.epoch, "lease taken");
                self.has(lease, begun);
                took = true;
            }
        }
        self.know_others(&seen, &wanted, asked);
        for of in ["gateway", "pool", "singleton"] {
            let held = lock(&self.held).keys().filter(|name| kind(name) == of).count();
            self.metrics.leases_held(of, held);
        }
        Ok(took)
    }

    async fn renew(&self, app: &App, wanted: &BTreeSet<String>) -> Result<(), StoreError> {
        let held: Vec<Lease> = lock(&self.held).values().map(|held| held.lease.clone()).collect();
        for span in [LEASE_TTL, GATEWAY_TTL] {
            let of_span: Vec<&Lease> = held.iter().filter(|lease| ttl(&lease.name) == span).collect();
            let names: Vec<String> = of_span.iter().map(|lease| lease.name.clone()).collect();
            if names.is_empty() {
                continue;
            }
            let begun = Instant::now();
            let renewed: BTreeSet<String> =
                renew(&app.db, &self.owner, &names, span).await?.into_iter().collect();
            for lease in of_span {
                if renewed.contains(&lease.name) {
                    self.has(lease.clone(), begun);
                    continue;
                }
                // Locked by a fenced transaction of ours, expired, or another's.
                let begun = Instant::now();
                match take(&app.db, &self.owner, &lease.name, span).await? {
                    Some(again) => self.has(again, begun),
                    None => self.lost(lease),
                }
            }
        }
        lock(&self.held).retain(|name, _| wanted.contains(name));
        Ok(())
    }

    fn has(&self, lease: Lease, asked: Instant) {
        let until = asked + ttl(&lease.name) - MARGIN;
        lock(&self.held).insert(lease.name.clone(), Held { lease, until });
    }

    fn may_take(&self, seen: &[Seen], name: &str) -> bool {
        seen.iter().find(|lease| lease.name == *name).is_none_or(|lease| {
            lease.left_s <= 0.0 || lease.owner.split('/').next() == Some(&*self.owner.controller)
        })
    }

    fn know_others(&self, seen: &[Seen], wanted: &BTreeSet<String>, asked: Instant) {
        let theirs = || {
            let mine = &*self.owner.controller;
            seen.iter().filter(move |l| l.left_s > 0.0 && l.owner.split('/').next() != Some(mine))
        };
        let next = theirs()
            .filter(|lease| wanted.contains(&lease.name))
            .filter_map(|lease| Some(asked + Duration::try_from_secs_f64(lease.left_s).ok()?))
            .min();
        let alive = theirs().filter(|lease| lease.name.starts_with("gateway:")).count();
        *lock(&self.others) = Others { alive, next_expiry: next };
    }

    /// How long to wait for the next look.
    fn pause(&self) -> Duration {
        let expiry = lock(&self.others).next_expiry;
        let jitter = JITTER.mul_f64(rand::random_range(0.0..1.0));
        let until_expiry = expiry.map(|at| at.saturating_duration_since(Instant::now()) + jitter);
        until_expiry.unwrap_or(RENEW_EVERY).clamp(LOOK_AFTER, RENEW_EVERY)
    }
}

/// Renews and takes until the controller stops, then gives all up.
pub async fn keep(app: App) {
    let leases = &app.leases;
    let mut pause = leases.pause();
    loop {
        tokio::select! {
            biased;
            () = app.stopping.cancelled() => break,
            () = leases.look_now.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        pause = match look_once(&app).await {
            Ok(()) => leases.pause(),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "leases could not be renewed; trying again"
                );
                RETRY_AFTER
            }
        };
    }
}

/// Gives up every lease, at a clean stop: once nothing acts under one any more.
pub async fn give_up(app: &App) {
    lock(&app.leases.held).clear();
    if let Err(error) = release(&app.db, &app.leases.owner).await {
        tracing::info!(error = &error as &dyn std::error::Error, "leases are left to expire");
    }
}

async fn look_once(app: &App) -> Result<(), StoreError> {
    let took = app.leases.step(app).await?;
    app.clock.anchor_to(&app.db).await?;
    if took {
        app.wakes.everybody();
    }
    Ok(())
}

fn kind(name: &str) -> &str {
    name.split(':').next().unwrap_or(name)
}

fn ttl(name: &str) -> Duration {
    if name.starts_with("gateway:") { GATEWAY_TTL } else { LEASE_TTL }
}

/// The name of the controller of this state directory: made once and kept there.
pub fn controller_id(state_dir: &Path) -> std::io::Result<String> {
    let path = state_dir.join("controller-id");
    match std::fs::read_to_string(&path) {
        Ok(text) if valid_id(text.trim()) => return Ok(text.trim().to_owned()),
        Ok(_) => {
            return Err(std::io::Error::other(
                "it holds no controller's id; remove it to have a new one made",
            ));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = uuid::Uuid::now_v7().simple().to_string();
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, format!("{id}\n"))?;
    std::fs::File::open(&fresh)?.sync_all()?;
    std::fs::rename(&fresh, &path)?;
    Ok(id)
}

fn valid_id(id: &str) -> bool {
    (1..=100).contains(&id.len()) && id.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
