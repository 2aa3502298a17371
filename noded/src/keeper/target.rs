//! What the controller wants: assignments, stops, commands, acknowledgements.
//!
//! Everything here may come twice, late or from a controller that has forgotten half: an allocation that is known is never launched again, one that has ended
//! is never launched at all, and what the whole target does not name is ended.

use super::outbox::{Fact, What};
use super::{Held, Keeper, Stage, Wanted};
use crate::attempt::{End, Order};
use crate::clock::boottime_us;
use crate::config::RootJobs;
use crate::journal::{Accepted, COMMANDS_MAX};
use crate::session::SessionEvent;
use proto::session::{
    Assignment, Command, CommandAct, ControllerMessage, EndCause, Limit, NodeMessage, Stop, Target,
};

/// What a job's error file says of a job that the controller's whole target does not name.
const UNWANTED: &str = "CANCELLED as the controller does not know of it";

impl Keeper {
    pub(super) fn take_session(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Opened(session) => {
                self.session = Some(session);
                self.wanted = None;
                self.observed_generation = 0;
                self.commands_early.clear();
                self.commands_waiting.values_mut().for_each(|(id, _)| *id = None);
                self.outbox.reopen();
            }
            SessionEvent::Closed => self.session = None,
            SessionEvent::Message(ControllerMessage::Target(target)) => self.take_target(target),
            SessionEvent::Message(ControllerMessage::Ack { seq }) => self.take_ack(seq),
            SessionEvent::Message(ControllerMessage::Command(command)) => self.take_command(command),
            // The session itself deals with these.
            SessionEvent::Message(ControllerMessage::Welcome { .. } | ControllerMessage::Refused { .. }) => {}
        }
    }

    fn take_target(&mut self, target: Target) {
        if target.full {
            self.wanted = Some(Wanted::default());
        }
        if let Some(wanted) = &mut self.wanted {
            wanted.ids.extend(target.run.iter().map(|assignment| assignment.allocation_id));
            wanted.ids.extend(target.keep.iter().copied());
            wanted.ids.extend(target.stop.iter().map(|stop| stop.allocation_id));
            wanted.keep.extend(target.keep);
        }
        for assignment in target.run {
            self.assign(assignment);
        }
        for limit in target.limits {
            self.limit(limit);
        }
        for stop in target.stop {
            self.stop(stop);
        }
        if target.more {
            return;
        }
        self.observed_generation = target.generation;
        if let Some(wanted) = self.wanted.take() {
            self.converge(&wanted);
        }
        for command in std::mem::take(&mut self.commands_early) {
            self.take_command(command);
        }
    }

    /// The whole target is here: what it does not name ends, what it names and we do not have is lost.
    fn converge(&mut self, wanted: &Wanted) {
        for id in &wanted.keep {
            if !self.held.contains_key(id) {
                let end = End::without_run(EndCause::Lost, "the node does not know of it");
                self.outbox.push(Fact { id: *id, what: What::Ended { end, earlier_boot: false } });
            }
        }
        let unwanted = self.held.iter().filter(|(id, held)| !held.over() && !wanted.ids.contains(*id));
        let stops: Vec<Stop> = unwanted
            .map(|(id, held)| Stop {
                allocation_id: *id,
                grace_s: held.assignment.grace_s,
                banner: UNWANTED.to_owned(),
            })
            .collect();
        for stop in stops {
            tracing::warn!(
                allocation.id = stop.allocation_id,
                "it is not in the controller's target and is ended"
            );
            self.stop(stop);
        }
    }

    fn assign(&mut self, assignment: Assignment) {
        let id = assignment.allocation_id;
        if self.held.contains_key(&id) {
            // Its limit may have changed since.
            return self.limit(Limit { allocation_id: id, time_limit_s: assignment.time_limit_s });
        }
        if let Err((cause, message)) = self.may_take(&assignment) {
            tracing::warn!(allocation.id = id, job.id = assignment.job_id, "assignment not taken: {message}");
            self.held.insert(
                id,
                Held::new(assignment, self.setup.boot_id.clone(), Stage::Ended { journalled: false }),
            );
            let end = End::without_run(cause, message);
            return self.outbox.push(Fact { id, what: What::Ended { end, earlier_boot: false } });
        }
        tracing::debug!(allocation.id = id, job.id = assignment.job_id, "assigned");
        let boot_id = self.setup.boot_id.clone();
        let accepted =
            Accepted { boot_id: boot_id.clone(), at_us: boottime_us(), assignment: assignment.clone() };
        self.journal.accept(accepted);
        self.held.insert(id, Held::new(assignment, boot_id, Stage::Accepting));
    }

    fn may_take(&self, assignment: &Assignment) -> Result<(), (EndCause, String)> {
        let refused = |message: String| Err((EndCause::Refused, message));
        if self.recent_set.contains(&assignment.allocation_id) {
            return refused("it has ended on this node before".to_owned());
        }
        if self.strangers.contains(&assignment.allocation_id) {
            return Err((
                EndCause::Lost,
                "it was found here without a record in the journal, and ended".to_owned(),
            ));
        }
        let known = |uuid: &String| self.config.inventory.gpus.iter().any(|gpu| gpu.uuid == *uuid);
        if let Some(uuid) = assignment.gpus.iter().find(|uuid| !known(uuid)) {
            return refused(format!("GPU {uuid} is not on this node"));
        }
        if !assignment.gpus.is_empty() {
            for (id, held) in self.held.iter().filter(|(_, held)| !held.over()) {
                if let Some(uuid) = held.assignment.gpus.iter().find(|uuid| assignment.gpus.contains(uuid)) {
                    return refused(format!("GPU {uuid} is held by allocation {id}, job {}", held.job()));
                }
            }
        }
        if assignment.uid == 0 && assignment.runs_script && self.config.root_jobs == RootJobs::Refuse {
            let message = "jobs of root are refused on this node (root_jobs = \"refuse\" in noded.toml)";
            return Err((EndCause::LaunchFailed, message.to_owned()));
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, stop: Stop) {
        let id = stop.allocation_id;
        let Some(held) = self.held.get_mut(&id) else {
            if !self.recent_set.contains(&id) {
                let end = End::without_run(EndCause::Stopped, "it was never launched on this node");
                self.outbox.push(Fact { id, what: What::Ended { end, earlier_boot: false } });
            }
            return;
        };
        if held.stop.as_ref() == Some(&stop) && held.stop_delivered {
            return;
        }
        held.stop = Some(stop);
        held.stop_delivered = false;
        match held.stage {
            Stage::Member => self.finish(id, End { started_us: self.started_of(id), ..stopped() }),
            Stage::Resolving => self.finish(id, stopped()),
            Stage::Shepherded(_) => self.deliver_stop(id),
            // The next step on its way looks for it.
            Stage::Accepting
            | Stage::Launching
            | Stage::Anonymous
            | Stage::Clearing
            | Stage::Ended { .. } => {}
        }
    }

    /// A limit of what is not here, or is over, comes too late.
    fn limit(&mut self, limit: Limit) {
        let id = limit.allocation_id;
        let Some(held) = self.held.get_mut(&id).filter(|held| !held.over() && held.limit != Some(limit))
        else {
            return;
        };
        held.assignment.time_limit_s = limit.time_limit_s;
        held.limit = Some(limit);
        held.limit_delivered = false;
        self.deliver_limit(id);
    }

    pub(super) fn started_of(&self, id: i64) -> Option<u64> {
        self.held.get(&id).and_then(|held| held.started_us)
    }

    fn take_ack(&mut self, seq: u64) {
        let mut journalled = Vec::new();
        for id in self.outbox.acknowledge(seq) {
            if let Some(held) = self.held.remove(&id)
                && matches!(held.stage, Stage::Ended { journalled: true })
            {
                journalled.push(id);
            }
            self.remember_recent(id);
            tracing::debug!(allocation.id = id, "its end is acknowledged");
        }
        if !journalled.is_empty() {
            self.journal.forget(journalled);
        }
    }

    /// A command is carried out at most once: it is in the journal before, and a second one is answered from memory.
    fn take_command(&mut self, command: Command) {
        if command.min_generation > self.observed_generation {
            // What it is about may not be here yet.
            return self.commands_early.push(command);
        }
        let Command { id, idempotency_key: key, act, retry_safe, .. } = command;
        match self.commands.get(&key) {
            Some(Some(error)) => self.say(NodeMessage::CommandResult { id, error: error.clone() }),
            Some(None) if self.commands_waiting.contains_key(&key) => {
                self.commands_waiting.insert(key, (Some(id), act));
            }
            Some(None) if retry_safe => {
                self.commands_waiting.insert(key.clone(), (Some(id), act));
                self.journal.see_command(key);
            }
            Some(None) => {
                let error =
                    Some("noded was stopped while carrying it out: whether it was is not known".to_owned());
                self.say(NodeMessage::CommandResult { id, error });
            }
            None => {
                self.commands.insert(key.clone(), None);
                self.commands_order.push_back(key.clone());
                while self.commands_order.len() > COMMANDS_MAX
                    && let Some(old) = self.commands_order.pop_front()
                {
                    self.commands.remove(&old);
                }
                self.commands_waiting.insert(key.clone(), (Some(id), act));
                self.journal.see_command(key);
            }
        }
    }

    pub(super) fn carry_out(&mut self, key: &str) {
        let Some((id, act)) = self.commands_waiting.remove(key) else { return };
        let CommandAct::Signal { allocation_id, signal, script_only } = act;
        let error = self.signal(allocation_id, signal, script_only).err();
        self.commands.insert(key.to_owned(), Some(error.clone()));
        self.journal.answer_command(key.to_owned(), error.clone());
        if let Some(id) = id {
            self.say(NodeMessage::CommandResult { id, error });
        }
    }

    fn signal(&mut self, id: i64, signal: i32, script_only: bool) -> Result<(), String> {
        if !(1..=64).contains(&signal) {
            return Err(format!("{signal} is not a signal's number: expected 1 to 64"));
        }
        match self.held.get(&id).map(|held| &held.stage) {
            Some(Stage::Shepherded(_)) => self.deliver(id, &Order::Signal { signal, script_only }),
            Some(Stage::Accepting | Stage::Resolving | Stage::Launching | Stage::Anonymous) => {
                Err(format!("allocation {id} is still being launched"))
            }
            Some(Stage::Member) => Err(format!("allocation {id} has no process on this node")),
            Some(Stage::Clearing | Stage::Ended { .. }) => Err(format!("allocation {id} has ended")),
            None => Err(format!("allocation {id} is not on this node")),
        }
    }
}

pub(super) fn stopped() -> End {
    End { message: None, ..End::without_run(EndCause::Stopped, "") }
}
