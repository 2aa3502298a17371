//! What a list needs of a job, and no more: with 10,000 jobs most of a listing's time is reading the answer.
//!
//! The entries are those of the full list or of the brief one, which has only what [`super::columns::BRIEF`] needs; what it lacks
//! is empty here. Strings are borrowed from the answer where they can be. Instants stay text until somebody asks to see them.

use proto::{Reason, State};
use serde::Deserialize;
use std::borrow::Cow;

/// The list as it comes.
#[derive(Debug, Deserialize)]
pub struct Rows<'a> {
    /// The jobs.
    #[serde(borrow)]
    pub jobs: Vec<Row<'a>>,
    /// Whether the controller left some out.
    #[serde(default)]
    pub truncated: bool,
}

/// One entry.
#[derive(Debug, Deserialize)]
pub struct Row<'a> {
    /// See [`proto::api::Job`].
    pub id: i64,
    /// The array index.
    pub task: Option<u32>,
    /// As people write it.
    #[serde(borrow)]
    pub display_id: Cow<'a, str>,
    /// The name.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// The user.
    #[serde(borrow)]
    pub user: Cow<'a, str>,
    /// Who is billed.
    #[serde(borrow, default)]
    pub tenant: Cow<'a, str>,
    /// The account.
    pub account: Option<String>,
    /// The pool.
    #[serde(borrow)]
    pub pool: Cow<'a, str>,
    /// The state.
    pub state: State,
    /// Why it waits, or how it ended: of the full list.
    #[serde(default)]
    reasons: Vec<Why>,
    /// The same of the brief one.
    reason: Option<Reason>,
    /// The exit status.
    pub exit_code: Option<i32>,
    /// The signal.
    pub signal: Option<i32>,
    /// The attempt.
    #[serde(default)]
    pub attempt: i32,
    /// Its nodes.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Its GPUs.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// CPUs on each node.
    #[serde(default)]
    pub cpus: u32,
    /// Memory on each node.
    #[serde(default)]
    pub mem_mib: u64,
    /// Local disk on each node.
    #[serde(default)]
    pub disk_mib: u64,
    /// GPUs on each node.
    #[serde(default)]
    pub gpu_count: u32,
    /// Their model.
    pub gpu_type: Option<String>,
    /// How many nodes.
    pub node_count: u32,
    /// The priority.
    #[serde(default)]
    pub priority: i64,
    /// Taken at.
    #[serde(borrow, default)]
    pub submitted_at: Cow<'a, str>,
    /// Not before.
    pub begin_at: Option<String>,
    /// Started at.
    pub started_at: Option<String>,
    /// Ended at.
    pub ended_at: Option<String>,
    /// Seconds it ran.
    pub run_s: Option<u64>,
    /// Its limit.
    pub time_limit_s: Option<u64>,
    /// Free text.
    #[serde(default)]
    pub comment: Option<String>,
}

impl Row<'_> {
    /// Why it waits, or how it ended.
    pub fn reason(&self) -> Option<Reason> {
        self.reason.or_else(|| self.reasons.first().map(|why| why.reason))
    }
}

/// A reason without its message and numbers.
#[derive(Debug, Deserialize)]
pub struct Why {
    /// Which.
    pub reason: Reason,
}
