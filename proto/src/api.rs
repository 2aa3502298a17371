//! The bodies of the HTTP API under `/v1`.
//!
//! JSON answers are an object holding `jobs`, `nodes`, `gpus`, `pools` or `results`; keys are snake case with units in the
//! name; times are RFC 3339 in UTC; an absent value is `null` or missing, never a magic number. The paths:
//!
//! | method and path | body → answer |
//! |---|---|
//! | `POST /v1/jobs` | [`Submission`] → 201 [`Submitted`] |
//! | `POST /v1/jobs/batch` | [`SubmissionBatch`] → [`SubmittedBatch`] |
//! | `GET /v1/jobs?…` | [`JobQuery`] → [`JobList`] |
//! | `GET /v1/jobs/{id}` | `12` or `12_3`, with `detail`; all its tasks for an array → [`JobList`] |
//! | `GET /v1/jobs/{id}/why` | → [`JobList`] with reasons worked out now |
//! | `GET /v1/jobs/{id}/wait?timeout_s=` | answers when the job (every task) ended, or at the timeout → [`JobList`] |
//! | `POST /v1/jobs/cancel` | [`CancelRequest`] → [`ActResults`] |
//! | `POST /v1/jobs/{hold,release,requeue}` | [`ActRequest`] → [`ActResults`] |
//! | `GET /v1/nodes`, `GET /v1/nodes/{name}` | → [`NodeList`] |
//! | `POST /v1/nodes/{name}/{drain,resume}` | [`DrainRequest`] / [`ResumeRequest`] → [`NodeList`] |
//! | `GET /v1/pools` | → [`PoolList`] |
//! | `GET /v1/check` | → [`Health`] |
//! | `GET /v1/node-session` | WebSocket for `noded`, see [`crate::session`] |
//! | `GET /metrics`, `GET /v1/openapi.json` | |
//!
//! Every answer that is not 2xx carries [`crate::error::ErrorBody`].

use crate::{ApiError, Condition, IndexSet, State};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The largest script accepted, in bytes.
pub const SCRIPT_BYTES_MAX: usize = 4 << 20;
/// The largest environment accepted, in bytes of names and values.
pub const ENV_BYTES_MAX: usize = 1 << 20;
/// The most submissions in one batch.
pub const SUBMISSION_BATCH_MAX: usize = 1000;
/// The most ids in one cancel, hold, release or requeue.
pub const ACT_IDS_MAX: usize = 10_000;
/// The longest job name, in bytes.
pub const NAME_BYTES_MAX: usize = 200;

/// What to run, where, and under which limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Names the request, scoped to tenant and user: the same key and body give the same job for ever. 1 to 200 bytes.
    pub idempotency_key: String,
    /// The job's name. No control characters.
    pub name: String,
    /// The pool; absent is the default pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The account charged; absent is the user's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The script's text, beginning with `#!`.
    pub script: String,
    /// The script's arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// The job's environment, without the `BC_*` and `SLURM_*` variables the node adds.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The working directory, absolute.
    pub chdir: String,
    /// Pattern of the output file, relative to `chdir`; absent is `slurm-%j.out` (arrays `slurm-%A_%a.out`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Pattern of the error file; absent joins the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The input file's pattern; absent is `/dev/null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// Whether output files are emptied or added to.
    #[serde(default)]
    pub open_mode: OpenMode,
    /// The file mode creation mask, 0 to 0o777.
    pub umask: u32,
    /// Soft resource limits of the submitter, by name (`nofile`, `core`, …); `None` is unlimited. The node caps them by its hard ones.
    #[serde(default)]
    pub rlimits: BTreeMap<String, Option<u64>>,
    /// CPUs on each node, 1 or more.
    pub cpus: u32,
    /// Memory on each node in MiB; absent is the pool's default per CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_mib: Option<u64>,
    /// Local disk on each node in MiB (`--tmp`): booked, not enforced.
    #[serde(default, skip_serializing_if = "nothing")]
    pub disk_mib: u64,
    /// All of each node's CPUs, memory and GPUs (`--exclusive`); `cpus` and `mem_mib` are then minima.
    #[serde(default)]
    pub exclusive: bool,
    /// All of each node's memory (`--mem=0`), with the CPUs asked for.
    #[serde(default)]
    pub mem_all: bool,
    /// Whole GPUs on each node.
    #[serde(default)]
    pub gpus: u32,
    /// The GPU model wanted, as `binfo` shows it, any case; absent is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// How many nodes, 1 or more. The script runs on the first.
    pub nodes: u32,
    /// How many tasks the job means to run (`--ntasks`); shown to the job, not launched by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ntasks: Option<u32>,
    /// CPUs of each task (`--cpus-per-task`), when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_per_task: Option<u32>,
    /// The time limit in seconds; absent is the pool's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<u64>,
    /// A warning signal some time before the limit (`--signal`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warn: Option<WarnSignal>,
    /// The array, for many tasks of the same script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArraySpec>,
    /// Submit held: it waits for `bctl release`.
    #[serde(default)]
    pub hold: bool,
    /// Not before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Begin>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Lowers the priority when positive; negative is for operators.
    #[serde(default)]
    pub nice: i32,
    /// Whether the job may be started again from the beginning after its node failed.
    #[serde(default = "yes")]
    pub requeue: bool,
    /// The host it was submitted from.
    #[serde(default)]
    pub submit_host: String,
    /// The directory it was submitted from.
    #[serde(default)]
    pub submit_dir: String,
}

fn yes() -> bool {
    true
}

/// What happens to what an output file already holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OpenMode {
    /// The file is emptied.
    #[default]
    Truncate,
    /// Output is added at its end.
    Append,
}

/// The indices of an array and how many of its tasks may run at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArraySpec {
    /// The indices: `0-9`, `1,3,5`.
    #[schema(value_type = String)]
    pub indices: IndexSet,
    /// The most tasks running at once; absent is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<u32>,
}

/// A signal sent to the job before its time limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarnSignal {
    /// The signal's number.
    pub signal: i32,
    /// How many seconds before the limit.
    pub before_s: u32,
    /// To the batch script only (`B:`); otherwise to every process of the job.
    pub script_only: bool,
}

/// A begin time: an instant, or a delay counted from when the controller takes the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Begin {
    /// Not before this instant.
    At(DateTime<Utc>),
    /// Not before so many seconds after submission.
    AfterS(u64),
}

/// Many submissions in one request; each succeeds or fails by itself.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmissionBatch {
    /// At most [`SUBMISSION_BATCH_MAX`].
    pub jobs: Vec<Submission>,
}

/// The answer to a submission, given after its commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Submitted {
    /// The job's id.
    pub id: i64,
    /// Whether the key had been seen before, so that this is an earlier request's job.
    pub replayed: bool,
}

/// One answer a submission, in order.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SubmittedBatch {
    /// One entry a submission, in order.
    pub results: Vec<SubmittedResult>,
}

/// Either a job or the error that refused it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SubmittedResult {
    /// Accepted and committed.
    Job(Submitted),
    /// Refused; nothing was stored.
    Error(ApiError),
}

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

/// Which jobs to cancel or signal: by id, or by filter (joined by "and"). Neither is an error.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Ids as [`crate::JobRef`] reads them.
    #[serde(default)]
    pub ids: Vec<String>,
    /// Jobs of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Jobs of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Jobs of this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Jobs in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Send this signal to every process of the running ones instead of cancelling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// With `signal`: to the batch script only.
    #[serde(default)]
    pub script_only: bool,
}

/// Jobs to hold, release or requeue.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActRequest {
    /// Ids as [`crate::JobRef`] reads them.
    pub ids: Vec<String>,
}

/// One result an id, or one a job found by the filter.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ActResults {
    /// The results, in the order of the ids.
    pub results: Vec<ActResult>,
}

/// What became of one id.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ActResult {
    /// As it was asked for.
    pub id: String,
    /// What happened.
    pub outcome: ActOutcome,
    /// For an error: what and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
}

/// What became of a cancel, signal, hold, release or requeue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActOutcome {
    /// Done, and committed (a running job's processes are being ended).
    Done,
    /// Nothing to do: it had ended, or was already so.
    Already,
    /// Refused: see `error`.
    Error,
}

/// Nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// By name.
    pub nodes: Vec<Node>,
}

/// A node, what it has, and what holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Whether its daemon has a session.
    pub connection: Connection,
    /// Seconds since the controller last heard from it.
    pub last_seen_s: Option<f64>,
    /// The daemon's version.
    pub version: Option<String>,
    /// How it enforces: `v1`, `v2`, `hybrid`.
    pub cgroup_mode: Option<String>,
    /// Whether it takes new work: no open hold.
    pub eligible: bool,
    /// Draining (jobs still there) or drained (none), when a hold says so.
    pub drain: Option<Drain>,
    /// Open holds on the node or its GPUs.
    pub holds: Vec<Hold>,
    /// CPUs it may give to jobs.
    pub cpus: u32,
    /// CPUs booked now.
    pub cpus_booked: u32,
    /// Memory it may give to jobs, MiB.
    pub mem_mib: u64,
    /// Memory booked now, MiB.
    pub mem_booked_mib: u64,
    /// Local disk it may give to jobs, MiB.
    #[serde(default)]
    pub disk_mib: u64,
    /// Local disk booked now, MiB.
    #[serde(default)]
    pub disk_booked_mib: u64,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// Jobs on it now.
    pub jobs: Vec<String>,
}

/// Whether a node's daemon has a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// It has one.
    Connected,
    /// It has none; nothing is released.
    Disconnected,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Drain {
    /// Jobs are still there.
    Draining,
    /// Nothing runs there: safe to work on.
    Drained,
}

/// Why a node, GPU or atom takes no new work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// Its id.
    pub id: i64,
    /// What kind: `drain`, `unreachable`, …
    pub kind: String,
    /// The GPU held, by UUID; absent is the whole node.
    pub gpu: Option<String>,
    /// Who put it.
    pub owner: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: DateTime<Utc>,
}

/// A physical GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: String,
    /// Its index on the node, for people; never used to tell GPUs apart.
    pub index: u32,
    /// Its model: `a100-80gb`.
    pub model: String,
    /// Its memory, MiB.
    pub mem_mib: u64,
    /// How it is shared: `whole`, `mig`, `timeslice`, `mps`.
    pub mode: String,
    /// Whether it takes new work.
    pub eligible: bool,
    /// The job that has it now.
    pub job: Option<String>,
}

/// A drain.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Why; shown to everybody who looks.
    pub reason: String,
}

/// The end of a drain.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {
    /// Lift other owners' holds too.
    #[serde(default)]
    pub all: bool,
}

/// Pools.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct PoolList {
    /// By name.
    pub pools: Vec<Pool>,
}

/// A pool and what is free in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Whether a job that names no pool goes here.
    pub default: bool,
    /// The longest time limit allowed, seconds; absent is none.
    pub time_limit_max_s: Option<u64>,
    /// The time limit of a job that names none; absent is unlimited.
    pub time_limit_default_s: Option<u64>,
    /// Memory per CPU of a job that names none, MiB.
    pub mem_per_cpu_default_mib: u64,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// Jobs pending (array tasks counted).
    pub pending: u64,
    /// Jobs running.
    pub running: u64,
}

/// The controller's health.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether every check passed.
    pub ok: bool,
    /// The checks.
    pub checks: Vec<HealthCheck>,
    /// The controller's version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// The database, for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<DatabaseHealth>,
    /// Nodes with a session / nodes known.
    pub nodes_connected: u32,
    /// Nodes known.
    pub nodes_total: u32,
}

/// One check of the controller's health.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HealthCheck {
    /// Its stable name: `database`, `clock.skew`, …
    pub name: String,
    /// Whether it passed.
    pub ok: bool,
    /// What was found.
    pub message: String,
}

/// Where the database is.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DatabaseHealth {
    /// Its URL, with any password left out.
    pub url: String,
    /// Whether ctld runs it itself.
    pub embedded: bool,
    /// Its process id, when embedded.
    pub pid: Option<u32>,
}

/// Left out of a body, so that one without it stays the same bytes, and its idempotency key the same submission.
fn nothing(amount: &u64) -> bool {
    *amount == 0
}
