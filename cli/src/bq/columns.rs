//! The columns of a list: each with its name, Slurm's letter, its title, and how a job fills it.
//!
//! One table decides them all, for `-o`, `-S` and `--parsable`. Columns named in units are for programs (seconds, UTC); those of
//! Slurm's letters look as `squeue` shows them, in local time and with Slurm's reason names.

use super::row::Row;
use crate::colour;
use crate::table::{Column, Paint};
use crate::wall;
use chrono::{DateTime, Utc};
use proto::duration::{Short, show_limit};
use proto::{Reason, State};
use std::borrow::Cow;
use std::cmp::Ordering;

type Fill = for<'r> fn(&'r Row<'_>) -> Cow<'r, str>;

/// What a column can be.
pub struct Kind {
    /// Its name in `-o` and `-S`.
    pub name: &'static str,
    /// Slurm's letter for it, if it has one.
    pub letter: Option<char>,
    /// What stands on top.
    pub title: &'static str,
    /// Numbers: to the right, and sorted as such.
    pub number: bool,
    /// May be cut on a narrow terminal.
    pub cut: bool,
    /// The cell.
    pub fill: Fill,
}

const fn text(name: &'static str, letter: Option<char>, title: &'static str, fill: Fill) -> Kind {
    Kind { name, letter, title, number: false, cut: true, fill }
}

const fn whole(name: &'static str, letter: Option<char>, title: &'static str, fill: Fill) -> Kind {
    Kind { name, letter, title, number: false, cut: false, fill }
}

const fn number(name: &'static str, letter: Option<char>, title: &'static str, fill: Fill) -> Kind {
    Kind { name, letter, title, number: true, cut: false, fill }
}

#[rustfmt::skip]
const KINDS: &[Kind] = &[
    Kind { name: "id", letter: Some('i'), title: "JOBID", number: true, cut: false, fill: |r| s(&r.display_id) },
    number("job_id", Some('A'), "JOBID", |r| own(r.id)),
    number("array_job_id", Some('F'), "ARRAY_JOB_ID", |r| own(r.id)),
    number("task", Some('K'), "ARRAY_TASK_ID", |r| or_na(r.task)),
    text("name", Some('j'), "NAME", |r| s(&r.name)),
    text("user", Some('u'), "USER", |r| s(&r.user)),
    text("tenant", None, "TENANT", |r| s(&r.tenant)),
    text("account", Some('a'), "ACCOUNT", |r| opt(&r.account)),
    text("pool", Some('P'), "POOL", |r| s(&r.pool)),
    whole("state", None, "STATE", |r| s(r.state.name())),
    whole("slurm_state", Some('T'), "STATE", |r| s(r.state.slurm())),
    whole("st", Some('t'), "ST", |r| s(r.state.short())),
    text("reason", None, "REASON", |r| s(reason(r))),
    text("slurm_reason", Some('r'), "REASON", |r| s(slurm_reason(r))),
    text("nodelist_reason", None, "NODELIST(REASON)", |r| nodes_or(r, reason(r))),
    text("nodelist_slurm_reason", Some('R'), "NODELIST(REASON)", |r| nodes_or(r, slurm_reason(r))),
    text("nodes", Some('N'), "NODELIST", |r| s_own(r.nodes.join(","))),
    number("node_count", Some('D'), "NODES", |r| own(r.node_count)),
    number("cpus", Some('c'), "MIN_CPUS", |r| own(r.cpus)),
    number("cpus_total", Some('C'), "CPUS", |r| own(u64::from(r.cpus) * u64::from(r.node_count))),
    number("mem_mib", None, "MEM_MIB", |r| own(r.mem_mib)),
    number("mem", Some('m'), "MIN_MEMORY", |r| s_own(proto::memory::show(r.mem_mib))),
    number("disk_mib", None, "DISK_MIB", |r| own(r.disk_mib)),
    number("disk", Some('d'), "MIN_TMP_DISK", |r| s_own(proto::memory::show(r.disk_mib))),
    number("gpu_count", None, "GPUS", |r| own(r.gpu_count)),
    text("gpu_type", None, "GPU_TYPE", |r| opt(&r.gpu_type)),
    text("gpus", None, "GPU_UUIDS", |r| s_own(r.gpus.join(","))),
    text("tres_per_node", Some('b'), "TRES_PER_NODE", tres_per_node),
    number("priority", Some('Q'), "PRIORITY", |r| own(r.priority)),
    number("time", Some('M'), "TIME", |r| s_own(Short(r.run_s.unwrap_or(0)).to_string())),
    number("time_limit", Some('l'), "TIME_LIMIT", |r| s_own(limit(r.time_limit_s))),
    number("time_left", Some('L'), "TIME_LEFT", time_left),
    number("run_s", None, "RUN_S", |r| or_empty(r.run_s)),
    number("time_limit_s", None, "TIME_LIMIT_S", |r| or_empty(r.time_limit_s)),
    whole("submitted_at", None, "SUBMITTED_AT", |r| s(&r.submitted_at)),
    whole("begin_at", None, "BEGIN_AT", |r| opt(&r.begin_at)),
    whole("started_at", None, "STARTED_AT", |r| opt(&r.started_at)),
    whole("ended_at", None, "ENDED_AT", |r| opt(&r.ended_at)),
    whole("submit_time", Some('V'), "SUBMIT_TIME", |r| local(Some(&r.submitted_at))),
    whole("start_time", Some('S'), "START_TIME", |r| local(r.started_at.as_deref())),
    whole("end_time", Some('e'), "END_TIME", |r| local(r.ended_at.as_deref())),
    number("exit_code", None, "EXIT_CODE", |r| or_empty(r.exit_code)),
    number("signal", None, "SIGNAL", |r| or_empty(r.signal)),
    number("attempt", None, "ATTEMPT", |r| own(r.attempt)),
    text("comment", Some('k'), "COMMENT", |r| opt(&r.comment)),
];

/// The columns of a plain list, as `squeue` has them.
pub const PLAIN: &[&str] = &["id", "pool", "name", "user", "st", "time", "node_count", "nodelist_reason"];
/// Those of `--long`.
pub const LONG: &[&str] =
    &["id", "pool", "name", "user", "state", "time", "time_limit", "node_count", "nodelist_reason"];
/// Those of `--parsable`.
#[rustfmt::skip]
pub const PARSABLE: &[&str] = &[
    "id", "name", "user", "account", "pool", "state", "reason", "node_count", "nodes", "cpus", "mem_mib", "gpu_count",
    "priority", "submitted_at", "started_at", "ended_at", "run_s", "time_limit_s", "exit_code", "signal",
];

/// Those that the brief list of the controller holds everything for.
#[rustfmt::skip]
pub const BRIEF: &[&str] = &[
    "id", "job_id", "array_job_id", "task", "name", "user", "pool", "state", "slurm_state", "st", "reason", "slurm_reason",
    "nodelist_reason", "nodelist_slurm_reason", "nodes", "node_count", "time", "time_limit", "time_left", "run_s",
    "time_limit_s",
];

/// The column of this name.
pub fn named(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name.eq_ignore_ascii_case(name))
}

/// The column of Slurm's letter.
pub fn lettered(letter: char) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.letter == Some(letter))
}

/// Every column, for messages and the manual.
pub fn all() -> &'static [Kind] {
    KINDS
}

impl Kind {
    /// It as a table's column.
    pub fn column(&self) -> Column {
        let states = matches!(self.name, "state" | "st" | "slurm_state");
        let paint: Option<Paint> = if states { Some(colour::of_job_state) } else { None };
        Column { title: self.title.into(), right: self.number, cut: self.cut, paint }
    }

    /// Whether the brief list holds what it shows.
    pub fn brief(&self) -> bool {
        BRIEF.contains(&self.name)
    }

    /// The order of two jobs by this column.
    pub fn compare(&self, one: &Row<'_>, other: &Row<'_>) -> Ordering {
        match self.name {
            "id" => (one.id, one.task).cmp(&(other.id, other.task)),
            "time" => one.run_s.cmp(&other.run_s),
            "mem" => one.mem_mib.cmp(&other.mem_mib),
            // No limit is the longest.
            "time_limit" | "time_left" => {
                one.time_limit_s.unwrap_or(u64::MAX).cmp(&other.time_limit_s.unwrap_or(u64::MAX))
            }
            "state" | "st" | "slurm_state" => one.state.cmp(&other.state),
            _ => {
                let (one, other) = ((self.fill)(one), (self.fill)(other));
                match (self.number, one.parse::<i64>(), other.parse::<i64>()) {
                    (true, Ok(one), Ok(other)) => one.cmp(&other),
                    _ => one.cmp(&other),
                }
            }
        }
    }
}

fn s(text: &str) -> Cow<'_, str> {
    Cow::Borrowed(text)
}

fn s_own<'r>(text: String) -> Cow<'r, str> {
    Cow::Owned(text)
}

fn own<'r>(value: impl ToString) -> Cow<'r, str> {
    Cow::Owned(value.to_string())
}

fn opt(text: &Option<String>) -> Cow<'_, str> {
    Cow::Borrowed(text.as_deref().unwrap_or_default())
}

fn or_empty<'r>(value: Option<impl ToString>) -> Cow<'r, str> {
    value.map_or(Cow::Borrowed(""), own)
}

fn or_na<'r>(value: Option<impl ToString>) -> Cow<'r, str> {
    value.map_or(Cow::Borrowed("N/A"), own)
}

fn reason(row: &Row<'_>) -> &'static str {
    row.reason().map_or("None", Reason::name)
}

fn slurm_reason(row: &Row<'_>) -> &'static str {
    row.reason().map_or("None", Reason::slurm)
}

/// As `squeue`: the nodes of a job that has some, the reason in parentheses of one that waits or ended badly.
fn nodes_or<'r>(row: &'r Row<'_>, reason: &str) -> Cow<'r, str> {
    let waits = matches!(row.state, State::Pending | State::Booked);
    let ended_badly = row.state.terminal() && row.state != State::Completed;
    match waits || ended_badly || row.nodes.is_empty() {
        true if row.state == State::Completed => Cow::Borrowed(""),
        true => Cow::Owned(format!("({reason})")),
        false => Cow::Owned(row.nodes.join(",")),
    }
}

fn limit(seconds: Option<u64>) -> String {
    match seconds {
        Some(seconds) => Short(seconds).to_string(),
        None => show_limit(None),
    }
}

fn time_left<'r>(row: &'r Row<'_>) -> Cow<'r, str> {
    match row.time_limit_s {
        None => Cow::Borrowed("UNLIMITED"),
        Some(limit) => Cow::Owned(Short(limit.saturating_sub(row.run_s.unwrap_or(0))).to_string()),
    }
}

fn tres_per_node<'r>(row: &'r Row<'_>) -> Cow<'r, str> {
    match (row.gpu_count, &row.gpu_type) {
        (0, _) => Cow::Borrowed("N/A"),
        (count, None) => Cow::Owned(format!("gres/gpu:{count}")),
        (count, Some(model)) => Cow::Owned(format!("gres/gpu:{model}:{count}")),
    }
}

fn local<'r>(instant: Option<&str>) -> Cow<'r, str> {
    match instant.and_then(|text| text.parse::<DateTime<Utc>>().ok()) {
        Some(at) => Cow::Owned(wall::show_slurm(at)),
        None => Cow::Borrowed("N/A"),
    }
}
