//! The attempts that a list shows, and the nodes and GPUs of each.
//!
//! Asked for by job ids, once a list: the live ones only where nothing that ended is wanted, through the small index of live
//! attempts; else the latest attempt of each task, but for tasks that are pending again or cancelled, whose entry is another.

use super::entry::Wanted;
use super::stored::Stored;
use crate::store::{StoreError, row_error};
use chrono::{DateTime, Utc};
use proto::{Condition, IndexSet, State};
use sqlx::PgConnection;

use std::collections::HashMap;

/// One attempt.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub id: i64,
    pub job_id: i64,
    pub task: u32,
    pub number: i32,
    pub state: State,
    pub started_at: Option<DateTime<Utc>>,
    pub ended_at: Option<DateTime<Utc>>,
    pub run_s: Option<u64>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub condition: Option<Condition>,
    pub nodes: Vec<String>,
    pub gpus: Vec<String>,
}

struct AttemptRow {
    id: i64,
    job_id: i64,
    task: i32,
    number: i32,
    state: String,
    started_at: Option<DateTime<Utc>>,
    ended_at: Option<DateTime<Utc>>,
    run_s: Option<i64>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    condition: Option<Stored>,
}

impl TryFrom<AttemptRow> for Attempt {
    type Error = StoreError;

    fn try_from(row: AttemptRow) -> Result<Attempt, StoreError> {
        let state = row
            .state
            .parse()
            .map_err(|_| row_error("attempts", "state", format!("{} ({})", row.state, row.id)))?;
        Ok(Attempt {
            id: row.id,
            job_id: row.job_id,
            task: row.task.unsigned_abs(),
            number: row.number,
            state,
            started_at: row.started_at,
            ended_at: row.ended_at,
            run_s: row.run_s.map(i64::unsigned_abs),
            exit_code: row.exit_code,
            signal: row.signal,
            condition: row.condition.map(|Stored(condition)| condition),
            nodes: Vec::new(),
            gpus: Vec::new(),
        })
    }
}

/// The attempts to show of these jobs, by job, in the order of their tasks; at most `limit`.
pub(super) async fn of_jobs(
    db: &mut PgConnection,
    jobs: &[i64],
    tasks: &[Option<IndexSet>],
    wanted: Wanted<'_>,
    limit: i64,
) -> Result<HashMap<i64, Vec<Attempt>>, StoreError> {
    if jobs.is_empty() {
        return Ok(HashMap::new());
    }
    let tasks: Vec<Option<String>> =
        tasks.iter().map(|set| set.as_ref().map(IndexSet::to_multirange)).collect();
    let states: Vec<String> = wanted.states.iter().map(|state| state.name().to_owned()).collect();
    let rows = if wanted.states.iter().any(|state| state.terminal()) {
        sqlx::query_as!(
            AttemptRow,
            r#"SELECT a.id AS "id!", a.job_id AS "job_id!", a.task AS "task!", a.number AS "number!",
                   a.state AS "state!", a.started_at, a.ended_at,
                   CASE WHEN a.started_at IS NOT NULL THEN greatest(floor(
                       extract(epoch FROM coalesce(a.ended_at, compute_now()) - a.started_at)), 0)::bigint END AS run_s,
                   a.exit_code, a.signal, a.condition AS "condition: Stored"
               FROM unnest($1::bigint[], $2::text[]) AS w (job_id, tasks)
               JOIN jobs j ON j.id = w.job_id
               JOIN LATERAL (
                   SELECT DISTINCT ON (task) id, job_id, task, number, state, started_at, ended_at, exit_code, signal,
                       condition
                   FROM attempts
                   WHERE job_id = j.id AND (w.tasks IS NULL OR w.tasks::int4multirange @> task)
                       AND NOT j.pending @> task AND NOT j.cancelled @> task
                   ORDER BY task, number DESC) a ON a.state = ANY ($3)
               WHERE $4::text[] IS NULL OR EXISTS (
                   SELECT FROM allocations l JOIN nodes n ON n.id = l.node_id
                   WHERE l.attempt_id = a.id AND n.name = ANY ($4))
               ORDER BY a.job_id, a.task
               LIMIT $5"#,
            jobs,
            &tasks as &[Option<String>],
            &states,
            wanted.nodes,
            limit
        )
        .fetch_all(&mut *db)
        .await?
    } else {
        sqlx::query_as!(
            AttemptRow,
            r#"SELECT a.id, a.job_id, a.task, a.number, a.state, a.started_at, a.ended_at,
                   CASE WHEN a.started_at IS NOT NULL THEN greatest(floor(
                       extract(epoch FROM compute_now() - a.started_at)), 0)::bigint END AS run_s,
                   a.exit_code, a.signal, a.condition AS "condition: Stored"
               FROM unnest($1::bigint[], $2::text[]) AS w (job_id, tasks)
               JOIN attempts a ON a.job_id = w.job_id AND a.ended_at IS NULL
                   AND (w.tasks IS NULL OR w.tasks::int4multirange @> a.task)
               WHERE a.state = ANY ($3) AND ($4::text[] IS NULL OR EXISTS (
                   SELECT FROM allocations l JOIN nodes n ON n.id = l.node_id
                   WHERE l.attempt_id = a.id AND n.name = ANY ($4)))
               ORDER BY a.job_id, a.task
               LIMIT $5"#,
            jobs,
            &tasks as &[Option<String>],
            &states,
            wanted.nodes,
            limit
        )
        .fetch_all(&mut *db)
        .await?
    };
    let mut attempts: Vec<Attempt> = rows.into_iter().map(Attempt::try_from).collect::<Result<_, _>>()?;
    add_places(db, &mut attempts).await?;
    let mut by_job: HashMap<i64, Vec<Attempt>> = HashMap::new();
    for attempt in attempts {
        by_job.entry(attempt.job_id).or_default().push(attempt);
    }
    Ok(by_job)
}

/// The number of the last attempt of each task that waits again or was cancelled while waiting, by job and task.
pub(super) async fn earlier_numbers(
    db: &mut PgConnection,
    jobs: &[i64],
    limit: i64,
) -> Result<HashMap<(i64, u32), i32>, StoreError> {
    if jobs.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = sqlx::query!(
        r#"SELECT a.job_id, a.task, max(a.number) AS "number!"
           FROM attempts a JOIN jobs j ON j.id = a.job_id
           WHERE a.job_id = ANY ($1) AND (j.pending @> a.task OR j.cancelled @> a.task)
           GROUP BY a.job_id, a.task
           LIMIT $2"#,
        jobs,
        limit
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| ((row.job_id, row.task.unsigned_abs()), row.number)).collect())
}

/// Adds each attempt's nodes, the script's first, and GPUs, those it holds or held.
async fn add_places(db: &mut PgConnection, attempts: &mut [Attempt]) -> Result<(), StoreError> {
    if attempts.is_empty() {
        return Ok(());
    }
    let at: HashMap<i64, usize> = attempts.iter().enumerate().map(|(at, attempt)| (attempt.id, at)).collect();
    let ids: Vec<i64> = attempts.iter().map(|attempt| attempt.id).collect();
    let places = sqlx::query!(
        r#"SELECT l.attempt_id, n.name,
               ARRAY(SELECT g.uuid FROM gpus g
                   WHERE g.id IN (SELECT b.gpu_id FROM device_bookings b WHERE b.allocation_id = l.id
                                  UNION SELECT h.gpu_id FROM device_bookings_history h WHERE h.allocation_id = l.id)
                   ORDER BY g.index, g.id) AS "gpus!"
           FROM allocations l JOIN nodes n ON n.id = l.node_id
           WHERE l.attempt_id = ANY ($1)
           ORDER BY l.attempt_id, l.position"#,
        &ids
    )
    .fetch_all(db)
    .await?;
    for place in places {
        if let Some(attempt) = at.get(&place.attempt_id).and_then(|&at| attempts.get_mut(at)) {
            attempt.nodes.push(place.name);
            attempt.gpus.extend(place.gpus);
        }
    }
    Ok(())
}
