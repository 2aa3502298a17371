//! Submissions gathered into batches.

use super::batch;
use crate::app::Caller;
use crate::metrics::Metrics;
use crate::store::submit::{Prepared, commit, replayed};
use crate::store::{StoreError, pools, reservations, tenants};
use crate::wake::Wakes;
use backon::{ExponentialBuilder, Retryable};
use ctld_core::admission::{PoolRules, admit};
use proto::api::{Submission, Submitted};
use proto::{ApiError, ErrorCode};
use sqlx::PgPool;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The most submissions in one transaction: larger batches gain nothing and make the first wait for the last.
const BATCH_MAX: usize = 200;
/// Submissions waiting to be committed; beyond this a client is told to try again.
const QUEUE_MAX: usize = 4096;
/// How long a batch is tried again while the database is away, before its callers are told.
const RETRY_FOR: Duration = Duration::from_secs(10);
/// How long the pools' rules are remembered.
const RULES_FOR: Duration = Duration::from_secs(5);

type Answer = Result<Submitted, ApiError>;

/// A submission that waits.
struct Item {
    prepared: Prepared,
    /// Until when its caller waits; it is not begun later.
    deadline: Option<Instant>,
    answer: oneshot::Sender<Answer>,
}

impl Item {
    /// Whether somebody still waits for it. Whoever is gone asks again with the key.
    fn wanted(&self) -> bool {
        !self.answer.is_closed() && self.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }
}

/// Where submissions are gathered and committed. Cheap to clone.
#[derive(Clone)]
pub struct Submissions {
    db: PgPool,
    queue: mpsc::Sender<Item>,
    rules: Arc<Mutex<Option<Remembered>>>,
}

/// Rules and when they were read.
type Remembered = (Instant, Arc<Rules>);

struct Rules {
    pools: Vec<PoolRules>,
    tenants: HashMap<String, i32>,
}

impl Submissions {
    /// Starts the gatherer.
    pub fn start(db: PgPool, wakes: Arc<Wakes>, metrics: Arc<Metrics>) -> Submissions {
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(gather(db.clone(), items, wakes, metrics));
        Submissions { db, queue, rules: Arc::default() }
    }

    /// Checks and stores submissions; answers each, in order, after its commit. None is begun after the deadline.
    pub async fn submit(
        &self,
        caller: &Caller,
        jobs: Vec<Submission>,
        deadline: Option<Instant>,
    ) -> Vec<Answer> {
        let rules = match self.rules(&caller.tenant).await {
            Ok(rules) => rules,
            Err(error) => {
                let error = ApiError::from(error);
                return jobs.iter().map(|_| Err(error.clone())).collect();
            }
        };
        let mut waiting: Vec<Result<oneshot::Receiver<Answer>, Answer>> = Vec::with_capacity(jobs.len());
        for job in jobs {
            waiting.push(match self.take(caller, &rules, &job, deadline).await {
                Ok(receiver) => Ok(receiver),
                Err(refusal) => Err(self.replay_of(caller, &rules, &job, refusal).await),
            });
        }
        let mut answers = Vec::with_capacity(waiting.len());
        for answer in waiting {
            answers.push(match answer {
                Ok(receiver) => receiver.await.unwrap_or_else(|_| Err(stopping())),
                Err(answer) => answer,
            });
        }
        answers
    }

    /// What was accepted before is answered as it was then, though it would be refused now.
    async fn replay_of(&self, caller: &Caller, rules: &Rules, job: &Submission, refusal: ApiError) -> Answer {
        let Some(tenant_id) = rules.tenants.get(&caller.tenant) else { return Err(refusal) };
        match replayed(&self.db, *tenant_id, &caller.user, job).await {
            Ok(Some(submitted)) => Ok(submitted),
            Ok(None) => Err(refusal),
            Err(error) => Err(error.into()),
        }
    }

    /// The reservation that a job names, if it admits the caller, and its pool, which is then the job's.
    async fn reservation(
        &self,
        caller: &Caller,
        job: &Submission,
    ) -> Result<Option<reservations::Admits>, ApiError> {
        let Some(name) = &job.reservation else { return Ok(None) };
        let admits = reservations::admit(&self.db, caller, job.account.as_deref(), name).await?;
        match &job.pool {
            Some(pool) if *pool != admits.pool => {
                let message =
                    format!("reservation \"{name}\" is in pool \"{}\", not in \"{pool}\"", admits.pool);
                Err(ApiError::new(ErrorCode::InvalidArgument, message).hint("leave the pool out"))
            }
            _ => Ok(Some(admits)),
        }
    }

    async fn take(
        &self,
        caller: &Caller,
        rules: &Rules,
        submission: &Submission,
        deadline: Option<Instant>,
    ) -> Result<oneshot::Receiver<Answer>, ApiError> {
        let reservation = self.reservation(caller, submission).await?;
        // The submission is kept as it came: the same one must read the same however its reservation fares.
        let admitted = match &reservation {
            None => admit(submission, &rules.pools, caller.operator)?,
            Some(admits) => {
                let inside = Submission { pool: Some(admits.pool.clone()), ..submission.clone() };
                admit(&inside, &rules.pools, caller.operator)?
            }
        };
        let tenant_id = rules.tenants.get(&caller.tenant).copied().ok_or_else(|| {
            ApiError::new(ErrorCode::PermissionDenied, format!("no tenant is called \"{}\"", caller.tenant))
        })?;
        let prepared = Prepared {
            tenant_id,
            user: caller.user.clone(),
            uid: caller.uid,
            gid: caller.gid,
            submission: submission.clone(),
            admitted,
            reservation_id: reservation.map(|admits| admits.id),
        };
        let (answer, receiver) = oneshot::channel();
        self.queue.try_send(Item { prepared, deadline, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                ApiError::new(ErrorCode::Overloaded, format!("{QUEUE_MAX} submissions are waiting already"))
                    .hint("try again in a moment")
            }
            mpsc::error::TrySendError::Closed(_) => stopping(),
        })?;
        Ok(receiver)
    }

    /// The rules of pools and tenants, at most a few seconds old: pools change only by configuration, and a tenant that is not known yet is looked for.
    async fn rules(&self, tenant: &str) -> Result<Arc<Rules>, StoreError> {
        let remembered = self.rules.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, rules)) = remembered
            && at.elapsed() < RULES_FOR
            && rules.tenants.contains_key(tenant)
        {
            return Ok(rules);
        }
        let rules = Arc::new(Rules {
            pools: pools::rules(&self.db).await?,
            tenants: tenants::ids(&self.db).await?.into_iter().collect(),
        });
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), rules.clone()));
        Ok(rules)
    }
}

fn not_begun() -> ApiError {
    ApiError::new(ErrorCode::Overloaded, "the submission's time was over before its turn came")
        .hint("nothing was stored; try again, with more time")
}

fn stopping() -> ApiError {
    ApiError::new(ErrorCode::Unavailable, "the controller is stopping").hint("try again in a moment")
}

async fn gather(db: PgPool, mut items: mpsc::Receiver<Item>, wakes: Arc<Wakes>, metrics: Arc<Metrics>) {
    loop {
        let batch = batch(&mut items, BATCH_MAX).await;
        if batch.is_empty() {
            return;
        }
        let (batch, unwanted): (Vec<Item>, Vec<Item>) = batch.into_iter().partition(Item::wanted);
        for item in unwanted {
            let late = Err(not_begun());
            metrics.submission(&late);
            let _ = item.answer.send(late);
        }
        if batch.is_empty() {
            continue;
        }
        let (prepared, answers): (Vec<Prepared>, Vec<oneshot::Sender<Answer>>) =
            batch.into_iter().map(|item| (item.prepared, item.answer)).unzip();
        let begun = Instant::now();
        // The keys make trying again safe, also when a commit's outcome is not known.
        let result = (|| commit(&db, &prepared))
            .retry(
                ExponentialBuilder::default()
                    .with_min_delay(Duration::from_millis(20))
                    .with_max_delay(Duration::from_millis(500))
                    .with_jitter()
                    .without_max_times()
                    .with_total_delay(Some(RETRY_FOR)),
            )
            .when(StoreError::transient)
            .await;
        metrics.batch("submissions", prepared.len(), begun.elapsed());
        match result {
            Ok(results) => {
                // What is held waits for a release, which wakes the planner itself.
                if prepared.iter().any(|prepared| !prepared.submission.hold) {
                    wakes.planner();
                }
                for (answer, result) in answers.into_iter().zip(results) {
                    metrics.submission(&result);
                    // A caller that is gone asks again with its key.
                    let _ = answer.send(result);
                }
            }
            // One that the database cannot store must not take the others down with it.
            Err(error) if !error.transient() && prepared.len() > 1 => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "a batch of submissions failed: one by one"
                );
                for (one, answer) in prepared.into_iter().zip(answers) {
                    let hold = one.submission.hold;
                    let result = match commit(&db, &[one]).await {
                        Ok(mut results) => results.pop().unwrap_or_else(|| Err(stopping())),
                        Err(error) => Err(error.into()),
                    };
                    if result.is_ok() && !hold {
                        wakes.planner();
                    }
                    metrics.submission(&result);
                    let _ = answer.send(result);
                }
            }
            Err(error) => {
                let unknown = error.transient();
                let mut api = ApiError::from(error);
                if unknown {
                    api = ApiError::new(
                        ErrorCode::OutcomeUnknown,
                        "the database went away while the job was being stored",
                    )
                    .hint("ask again with the same idempotency key");
                }
                for answer in answers {
                    metrics.submission(&Err(api.clone()));
                    let _ = answer.send(Err(api.clone()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::pools::{DeclaredPool, declare};
    use futures_util::FutureExt;

    async fn with_pool(db: &PgPool) {
        let pool = DeclaredPool {
            name: "main".into(),
            is_default: true,
            time_limit_max_s: None,
            time_limit_default_s: None,
            mem_per_cpu_default_mib: 1024,
            ratios: Default::default(),
            kind: Default::default(),
            lost_after_s: None,
        };
        declare(db, &[pool]).await.unwrap();
    }

    fn alice() -> Caller {
        Caller { uid: 1000, gid: 1000, user: "alice".into(), tenant: "default".into(), operator: false }
    }

    #[sqlx::test(migrations = "../migrations")]
    async fn the_planner_is_woken_by_what_it_may_place_and_not_by_what_is_held(db: PgPool) {
        with_pool(&db).await;
        let wakes = Arc::new(Wakes::default());
        let submissions = Submissions::start(db, wakes.clone(), Arc::default());
        let caller = alice();
        let job = |key: &str, hold: bool| -> Submission {
            let body = serde_json::json!({ "idempotency_key": key, "name": "n", "script": "#!/bin/sh\n",
                "chdir": "/", "umask": 18, "cpus": 1, "nodes": 1, "hold": hold });
            serde_json::from_value(body).unwrap()
        };
        for (keys, woken) in
            [(&[("a", true)][..], false), (&[("b", false)], true), (&[("c", true), ("d", false)], true)]
        {
            let jobs = keys.iter().map(|(key, hold)| job(key, *hold)).collect();
            for answer in submissions.submit(&caller, jobs, None).await {
                assert!(!answer.unwrap().replayed);
            }
            assert_eq!(wakes.planner_woken().now_or_never().is_some(), woken, "{keys:?}");
        }
    }

    #[sqlx::test(migrations = "../migrations")]
    async fn a_replay_is_answered_though_its_reservation_has_ended(db: PgPool) {
        with_pool(&db).await;
        sqlx::query(
            "INSERT INTO reservations (tenant_id, pool_id, name, owner, author, during, state, request, created_at)
             SELECT t.id, p.id, 'r', 'alice', 'alice', tstzrange(compute_now(), compute_now() + interval '1 hour'),
                 'running', '{}', compute_now() FROM tenants t, pools p",
        )
        .execute(&db)
        .await
        .unwrap();
        let submissions = Submissions::start(db.clone(), Arc::default(), Arc::default());
        let caller = alice();
        let job = |name: &str| -> Submission {
            let body = serde_json::json!({ "idempotency_key": "k", "name": name, "script": "#!/bin/sh\n",
                "chdir": "/", "umask": 18, "cpus": 1, "nodes": 1, "reservation": "r" });
            serde_json::from_value(body).unwrap()
        };
        let first = submissions.submit(&caller, vec![job("n")], None).await.remove(0).unwrap();
        sqlx::query("UPDATE reservations SET state = 'completed', ended_at = compute_now()")
            .execute(&db)
            .await
            .unwrap();
        let again = submissions.submit(&caller, vec![job("n")], None).await.remove(0).unwrap();
        assert_eq!((again.id, again.replayed), (first.id, true));
        let other = submissions.submit(&caller, vec![job("other")], None).await.remove(0).unwrap_err();
        assert_eq!(other.code, ErrorCode::NotFound, "another body is no replay");
    }

    #[sqlx::test(migrations = "../migrations")]
    async fn what_nobody_waits_for_any_more_is_not_begun(db: PgPool) {
        with_pool(&db).await;
        let submissions = Submissions::start(db.clone(), Arc::default(), Arc::default());
        let caller = alice();
        let job = |key: &str| -> Submission {
            let body = serde_json::json!({ "idempotency_key": key, "name": "n", "script": "#!/bin/sh\n",
                "chdir": "/", "umask": 18, "cpus": 1, "nodes": 1 });
            serde_json::from_value(body).unwrap()
        };
        // The gatherer cannot commit while somebody holds the pools; what comes meanwhile waits for its turn.
        let mut holding = db.begin().await.unwrap();
        sqlx::query("LOCK TABLE jobs IN EXCLUSIVE MODE").execute(&mut *holding).await.unwrap();
        let first = {
            let (submissions, caller, job) = (submissions.clone(), caller.clone(), job("first"));
            tokio::spawn(async move { submissions.submit(&caller, vec![job], None).await })
        };
        let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
        while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&db).await.unwrap() {
            tokio::task::yield_now().await;
        }
        // Both stand in the queue behind it; then the one's caller goes, and the other's time is over.
        let gone = {
            let (submissions, caller, job) = (submissions.clone(), caller.clone(), job("gone"));
            tokio::spawn(async move { submissions.submit(&caller, vec![job], None).await })
        };
        let late = {
            let (submissions, caller, job) = (submissions.clone(), caller.clone(), job("late"));
            let now = Some(Instant::now());
            tokio::spawn(async move { submissions.submit(&caller, vec![job], now).await })
        };
        while submissions.queue.capacity() > QUEUE_MAX - 2 {
            tokio::task::yield_now().await;
        }
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        holding.rollback().await.unwrap();
        assert_eq!(late.await.unwrap().remove(0).unwrap_err().code, ErrorCode::Overloaded);
        assert!(first.await.unwrap().remove(0).is_ok());
        let keys: Vec<String> =
            sqlx::query_scalar("SELECT key FROM idempotency_keys").fetch_all(&db).await.unwrap();
        assert_eq!(keys, ["first"]);
    }
}
