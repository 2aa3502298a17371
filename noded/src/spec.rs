//! What a shepherd is told of its attempt: everything worked out, nothing left to look up.
//!
//! noded makes it from the assignment, the user database and the configuration; the launcher passes it on unread, so
//! that neither the launcher nor a shepherd ever asks a name service or a clock of the world.

use crate::attempt::StateDir;
use crate::cgroup::Layout;
use proto::api::WarnSignal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the launcher is told once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LauncherSetup {
    /// Where the attempts lie.
    pub state_dir: StateDir,
    /// The control groups.
    pub layout: Layout,
    /// The node's name, for the banner.
    pub node: String,
    /// This boot's id.
    pub boot_id: String,
    /// The soft limit of open files that noded was started with: jobs get this, not what noded raised it to.
    pub nofile_soft: u64,
}

/// What one shepherd is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttemptSpec {
    /// The allocation.
    pub id: i64,
    /// The job for people: `12`, `12_3`.
    pub job: String,
    /// The script's text.
    pub script: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The whole environment but for what only the child knows.
    pub env: BTreeMap<String, String>,
    /// The user's home as the user database has it, when `HOME` is ours to set: replaced by `/` where it does not exist.
    pub home: Option<String>,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Working directory.
    pub chdir: String,
    /// Output file, absolute or relative to `chdir`.
    pub output: String,
    /// Error file; absent joins the output.
    pub error: Option<String>,
    /// Input file; absent is `/dev/null`.
    pub input: Option<String>,
    /// Whether files are added to rather than emptied.
    pub append: bool,
    /// File mode creation mask.
    pub umask: u32,
    /// Soft resource limits; `None` is unlimited.
    pub rlimits: BTreeMap<String, Option<u64>>,
    /// CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub mem_mib: u64,
    /// Processes and threads.
    pub pids_max: u64,
    /// Seconds it may run.
    pub time_limit_s: Option<u64>,
    /// Seconds between SIGTERM and SIGKILL at the limit.
    pub grace_s: u32,
    /// A signal before the limit.
    pub warn: Option<WarnSignal>,
}
