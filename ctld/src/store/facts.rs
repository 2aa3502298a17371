//! What nodes report: a batch of starts and ends, recorded in one transaction, each exactly once.
//!
//! A report may come twice, or late from a session that has been superseded. Duplicates change nothing, since each step is
//! taken only from the state it expects; a superseded session's facts are left to its successor, which reports them again.
//! The one release act is here: an ended allocation gives back its amounts, its bookings move to history up to the attested
//! instant, and when the last allocation of an attempt is released the attempt ends and its job with it.

use super::quotas;
use super::reservations::carve;
use super::{StoreError, condition_value};
use ctld_core::lifecycle::{Step, StopAs, StopAsked, advance, outcome};
use ctld_core::quota::Charge;
use proto::session::{EndCause, Ended, Event};
use proto::{Condition, Reason, State};
use sqlx::{PgConnection, PgPool};
use std::collections::{BTreeMap, HashMap};

/// How often a task whose node failed is started again by itself.
const REQUEUES_MAX: i32 = 3;
/// How often one that could not be launched is tried on another node: it may be the node's fault, and is more likely its own.
const LAUNCHES_MAX: i32 = 2;

/// A fact about an allocation, as a session passed it on. Ages count up to the moment of recording.
#[derive(Clone, Debug)]
pub struct Fact {
    /// The node that says so.
    pub node_id: i64,
    /// The session it says so in.
    pub session_epoch: i64,
    /// Which allocation.
    pub allocation_id: i64,
    /// What happened.
    pub event: Event,
}

/// What a batch of facts changed.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Jobs of which a task ended.
    pub ended_jobs: Vec<i64>,
    /// Nodes whose targets changed: the other nodes of an attempt that ended.
    pub nodes: Vec<i64>,
    /// Whether capacity came free.
    pub released: bool,
    /// Facts that changed something.
    pub applied: usize,
    /// The sessions whose facts were left out, since another one owns the node now.
    pub superseded: Vec<(i64, i64)>,
}

/// An allocation and its attempt, locked.
struct Live {
    attempt_id: i64,
    node_id: i64,
    position: i32,
    released: bool,
    /// Whether its task may be started again after its node failed, and was not too often already.
    may_requeue: bool,
    /// Whether another node, of those it has not failed on, could take it: only then is a failed launch tried again.
    elsewhere: bool,
    number: i32,
    state: State,
    stop: Option<(StopAs, String)>,
    /// How it will have ended, once that is decided.
    outcome: Option<String>,
}

/// Records a batch, in the order of the events.
pub async fn record(db: &PgPool, facts: &[Fact]) -> Result<Recorded, StoreError> {
    let mut tx = db.begin().await?;
    let mut live = lock(&mut tx, facts).await?;
    find_elsewhere(&mut tx, facts, &mut live).await?;
    let owners = owners(&mut tx, facts).await?;
    let mut recorded = Recorded::default();
    let mut changes = Changes::default();
    for fact in facts {
        if owners.get(&fact.node_id) != Some(&fact.session_epoch) {
            recorded.superseded.push((fact.node_id, fact.session_epoch));
            continue;
        }
        let Some(allocation) = live.get_mut(&fact.allocation_id) else { continue };
        if allocation.node_id == fact.node_id && changes.apply(fact, allocation) {
            recorded.applied += 1;
        }
    }
    // An attempt's state is on each of its allocations: the last change written is the one that counts.
    changes.write(&mut tx, &mut recorded).await?;
    tx.commit().await?;
    recorded.superseded.sort_unstable();
    recorded.superseded.dedup();
    Ok(recorded)
}

/// Locks the jobs of these allocations, in order, and reads what stands.
async fn lock(tx: &mut PgConnection, facts: &[Fact]) -> Result<HashMap<i64, Live>, StoreError> {
    let ids: Vec<i64> = facts.iter().map(|f| f.allocation_id).collect();
    sqlx::query!(
        "SELECT id FROM jobs
         WHERE id IN (SELECT t.job_id FROM allocations a JOIN attempts t ON t.id = a.attempt_id WHERE a.id = ANY($1))
         ORDER BY id FOR UPDATE",
        &ids
    )
    .fetch_all(&mut *tx)
    .await?;
    let rows = sqlx::query!(
        r#"SELECT a.id, a.attempt_id, a.node_id, a.position, a.released_at IS NOT NULL AS "released!",
               t.state, t.stop_as, t.stop_by, t.outcome, t.number, j.requeue AND t.number <= $2 AS "may_requeue!"
           FROM allocations a JOIN attempts t ON t.id = a.attempt_id JOIN jobs j ON j.id = t.job_id
           WHERE a.id = ANY($1)"#,
        &ids,
        REQUEUES_MAX
    )
    .fetch_all(tx)
    .await?;
    let mut live = HashMap::with_capacity(rows.len());
    for row in rows {
        let state = row.state.parse().map_err(|_| super::row_error("attempts", "state", &*row.state))?;
        let stop = match (row.stop_as, row.stop_by) {
            (Some(stop), Some(by)) => Some((
                StopAs::from_name(&stop).ok_or_else(|| super::row_error("attempts", "stop_as", &*stop))?,
                by,
            )),
            _ => None,
        };
        live.insert(
            row.id,
            Live {
                attempt_id: row.attempt_id,
                node_id: row.node_id,
                position: row.position,
                released: row.released,
                may_requeue: row.may_requeue,
                elsewhere: false,
                number: row.number,
                state,
                stop,
                outcome: row.outcome,
            },
        );
    }
    Ok(live)
}

/// Looks for other nodes where something failed that may be its node's fault.
async fn find_elsewhere(
    tx: &mut PgConnection,
    facts: &[Fact],
    live: &mut HashMap<i64, Live>,
) -> Result<(), StoreError> {
    let failed = |fact: &&Fact| match &fact.event {
        Event::Ended(ended) => matches!(
            ended.cause,
            EndCause::LaunchFailed | EndCause::Refused | EndCause::Rebooted | EndCause::Lost
        ),
        _ => false,
    };
    let ids: Vec<i64> = facts.iter().filter(failed).map(|fact| fact.allocation_id).collect();
    if ids.is_empty() {
        return Ok(());
    }
    // What a node has in all, not what is free now: the task waits for that.
    let elsewhere = sqlx::query_scalar!(
        "SELECT a.id FROM allocations a JOIN attempts t ON t.id = a.attempt_id JOIN jobs j ON j.id = t.job_id
         WHERE a.id = ANY($1) AND j.reservation_id IS NULL AND j.node_count <= (
             SELECT count(*) FROM nodes n
             JOIN node_resources c ON c.node_id = n.id AND c.resource = 'cpus' AND floor(c.allocatable * c.ratio) >= j.cpus
             JOIN node_resources m ON m.node_id = n.id AND m.resource = 'mem_mib' AND floor(m.allocatable * m.ratio) >= j.mem_mib
             WHERE n.pool_id = j.pool_id AND n.connection = 'connected' AND n.eligible AND n.id <> a.node_id AND n.id <> ALL(j.avoid)
                 AND j.gpus <= (SELECT count(*) FROM gpus g WHERE g.node_id = n.id AND g.present AND g.eligible
                     AND (j.gpu_type IS NULL OR lower(g.model) = lower(j.gpu_type) OR lower(g.model) LIKE lower(j.gpu_type) || '-%')))",
        &ids
    )
    .fetch_all(tx)
    .await?;
    for id in elsewhere {
        if let Some(allocation) = live.get_mut(&id) {
            allocation.elsewhere = true;
        }
    }
    Ok(())
}

/// The session that owns each of these nodes now; locked, so that a new session waits for this batch.
async fn owners(tx: &mut PgConnection, facts: &[Fact]) -> Result<HashMap<i64, i64>, StoreError> {
    let ids: Vec<i64> = facts.iter().map(|f| f.node_id).collect();
    let rows =
        sqlx::query!("SELECT id, session_epoch FROM nodes WHERE id = ANY($1) ORDER BY id FOR SHARE", &ids)
            .fetch_all(tx)
            .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.session_epoch)).collect())
}

/// What a batch changes, gathered so that each table is written by one statement.
#[derive(Default)]
struct Changes {
    started: BTreeMap<i64, Started>,
    completing: Vec<i64>,
    outcomes: BTreeMap<i64, Outcome>,
    released: BTreeMap<i64, u64>,
    /// Attempts whose job is to stay away from a node.
    avoid: Vec<(i64, i64)>,
}

struct Started {
    attempt_id: i64,
    runs_script: bool,
    age_us: u64,
    paths: Vec<String>,
}

struct Outcome {
    state: State,
    condition: Condition,
    /// Its node failed under it, and its task goes back to the queue.
    requeue: bool,
    ended: Ended,
}

impl Changes {
    /// Takes a fact in; `false` if it says nothing new or nothing legal.
    fn apply(&mut self, fact: &Fact, allocation: &mut Live) -> bool {
        if allocation.released {
            return false;
        }
        match &fact.event {
            Event::Started { age_us, paths } => self.start(fact.allocation_id, allocation, *age_us, paths),
            Event::Completing => match advance(allocation.state, Step::Complete) {
                Some(state) => {
                    allocation.state = state;
                    self.completing.push(allocation.attempt_id);
                    true
                }
                None => false,
            },
            Event::Ended(ended) => {
                self.end(fact.allocation_id, allocation, ended);
                true
            }
        }
    }

    fn start(&mut self, id: i64, allocation: &mut Live, age_us: u64, paths: &[String; 3]) -> bool {
        let runs_script = allocation.position == 0;
        if runs_script {
            match advance(allocation.state, Step::Start) {
                Some(state) => allocation.state = state,
                None => return false,
            }
        }
        let attempt_id = allocation.attempt_id;
        self.started.insert(id, Started { attempt_id, runs_script, age_us, paths: paths.to_vec() });
        true
    }

    fn end(&mut self, id: i64, allocation: &mut Live, ended: &Ended) {
        allocation.released = true;
        self.released.insert(id, ended.age_us);
        // The script's allocation decides how the attempt ended; another one's end decides only if it came first and
        // nobody had asked for it (its node was rebooted).
        let decides = allocation.position == 0 || allocation.stop.is_none();
        let decided = allocation.outcome.is_some() || self.outcomes.contains_key(&allocation.attempt_id);
        if !decides || decided {
            return;
        }
        let stop = allocation.stop.as_ref().map(|(stop_as, by)| StopAsked { stop_as: *stop_as, by });
        let (state, condition) = outcome(ended, stop);
        let not_launched = matches!(ended.cause, EndCause::LaunchFailed | EndCause::Refused)
            && allocation.elsewhere
            && allocation.number <= LAUNCHES_MAX;
        let its_nodes_fault = state == State::NodeFail || not_launched;
        let requeue = its_nodes_fault && allocation.may_requeue && allocation.stop.is_none();
        if requeue && allocation.elsewhere {
            self.avoid.push((allocation.attempt_id, allocation.node_id));
        }
        self.outcomes
            .insert(allocation.attempt_id, Outcome { state, condition, requeue, ended: ended.clone() });
    }

    async fn write(self, tx: &mut PgConnection, recorded: &mut Recorded) -> Result<(), StoreError> {
        self.write_started(tx).await?;
        if !self.completing.is_empty() {
            sqlx::query!(
                "UPDATE attempts SET state = 'completing' WHERE id = ANY($1) AND state IN ('starting', 'running', 'suspended')",
                &self.completing
            )
            .execute(&mut *tx)
            .await?;
        }
        if self.released.is_empty() {
            return Ok(());
        }
        recorded.released = true;
        self.write_outcomes(tx).await?;
        self.write_avoid(tx).await?;
        let given_back = self.release(tx).await?;
        self.close(tx, recorded, given_back).await
    }

    async fn write_started(&self, tx: &mut PgConnection) -> Result<(), StoreError> {
        if self.started.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = self.started.keys().copied().collect();
        let ages: Vec<f64> = self.started.values().map(|s| s.age_us as f64 / 1e6).collect();
        sqlx::query!(
            "UPDATE allocations a SET started_at = compute_now() - make_interval(secs => i.age_s)
             FROM unnest($1::bigint[], $2::double precision[]) AS i(id, age_s)
             WHERE a.id = i.id AND a.started_at IS NULL",
            &ids,
            &ages
        )
        .execute(&mut *tx)
        .await?;
        let scripts: Vec<&Started> = self.started.values().filter(|s| s.runs_script).collect();
        let attempts: Vec<i64> = scripts.iter().map(|s| s.attempt_id).collect();
        let ages: Vec<f64> = scripts.iter().map(|s| s.age_us as f64 / 1e6).collect();
        // PostgreSQL has no arrays of arrays of different rows: paths travel as one JSON value each.
        let paths: Vec<serde_json::Value> =
            scripts.iter().map(|s| serde_json::Value::from(s.paths.clone())).collect();
        sqlx::query!(
            "UPDATE attempts t
             SET state = 'running', started_at = GREATEST(t.placed_at, compute_now() - make_interval(secs => i.age_s)),
                 paths = ARRAY(SELECT jsonb_array_elements_text(i.paths))
             FROM unnest($1::bigint[], $2::double precision[], $3::jsonb[]) AS i(id, age_s, paths)
             WHERE t.id = i.id AND t.state = 'starting'",
            &attempts,
            &ages,
            &paths
        )
        .execute(tx)
        .await?;
        Ok(())
    }

    async fn write_outcomes(&self, tx: &mut PgConnection) -> Result<(), StoreError> {
        if self.outcomes.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = self.outcomes.keys().copied().collect();
        let each = || self.outcomes.values();
        let states: Vec<String> = each().map(|o| o.state.name().to_owned()).collect();
        let conditions: Vec<serde_json::Value> = each().map(|o| condition_value(&o.condition)).collect();
        let codes: Vec<Option<i32>> = each().map(|o| o.ended.exit_code).collect();
        let signals: Vec<Option<i32>> = each().map(|o| o.ended.signal).collect();
        let cpu: Vec<i64> = each().map(|o| saturating(o.ended.usage.cpu_us)).collect();
        let peak: Vec<Option<i64>> = each().map(|o| o.ended.usage.mem_peak_bytes.map(saturating)).collect();
        let kills: Vec<i64> = each().map(|o| saturating(o.ended.usage.oom_kills)).collect();
        let requeue: Vec<bool> = each().map(|o| o.requeue).collect();
        let started: Vec<Option<f64>> =
            each().map(|o| o.ended.started_age_us.map(|us| us as f64 / 1e6)).collect();
        sqlx::query!(
            "UPDATE attempts t
             SET state = 'completing', outcome = i.outcome, condition = i.condition, exit_code = i.exit_code,
                 stop_as = CASE WHEN i.requeue THEN 'requeue' ELSE t.stop_as END,
                 stop_by = CASE WHEN i.requeue THEN 'a failure that may be its node''s' ELSE t.stop_by END,
                 signal = i.signal, cpu_us = i.cpu_us, mem_peak_bytes = i.mem_peak, oom_kills = i.oom_kills,
                 -- GREATEST skips nulls: without the CASE what never started would have started when it was placed.
                 started_at = coalesce(t.started_at, CASE WHEN i.started_age_s IS NOT NULL
                     THEN GREATEST(t.placed_at, compute_now() - make_interval(secs => i.started_age_s)) END)
             FROM unnest($1::bigint[], $2::text[], $3::jsonb[], $4::int[], $5::int[], $6::bigint[], $7::bigint[],
                     $8::bigint[], $9::double precision[], $10::boolean[])
                 AS i(id, outcome, condition, exit_code, signal, cpu_us, mem_peak, oom_kills, started_age_s, requeue)
             WHERE t.id = i.id AND t.ended_at IS NULL",
            &ids,
            &states,
            &conditions,
            &codes as &[Option<i32>],
            &signals as &[Option<i32>],
            &cpu,
            &peak as &[Option<i64>],
            &kills,
            &started as &[Option<f64>],
            &requeue,
        )
        .execute(tx)
        .await?;
        Ok(())
    }

    async fn write_avoid(&self, tx: &mut PgConnection) -> Result<(), StoreError> {
        if self.avoid.is_empty() {
            return Ok(());
        }
        let (attempts, nodes): (Vec<i64>, Vec<i64>) = self.avoid.iter().copied().unzip();
        sqlx::query!(
            "UPDATE jobs j SET avoid = (SELECT array_agg(DISTINCT id) FROM unnest(j.avoid || f.nodes) AS id)
             FROM (SELECT t.job_id, array_agg(DISTINCT i.node_id) AS nodes
                 FROM unnest($1::bigint[], $2::bigint[]) AS i(attempt_id, node_id) JOIN attempts t ON t.id = i.attempt_id
                 GROUP BY t.job_id) f
             WHERE j.id = f.job_id AND cardinality(j.avoid) + cardinality(f.nodes) <= 64",
            &attempts,
            &nodes
        )
        .execute(tx)
        .await?;
        Ok(())
    }

    /// Ends allocations at the attested instant: amounts back to the nodes, bookings to history. Returns what they were
    /// charged of their own, for the caller to give back.
    async fn release(&self, tx: &mut PgConnection) -> Result<Vec<(i32, Charge)>, StoreError> {
        let ids: Vec<i64> = self.released.keys().copied().collect();
        let ages: Vec<f64> = self.released.values().map(|us| *us as f64 / 1e6).collect();
        let node_ids: Vec<i64> = sqlx::query_scalar!(
            "SELECT node_id FROM allocations WHERE id = ANY($1) AND released_at IS NULL",
            &ids
        )
        .fetch_all(&mut *tx)
        .await?;
        sqlx::query!(
            "SELECT resource FROM node_resources WHERE node_id = ANY($1) ORDER BY node_id, resource FOR UPDATE",
            &node_ids
        )
        .fetch_all(&mut *tx)
        .await?;
        let released =
            sqlx::query_file!("src/store/sql/release.sql", &ids, &ages).fetch_all(&mut *tx).await?;
        let inside = released.iter().filter(|row| row.reservation_id.is_some());
        let inside: Vec<i64> = inside.map(|row| row.allocation_id).collect();
        carve::give_back(tx, &inside).await?;
        let charged =
            released.iter().map(|row| Ok((row.tenant_id, quotas::charge_from("allocations", &row.charge)?)));
        charged.collect()
    }

    /// Ends the attempts of which nothing is left, and their jobs; has the rest of the others stopped.
    async fn close(
        &self,
        tx: &mut PgConnection,
        recorded: &mut Recorded,
        mut given_back: Vec<(i32, Charge)>,
    ) -> Result<(), StoreError> {
        let ids: Vec<i64> = self.released.keys().copied().collect();
        let closed = sqlx::query!(
            r#"UPDATE attempts t
               SET state = t.outcome, ended_at = GREATEST(t.started_at, t.placed_at, r.released_at)
               FROM (SELECT attempt_id, max(released_at) AS released_at, bool_and(released_at IS NOT NULL) AS clean
                     FROM allocations
                     WHERE attempt_id IN (SELECT attempt_id FROM allocations WHERE id = ANY($1))
                     GROUP BY attempt_id) r
               WHERE t.id = r.attempt_id AND r.clean AND t.outcome IS NOT NULL AND t.ended_at IS NULL
               RETURNING t.id, t.job_id, t.task, t.state, t.condition AS "condition!",
                   t.stop_as IS NOT DISTINCT FROM 'requeue' AS "requeue!""#,
            &ids
        )
        .fetch_all(&mut *tx)
        .await?;
        let (mut jobs, mut tasks, mut requeue, mut states, mut conditions) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for row in closed {
            // An attempt that ended by itself before the stop of its requeue reached it has ended.
            let why = row.condition.get("reason").and_then(|r| r.as_str()).and_then(Reason::from_name);
            let requeued = matches!(why, Some(Reason::Requeued | Reason::NodeFailed | Reason::LaunchFailed));
            jobs.push(row.job_id);
            tasks.push(row.task);
            requeue.push(row.requeue && requeued);
            states.push(row.state);
            conditions.push(row.condition);
        }
        let ended: Vec<(i64, u64)> =
            jobs.iter().zip(&requeue).filter(|(_, requeue)| !**requeue).map(|(job, _)| (*job, 1)).collect();
        if !jobs.is_empty() {
            let closed = sqlx::query_file!(
                "src/store/sql/close_jobs.sql",
                &jobs,
                &tasks,
                &requeue,
                &states,
                &conditions
            )
            .fetch_all(&mut *tx)
            .await?;
            // Only arrays that have ended: it reads every attempt that they had.
            let arrays: Vec<i64> = closed.iter().filter(|job| job.whole_array).map(|job| job.id).collect();
            if !arrays.is_empty() {
                summarise_arrays(tx, &arrays).await?;
            }
            jobs.dedup();
            recorded.ended_jobs = jobs;
        }
        // Attempts that have an outcome but still hold other nodes: those are to stop now.
        recorded.nodes = sqlx::query_scalar!(
            "SELECT DISTINCT a.node_id FROM allocations a JOIN attempts t ON t.id = a.attempt_id
             WHERE a.released_at IS NULL AND t.outcome IS NOT NULL
                 AND t.id IN (SELECT attempt_id FROM allocations WHERE id = ANY($1))",
            &ids
        )
        .fetch_all(&mut *tx)
        .await?;
        // One statement for both, so that the rows are locked in one order.
        let tasks = quotas::task_charges(tx, &ended).await?;
        given_back.extend(tasks.into_iter().map(|(_, tenant_id, charge)| (tenant_id, charge)));
        quotas::refund(tx, &given_back).await
    }
}

/// A job that is an array ends as the worst of its tasks did.
pub(super) async fn summarise_arrays(tx: &mut PgConnection, jobs: &[i64]) -> Result<(), StoreError> {
    sqlx::query!(
        r#"UPDATE jobs j
           SET state = CASE WHEN s.failed > 0 THEN 'failed' WHEN s.cancelled > 0 OR NOT isempty(j.cancelled) THEN 'cancelled'
                   ELSE 'completed' END,
               condition = jsonb_build_object('reason', 'NonZeroExitCode', 'message',
                   format('%s tasks completed, %s failed, %s cancelled', s.completed, s.failed, s.cancelled +
                       (SELECT coalesce(sum(upper(c) - lower(c)), 0) FROM unnest(j.cancelled) c)))
           FROM (SELECT job_id, count(*) FILTER (WHERE state = 'completed') AS completed,
                     count(*) FILTER (WHERE state IN ('cancelled', 'preempted')) AS cancelled,
                     count(*) FILTER (WHERE state NOT IN ('completed', 'cancelled', 'preempted')) AS failed
                 FROM (SELECT DISTINCT ON (job_id, task) job_id, state FROM attempts WHERE job_id = ANY($1)
                     ORDER BY job_id, task, number DESC) latest
                 GROUP BY job_id) s
           WHERE j.id = s.job_id AND j.is_array AND j.ended_at IS NOT NULL"#,
        jobs
    )
    .execute(tx)
    .await?;
    Ok(())
}

fn saturating(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
