//! One hot quota row: submissions that all charge one tenant, as the controller stores them (`gather::Submissions` and
//! `store::submit::commit`, called in this process), each answered after its commit. Latency counts from when an attempt was
//! due, so that a backlog shows.

use crate::database::Database;
use crate::figures::{Report, latencies, ms, rounded, summary};
use ctld::app::Caller;
use ctld::gather::Submissions;
use ctld::store::submit::{Prepared, commit};
use ctld::store::{pools, quotas};
use ctld_core::admission::{PoolRules, admit};
use ctld_core::quota::Resource;
use proto::api::{Submission, Submitted};
use proto::{ApiError, ErrorCode};
use serde_json::json;
use sqlx::PgPool;
use std::path::Path;
use std::time::{Duration, Instant};
use tests::small_job;
use tokio::task::JoinSet;

const TENANT: &str = "default";
/// Attempts offered a second: what issue 3 asks to be carried.
const OFFERED: u32 = 900;
/// How often the limit rises by half of what is offered meanwhile: every moment has some below it and some above.
const RISES_EVERY: Duration = Duration::from_millis(100);
/// The stand-in for a slow disk.
const SLOW_DISK: &str = "commit_delay = 1000\ncommit_siblings = 2\n";
/// A limit that nothing here meets.
const PLENTY: u64 = 1_000_000_000;

/// All of it, on a fast commit and on a slow one.
pub fn run(report: &mut Report) {
    for (commit_is, settings) in [("fast", ""), ("slow", SLOW_DISK)] {
        let database = Database::start(report, settings);
        offered(report, &database, commit_is);
        for connections in [1, 16] {
            singles(report, &database, commit_is, connections);
        }
        for (size, connections) in [(50, 1), (100, 1), (200, 1), (100, 2), (200, 2)] {
            batches(report, &database, commit_is, size, connections);
        }
        gathered(report, &database, commit_is, "accepted");
        gathered(report, &database, commit_is, "refused");
    }
}

/// So many attempts a second, half of them over the limit.
fn offered(report: &mut Report, database: &Database, commit_is: &str) {
    let db = &database.db;
    let attempts = OFFERED * report.times(20, 5) as u32;
    let half = u64::from(attempts / 2);
    let (taken, accepted, seconds, over) = database.run(async {
        let before = standing(db).await.jobs;
        limit(db, before).await;
        let rises = tokio::spawn(rise(db.clone(), before, half));
        let submissions = Submissions::start(db.clone(), Default::default(), Default::default());
        let (mut running, began) = (JoinSet::new(), Instant::now());
        for n in 0..attempts {
            let due = began + Duration::from_secs(1) * n / OFFERED;
            tokio::time::sleep_until(due.into()).await;
            let submissions = submissions.clone();
            running.spawn(async move {
                let answer = submissions.submit(&caller(), vec![job()], None).await.remove(0);
                (ms(due.elapsed()), accepted(&answer))
            });
        }
        let answers = running.join_all().await;
        let seconds = began.elapsed().as_secs_f64();
        let over = rises.await.expect("the limit rises");
        let accepted = answers.iter().filter(|(_, accepted)| *accepted).count() as u64;
        let now = standing(db).await;
        assert_eq!((now.jobs - before, now.used), (accepted, now.jobs), "what is charged is what is stored");
        (answers.into_iter().map(|(ms, _)| ms).collect::<Vec<_>>(), accepted, seconds, over.max(now.over()))
    });
    report.line(
        "quota_offered",
        json!({ "through": "gatherer", "commit": commit_is, "offered_per_s": OFFERED }),
        json!({
            "attempts": attempts, "accepted": accepted, "refused": u64::from(attempts) - accepted, "oversold": over,
            "carried_per_s": rounded(f64::from(attempts) / seconds), "ms": latencies(&taken)
        }),
    );
}

/// Raises the limit in steps until half of the attempts are below it; the most that use was ever seen above it.
async fn rise(db: PgPool, from: u64, by: u64) -> u64 {
    let (began, mut over) = (Instant::now(), 0);
    let mut risen = 0;
    while risen < by {
        tokio::time::sleep(RISES_EVERY).await;
        over = over.max(standing(&db).await.over());
        risen = ((began.elapsed().as_secs_f64() * f64::from(OFFERED) / 2.0) as u64).min(by);
        limit(&db, from + risen).await;
    }
    over
}

/// For comparison: a guarded transaction for each attempt.
fn singles(report: &mut Report, database: &Database, commit_is: &str, connections: usize) {
    let count = report.times(2000, 500);
    let (taken, seconds) = committed(database, 1, connections, count);
    report.line(
        "quota_single",
        json!({ "through": "commit", "commit": commit_is, "connections": connections }),
        json!({ "accepted_per_s": rounded((taken.len()) as f64 / seconds), "ms": latencies(&taken) }),
    );
}

/// Full batches, one behind the other on each connection, as the gatherer makes them under load.
fn batches(report: &mut Report, database: &Database, commit_is: &str, size: usize, connections: usize) {
    let mut rates = Vec::new();
    let mut all = Vec::new();
    for _ in 0..report.times(5, 2) {
        let (taken, seconds) = committed(database, size, connections, 20_000 / size);
        rates.push((taken.len() * size) as f64 / seconds);
        all.extend(taken);
    }
    report.line(
        "quota_batches",
        json!({ "through": "commit", "commit": commit_is, "batch": size, "connections": connections }),
        json!({ "accepted_per_s": summary(&rates), "batch_ms": latencies(&all) }),
    );
}

/// Commits so many batches that all fit: milliseconds of each, and seconds of all.
fn committed(database: &Database, size: usize, connections: usize, count: usize) -> (Vec<f64>, f64) {
    let db = &database.db;
    database.run(async {
        limit(db, PLENTY).await;
        let rules = pools::rules(db).await.expect("the pools can be read");
        let tenant_id =
            pools::tenant_id(db, TENANT).await.expect("tenants can be read").expect("it is there");
        let before = standing(db).await.jobs;
        let (mut running, began) = (JoinSet::new(), Instant::now());
        for connection in 0..connections {
            let (db, rules) = (db.clone(), rules.clone());
            let share = count / connections + usize::from(connection < count % connections);
            running.spawn(async move {
                let mut taken = Vec::with_capacity(share);
                for _ in 0..share {
                    let batch: Vec<Prepared> = (0..size).map(|_| prepared(&rules, tenant_id)).collect();
                    let begun = Instant::now();
                    let answers = commit(&db, &batch).await.expect("the batch is stored");
                    taken.push(ms(begun.elapsed()));
                    assert!(answers.iter().all(accepted), "all of it fits");
                }
                taken
            });
        }
        let taken: Vec<f64> = running.join_all().await.into_iter().flatten().collect();
        let seconds = began.elapsed().as_secs_f64();
        let now = standing(db).await;
        assert_eq!((now.jobs - before, now.used), ((count * size) as u64, now.jobs));
        (taken, seconds)
    })
}

/// As many as the gatherer takes from many clients, each of which sends its next when it has its answer.
fn gathered(report: &mut Report, database: &Database, commit_is: &str, all_are: &str) {
    const CLIENTS: usize = 400;
    let (db, seconds) = (&database.db, report.times(10, 3) as u64);
    let (taken, rate) = database.run(async {
        let fits = all_are == "accepted";
        let before = standing(db).await.jobs;
        limit(db, if fits { PLENTY } else { before }).await;
        let submissions = Submissions::start(db.clone(), Default::default(), Default::default());
        let (mut running, began) = (JoinSet::new(), Instant::now());
        for _ in 0..CLIENTS {
            let submissions = submissions.clone();
            running.spawn(async move {
                let mut taken = Vec::new();
                while began.elapsed() < Duration::from_secs(seconds) {
                    let begun = Instant::now();
                    let answer = submissions.submit(&caller(), vec![job()], None).await.remove(0);
                    taken.push(ms(begun.elapsed()));
                    assert_eq!(accepted(&answer), fits);
                }
                taken
            });
        }
        let taken: Vec<f64> = running.join_all().await.into_iter().flatten().collect();
        let rate = taken.len() as f64 / began.elapsed().as_secs_f64();
        let now = standing(db).await;
        assert_eq!((now.jobs - before, now.used), (if fits { taken.len() as u64 } else { 0 }, now.jobs));
        (taken, rate)
    });
    report.line(
        "quota_gathered",
        json!({ "through": "gatherer", "commit": commit_is, "clients": CLIENTS, "all": all_are }),
        json!({ "per_s": rounded(rate), "ms": latencies(&taken) }),
    );
}

/// What the row says, and the jobs there are.
struct Standing {
    used: u64,
    max: Option<u64>,
    jobs: u64,
}

impl Standing {
    fn over(&self) -> u64 {
        self.used.max(self.jobs).saturating_sub(self.max.unwrap_or(u64::MAX))
    }
}

async fn standing(db: &PgPool) -> Standing {
    let (used, max, jobs): (i64, Option<i64>, i64) = sqlx::query_as(
        "SELECT coalesce(max(q.used), 0), max(q.max), (SELECT count(*) FROM jobs WHERE ended_at IS NULL)
         FROM quota_usage q WHERE q.resource = 'jobs'",
    )
    .fetch_one(db)
    .await
    .expect("the row can be read");
    Standing { used: used.unsigned_abs(), max: max.map(i64::unsigned_abs), jobs: jobs.unsigned_abs() }
}

async fn limit(db: &PgPool, jobs: u64) {
    quotas::set(db, TENANT, &[(Resource::Jobs, Some(jobs))]).await.expect("a limit can be set");
}

/// Whether it was accepted; anything but a quota's refusal ends the measurement.
fn accepted(answer: &Result<Submitted, ApiError>) -> bool {
    match answer {
        Ok(submitted) => !submitted.replayed,
        Err(error) if error.code == ErrorCode::QuotaExceeded => false,
        Err(error) => panic!("{error:?}"),
    }
}

fn caller() -> Caller {
    Caller { uid: 1000, gid: 1000, user: "alice".into(), tenant: TENANT.into(), operator: false }
}

fn job() -> Submission {
    small_job("true", Path::new("/"))
}

fn prepared(rules: &[PoolRules], tenant_id: i32) -> Prepared {
    let submission = job();
    Prepared {
        tenant_id,
        user: "alice".into(),
        uid: 1000,
        gid: 1000,
        admitted: admit(&submission, rules, false).expect("it is admitted"),
        reservation_id: None,
        submission,
    }
}
