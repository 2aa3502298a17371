//! The life of an attempt: which transitions are legal, and how a node's account of an end becomes a state and a reason.

use proto::session::{EndCause, Ended};
use proto::{Condition, Reason, State};

/// What happens to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its start came: it is in the target of its nodes.
    Launch,
    /// Its script runs.
    Start,
    /// Its processes are frozen.
    Suspend,
    /// They are thawed.
    Resume,
    /// Its script ended, or was asked to.
    Complete,
    /// It is over and its nodes are clean.
    End(State),
}

/// The state after a step, or `None` where the step is not legal in this state.
pub fn advance(state: State, step: Step) -> Option<State> {
    use State::*;
    match (state, step) {
        (Booked, Step::Launch) => Some(Starting),
        (Starting, Step::Start) => Some(Running),
        (Running, Step::Suspend) => Some(Suspended),
        (Suspended, Step::Resume) => Some(Running),
        (Booked | Starting | Running | Suspended, Step::Complete) => Some(Completing),
        (Booked | Starting | Running | Suspended | Completing, Step::End(end)) => {
            end.terminal().then_some(end)
        }
        _ => None,
    }
}

/// What an attempt's stop makes of it, where one was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAs {
    /// It counts as cancelled.
    Cancelled,
    /// It counts as preempted.
    Preempted,
    /// It counts as cancelled, and its task goes back to the queue.
    Requeue,
}

impl StopAs {
    /// The stored name.
    pub fn name(self) -> &'static str {
        match self {
            StopAs::Cancelled => "cancelled",
            StopAs::Preempted => "preempted",
            StopAs::Requeue => "requeue",
        }
    }

    /// The stop with this stored name.
    pub fn from_name(name: &str) -> Option<StopAs> {
        [StopAs::Cancelled, StopAs::Preempted, StopAs::Requeue].into_iter().find(|s| s.name() == name)
    }
}

/// A stop somebody asked for.
#[derive(Clone, Copy, Debug)]
pub struct StopAsked<'a> {
    /// What it makes of the attempt.
    pub stop_as: StopAs,
    /// Who asked.
    pub by: &'a str,
}

/// The state and reason of an attempt whose node says that it ended so. The node's account decides: a script that ended
/// by itself before a requested stop reached it ended by itself.
pub fn outcome(ended: &Ended, stop: Option<StopAsked<'_>>) -> (State, Condition) {
    let said = |reason: Reason, fallback: String| match &ended.message {
        Some(message) => Condition::new(reason, message.clone()),
        None => Condition::new(reason, fallback),
    };
    match ended.cause {
        EndCause::OutOfMemory => (
            State::OutOfMemory,
            said(
                Reason::OutOfMemory,
                format!("the kernel killed {} of its processes for memory", ended.usage.oom_kills.max(1)),
            ),
        ),
        EndCause::TimeLimit => (State::Timeout, Condition::plain(Reason::TimeLimit)),
        EndCause::Stopped => stopped(stop),
        EndCause::Exited => match (ended.exit_code, ended.signal) {
            (Some(0), None) => (State::Completed, Condition::new(Reason::NonZeroExitCode, "exit status 0")),
            (_, Some(signal)) => {
                (State::Failed, said(Reason::RaisedSignal, format!("ended by signal {signal}")))
            }
            (Some(code), None) => {
                (State::Failed, said(Reason::NonZeroExitCode, format!("exit status {code}")))
            }
            (None, None) => (State::Failed, said(Reason::NonZeroExitCode, "exit status not known".into())),
        },
        EndCause::LaunchFailed | EndCause::Refused => {
            (State::Failed, said(Reason::LaunchFailed, Reason::LaunchFailed.sentence().into()))
        }
        EndCause::Rebooted => {
            (State::NodeFail, said(Reason::NodeFailed, "its node was rebooted under it".into()))
        }
        EndCause::Lost => {
            (State::NodeFail, said(Reason::NodeFailed, "its shepherd was lost; exit status not known".into()))
        }
    }
}

fn stopped(stop: Option<StopAsked<'_>>) -> (State, Condition) {
    match stop {
        Some(StopAsked { stop_as: StopAs::Preempted, by }) => {
            (State::Preempted, Condition::new(Reason::Cancelled, format!("preempted by {by}")))
        }
        Some(StopAsked { stop_as: StopAs::Requeue, by }) => {
            (State::Cancelled, Condition::new(Reason::Requeued, format!("requeued by {by}")))
        }
        Some(StopAsked { stop_as: StopAs::Cancelled, by }) => {
            (State::Cancelled, Condition::new(Reason::Cancelled, format!("cancelled by {by}")))
        }
        None => (State::Cancelled, Condition::plain(Reason::Cancelled)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::Usage;

    fn ended(cause: EndCause, exit_code: Option<i32>, signal: Option<i32>) -> Ended {
        Ended {
            age_us: 0,
            started_age_us: Some(10),
            cause,
            exit_code,
            signal,
            message: None,
            usage: Usage::default(),
        }
    }

    #[test]
    fn nothing_leaves_a_terminal_state() {
        let steps = [
            Step::Launch,
            Step::Start,
            Step::Suspend,
            Step::Resume,
            Step::Complete,
            Step::End(State::Failed),
        ];
        for state in State::all().filter(|s| s.terminal()) {
            for step in steps {
                assert_eq!(advance(state, step), None, "{state} {step:?}");
            }
        }
    }

    #[test]
    fn an_end_is_always_terminal() {
        assert_eq!(advance(State::Running, Step::End(State::Pending)), None);
        assert_eq!(advance(State::Running, Step::End(State::Timeout)), Some(State::Timeout));
    }

    #[test]
    fn a_script_that_ended_by_itself_keeps_its_status_although_a_cancel_was_under_way() {
        let stop = StopAsked { stop_as: StopAs::Cancelled, by: "alice" };
        assert_eq!(outcome(&ended(EndCause::Exited, Some(0), None), Some(stop)).0, State::Completed);
        assert_eq!(outcome(&ended(EndCause::Exited, Some(7), None), Some(stop)).0, State::Failed);
        assert_eq!(outcome(&ended(EndCause::Stopped, None, Some(15)), Some(stop)).0, State::Cancelled);
    }

    #[test]
    fn out_of_memory_is_told_apart_from_exit_status_zero() {
        assert_eq!(outcome(&ended(EndCause::OutOfMemory, Some(0), None), None).0, State::OutOfMemory);
    }

    #[test]
    fn a_signal_nobody_asked_for_is_a_failure_named_so() {
        let (state, why) = outcome(&ended(EndCause::Exited, None, Some(11)), None);
        assert_eq!(
            (state, why.reason, why.message.as_str()),
            (State::Failed, Reason::RaisedSignal, "ended by signal 11")
        );
    }
}
