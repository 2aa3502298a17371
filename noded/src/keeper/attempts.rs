//! How an allocation moves: accepted, resolved, launched, watched, ended; and how it is found again after a restart.
//!
//! After any crash, of noded or of the launcher, the same look at an attempt's lock and record decides: see
//! [`Keeper::adopt`].

use super::clear::{clear, sweep_scripts};
use super::outbox::{Fact, What};
use super::target::stopped;
use super::{Held, IDENTITY_LIFE, Input, Keeper, REFUSAL_LIFE, Stage};
use crate::attempt::{self, Claim, End, Examined, Order};
use crate::environment;
use crate::identity::{self, Asked, Identity};
use crate::journal::{Accepted, Written};
use crate::launcher::{Launcher, LauncherEvent};
use crate::spec::AttemptSpec;
use crate::sys;
use proto::api::{OpenMode, Usage};
use proto::session::EndCause;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// Until a shepherd that has just been forked says who it is; it does so first of all.
const ANONYMOUS_RETRY: Duration = Duration::from_millis(20);
/// Between attempts at what a full disk or an exhausted table prevents.
const TROUBLE_RETRY: Duration = Duration::from_secs(1);

impl Keeper {
    /// Takes up what the journal remembers.
    pub(super) fn readopt(
        &mut self,
        accepted: BTreeMap<i64, Accepted>,
        mut ended: BTreeMap<i64, (String, End)>,
    ) {
        for (id, Accepted { boot_id, at_us, assignment }) in accepted {
            let this_boot = boot_id == self.setup.boot_id;
            let runs_script = assignment.runs_script;
            self.held.insert(id, Held::new(assignment, boot_id, Stage::Launching));
            if let Some((end_boot, end)) = ended.remove(&id) {
                tracing::debug!(allocation.id = id, "its end is in the journal");
                // It was written, its files may not all have gone.
                if let Err(error) = self.state_dir.forget(id) {
                    tracing::warn!(allocation.id = id, "its files could not be removed: {error}");
                }
                let earlier_boot = end_boot != self.setup.boot_id;
                self.push_ended(id, end, earlier_boot);
            } else if !this_boot {
                self.after_reboot(id);
            } else if !runs_script {
                self.begin_member(id, at_us);
            } else {
                self.adopt(id);
            }
        }
    }

    /// What was accepted before the machine went down: its record may be younger than the crash left it, so only an end is believed, and
    /// anything else may have run.
    fn after_reboot(&mut self, id: i64) {
        let record =
            attempt::examine(&self.state_dir.record(id)).map(|examined| examined.record).unwrap_or_default();
        let end = record.end.unwrap_or_else(|| End {
            started_us: None,
            ..End::without_run(EndCause::Rebooted, "the machine was rebooted")
        });
        let boot_id = self.held.get(&id).map(|held| held.boot_id.clone()).unwrap_or_default();
        let earlier_boot = end.cause != EndCause::Rebooted;
        let written_boot = if earlier_boot { boot_id.as_str() } else { self.setup.boot_id.as_str() };
        self.journal.end(id, written_boot, end.clone());
        self.push_ended(id, end, earlier_boot);
    }

    /// Ends and removes what is here and in no journal, and scripts of attempts that are over.
    ///
    /// Nothing of an attempt that the journal knows is touched: a record goes only once its end is written there, or it would be launched again.
    pub(super) fn sweep(&mut self) {
        let mut found = self.state_dir.attempts().unwrap_or_default();
        found.extend(self.layout.job_ids().unwrap_or_default());
        found.retain(|id| !self.held.contains_key(id));
        self.strangers = found.into_iter().collect();
        for id in self.strangers.iter().copied() {
            tracing::warn!(allocation.id = id, "it is in no journal and is ended");
            let (layout, state_dir) = (self.layout.clone(), self.state_dir.clone());
            tokio::task::spawn_blocking(move || {
                clear(&layout, &state_dir, id);
                if let Err(error) = state_dir.forget(id) {
                    tracing::warn!(allocation.id = id, "its files could not be removed: {error}");
                }
            });
        }
        let known = |id: i64| self.held.get(&id).is_some_and(|held| !held.over());
        if let Err(error) = sweep_scripts(&self.state_dir, known) {
            tracing::warn!("old scripts could not be removed: {error}");
        }
    }

    pub(super) fn take_written(&mut self, written: Written) {
        for id in written.accepted {
            let Some(held) = self.held.get(&id) else { continue };
            match (&held.stop, held.assignment.runs_script) {
                (Some(_), _) => self.finish(id, stopped()),
                (None, true) => {
                    self.resolve(id);
                    self.deliver_limit(id);
                }
                (None, false) => self.begin_member(id, crate::clock::boottime_us()),
            }
        }
        for (id, message) in written.refused {
            if let Some(held) = self.held.get_mut(&id) {
                held.stage = Stage::Ended { journalled: false };
                let end = End::without_run(EndCause::LaunchFailed, message);
                self.outbox.push(Fact { id, what: What::Ended { end, earlier_boot: false } });
            }
        }
        for key in written.commands {
            self.carry_out(&key);
        }
    }

    fn begin_member(&mut self, id: i64, at_us: u64) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.stage = Stage::Member;
        held.started_us = Some(at_us);
        self.outbox.push(Fact { id, what: What::Started { at_us, paths: Default::default() } });
    }

    /// Asks the user database, or goes on with what it said a moment ago.
    fn resolve(&mut self, id: i64) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.stage = Stage::Resolving;
        let a = &held.assignment;
        let asked = Asked { user: a.user.clone(), uid: a.uid, gid: a.gid };
        if let Some((at, answer)) = self.identities.get(&asked) {
            let life = if answer.is_ok() { IDENTITY_LIFE } else { REFUSAL_LIFE };
            if at.elapsed() < life {
                let answer = answer.clone();
                return self.resolved(id, &answer);
            }
        }
        let waiting = self.identities_waiting.entry(asked.clone()).or_default();
        waiting.insert(id);
        if waiting.len() == 1 {
            let inputs = self.inputs.clone();
            tokio::task::spawn_blocking(move || {
                let answer = identity::look_up(&asked);
                let _ = inputs.send(Input::Identity(asked, answer));
            });
        }
    }

    pub(super) fn take_identity(&mut self, asked: Asked, answer: Result<Identity, String>) {
        for id in self.identities_waiting.remove(&asked).unwrap_or_default() {
            self.resolved(id, &answer);
        }
        self.identities.retain(|_, (at, _)| at.elapsed() < IDENTITY_LIFE);
        self.identities.insert(asked, (Instant::now(), answer));
    }

    fn resolved(&mut self, id: i64, answer: &Result<Identity, String>) {
        let Some(held) = self.held.get_mut(&id).filter(|held| matches!(held.stage, Stage::Resolving)) else {
            return;
        };
        match answer {
            Err(message) => self.finish(id, End::without_run(EndCause::LaunchFailed, message.clone())),
            Ok(who) => {
                held.stage = Stage::Launching;
                let spec = spec_of(held, who, self.config.as_ref());
                tracing::debug!(allocation.id = id, "launching");
                if let Some(launcher) = &self.launcher {
                    launcher.launch(&spec, self.spares.take());
                }
                // Without a launcher it is found in this stage when there is one.
            }
        }
    }

    pub(super) async fn take_launcher(&mut self, event: LauncherEvent) {
        match event {
            LauncherEvent::Forked { id, pidfd } => {
                if self.held.get(&id).is_some_and(|held| !held.over()) {
                    self.watch(id, pidfd);
                }
            }
            LauncherEvent::Taken { id } => self.adopt(id),
            LauncherEvent::Failed { id, message } => {
                self.finish(id, End::without_run(EndCause::LaunchFailed, message));
            }
            LauncherEvent::Gone => {
                self.launcher = None;
                self.start_launcher().await;
            }
        }
    }

    /// A new launcher, and then a look at what the old one may or may not have launched.
    pub(super) async fn start_launcher(&mut self) {
        let inputs = self.inputs.clone();
        let tell = move |event| {
            let _ = inputs.send(Input::Launcher(event));
        };
        match Launcher::start(&self.setup, &self.events, tell).await {
            Ok(launcher) => self.launcher = Some(launcher),
            Err(error) => {
                tracing::error!("{error}");
                return self.later(TROUBLE_RETRY, Input::StartLauncher);
            }
        }
        let launching = self.held.iter().filter(|(_, held)| matches!(held.stage, Stage::Launching));
        let launching: Vec<i64> = launching.map(|(id, _)| *id).collect();
        for id in launching {
            self.adopt(id);
        }
    }

    /// Decides from lock and record what has become of an attempt that was in other hands.
    pub(super) fn adopt(&mut self, id: i64) {
        if self.held.get(&id).is_none_or(Held::over) {
            return;
        }
        let examined = match attempt::examine(&self.state_dir.record(id)) {
            Ok(examined) => examined,
            Err(error) => {
                tracing::error!(allocation.id = id, "its record cannot be read: {error}");
                return self.later(TROUBLE_RETRY, Input::LookAgain(id));
            }
        };
        self.note(id, &examined);
        if self.held.get(&id).is_none_or(Held::over) {
            return;
        }
        tracing::debug!(allocation.id = id, held = examined.held, record = ?examined.record, "found");
        match (examined.held, examined.record.claim) {
            (true, Some(claim)) => match open_shepherd(&claim, &self.setup.boot_id) {
                Some(pidfd) => self.watch(id, pidfd),
                None => self.clear(id),
            },
            (true, None) => {
                self.set_stage(id, Stage::Anonymous);
                self.later(ANONYMOUS_RETRY, Input::LookAgain(id));
            }
            (false, Some(_)) => self.clear(id),
            (false, None) if self.held.get(&id).is_some_and(|held| held.stop.is_some()) => {
                self.finish(id, stopped())
            }
            (false, None) => self.resolve(id),
        }
    }

    pub(super) fn look_again(&mut self, id: i64) {
        match self.held.get(&id).map(|held| &held.stage) {
            Some(Stage::Anonymous | Stage::Launching) => self.adopt(id),
            Some(Stage::Shepherded(_)) => {
                self.deliver_limit(id);
                self.deliver_stop(id);
            }
            _ => {}
        }
    }

    fn set_stage(&mut self, id: i64, stage: Stage) {
        if let Some(held) = self.held.get_mut(&id) {
            held.stage = stage;
        }
    }

    /// The shepherd is known: its end is awaited, and a stop that came early is delivered.
    fn watch(&mut self, id: i64, pidfd: OwnedFd) {
        // SAFETY: the value owns its descriptor and never gives it away while it is registered.
        let pidfd = match unsafe { AsyncFd::register(pidfd) } {
            Ok(pidfd) => Arc::new(pidfd),
            Err(error) => {
                tracing::error!(allocation.id = id, "its shepherd cannot be watched: {error}");
                self.set_stage(id, Stage::Anonymous);
                return self.later(TROUBLE_RETRY, Input::LookAgain(id));
            }
        };
        self.set_stage(id, Stage::Shepherded(pidfd.clone()));
        let inputs = self.inputs.clone();
        tokio::spawn(async move {
            if pidfd.readable().await.is_ok() {
                let _ = inputs.send(Input::ShepherdGone(id));
            }
        });
        self.deliver_limit(id);
        self.deliver_stop(id);
    }

    /// Before there is a shepherd the limit waits among its orders, where also the next noded's shepherd would find it; once there is one it
    /// is told, of one that waited as well: it may have looked before.
    pub(super) fn deliver_limit(&mut self, id: i64) {
        let Some(held) = self.held.get(&id).filter(|held| !held.limit_delivered) else { return };
        let Some(limit) = &held.limit else { return };
        let order = Order::Limit { time_limit_s: limit.time_limit_s };
        let done = match held.stage {
            Stage::Shepherded(_) => self.deliver(id, &order),
            Stage::Resolving | Stage::Launching | Stage::Anonymous => {
                attempt::order(&self.state_dir.orders(id), &order).map_err(|e| sys::io_text(&e))
            }
            // Until its acceptance is written there must be no file of it.
            Stage::Accepting | Stage::Member | Stage::Clearing | Stage::Ended { .. } => return,
        };
        match (done, self.held.get_mut(&id)) {
            (Ok(()), Some(held)) => held.limit_delivered = matches!(held.stage, Stage::Shepherded(_)),
            (Ok(()), None) => {}
            (Err(message), _) => {
                tracing::warn!(allocation.id = id, "its time limit could not be delivered: {message}");
                self.later(TROUBLE_RETRY, Input::LookAgain(id));
            }
        }
    }

    pub(super) fn deliver_stop(&mut self, id: i64) {
        let Some(held) = self.held.get(&id).filter(|held| !held.stop_delivered) else { return };
        let Some(stop) = &held.stop else { return };
        let order = Order::Stop { grace_s: stop.grace_s, banner: stop.banner.clone() };
        match self.deliver(id, &order) {
            Ok(()) => {
                if let Some(held) = self.held.get_mut(&id) {
                    held.stop_delivered = true;
                }
            }
            Err(message) => {
                tracing::warn!(allocation.id = id, "its stop could not be delivered: {message}");
                self.later(TROUBLE_RETRY, Input::LookAgain(id));
            }
        }
    }

    pub(super) fn deliver(&self, id: i64, order: &Order) -> Result<(), String> {
        let Some(Held { stage: Stage::Shepherded(pidfd), .. }) = self.held.get(&id) else {
            return Err(format!("allocation {id} has no shepherd"));
        };
        attempt::order(&self.state_dir.orders(id), order).map_err(|e| sys::io_text(&e))?;
        match sys::pidfd_signal(pidfd.get_ref(), libc::SIGUSR1) {
            // It has ended: its end is on its way.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other.map_err(|e| sys::io_text(&e)),
        }
    }

    /// Looks at the record again. `gone`: its shepherd has ended, so what is not there now will never be.
    pub(super) fn look(&mut self, id: i64, gone: bool) {
        let Some(held) = self.held.get(&id).filter(|held| !held.over()) else { return };
        if matches!(held.stage, Stage::Clearing) {
            return;
        }
        let examined = match attempt::examine(&self.state_dir.record(id)) {
            Ok(examined) => examined,
            Err(error) => {
                tracing::error!(allocation.id = id, "its record cannot be read: {error}");
                return;
            }
        };
        self.note(id, &examined);
        if !gone || self.held.get(&id).is_none_or(Held::over) {
            return;
        }
        if examined.record.claim.is_none() && !examined.held {
            let message = format!(
                "the attempt could not be recorded in {}: is its disk full?",
                self.state_dir.root.display()
            );
            return self.finish(id, End::without_run(EndCause::LaunchFailed, message));
        }
        self.clear(id);
    }

    /// Reports what of a record is new.
    fn note(&mut self, id: i64, Examined { record, .. }: &Examined) {
        let Some(held) = self.held.get_mut(&id) else { return };
        if let (Some(at_us), None) = (record.started_us, held.started_us) {
            held.started_us = Some(at_us);
            let paths = environment::paths(&held.assignment, &self.config.node);
            held.assignment.script = String::new();
            held.assignment.env = BTreeMap::new();
            self.outbox.push(Fact { id, what: What::Started { at_us, paths } });
        }
        if record.completing && !held.completing {
            held.completing = true;
            self.outbox.push(Fact { id, what: What::Completing });
        }
        if let Some(end) = &record.end {
            self.finish(id, end.clone());
        }
    }

    fn clear(&mut self, id: i64) {
        tracing::warn!(allocation.id = id, "its shepherd is dead: what is left of it is ended");
        self.set_stage(id, Stage::Clearing);
        let (layout, state_dir, inputs) = (self.layout.clone(), self.state_dir.clone(), self.inputs.clone());
        tokio::task::spawn_blocking(move || {
            let usage = clear(&layout, &state_dir, id);
            let _ = inputs.send(Input::Cleared(id, usage));
        });
    }

    pub(super) fn take_cleared(&mut self, id: i64, usage: Usage) {
        let Some(held) = self.held.get(&id) else { return };
        let script = self.state_dir.script(id, &held.job());
        match std::fs::remove_file(&script) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(allocation.id = id, "its script could not be removed: {e}");
            }
            _ => {}
        }
        let end = End::without_run(EndCause::Lost, "its shepherd was killed: the exit status is not known");
        self.finish(id, End { started_us: held.started_us, usage, ..end });
    }

    /// It is over: written down, to be reported.
    pub(super) fn finish(&mut self, id: i64, end: End) {
        if self.held.get(&id).is_none_or(Held::over) {
            return;
        }
        self.journal.end(id, &self.setup.boot_id, end.clone());
        self.push_ended(id, end, false);
    }

    fn push_ended(&mut self, id: i64, end: End, earlier_boot: bool) {
        self.set_stage(id, Stage::Ended { journalled: true });
        tracing::debug!(allocation.id = id, cause = ?end.cause, exit_code = ?end.exit_code, "ended");
        self.outbox.push(Fact { id, what: What::Ended { end, earlier_boot } });
    }
}

/// The process that a claim names, if it is that process still.
fn open_shepherd(claim: &Claim, boot_id: &str) -> Option<OwnedFd> {
    let pidfd = sys::pidfd_open(claim.pid).ok()?;
    let same = claim.boot_id == boot_id && sys::start_ticks(claim.pid).ok()? == claim.start_ticks;
    same.then_some(pidfd)
}

fn spec_of(held: &Held, who: &Identity, config: &crate::config::Config) -> AttemptSpec {
    let a = &held.assignment;
    let (output, error, input) = environment::files(a, &config.node);
    let (env, home) = environment::of(a, who, &config.node, &config.inventory.gpus);
    AttemptSpec {
        id: a.allocation_id,
        job: held.job(),
        script: a.script.clone(),
        args: a.args.clone(),
        env,
        home,
        uid: a.uid,
        gid: a.gid,
        groups: who.groups.clone(),
        chdir: a.chdir.clone(),
        output,
        error,
        input,
        append: a.open_mode == OpenMode::Append,
        umask: a.umask & 0o777,
        rlimits: a.rlimits.clone(),
        cpus: a.cpus,
        mem_mib: a.mem_mib,
        pids_max: config.pids_max,
        time_limit_s: a.time_limit_s,
        grace_s: a.grace_s,
        warn: a.warn.clone(),
    }
}
