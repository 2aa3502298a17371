//! The torture: many acts at once, against one database, from several controllers, and the audit empty after every hundred.
//!
//! Each act is a line of [`acts::ACTS`]. A round draws a hundred of them and runs them all at once; then the world stands still
//! and every invariant is checked. In the end everything is cancelled and attested, and the book must be empty. Time is
//! simulated and one of the acts moves it. `make torture SECONDS_TO_RUN=600 SEED=…` runs it long; the seed decides which acts
//! are drawn with which numbers, PostgreSQL in which order they meet.

mod acts;
mod ending;

use super::super::audit::audit as look;
use super::super::mig_placements;
use super::*;
use acts::ACTS;
use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Acts at once, and between two audits.
const ROUND: usize = 100;
/// Rounds of the short form.
const ROUNDS: usize = 10;
/// Controllers, and the connections of each.
const CONTROLLERS: usize = 4;
const CONNECTIONS: u32 = 6;
const NODES: usize = 3;
/// How much of the log a failure shows.
const TAIL: usize = 150;

/// What the acts share: several controllers' ways into one database, and what the nodes would remember.
struct World {
    controllers: Vec<PgPool>,
    /// Every session of each node, the newest last.
    sessions: Mutex<HashMap<String, Vec<Session>>>,
    /// Bookings near their end are looked after at each step of the clock, as a controller does well within the minute.
    clock: tokio::sync::Mutex<()>,
    /// Makes keys and names that were not used before.
    serial: AtomicU64,
    log: Mutex<Vec<String>>,
}

/// What became of an act: what it did in a word, refused included.
type Done = Result<String, super::super::StoreError>;

impl World {
    async fn new(options: PgConnectOptions) -> World {
        let controllers: Vec<PgPool> = (0..CONTROLLERS)
            .map(|_| {
                PgPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .acquire_timeout(Duration::from_secs(120))
                    .connect_lazy_with(options.clone())
            })
            .collect();
        let db = &controllers[0];
        with_pool(db).await;
        mig_placements::fill(db).await.unwrap();
        let mut sessions = HashMap::new();
        for n in 0..NODES {
            let name = format!("n{n}");
            sessions.insert(name.clone(), vec![node(db, &name, 8, 4).await]);
        }
        stop_clock(db).await;
        freeze_in_transactions(db).await;
        World {
            controllers,
            sessions: Mutex::new(sessions),
            clock: tokio::sync::Mutex::default(),
            serial: AtomicU64::new(1),
            log: Mutex::default(),
        }
    }

    fn any(&self, rng: &mut StdRng) -> &PgPool {
        &self.controllers[rng.random_range(0..self.controllers.len())]
    }

    fn serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    fn note(&self, line: String) {
        self.log.lock().unwrap().push(line);
    }

    /// One act, drawn by its weight. Refusals are answers; so are what PostgreSQL breaks for the caller to try again.
    async fn act(&self, seed: u64) -> Result<(), String> {
        let mut rng = StdRng::seed_from_u64(seed);
        let total: u32 = ACTS.iter().map(|act| act.0).sum();
        let mut drawn = rng.random_range(0..total);
        let act = ACTS
            .iter()
            .find(|act| {
                let here = drawn < act.0;
                drawn = drawn.saturating_sub(act.0);
                here
            })
            .unwrap();
        let done = (act.2)(self, &mut rng).await;
        let (line, fault) = match done {
            Ok(what) => (what, None),
            Err(super::super::StoreError::Api(error)) => (format!("refused: {error}"), None),
            Err(error) if error.is_conflict() || error.transient() => (format!("try again: {error:?}"), None),
            Err(error) => (format!("FAULT: {error:?}"), Some(format!("{}: {error:?}", act.1))),
        };
        self.note(format!("{seed:>6} {:<9} {line}", act.1));
        fault.map_or(Ok(()), Err)
    }

    /// Every invariant, or what to look at.
    async fn check(&self) -> Result<(), String> {
        let audit = look(&self.controllers[0], Default::default()).await.map_err(|e| format!("{e:?}"))?;
        let broken: Vec<_> = audit.invariants.iter().filter(|i| i.violations != Some(0)).collect();
        if broken.is_empty() { Ok(()) } else { Err(format!("the audit is not empty: {broken:#?}")) }
    }

    /// The book of amounts, for whoever looks at a failure.
    async fn book(&self) -> String {
        let lines: Vec<String> = sqlx::query_scalar(
            "SELECT format('node %s: booking %s of allocation %s, reservation %s (%s): %s CPUs %s', b.node_id, b.id,
                 b.allocation_id, r.name, r.state, b.cpus, b.during)
             FROM node_bookings b LEFT JOIN reservations r ON r.id = b.reservation_id
             UNION ALL SELECT format('now %s', compute_now())",
        )
        .fetch_all(&self.controllers[0])
        .await
        .unwrap_or_default();
        lines.join("\n")
    }

    fn tail(&self) -> String {
        let log = self.log.lock().unwrap();
        log[log.len().saturating_sub(TAIL)..].join("\n")
    }
}

/// As the true clock does, the simulated one stands still within a transaction.
async fn freeze_in_transactions(db: &PgPool) {
    sqlx::raw_sql(
        "CREATE OR REPLACE FUNCTION compute_now() RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
         DECLARE at timestamptz := nullif(current_setting('torture.at', true), '')::timestamptz;
         BEGIN
             IF at IS NULL THEN
                 SELECT ts INTO at FROM compute_sim_clock WHERE id = 1;
                 PERFORM set_config('torture.at', at::text, true);
             END IF;
             RETURN at;
         END $$",
    )
    .execute(db)
    .await
    .unwrap();
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

async fn deadlocks(db: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        .fetch_one(db)
        .await
        .unwrap()
}

#[sqlx::test(migrations = "../migrations")]
async fn a_thousand_acts_at_once_leave_the_book_whole(_: PgPoolOptions, options: PgConnectOptions) {
    let seed = variable("SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    let seconds = variable("SECONDS_TO_RUN").map(Duration::from_secs);
    println!("torture: SEED={seed}");
    let world = World::new(options).await;
    let mut rng = StdRng::seed_from_u64(seed);
    let begun = Instant::now();
    let mut rounds = 0;
    while seconds.map_or(rounds < ROUNDS, |s| begun.elapsed() < s) {
        let seeds: Vec<u64> = (0..ROUND).map(|_| rng.random_range(0..1_000_000)).collect();
        let faults: Vec<String> = join_all(seeds.iter().map(|seed| world.act(*seed)))
            .await
            .into_iter()
            .filter_map(Result::err)
            .collect();
        world.note(format!("------ audit {rounds}"));
        let checked = world.check().await;
        if let (false, _) | (_, Err(_)) = (faults.is_empty(), &checked) {
            let book = world.book().await;
            let why = checked.err().unwrap_or_default();
            panic!("SEED={seed}, round {rounds}\n{}\n{book}\n{faults:#?}\n{why}", world.tail());
        }
        rounds += 1;
    }
    if let Err(why) = ending::everything_ends(&world).await {
        panic!("SEED={seed}, the end\n{}\n{why}", world.tail());
    }
    let counted = acts::counted(&world.log.lock().unwrap());
    println!("torture: {} acts, {} s, {counted}", rounds * ROUND, begun.elapsed().as_secs());
    // The lock order rules out deadlocks among acts; those of two overlapping ranges that race are PostgreSQL's to break.
    for line in world.log.lock().unwrap().iter().filter(|line| line.contains("try again: ")) {
        println!("torture: {line}");
    }
    println!("torture: {} deadlocks broken", deadlocks(&world.controllers[0]).await);
}
