//! Why a reservation waits, and why an attempt ended: one table of names, with Slurm's beside them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a reservation waits, or why it ended as it did.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
pub enum Reason {
    /// In line; not yet looked at with the capacity that is free now.
    Priority,
    /// Looked at, and it does not fit now: the condition carries both numbers.
    Unschedulable,
    /// Held by its owner.
    HeldByUser,
    /// Held by an operator.
    HeldByAdmin,
    /// Its begin time has not come.
    BeginTime,
    /// The array already runs as many tasks as its throttle allows.
    ArrayThrottle,
    /// Its reservation has not begun, or has ended.
    Reservation,
    /// Fits, but what it would be given is over its tenant's quota.
    QuotaExceeded,
    /// Placed, waiting for its start.
    Planned,
    /// Ended with an exit status other than 0.
    NonZeroExitCode,
    /// Ended by a signal nobody asked for.
    RaisedSignal,
    /// Reached its time limit.
    TimeLimit,
    /// The kernel killed a process of it for memory.
    OutOfMemory,
    /// Could not be launched: the message says at which step.
    LaunchFailed,
    /// Its node failed, was rebooted, or lost the job's records.
    NodeFailed,
    /// Cancelled; the message says by whom.
    Cancelled,
    /// Sent back to the queue; the message says by whom.
    Requeued,
}

struct Row {
    reason: Reason,
    name: &'static str,
    slurm: &'static str,
    sentence: &'static str,
}

const fn row(reason: Reason, name: &'static str, slurm: &'static str, sentence: &'static str) -> Row {
    Row { reason, name, slurm, sentence }
}

#[rustfmt::skip]
const TABLE: [Row; 17] = [
    row(Reason::Priority,        "Priority",        "Priority",         "waits its turn behind others"),
    row(Reason::Unschedulable,   "Unschedulable",   "Resources",        "does not fit what is free now"),
    row(Reason::HeldByUser,      "HeldByUser",      "JobHeldUser",      "held by its owner"),
    row(Reason::HeldByAdmin,     "HeldByAdmin",     "JobHeldAdmin",     "held by an operator"),
    row(Reason::BeginTime,       "BeginTime",       "BeginTime",        "its begin time has not come"),
    row(Reason::ArrayThrottle,   "ArrayThrottle",   "JobArrayTaskLimit","the array runs as many tasks as its throttle allows"),
    row(Reason::Reservation,     "Reservation",     "Reservation",      "its reservation has not begun, or has ended"),
    row(Reason::QuotaExceeded,   "QuotaExceeded",   "AssocGrpGRES",     "what it would be given is over its tenant's quota"),
    row(Reason::Planned,         "Planned",         "Resources",        "placed, to start later"),
    row(Reason::NonZeroExitCode, "NonZeroExitCode", "NonZeroExitCode",  "ended with an exit status other than 0"),
    row(Reason::RaisedSignal,    "RaisedSignal",    "RaisedSignal",     "ended by a signal"),
    row(Reason::TimeLimit,       "TimeLimit",       "TimeLimit",        "reached its time limit"),
    row(Reason::OutOfMemory,     "OutOfMemory",     "OutOfMemory",      "the kernel killed a process of it for memory"),
    row(Reason::LaunchFailed,    "LaunchFailed",    "JobLaunchFailure", "could not be launched"),
    row(Reason::NodeFailed,      "NodeFailed",      "NodeDown",         "its node failed"),
    row(Reason::Cancelled,       "Cancelled",       "None",             "cancelled"),
    row(Reason::Requeued,        "Requeued",        "None",             "sent back to the queue"),
];

impl Reason {
    /// Every reason, waiting ones first.
    pub fn all() -> impl Iterator<Item = Reason> {
        TABLE.iter().map(|row| row.reason)
    }

    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.reason == self).expect("every reason has its row in TABLE")
    }

    /// The name, as stored and as in JSON.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Slurm's name for it: the compatibility column.
    pub fn slurm(self) -> &'static str {
        self.row().slurm
    }

    /// What it means, as a sentence without a full stop.
    pub fn sentence(self) -> &'static str {
        self.row().sentence
    }

    /// The reason with this stored name.
    pub fn from_name(name: &str) -> Option<Reason> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a reservation waits or ended, with the numbers that decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Condition {
    /// Which reason.
    pub reason: Reason,
    /// One sentence for people, with names and numbers, no full stop.
    pub message: String,
    /// Every check that failed, with both numbers. Empty where no number decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

impl Condition {
    /// A condition whose message is the reason's own sentence.
    pub fn plain(reason: Reason) -> Condition {
        Condition::new(reason, reason.sentence())
    }

    /// A condition without numbers.
    pub fn new(reason: Reason, message: impl Into<String>) -> Condition {
        Condition { reason, message: message.into(), checks: Vec::new() }
    }
}

/// One failed check: what was asked and what there was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Check {
    /// Where: a node's name, or "pool NAME".
    pub place: String,
    /// What: `cpus`, `mem_mib`, `gpus`, `nodes`, or `eligible` (1 = takes work).
    pub resource: String,
    /// How much the reservation asks for.
    pub asked: i64,
    /// How much was free.
    pub free: i64,
    /// How much there is in all: less than `asked` means that it never fits here.
    pub total: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_back_by_its_name_and_serde_agrees() {
        for reason in Reason::all() {
            assert_eq!(Reason::from_name(reason.name()), Some(reason));
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
        }
    }
}
