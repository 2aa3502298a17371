//! From rows to the entries of a list: what a job, the rest of an array or a task looks like. Plain computation, no SQL.

use super::attempts::Attempt;
use super::stored::Stored;
use crate::store::{StoreError, index_set, row_error};
use chrono::{DateTime, SecondsFormat, Utc};
use proto::api::{ArrayView, Job};
use proto::{Condition, IndexSet, Reason, State};

use std::collections::HashMap;
use std::fmt::Write;

/// The longest text of ranges in a display id, in bytes; what is left out stands in the entry's `array`.
const RANGES_SHOWN_MAX: usize = 200;

/// Which entries of a job are wanted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Entries in these states.
    pub states: &'a [State],
    /// Entries on one of these nodes; where some are named, what has no place is not wanted.
    pub nodes: Option<&'a [String]>,
    /// One entry a pending task instead of one for the rest.
    pub tasks: bool,
}

impl Wanted<'_> {
    fn without_place(&self, state: State) -> bool {
        self.nodes.is_none() && self.states.contains(&state)
    }
}

/// A job as it stands in its table.
pub(super) struct JobRow {
    pub id: i64,
    pub name: String,
    pub user_name: String,
    pub tenant_id: i32,
    pub account: Option<String>,
    pub pool_id: i32,
    pub cpus: i32,
    pub mem_mib: i64,
    pub disk_mib: i64,
    pub gpus: i32,
    pub gpu_type: Option<String>,
    pub node_count: i32,
    pub time_limit_s: Option<i64>,
    pub priority: i64,
    pub hold: Option<String>,
    pub begin_at: Option<DateTime<Utc>>,
    pub is_array: bool,
    /// The sets of an array; of a job that is none, the state says as much.
    pub indices: Option<String>,
    pub pending: Option<String>,
    pub cancelled: Option<String>,
    pub throttle: Option<i32>,
    pub active: i32,
    pub state: String,
    pub condition: Stored,
    pub comment: Option<String>,
    pub submitted_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    /// 1 until the row is changed for the first time: such a job never had an attempt.
    pub version: i64,
}

impl JobRow {
    pub(super) fn state(&self) -> Result<State, StoreError> {
        self.state
            .parse()
            .map_err(|_| row_error("jobs", "state", format!("{} of job {}", self.state, self.id)))
    }

    fn throttle(&self) -> Option<u32> {
        self.throttle.map(i32::unsigned_abs)
    }

    /// Why what is pending waits: the plainest reason first, else what the planner found.
    fn waits(&self, now: DateTime<Utc>) -> Condition {
        match (not_before(self.hold.as_deref(), self.begin_at, now), self.begin_at, self.throttle) {
            (Some(Reason::BeginTime), Some(at), _) => {
                let at = at.to_rfc3339_opts(SecondsFormat::AutoSi, true);
                Condition::new(Reason::BeginTime, format!("its begin time, {at}, has not come"))
            }
            (Some(reason), ..) => Condition::plain(reason),
            (None, _, Some(throttle)) if self.active >= throttle => Condition::new(
                Reason::ArrayThrottle,
                format!("{} of at most {throttle} tasks of the array run", self.active),
            ),
            _ => self.condition.0.clone(),
        }
    }

    /// Why it was cancelled before it started. The row's condition may be about the tasks that still wait.
    fn cancelled_because(&self) -> Condition {
        if self.condition.0.reason == Reason::Cancelled {
            self.condition.0.clone()
        } else {
            Condition::plain(Reason::Cancelled)
        }
    }

    /// What all entries of the job have in common, as an entry without state, task or attempt.
    fn into_entry(self, names: &Names) -> Result<Job, StoreError> {
        Ok(Job {
            id: self.id,
            task: None,
            display_id: self.id.to_string(),
            name: self.name,
            user: self.user_name,
            tenant: names.tenant(self.tenant_id)?,
            account: self.account,
            pool: names.pool(self.pool_id)?,
            state: State::Pending,
            reasons: Vec::new(),
            exit_code: None,
            signal: None,
            attempt: 0,
            nodes: Vec::new(),
            gpus: Vec::new(),
            cpus: self.cpus.unsigned_abs(),
            mem_mib: self.mem_mib.unsigned_abs(),
            disk_mib: self.disk_mib.unsigned_abs(),
            gpu_count: self.gpus.unsigned_abs(),
            gpu_type: self.gpu_type,
            node_count: self.node_count.unsigned_abs(),
            priority: self.priority,
            submitted_at: self.submitted_at,
            begin_at: self.begin_at,
            started_at: None,
            ended_at: None,
            run_s: None,
            time_limit_s: self.time_limit_s.map(i64::unsigned_abs),
            array: None,
            comment: self.comment,
            detail: None,
        })
    }
}

/// Why a job is not even tried: a hold, else a begin time that has not come.
pub(super) fn not_before(
    hold: Option<&str>,
    begin_at: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Option<Reason> {
    match (hold, begin_at) {
        (Some("admin"), _) => Some(Reason::HeldByAdmin),
        (Some(_), _) => Some(Reason::HeldByUser),
        (None, Some(at)) if at > now => Some(Reason::BeginTime),
        _ => None,
    }
}

/// What rows name by number, and the time, as of the same look at the database.
pub(super) struct Names {
    pub pools: HashMap<i32, String>,
    pub tenants: HashMap<i32, String>,
    pub now: DateTime<Utc>,
}

impl Names {
    pub(super) fn pool(&self, id: i32) -> Result<String, StoreError> {
        self.pools.get(&id).cloned().ok_or_else(|| row_error("jobs", "pool_id", id.to_string()))
    }

    fn tenant(&self, id: i32) -> Result<String, StoreError> {
        self.tenants.get(&id).cloned().ok_or_else(|| row_error("jobs", "tenant_id", id.to_string()))
    }
}

/// What is known about a job beside its row.
pub(super) struct Known<'a> {
    pub names: &'a Names,
    /// The attempts to show, in the order of their tasks.
    pub attempts: Vec<Attempt>,
    /// The numbers of the attempts that tasks had before they waited again, by job and task.
    pub earlier: &'a HashMap<(i64, u32), i32>,
    /// The tasks asked for; `None` is all.
    pub only: Option<&'a IndexSet>,
    /// How many pending tasks may still be listed one by one.
    pub room: usize,
}

/// Adds the entries of one job to `out`.
pub(super) fn add_entries(
    out: &mut Vec<Job>,
    row: JobRow,
    known: Known<'_>,
    wanted: Wanted<'_>,
) -> Result<(), StoreError> {
    if row.is_array {
        return add_array(out, row, known, wanted);
    }
    if let Some(attempt) = known.attempts.into_iter().next() {
        out.push(placed(row.into_entry(known.names)?, attempt));
        return Ok(());
    }
    let state = row.state()?;
    // A running job whose attempt is not shown has one in a state that is not wanted.
    if state.active() || !wanted.without_place(state) {
        return Ok(());
    }
    let reasons = match state {
        State::Pending => vec![row.waits(known.names.now)],
        State::Cancelled => vec![row.cancelled_because()],
        _ => vec![row.condition.0.clone()],
    };
    let attempt = known.earlier.get(&(row.id, 0)).copied().unwrap_or(0);
    let ended_at = row.ended_at;
    out.push(Job { state, reasons, attempt, ended_at, ..row.into_entry(known.names)? });
    Ok(())
}

fn add_array(
    out: &mut Vec<Job>,
    row: JobRow,
    known: Known<'_>,
    wanted: Wanted<'_>,
) -> Result<(), StoreError> {
    let set = |column, text: &Option<String>| index_set("jobs", column, text.as_deref().unwrap_or("{}"));
    let indices = set("indices", &row.indices)?;
    let pending = set("pending", &row.pending)?;
    let asked = |set: &IndexSet| known.only.map_or_else(|| set.clone(), |only| set.intersection(only));
    let (waiting, cancelled) = (asked(&pending), asked(&set("cancelled", &row.cancelled)?));
    let throttle = row.throttle();
    let (waits, cancelled_because, ended_at) =
        (row.waits(known.names.now), row.cancelled_because(), row.ended_at);
    let common = row.into_entry(known.names)?;
    let first = out.len();

    if wanted.without_place(State::Pending) && !waiting.is_empty() {
        let rest = Job { reasons: vec![waits], ..common.clone() };
        if wanted.tasks {
            out.extend(waiting.iter().take(known.room).map(|task| Job {
                task: Some(task),
                display_id: task_id(rest.id, task),
                attempt: known.earlier.get(&(rest.id, task)).copied().unwrap_or(0),
                ..rest.clone()
            }));
        } else {
            out.push(Job { display_id: ranges_id(rest.id, &waiting, throttle), ..rest });
        }
    }
    for attempt in known.attempts {
        let task = attempt.task;
        let entry = Job { task: Some(task), display_id: task_id(common.id, task), ..common.clone() };
        out.push(placed(entry, attempt));
    }
    if wanted.without_place(State::Cancelled) && !cancelled.is_empty() {
        out.push(Job {
            display_id: ranges_id(common.id, &cancelled, None),
            state: State::Cancelled,
            reasons: vec![cancelled_because],
            ended_at,
            ..common
        });
    }
    if let Some(entry) = out.get_mut(first) {
        entry.array = Some(ArrayView { indices, pending, throttle });
    }
    Ok(())
}

/// The entry of something that was placed.
fn placed(entry: Job, attempt: Attempt) -> Job {
    Job {
        state: attempt.state,
        reasons: match attempt.state {
            State::Completed => Vec::new(),
            _ => attempt.condition.into_iter().collect(),
        },
        exit_code: attempt.exit_code,
        signal: attempt.signal,
        attempt: attempt.number,
        nodes: attempt.nodes,
        gpus: attempt.gpus,
        started_at: attempt.started_at,
        ended_at: attempt.ended_at,
        run_s: attempt.run_s,
        ..entry
    }
}

fn task_id(job: i64, task: u32) -> String {
    format!("{job}_{task}")
}

/// `12_[4-9,11%2]`, shortened with `...` where there are many ranges.
fn ranges_id(job: i64, tasks: &IndexSet, throttle: Option<u32>) -> String {
    let mut text = format!("{job}_[");
    let start = text.len();
    for (count, &(first, last)) in tasks.ranges().iter().enumerate() {
        if count > 0 {
            text.push(',');
        }
        if text.len() - start > RANGES_SHOWN_MAX {
            text.push_str("...");
            break;
        }
        // Writing to a string cannot fail.
        let _ = if first == last { write!(text, "{first}") } else { write!(text, "{first}-{last}") };
    }
    if let Some(throttle) = throttle {
        let _ = write!(text, "%{throttle}");
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_many_ranges_are_shortened() {
        let few = IndexSet::from_ranges([(4, 9), (11, 11)]);
        assert_eq!(ranges_id(12, &few, Some(2)), "12_[4-9,11%2]");
        let many = IndexSet::from_ranges((0..50_000).map(|i| (2 * i, 2 * i)));
        let id = ranges_id(12, &many, Some(7));
        assert!(id.starts_with("12_[0,2,4,") && id.ends_with(",...%7]") && id.len() < 230, "{id}");
    }
}
