//! Looking at jobs: the question, and the entries of the answer.

use crate::{Condition, IndexSet, Reason, State};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which jobs to list. Filters are joined by "and", lists within one by "or" (comma separated).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct JobQuery {
    /// Ids as [`crate::JobRef`] reads them. An id that never existed is NOT_FOUND.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<String>,
    /// State names (ours or Slurm's), or `all`; absent is every state that is not terminal, or all when `ids` are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<String>,
    /// User names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<String>,
    /// Job names (exact).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// Pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<String>,
    /// Accounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounts: Option<String>,
    /// Nodes the jobs run on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// One entry a pending task instead of one for an array's pending rest.
    #[serde(default)]
    pub tasks: bool,
    /// At most so many entries (default and most: 100,000).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Jobs. An array shows as one entry for its pending rest and one for each task that was started.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The entries, pending ones in the order they would be tried.
    pub jobs: Vec<Job>,
    /// Whether `limit` cut the list.
    #[serde(default)]
    pub truncated: bool,
}

/// A job that is not an array, one task of an array, or the pending rest of an array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// The job's id, a 64-bit integer.
    pub id: i64,
    /// The array index; absent for a job that is no array and for an array's pending rest.
    pub task: Option<u32>,
    /// As people write it: `12`, `12_3`, `12_[4-9%2]`.
    pub display_id: String,
    /// Its name.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// Who is billed.
    pub tenant: String,
    /// The account charged.
    pub account: Option<String>,
    /// Where it may run.
    pub pool: String,
    /// Its state.
    pub state: State,
    /// Why it waits, or why it ended as it did; the first is the one shown in one-line views.
    pub reasons: Vec<Condition>,
    /// The script's exit status, 0 to 255.
    pub exit_code: Option<i32>,
    /// The signal that ended the script.
    pub signal: Option<i32>,
    /// The attempt's number, from 1; 0 when none was made yet.
    pub attempt: i32,
    /// The nodes it runs or ran on.
    pub nodes: Vec<String>,
    /// The GPUs it holds or held, by UUID.
    pub gpus: Vec<String>,
    /// CPUs on each node.
    pub cpus: u32,
    /// Memory on each node in MiB.
    pub mem_mib: u64,
    /// Local disk on each node in MiB.
    #[serde(default)]
    pub disk_mib: u64,
    /// GPUs asked for on each node.
    pub gpu_count: u32,
    /// The GPU model asked for.
    pub gpu_type: Option<String>,
    /// How many nodes it asks for.
    pub node_count: u32,
    /// Its priority; higher goes first.
    pub priority: i64,
    /// When the controller took it.
    pub submitted_at: DateTime<Utc>,
    /// Not before this.
    pub begin_at: Option<DateTime<Utc>>,
    /// When its script started.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended and its nodes were clean.
    pub ended_at: Option<DateTime<Utc>>,
    /// Seconds it ran (so far), suspended time left out; absent if it never ran.
    pub run_s: Option<u64>,
    /// Its time limit in seconds; absent is unlimited.
    pub time_limit_s: Option<u64>,
    /// For an array: the whole and the rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayView>,
    /// Free text given at submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// More, where one job is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<JobDetail>>,
}

/// Jobs, a line's worth of each: the entries of [`JobList`] in the same order, and a quarter of its bytes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct BriefList {
    /// The entries, pending ones in the order they would be tried.
    pub jobs: Vec<BriefJob>,
    /// Whether `limit` cut the list.
    #[serde(default)]
    pub truncated: bool,
}

/// What one line about an entry shows; each field means what it does in [`Job`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BriefJob {
    /// The job's id, a 64-bit integer.
    pub id: i64,
    /// The array index; absent for a job that is no array and for an array's pending rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// As people write it: `12`, `12_3`, `12_[4-9%2]`.
    pub display_id: String,
    /// Its name.
    pub name: String,
    /// Who submitted it.
    pub user: String,
    /// Where it may run.
    pub pool: String,
    /// Its state.
    pub state: State,
    /// Why it waits, or why it ended as it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The nodes it runs or ran on; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// How many nodes it asks for.
    pub node_count: u32,
    /// Seconds it ran (so far); absent if it never ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_s: Option<u64>,
    /// Its time limit in seconds; absent is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<u64>,
}

impl From<Job> for BriefJob {
    fn from(job: Job) -> BriefJob {
        BriefJob {
            id: job.id,
            task: job.task,
            display_id: job.display_id,
            name: job.name,
            user: job.user,
            pool: job.pool,
            state: job.state,
            reason: job.reasons.first().map(|why| why.reason),
            nodes: job.nodes,
            node_count: job.node_count,
            run_s: job.run_s,
            time_limit_s: job.time_limit_s,
        }
    }
}

/// An array as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArrayView {
    /// Every index submitted.
    #[schema(value_type = String)]
    pub indices: IndexSet,
    /// The indices not yet placed.
    #[schema(value_type = String)]
    pub pending: IndexSet,
    /// The most tasks running at once.
    pub throttle: Option<u32>,
}

/// What only the view of one job shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobDetail {
    /// The submitter's user id.
    pub uid: u32,
    /// The submitter's group id.
    pub gid: u32,
    /// The script's arguments.
    pub args: Vec<String>,
    /// The working directory.
    pub chdir: String,
    /// Pattern or, once it started, path of the output file.
    pub output: String,
    /// Pattern or path of the error file.
    pub error: String,
    /// Pattern or path of the input file.
    pub input: String,
    /// The host it was submitted from.
    pub submit_host: String,
    /// Whether it may be started again after its node failed.
    pub requeue: bool,
    /// What it used, once it ended.
    pub usage: Option<Usage>,
    /// The script, for its owner and operators.
    pub script: Option<String>,
}

/// What one attempt used, as the node's control groups counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// CPU time in microseconds, daemonised children included.
    pub cpu_us: u64,
    /// The most memory in use at once in bytes, page cache included where the kernel counts it.
    pub mem_peak_bytes: Option<u64>,
    /// Processes the kernel killed for memory.
    pub oom_kills: u64,
}
