//! Submitting: what to run, and the answer.

use crate::{ApiError, IndexSet};
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
    /// No time limit, whatever the pool's default. Excludes `time_limit_s`; refused where the pool has a longest one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub time_unlimited: bool,
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
    /// The reservation to run in, by name; its pool is then the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
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

/// Fields that came later are written only when they say something: what an older body hashes to stays the same.
fn is_false(value: &bool) -> bool {
    !value
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

/// Left out of a body, so that one without it stays the same bytes, and its idempotency key the same submission.
fn nothing(amount: &u64) -> bool {
    *amount == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_from_before_a_field_was_there_is_read_and_written_alike() {
        let body = serde_json::json!({ "idempotency_key": "k", "name": "n", "script": "#!/bin/sh\n", "chdir": "/",
            "umask": 18, "cpus": 1, "nodes": 1 });
        let submission: Submission = serde_json::from_value(body).unwrap();
        assert!(!submission.time_unlimited);
        let written = serde_json::to_string(&submission).unwrap();
        assert!(!written.contains("time_unlimited"), "{written}");
        let unlimited = Submission { time_unlimited: true, ..submission };
        let written = serde_json::to_string(&unlimited).unwrap();
        assert_eq!(serde_json::from_str::<Submission>(&written).unwrap(), unlimited);
    }
}
