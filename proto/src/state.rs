//! The states of a reservation, in one table: long name, short name, Slurm's names, sentence.
//!
//! Which transitions are legal is decided in `ctld-core`; the database repeats the list in CHECK constraints.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The state of a reservation, or of one attempt of it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Queued, held, or waiting for its begin time or a dependency.
    Pending,
    /// Placed in the book, to start later.
    Booked,
    /// Placed, and being launched on its nodes.
    Starting,
    /// Its processes run.
    Running,
    /// Its processes are frozen.
    Suspended,
    /// Its script ended; the node is cleaning up.
    Completing,
    /// Ended with exit status 0.
    Completed,
    /// Ended with another exit status, by a signal, or could not be launched.
    Failed,
    /// Ended at its time limit.
    Timeout,
    /// Ended, and the kernel had killed a process of it for memory.
    OutOfMemory,
    /// Ended because its node failed.
    NodeFail,
    /// Cancelled by a user or an administrator.
    Cancelled,
    /// Ended to make room for another.
    Preempted,
    /// Never started: its deadline passed.
    Expired,
}

struct Row {
    state: State,
    name: &'static str,
    short: &'static str,
    slurm: &'static str,
    sentence: &'static str,
}

const fn row(
    state: State,
    name: &'static str,
    short: &'static str,
    slurm: &'static str,
    sentence: &'static str,
) -> Row {
    Row { state, name, short, slurm, sentence }
}

/// The one table. `short` is Slurm's two letters, so that eyes and programs trained on it need not learn others.
#[rustfmt::skip]
const TABLE: [Row; 14] = [
    row(State::Pending,     "pending",       "PD", "PENDING",       "waiting to be placed"),
    row(State::Booked,      "booked",        "PD", "PENDING",       "placed in the book, to start later"),
    row(State::Starting,    "starting",      "CF", "CONFIGURING",   "being launched on its nodes"),
    row(State::Running,     "running",       "R",  "RUNNING",       "running"),
    row(State::Suspended,   "suspended",     "S",  "SUSPENDED",     "frozen, keeping its place"),
    row(State::Completing,  "completing",    "CG", "COMPLETING",    "ended, being cleaned up on its nodes"),
    row(State::Completed,   "completed",     "CD", "COMPLETED",     "ended with exit status 0"),
    row(State::Failed,      "failed",        "F",  "FAILED",        "ended with an error"),
    row(State::Timeout,     "timeout",       "TO", "TIMEOUT",       "ended at its time limit"),
    row(State::OutOfMemory, "out_of_memory", "OOM","OUT_OF_MEMORY", "ended for want of memory"),
    row(State::NodeFail,    "node_fail",     "NF", "NODE_FAIL",     "ended because its node failed"),
    row(State::Cancelled,   "cancelled",     "CA", "CANCELLED",     "cancelled"),
    row(State::Preempted,   "preempted",     "PR", "PREEMPTED",     "ended to make room for another"),
    row(State::Expired,     "expired",       "DL", "DEADLINE",      "never started: its deadline passed"),
];

impl State {
    /// Every state, in the order of a job's life.
    pub fn all() -> impl Iterator<Item = State> {
        TABLE.iter().map(|row| row.state)
    }

    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.state == self).expect("every state has its row in TABLE")
    }

    /// The long name, as stored and as in JSON.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Slurm's two-letter name, as in `bq`'s ST column.
    pub fn short(self) -> &'static str {
        self.row().short
    }

    /// Slurm's long name: the compatibility column.
    pub fn slurm(self) -> &'static str {
        self.row().slurm
    }

    /// What the state means, as a sentence without a full stop.
    pub fn sentence(self) -> &'static str {
        self.row().sentence
    }

    /// Whether nothing follows this state: no booking, charge or process may remain.
    pub fn terminal(self) -> bool {
        self >= State::Completed
    }

    /// Whether an attempt in this state holds a place on its nodes.
    pub fn active(self) -> bool {
        !self.terminal() && self != State::Pending
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no state.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown state \"{0}\": expected one of pending, booked, starting, running, suspended, completing, completed, failed, timeout, out_of_memory, node_fail, cancelled, preempted, expired, or Slurm's names for them"
)]
pub struct UnknownState(pub String);

impl FromStr for State {
    type Err = UnknownState;

    /// Reads our name, or Slurm's long or short one, in any case. `PD` is pending, `CF` starting.
    fn from_str(word: &str) -> Result<State, UnknownState> {
        let is = |name: &str| name.eq_ignore_ascii_case(word);
        TABLE
            .iter()
            .find(|row| is(row.name) || is(row.short) || is(row.slurm))
            .map(|row| row.state)
            .ok_or_else(|| UnknownState(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_reads_back_by_its_name() {
        for state in State::all() {
            assert_eq!(state.name().parse(), Ok(state));
        }
    }

    #[test]
    fn slurms_names_are_understood() {
        assert_eq!("PD".parse(), Ok(State::Pending));
        assert_eq!("oom".parse(), Ok(State::OutOfMemory));
        assert_eq!("RUNNING".parse(), Ok(State::Running));
        assert!("RUNNIN".parse::<State>().is_err());
    }

    #[test]
    fn serde_and_the_table_agree() {
        for state in State::all() {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
    }
}
