//! The messages of a node session: one WebSocket, JSON text frames, `GET /v1/node-session`.
//!
//! The node speaks first ([`Hello`]); ctld answers [`ControllerMessage::Welcome`], which raises the node's session epoch and
//! fences out an older session, then a full [`Target`]. From then on ctld sends changes of the target and the node sends
//! reports. The target is what should be so; the node converges. Times travel as ages counted on the sender's monotonic
//! clock at the moment of sending: the database turns an age into an instant, so a wrong clock cannot fake anything.
//!
//! A report is kept and sent again (same `seq`, same events, ages recomputed) until it is acknowledged, across restarts of
//! either side; ctld drops what it has already recorded. Only after the acknowledgement of its [`Ended`] may a node forget
//! an allocation.

use crate::api::{OpenMode, Usage, WarnSignal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of these messages; a node and a controller that differ refuse each other by name.
pub const PROTOCOL: u32 = 1;
/// The longest frame either side sends, bytes. A target that is larger is sent in parts.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// How often a node sends [`NodeMessage::Heartbeat`], seconds.
pub const HEARTBEAT_S: u64 = 5;

/// What a node says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NodeMessage {
    /// The first message.
    Hello(Hello),
    /// Facts about allocations.
    Report(Report),
    /// It lives, and has applied the target up to this generation.
    Heartbeat {
        /// The last generation applied.
        observed_generation: u64,
    },
    /// The answer to a command.
    CommandResult {
        /// The command's id.
        id: i64,
        /// What went wrong, if it did.
        error: Option<String>,
    },
}

/// Who the node is and what it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The node's name.
    pub node: String,
    /// The pool it belongs to; created by ctld if its configuration allows.
    pub pool: String,
    /// The daemon's version.
    pub version: String,
    /// The kernel's boot id: another one means that nothing from before runs any more.
    pub boot_id: String,
    /// The journal's id: another one means that the node lost its memory.
    pub journal_id: String,
    /// `v1`, `v2` or `hybrid`.
    pub cgroup_mode: String,
    /// What it may give to jobs.
    pub inventory: Inventory,
}

/// What a node may give to jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub mem_mib: u64,
    /// Local disk, MiB.
    #[serde(default)]
    pub disk_mib: u64,
    /// GPUs, in no particular order.
    pub gpus: Vec<GpuFacts>,
}

/// A GPU as the node found or was told it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Its UUID: what tells it apart.
    pub uuid: String,
    /// Its index on the node, for people.
    pub index: u32,
    /// Its model, lower case: `a100-80gb`.
    pub model: String,
    /// Its memory, MiB.
    pub mem_mib: u64,
    /// Declared in the configuration rather than found: there is no device behind it.
    pub declared: bool,
}

/// Facts about allocations, in the order they happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The report's number within the session, from 1.
    pub seq: u64,
    /// The last target generation applied.
    pub observed_generation: u64,
    /// What happened.
    pub events: Vec<AllocationEvent>,
}

/// Something that happened to an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocationEvent {
    /// Which.
    pub allocation_id: i64,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The script's first instruction is about to run.
    Started {
        /// Microseconds ago.
        age_us: u64,
        /// The output files, with their patterns filled in: output, error, input.
        paths: [String; 3],
    },
    /// The script ended, or was asked to; its processes are still being ended.
    Completing,
    /// It is over and the node is clean: no process, no control group is left.
    Ended(Ended),
}

/// How an allocation ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Microseconds ago that the node was clean.
    pub age_us: u64,
    /// Microseconds ago that the script started; absent if it never did.
    pub started_age_us: Option<u64>,
    /// Why it ended.
    pub cause: EndCause,
    /// The script's exit status, 0 to 255, if it exited.
    pub exit_code: Option<i32>,
    /// The signal that ended the script.
    pub signal: Option<i32>,
    /// For people: `chdir "/nonesuch": no such file or directory`.
    pub message: Option<String>,
    /// What it used.
    pub usage: Usage,
}

/// Why an allocation ended. The controller derives the state from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndCause {
    /// The script ended by itself, with an exit status or by a signal.
    Exited,
    /// The kernel had killed a process of it for memory (whatever the exit status).
    OutOfMemory,
    /// The time limit ended it.
    TimeLimit,
    /// The target asked for its end ([`Stop`]).
    Stopped,
    /// It could not be launched: message says at which step (user unknown, chdir, output, exec…).
    LaunchFailed,
    /// The machine was rebooted under it.
    Rebooted,
    /// Its shepherd was killed, or the node lost its records: the exit status is not known. Nothing is left running.
    Lost,
    /// The node refused it: it overlaps one that it holds.
    Refused,
}

/// What ctld says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ControllerMessage {
    /// The session is open.
    Welcome {
        /// The node's row.
        node_id: i64,
        /// The session's epoch.
        session_epoch: i64,
    },
    /// The session is refused, for good until somebody changes something.
    Refused {
        /// Why.
        message: String,
    },
    /// What should be so.
    Target(Target),
    /// Reports up to this number are recorded.
    Ack {
        /// [`Report::seq`].
        seq: u64,
    },
    /// A one-shot act.
    Command(Command),
}

/// The target, whole or as a change. A whole target may come in parts: `full` on the first, `more` on all but the last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The generation this makes: the session's epoch times 2^32, and a count that goes up within the session.
    pub generation: u64,
    /// The whole target: an allocation the node runs that is neither in `run` nor in `keep` must be ended and forgotten.
    pub full: bool,
    /// Further parts follow.
    pub more: bool,
    /// Allocations to launch, unless the node knows them already.
    pub run: Vec<Assignment>,
    /// In a full target: allocations that the node has reported started and should go on with. One that the node does not
    /// know is reported as [`EndCause::Lost`].
    pub keep: Vec<i64>,
    /// Allocations to end.
    pub stop: Vec<Stop>,
    /// Time limits: in a full target those of everything in `keep`, then each that has changed.
    #[serde(default)]
    pub limits: Vec<Limit>,
}

/// How long an allocation may run, from its script's start. It replaces what the assignment said or an earlier one did; one that
/// is over by now ends the script at once. The same one again changes nothing, and an end that has begun goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Which.
    pub allocation_id: i64,
    /// Seconds it may run; absent is unlimited.
    pub time_limit_s: Option<u64>,
}

/// An allocation to end: SIGCONT and SIGTERM to every process, grace, SIGKILL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// Which.
    pub allocation_id: i64,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace_s: u32,
    /// For the banner in the job's error file: `CANCELLED by alice`.
    pub banner: String,
}

/// All that a node needs to run one attempt of a job or array task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The allocation: unique for ever, so one that is known is never launched twice.
    pub allocation_id: i64,
    /// The job.
    pub job_id: i64,
    /// The array index.
    pub task: Option<u32>,
    /// For an array task: what `SLURM_ARRAY_TASK_COUNT`, `_MIN`, `_MAX`, `_STEP` say.
    pub array: Option<ArrayFacts>,
    /// The attempt, from 1.
    pub attempt: i32,
    /// This node runs the script; the others of the job only hold their share.
    pub runs_script: bool,
    /// The cluster's name, for `SLURM_CLUSTER_NAME`.
    #[serde(default)]
    pub cluster: String,
    /// The job's name.
    pub name: String,
    /// User name; the node checks that it is this uid's.
    pub user: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Who is billed.
    pub tenant: String,
    /// The account.
    pub account: Option<String>,
    /// The pool.
    pub pool: String,
    /// The script's text.
    pub script: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The submitter's environment.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub chdir: String,
    /// Patterns of output, error and input.
    pub output: Option<String>,
    /// See `output`.
    pub error: Option<String>,
    /// See `output`.
    pub input: Option<String>,
    /// Empty or add to.
    pub open_mode: OpenMode,
    /// File mode creation mask.
    pub umask: u32,
    /// Soft limits; `None` is unlimited.
    pub rlimits: BTreeMap<String, Option<u64>>,
    /// CPUs here.
    pub cpus: u32,
    /// Memory here, MiB.
    pub mem_mib: u64,
    /// Local disk here, MiB: booked for it, not enforced.
    #[serde(default)]
    pub disk_mib: u64,
    /// GPUs here, by UUID.
    pub gpus: Vec<String>,
    /// Every node of the job, in order; the first runs the script.
    pub nodes: Vec<String>,
    /// Tasks asked for.
    pub ntasks: Option<u32>,
    /// CPUs a task asked for.
    pub cpus_per_task: Option<u32>,
    /// Seconds it may run; absent is unlimited.
    pub time_limit_s: Option<u64>,
    /// Seconds between SIGTERM and SIGKILL.
    pub grace_s: u32,
    /// A signal before the limit.
    pub warn: Option<WarnSignal>,
    /// Where it was submitted.
    pub submit_host: String,
    /// Where it was submitted.
    pub submit_dir: String,
    /// Start of this attempt in the book, seconds since the epoch, for `SLURM_JOB_START_TIME`.
    pub start_epoch_s: i64,
}

/// The shape of a task's array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayFacts {
    /// How many tasks.
    pub count: u64,
    /// The smallest index.
    pub min: u32,
    /// The largest index.
    pub max: u32,
    /// The step between them, 1 if there is no single one.
    pub step: u32,
}

/// A one-shot act on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Its id, under which it is answered.
    pub id: i64,
    /// Unique per node for ever: a command seen before is answered, not run again.
    pub idempotency_key: String,
    /// It waits until the node has applied this generation of its target.
    #[serde(default)]
    pub min_generation: u64,
    /// Whether it may be carried out again when the node does not know whether it has been.
    #[serde(default)]
    pub retry_safe: bool,
    /// What to do.
    pub act: CommandAct,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case")]
pub enum CommandAct {
    /// Send a signal to an allocation's processes.
    Signal {
        /// Which.
        allocation_id: i64,
        /// The signal's number.
        signal: i32,
        /// To the batch script only.
        script_only: bool,
    },
}
