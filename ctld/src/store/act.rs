//! What people do to jobs: cancel, signal, hold, release, requeue.
//!
//! Each act locks its jobs in the order of their ids, decides each id by itself under the lock, and writes the whole in one
//! transaction. A running attempt is not ended here: it is marked to be stopped, which changes its nodes' targets, and ends
//! when the node attests it. Somebody else's job and a job that never existed are different answers, since lists show both.

use super::commands::{self, NewCommand, SIGNAL_KEPT_S};
use super::facts::summarise_arrays;
use super::quotas::{self, Ask};
use super::{StoreError, condition_value, index_set};
use crate::app::Caller;
use proto::api::{ACT_IDS_MAX, ActOutcome, ActResult, ActResults, CancelRequest};
use proto::session::CommandAct;
use proto::{ApiError, Condition, ErrorCode, IndexSet, JobRef, Reason, State};
use sqlx::{PgConnection, PgPool};
use std::collections::HashMap;

/// What an act changed, for whom to wake.
#[derive(Debug, Default)]
pub struct Acted {
    /// An answer for each id.
    pub results: ActResults,
    /// Nodes whose targets changed.
    pub nodes: Vec<i64>,
    /// Jobs that ended by this.
    pub ended: Vec<i64>,
    /// Nodes for which there are commands.
    pub commanded: Vec<i64>,
    /// Whether there may be something to place.
    pub queue_changed: bool,
}

/// A job, locked.
struct Locked {
    user: String,
    name: String,
    pool: String,
    is_array: bool,
    ended: bool,
    hold: Option<String>,
    indices: IndexSet,
    pending: IndexSet,
    active: IndexSet,
}

/// An id that may be acted on, and its tasks.
struct Target {
    at: usize,
    job_id: i64,
    tasks: IndexSet,
}

/// Which parts of a job a cancel concerns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    All,
    Pending,
    Active,
}

/// Cancels jobs, or signals them.
pub async fn cancel(db: &PgPool, caller: &Caller, request: &CancelRequest) -> Result<Acted, StoreError> {
    let mut tx = db.begin().await?;
    let (ids, parts) = if request.ids.is_empty() {
        (matching(&mut tx, caller, request).await?, parts_of(request.state)?)
    } else {
        (request.ids.clone(), parts_of(request.state)?)
    };
    let mut act = Act::lock(&mut tx, caller, ids).await?;
    act.keep_matching(request);
    if let Some(signal) = request.signal {
        act.signal(&mut tx, signal, request.script_only).await?;
    } else {
        act.cancel(&mut tx, parts).await?;
    }
    tx.commit().await?;
    Ok(act.acted)
}

/// Keeps pending tasks from being placed.
pub async fn hold(db: &PgPool, caller: &Caller, ids: &[String]) -> Result<Acted, StoreError> {
    let mut tx = db.begin().await?;
    let mut act = Act::lock(&mut tx, caller, ids.to_vec()).await?;
    let mut holds: Vec<(i64, &str, serde_json::Value)> = Vec::new();
    for target in act.whole_jobs("hold") {
        let job = &act.jobs[&target.job_id];
        if job.ended {
            act.refuse(target.at, ErrorCode::Conflict, "it has ended: there is nothing to hold");
        } else if job.hold.is_some() {
            act.answer(target.at, ActOutcome::Already);
        } else {
            let own = job.user == caller.user;
            let (hold, reason) =
                if own { ("user", Reason::HeldByUser) } else { ("admin", Reason::HeldByAdmin) };
            let condition = Condition::new(reason, format!("held by {}", caller.user));
            holds.push((target.job_id, hold, condition_value(&condition)));
            act.answer(target.at, ActOutcome::Done);
        }
    }
    let ids: Vec<i64> = holds.iter().map(|h| h.0).collect();
    let kinds: Vec<String> = holds.iter().map(|h| h.1.to_owned()).collect();
    let conditions: Vec<serde_json::Value> = holds.into_iter().map(|h| h.2).collect();
    sqlx::query!(
        "UPDATE jobs j SET hold = i.hold, condition = i.condition, version = j.version + 1
         FROM unnest($1::bigint[], $2::text[], $3::jsonb[]) AS i(id, hold, condition) WHERE j.id = i.id",
        &ids,
        &kinds,
        &conditions
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(act.acted)
}

/// Lifts a hold. An operator's hold is lifted by operators only.
pub async fn release(db: &PgPool, caller: &Caller, ids: &[String]) -> Result<Acted, StoreError> {
    let mut tx = db.begin().await?;
    let mut act = Act::lock(&mut tx, caller, ids.to_vec()).await?;
    let mut released = Vec::new();
    for target in act.whole_jobs("release") {
        match act.jobs[&target.job_id].hold.as_deref() {
            None => act.answer(target.at, ActOutcome::Already),
            Some("admin") if !caller.operator => {
                act.refuse(
                    target.at,
                    ErrorCode::PermissionDenied,
                    "an operator holds it, and only an operator may release it",
                );
            }
            Some(_) => {
                released.push(target.job_id);
                act.answer(target.at, ActOutcome::Done);
            }
        }
    }
    sqlx::query!(
        "UPDATE jobs SET hold = NULL, condition = $2, version = version + 1 WHERE id = ANY($1)",
        &released,
        condition_value(&Condition::plain(Reason::Priority))
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    act.acted.queue_changed = !released.is_empty();
    Ok(act.acted)
}

/// Sends tasks back to the queue: running ones are stopped first, ended ones go back at once, charged anew.
pub async fn requeue(db: &PgPool, caller: &Caller, ids: &[String]) -> Result<Acted, StoreError> {
    let mut tx = db.begin().await?;
    let mut act = Act::lock(&mut tx, caller, ids.to_vec()).await?;
    let (mut back, mut stop) = (Vec::new(), Vec::new());
    for target in act.targets.drain(..).collect::<Vec<_>>() {
        let Some(job) = act.jobs.get_mut(&target.job_id) else { continue };
        let active = target.tasks.intersection(&job.active);
        let waiting = target.tasks.intersection(&job.pending);
        let ended = target.tasks.difference(&active).difference(&waiting);
        // The same job may be named twice: what the first takes, the second finds waiting.
        job.pending = IndexSet::from_ranges([job.pending.ranges(), ended.ranges()].concat());
        let done = !active.is_empty() || !ended.is_empty();
        act.answer(target.at, if done { ActOutcome::Done } else { ActOutcome::Already });
        if !ended.is_empty() {
            back.push((target.at, target.job_id, ended));
        }
        if !active.is_empty() {
            stop.push((target.job_id, active));
        }
    }
    act.acted.nodes = stop_attempts(&mut tx, &stop, "requeue", &caller.user).await?;
    let back = act.charge_anew(&mut tx, back).await?;
    let (jobs, tasks) = columns(&merged(&back));
    sqlx::query!(
        r#"UPDATE jobs j
           SET pending = j.pending + i.tasks, cancelled = j.cancelled - i.tasks,
               state = CASE WHEN j.active > 0 THEN 'running' ELSE 'pending' END, ended_at = NULL,
               avoid = '{}', condition = $3, version = j.version + 1
           FROM unnest($1::bigint[], $2::text[]) AS t(id, tasks_text), LATERAL (SELECT t.tasks_text::int4multirange AS tasks) i
           WHERE j.id = t.id"#,
        &jobs,
        &tasks,
        condition_value(&Condition::new(Reason::Priority, format!("requeued by {}; waits its turn", caller.user)))
    )
    .execute(&mut *tx)
    .await?;
    act.acted.queue_changed = !jobs.is_empty();
    tx.commit().await?;
    Ok(act.acted)
}

/// An act under way: its locked jobs, and the answers so far.
struct Act<'a> {
    caller: &'a Caller,
    jobs: HashMap<i64, Locked>,
    targets: Vec<Target>,
    acted: Acted,
}

impl<'a> Act<'a> {
    /// Reads the ids, locks their jobs, and answers those that are unreadable, unknown or somebody else's.
    async fn lock(
        tx: &mut PgConnection,
        caller: &'a Caller,
        ids: Vec<String>,
    ) -> Result<Act<'a>, StoreError> {
        if ids.len() > ACT_IDS_MAX {
            let message = format!("{} ids in one request, at most {ACT_IDS_MAX} accepted", ids.len());
            return Err(ApiError::new(ErrorCode::TooLarge, message).into());
        }
        let refs: Vec<Result<JobRef, _>> = ids.iter().map(|id| id.parse::<JobRef>()).collect();
        let job_ids: Vec<i64> = refs.iter().flatten().map(|r| r.job).collect();
        let jobs = lock_jobs(tx, &job_ids).await?;
        let results =
            ids.into_iter().map(|id| ActResult { id, outcome: ActOutcome::Already, error: None }).collect();
        let acted = Acted { results: ActResults { results }, ..Acted::default() };
        let mut act = Act { caller, jobs, targets: Vec::new(), acted };
        for (at, reference) in refs.into_iter().enumerate() {
            match reference {
                Err(error) => act.refuse(at, ErrorCode::InvalidArgument, &error.to_string()),
                Ok(reference) => act.admit(at, reference),
            }
        }
        Ok(act)
    }

    fn admit(&mut self, at: usize, reference: JobRef) {
        let Some(job) = self.jobs.get(&reference.job) else {
            return self.refuse(at, ErrorCode::NotFound, &format!("no job has the id {}", reference.job));
        };
        if job.user != self.caller.user && !self.caller.operator {
            let message = format!("job {} belongs to {}", reference.job, job.user);
            return self.refuse(at, ErrorCode::PermissionDenied, &message);
        }
        let tasks = match reference.tasks {
            None => job.indices.clone(),
            Some(_) if !job.is_array => {
                let message = format!("job {} is no array and has no tasks", reference.job);
                return self.refuse(at, ErrorCode::NotFound, &message);
            }
            Some(tasks) => {
                let outside = tasks.difference(&job.indices);
                if !outside.is_empty() {
                    let message = format!("array {} has no task {outside}", reference.job);
                    return self.refuse(at, ErrorCode::NotFound, &message);
                }
                tasks
            }
        };
        self.targets.push(Target { at, job_id: reference.job, tasks });
    }

    /// Beside ids, filters narrow: a job named that is another user's, of another name or in another pool is left alone.
    fn keep_matching(&mut self, request: &CancelRequest) {
        let (matching, others): (Vec<Target>, Vec<Target>) = self.targets.drain(..).partition(|target| {
            let job = &self.jobs[&target.job_id];
            let same =
                |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
            same(&request.user, &job.user) && same(&request.name, &job.name) && same(&request.pool, &job.pool)
        });
        self.targets = matching;
        for other in others {
            let message = format!("job {} is not one that the filters name", other.job_id);
            self.refuse(other.at, ErrorCode::NotFound, &message);
        }
    }

    /// The targets that are whole jobs; a part of one is refused by name.
    fn whole_jobs(&mut self, verb: &str) -> Vec<Target> {
        let (whole, parts): (Vec<Target>, Vec<Target>) =
            self.targets.drain(..).partition(|target| self.jobs[&target.job_id].indices == target.tasks);
        for part in parts {
            let message =
                format!("cannot {verb} single tasks of an array; name the whole array, {}", part.job_id);
            self.refuse(part.at, ErrorCode::InvalidArgument, &message);
        }
        whole
    }

    fn answer(&mut self, at: usize, outcome: ActOutcome) {
        self.acted.results.results[at].outcome = outcome;
    }

    fn refuse(&mut self, at: usize, code: ErrorCode, message: &str) {
        let result = &mut self.acted.results.results[at];
        result.outcome = ActOutcome::Error;
        result.error = Some(ApiError::new(code, message));
    }

    async fn cancel(&mut self, tx: &mut PgConnection, parts: Parts) -> Result<(), StoreError> {
        let (mut dropped, mut stop) = (Vec::new(), Vec::new());
        for target in self.targets.drain(..).collect::<Vec<_>>() {
            let Some(job) = self.jobs.get_mut(&target.job_id) else { continue };
            let pick = |wanted: bool, of: &IndexSet| {
                if wanted { target.tasks.intersection(of) } else { IndexSet::empty() }
            };
            let waiting = pick(parts != Parts::Active, &job.pending);
            let active = pick(parts != Parts::Pending, &job.active);
            let done = !waiting.is_empty() || !active.is_empty();
            // The same job may be named twice: what the first took, the second finds gone.
            job.pending = job.pending.difference(&waiting);
            self.answer(target.at, if done { ActOutcome::Done } else { ActOutcome::Already });
            if !waiting.is_empty() {
                dropped.push((target.job_id, waiting));
            }
            if !active.is_empty() {
                stop.push((target.job_id, active));
            }
        }
        self.acted.ended = drop_pending(tx, &dropped, &self.caller.user).await?;
        self.acted.nodes = stop_attempts(tx, &stop, "cancelled", &self.caller.user).await?;
        let ended: Vec<(i64, u64)> = dropped.iter().map(|(job, tasks)| (*job, tasks.len())).collect();
        quotas::refund_tasks(tx, &ended).await
    }

    /// Charges ended tasks that are to run again. Those that are over their quota are refused, and left out.
    async fn charge_anew(
        &mut self,
        tx: &mut PgConnection,
        back: Vec<(usize, i64, IndexSet)>,
    ) -> Result<Vec<(i64, IndexSet)>, StoreError> {
        let counts: Vec<(i64, u64)> = back.iter().map(|(_, job, tasks)| (*job, tasks.len())).collect();
        let charges = quotas::task_charges(tx, &counts).await?;
        let asks = charges.iter().map(|(_, tenant_id, charge)| Ask { tenant_id: *tenant_id, charge });
        let answers = quotas::charge(tx, &asks.collect::<Vec<_>>()).await?;
        let mut charged = Vec::with_capacity(back.len());
        for ((at, job, tasks), answer) in back.into_iter().zip(answers) {
            match answer {
                Ok(()) => charged.push((job, tasks)),
                Err(error) => {
                    let result = &mut self.acted.results.results[at];
                    (result.outcome, result.error) = (ActOutcome::Error, Some(error));
                }
            }
        }
        Ok(charged)
    }

    async fn signal(
        &mut self,
        tx: &mut PgConnection,
        signal: i32,
        script_only: bool,
    ) -> Result<(), StoreError> {
        if !(1..=64).contains(&signal) {
            let message = format!("signal {signal} does not exist, 1 to 64 accepted");
            return Err(ApiError::new(ErrorCode::InvalidArgument, message).into());
        }
        for target in self.targets.drain(..).collect::<Vec<_>>() {
            let active = target.tasks.intersection(&self.jobs[&target.job_id].active);
            if active.is_empty() {
                continue;
            }
            let (jobs, tasks) = columns(&[(target.job_id, active)]);
            let rows = sqlx::query!(
                "SELECT a.id, a.node_id FROM attempts t JOIN allocations a ON a.attempt_id = t.id
                 JOIN unnest($1::bigint[], $2::text[]) AS i(job_id, tasks) ON i.job_id = t.job_id
                 WHERE t.ended_at IS NULL AND i.tasks::int4multirange @> t.task AND a.position = 0
                     AND a.released_at IS NULL",
                &jobs,
                &tasks
            )
            .fetch_all(&mut *tx)
            .await?;
            let signals: Vec<NewCommand> = rows
                .into_iter()
                .map(|row| NewCommand {
                    node_id: row.node_id,
                    idempotency_key: uuid::Uuid::now_v7().to_string(),
                    act: CommandAct::Signal { allocation_id: row.id, signal, script_only },
                    // A second SIGUSR1 may mean something else than the first.
                    retry_safe: false,
                    by: &self.caller.user,
                    kept_s: SIGNAL_KEPT_S,
                })
                .collect();
            commands::add(tx, &signals).await?;
            self.acted.commanded.extend(signals.iter().map(|signal| signal.node_id));
            self.answer(target.at, ActOutcome::Done);
        }
        Ok(())
    }
}

async fn lock_jobs(tx: &mut PgConnection, ids: &[i64]) -> Result<HashMap<i64, Locked>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT j.id, j.user_name, j.name, p.name AS pool, j.is_array, j.ended_at IS NOT NULL AS "ended!", j.hold,
               j.indices::text AS "indices!", j.pending::text AS "pending!", j.active
           FROM jobs j JOIN pools p ON p.id = j.pool_id
           WHERE j.id = ANY($1) ORDER BY j.id FOR UPDATE OF j"#,
        ids
    )
    .fetch_all(&mut *tx)
    .await?;
    // Whoever places or ends a task holds its job's lock: the count is true now. Most of a queue has nothing active.
    let busy: Vec<i64> = rows.iter().filter(|row| row.active > 0).map(|row| row.id).collect();
    let mut active_of = active_tasks(tx, &busy).await?;
    let mut jobs = HashMap::with_capacity(rows.len());
    for row in rows {
        jobs.insert(
            row.id,
            Locked {
                user: row.user_name,
                name: row.name,
                pool: row.pool,
                is_array: row.is_array,
                ended: row.ended,
                hold: row.hold,
                indices: index_set("jobs", "indices", &row.indices)?,
                pending: index_set("jobs", "pending", &row.pending)?,
                active: active_of.remove(&row.id).unwrap_or_default(),
            },
        );
    }
    Ok(jobs)
}

/// The tasks of these jobs that have a live attempt.
async fn active_tasks(tx: &mut PgConnection, ids: &[i64]) -> Result<HashMap<i64, IndexSet>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let active = sqlx::query!(
        r#"SELECT job_id, range_agg(int4range(task, task + 1))::text AS "tasks!"
           FROM attempts WHERE job_id = ANY($1) AND ended_at IS NULL GROUP BY job_id"#,
        ids
    )
    .fetch_all(tx)
    .await?;
    active.into_iter().map(|row| Ok((row.job_id, index_set("attempts", "task", &row.tasks)?))).collect()
}

/// Takes tasks that were never placed out of the queue as cancelled. Returns the jobs that end by it.
async fn drop_pending(
    tx: &mut PgConnection,
    dropped: &[(i64, IndexSet)],
    by: &str,
) -> Result<Vec<i64>, StoreError> {
    if dropped.is_empty() {
        return Ok(Vec::new());
    }
    let (jobs, tasks) = columns(&merged(dropped));
    let condition = condition_value(&Condition::new(Reason::Cancelled, format!("cancelled by {by}")));
    let rows = sqlx::query!(
        r#"UPDATE jobs j
           SET pending = j.pending - i.tasks, cancelled = j.cancelled + i.tasks,
               state = CASE WHEN j.active > 0 THEN 'running' WHEN isempty(j.pending - i.tasks) THEN 'cancelled' ELSE 'pending' END,
               ended_at = CASE WHEN j.active = 0 AND isempty(j.pending - i.tasks) THEN compute_now() END,
               condition = CASE WHEN isempty(j.pending - i.tasks) THEN $3 ELSE j.condition END,
               version = j.version + 1
           FROM unnest($1::bigint[], $2::text[]) AS t(id, tasks_text), LATERAL (SELECT t.tasks_text::int4multirange AS tasks) i
           WHERE j.id = t.id
           RETURNING j.id, j.is_array, j.ended_at IS NOT NULL AS "ended!""#,
        &jobs,
        &tasks,
        condition
    )
    .fetch_all(&mut *tx)
    .await?;
    let arrays: Vec<i64> = rows.iter().filter(|row| row.ended && row.is_array).map(|row| row.id).collect();
    if !arrays.is_empty() {
        summarise_arrays(tx, &arrays).await?;
    }
    Ok(rows.into_iter().filter(|row| row.ended).map(|row| row.id).collect())
}

/// Marks live attempts to be stopped. A cancel overrides a requeue under way, nothing overrides a cancel. Returns the nodes
/// whose targets changed.
async fn stop_attempts(
    tx: &mut PgConnection,
    stop: &[(i64, IndexSet)],
    stop_as: &str,
    by: &str,
) -> Result<Vec<i64>, StoreError> {
    if stop.is_empty() {
        return Ok(Vec::new());
    }
    let (jobs, tasks) = columns(&merged(stop));
    Ok(sqlx::query_scalar!(
        r#"WITH stopped AS (
               UPDATE attempts t SET stop_as = $3, stop_by = $4
               FROM unnest($1::bigint[], $2::text[]) AS i(job_id, tasks)
               WHERE t.job_id = i.job_id AND t.ended_at IS NULL AND i.tasks::int4multirange @> t.task
                   AND (t.stop_as IS NULL OR (t.stop_as = 'requeue' AND $3 = 'cancelled'))
               RETURNING t.id
           )
           SELECT DISTINCT a.node_id FROM allocations a JOIN stopped ON stopped.id = a.attempt_id
           WHERE a.released_at IS NULL"#,
        &jobs,
        &tasks,
        stop_as,
        by
    )
    .fetch_all(tx)
    .await?)
}

/// The live jobs that a filter names: the caller's own, or anybody's for an operator who names a user.
async fn matching(
    tx: &mut PgConnection,
    caller: &Caller,
    request: &CancelRequest,
) -> Result<Vec<String>, StoreError> {
    let filters = [&request.user, &request.name, &request.pool];
    if filters.iter().all(|f| f.is_none()) && request.state.is_none() {
        return Err(ApiError::new(ErrorCode::InvalidArgument, "no job is named: neither an id nor a filter")
            .hint("name ids, or a user, name, pool or state")
            .into());
    }
    if let Some(user) = request.user.as_ref().filter(|user| **user != caller.user && !caller.operator) {
        let message = format!("{user}'s jobs are {user}'s to cancel");
        return Err(ApiError::new(ErrorCode::PermissionDenied, message).into());
    }
    let user = request.user.clone().or_else(|| (!caller.operator).then(|| caller.user.clone()));
    Ok(sqlx::query_scalar!(
        r#"SELECT j.id::text AS "id!" FROM jobs j JOIN pools p ON p.id = j.pool_id
           WHERE j.ended_at IS NULL AND ($1::text IS NULL OR j.user_name = $1) AND ($2::text IS NULL OR j.name = $2)
               AND ($3::text IS NULL OR p.name = $3)
           ORDER BY j.id LIMIT $4"#,
        user,
        request.name,
        request.pool,
        ACT_IDS_MAX as i64
    )
    .fetch_all(tx)
    .await?)
}

fn parts_of(state: Option<State>) -> Result<Parts, ApiError> {
    match state {
        None => Ok(Parts::All),
        Some(State::Pending) => Ok(Parts::Pending),
        Some(state) if !state.terminal() => Ok(Parts::Active),
        Some(state) => {
            let message = format!("{state} jobs have ended: there is nothing to cancel");
            Err(ApiError::new(ErrorCode::InvalidArgument, message).hint("name pending or running"))
        }
    }
}

/// One row a job: a job named more than once must not be updated twice by one statement.
fn merged(parts: &[(i64, IndexSet)]) -> Vec<(i64, IndexSet)> {
    let mut of: HashMap<i64, Vec<(u32, u32)>> = HashMap::new();
    for (job, tasks) in parts {
        of.entry(*job).or_default().extend(tasks.ranges());
    }
    of.into_iter().map(|(job, ranges)| (job, IndexSet::from_ranges(ranges))).collect()
}

fn columns(parts: &[(i64, IndexSet)]) -> (Vec<i64>, Vec<String>) {
    parts.iter().map(|(job, tasks)| (*job, tasks.to_multirange())).unzip()
}
