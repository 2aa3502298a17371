//! The parent of one attempt's script, from its control groups to its end.
//!
//! Forked by the launcher with the attempt's lock in hand, in a session of its own, reaper of every orphan below it. It depends on nobody: it
//! enforces the time limit, stops, kills, counts and records the end also when noded and the launcher are dead. It looks nothing up and opens
//! no file of the user's: what can hang is done by the child, which is in the job's group from birth and can be killed.
//!
//! What may surprise: the record is written without a sync (see `attempt`); the end that counts is the first cause, so a script that
//! exits 0 on the SIGTERM of its time limit has still timed out; after a stop or a limit the rest of the group keeps its grace though the script
//! itself is gone (a shell dies of SIGTERM at once, while the program that it ran saves its work).
//!
//! `child` is what happens between fork and exec, `script` the script's file, `banner` the line in the job's error file.

mod banner;
mod child;
mod script;

use crate::attempt::{self, Claim, End, Entry, Order};
use crate::cgroup::{JobGroup, Limits, OomCounts, signal_all};
use crate::clock::boottime_us;
use crate::spec::{AttemptSpec, LauncherSetup};
use crate::sys::{self, Forked};
use child::{ChildReport, Failure};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use proto::api::Usage;
use proto::session::EndCause;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::exit;
use std::time::Duration;

/// How long a killed group may take to be empty before the record says that it is completing.
const KILL_PATIENCE_US: u64 = 5_000_000;
/// Between attempts to kill what is left, to remove a busy group and to write to a full disk.
const RETRY: Duration = Duration::from_millis(250);
/// The first such wait: a group is usually free at once.
const RETRY_FIRST: Duration = Duration::from_millis(1);
/// The longest wait for anything: deadlines are on a clock that goes on while the machine sleeps, waiting is not.
const WAIT_MAX_US: u64 = 60_000_000;
/// The exit status of a shepherd that could not even write down that it exists.
const EXIT_UNRECORDED: i32 = 71;

/// A whole attempt. Never returns: the process ends with it.
pub fn run(setup: &LauncherSetup, id: i64, spec: &[u8], record: File, events: &File) -> ! {
    let spec: AttemptSpec = match serde_json::from_slice(spec) {
        Ok(spec) => spec,
        // The same program wrote it: only a launcher older than its noded gets here.
        Err(_) => exit(EXIT_UNRECORDED),
    };
    let mut record = Ledger { file: record, events };
    let Ok(signals) = become_shepherd(&spec) else { exit(EXIT_UNRECORDED) };
    let pid = std::process::id() as i32;
    let claim =
        sys::start_ticks(pid).map(|start_ticks| Claim { pid, start_ticks, boot_id: setup.boot_id.clone() });
    if claim.and_then(|claim| record.add(&Entry::Claimed(claim))).is_err() {
        exit(EXIT_UNRECORDED);
    }
    let group = JobGroup::new(&setup.layout, id);
    let mut shepherd = Shepherd::new(setup, &spec, group, record, signals);
    let outcome = match shepherd.launch() {
        Ok(()) => shepherd.watch(),
        Err(message) => Outcome::not_launched(message),
    };
    shepherd.finish(outcome);
    exit(0);
}

fn become_shepherd(spec: &AttemptSpec) -> io::Result<SignalFd> {
    let name = format!("bc job {}\0", spec.job);
    // SAFETY: plain system calls; the name is terminated. Closing the launcher's sockets by number: nothing in this process uses them.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        // noded's log is not held open by jobs; the launcher's sockets must close when it dies.
        libc::dup2(1, 2);
        libc::close(3);
        libc::close(4);
    }
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.add(Signal::SIGUSR1);
    Ok(SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

/// The attempt's record, and telling noded that it has grown.
struct Ledger<'a> {
    file: File,
    events: &'a File,
}

impl Ledger<'_> {
    fn add(&mut self, entry: &Entry) -> io::Result<()> {
        attempt::append(&mut self.file, entry)
    }

    /// The FIFO is full only if noded has been stopped for long; it then finds the record by itself.
    fn poke(&mut self, id: i64) {
        let _ = (&mut &*self.events).write(&id.to_ne_bytes());
    }
}

/// How it came out, before the clean-up.
struct Outcome {
    cause: EndCause,
    exit_code: Option<i32>,
    signal: Option<i32>,
    message: Option<String>,
}

impl Outcome {
    fn not_launched(message: String) -> Outcome {
        Outcome { cause: EndCause::LaunchFailed, exit_code: None, signal: None, message: Some(message) }
    }
}

/// An end that was asked for.
#[derive(Clone, Copy)]
struct Ending {
    cause: EndCause,
    kill_at_us: u64,
}

struct Shepherd<'a> {
    setup: &'a LauncherSetup,
    spec: &'a AttemptSpec,
    group: JobGroup<'a>,
    record: Ledger<'a>,
    signals: SignalFd,
    script: Option<script::Script>,
    began_us: u64,
    leader: Option<Pid>,
    leader_status: Option<WaitStatus>,
    /// Closed by the child's exec.
    reports: Option<OwnedFd>,
    reports_read: Vec<u8>,
    started_us: Option<u64>,
    failure: Option<Failure>,
    ending: Option<Ending>,
    /// The spec's, until an order changes it.
    time_limit_s: Option<u64>,
    warned: bool,
    killed_us: Option<u64>,
    completing: bool,
    orders_offset: usize,
    children_left: bool,
}

impl<'a> Shepherd<'a> {
    fn new(
        setup: &'a LauncherSetup,
        spec: &'a AttemptSpec,
        group: JobGroup<'a>,
        record: Ledger<'a>,
        signals: SignalFd,
    ) -> Shepherd<'a> {
        Shepherd {
            setup,
            spec,
            group,
            record,
            signals,
            script: None,
            began_us: boottime_us(),
            leader: None,
            leader_status: None,
            reports: None,
            reports_read: Vec::new(),
            started_us: None,
            failure: None,
            ending: None,
            time_limit_s: spec.time_limit_s,
            warned: false,
            killed_us: None,
            completing: false,
            orders_offset: 0,
            children_left: true,
        }
    }

    /// Makes the group and the script's file and forks the child. Does not wait for its exec: opening the job's files may take for ever.
    fn launch(&mut self) -> Result<(), String> {
        let spec = self.spec;
        let limits = Limits { cpus: spec.cpus, mem_mib: spec.mem_mib, pids_max: spec.pids_max };
        self.group.make(&limits).map_err(|e| e.to_string())?;
        let script = script::Script::write(&self.setup.state_dir.script(spec.id, &spec.job), spec)
            .map_err(|e| format!("the script's file: {}", sys::io_text(&e)))?;
        let script = self.script.insert(script);
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
            .map_err(|e| format!("pipe: {}", sys::errno_text(e as i32)))?;
        let unified = self.group.open_unified().map_err(|e| e.to_string())?;
        let fork = || -> io::Result<(Forked, bool)> {
            // SAFETY: a shepherd has one thread, and the child only prepares and execs.
            unsafe {
                if let Some(dir) = &unified
                    && let Some(forked) = sys::fork_into(dir.as_fd())?
                {
                    return Ok((forked, true));
                }
                Ok((sys::fork()?, false))
            }
        };
        match fork().map_err(|e| format!("fork: {}", sys::io_text(&e)))? {
            (Forked::Child, born_in_unified) => {
                drop(read);
                child::run(spec, &self.group, born_in_unified, script, write, self.setup.nofile_soft)
            }
            (Forked::Parent(pid), _) => {
                self.leader = Some(Pid::from_raw(pid));
                self.reports = Some(read);
                Ok(())
            }
        }
    }

    /// From the fork until every process of the job is gone.
    fn watch(&mut self) -> Outcome {
        // Those that came before there was a shepherd to be told of them.
        self.take_orders();
        while self.children_left {
            self.meet_deadlines();
            let wait = self.next_deadline_us().saturating_sub(boottime_us()).min(WAIT_MAX_US);
            let wait = Some(Duration::from_micros(wait));
            let ready = match &self.reports {
                Some(reports) => sys::wait_readable([self.signals.as_fd(), reports.as_fd()], wait),
                None => sys::wait_readable([self.signals.as_fd()], wait).map(|[signal]| [signal, false]),
            };
            let [signal, report] = ready.unwrap_or([true, true]);
            // First what the child said, then that it ended.
            if report {
                self.read_reports();
            }
            if signal {
                while let Ok(Some(signal)) = self.signals.read_signal() {
                    if signal.ssi_signo == Signal::SIGUSR1 as u32 {
                        self.take_orders();
                    }
                }
                self.reap();
            }
        }
        self.outcome()
    }

    fn limit_us(&self) -> Option<u64> {
        let limit = self.time_limit_s?.saturating_mul(1_000_000);
        Some(self.started_us.unwrap_or(self.began_us).saturating_add(limit))
    }

    fn warn_us(&self) -> Option<u64> {
        let before = u64::from(self.spec.warn.as_ref()?.before_s) * 1_000_000;
        // Nobody is there to be warned before the script runs.
        self.started_us.and(self.limit_us()).map(|limit| limit.saturating_sub(before))
    }

    fn next_deadline_us(&self) -> u64 {
        let killing = self.killed_us.map(|_| boottime_us() + RETRY.as_micros() as u64);
        let ending = self.ending.map(|ending| ending.kill_at_us).filter(|_| killing.is_none());
        let limit = self.limit_us().filter(|_| self.ending.is_none() && killing.is_none());
        let warning = self.warn_us().filter(|_| !self.warned && self.ending.is_none() && killing.is_none());
        [killing, ending, limit, warning].into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    fn meet_deadlines(&mut self) {
        let now = boottime_us();
        if let Some(since) = self.killed_us {
            self.kill();
            if now.saturating_sub(since) > KILL_PATIENCE_US {
                self.say_completing();
            }
            return;
        }
        if let Some(ending) = self.ending {
            if now >= ending.kill_at_us {
                self.kill();
            }
            return;
        }
        if self.leader_status.is_some() {
            // The script is over: what it left behind goes too.
            return self.kill();
        }
        if self.limit_us().is_some_and(|limit| now >= limit) {
            return self.end(EndCause::TimeLimit, self.spec.grace_s, "CANCELLED DUE TO TIME LIMIT");
        }
        if !self.warned
            && self.warn_us().is_some_and(|at| now >= at)
            && let Some(warn) = &self.spec.warn
        {
            self.warned = true;
            self.signal(warn.signal, warn.script_only);
        }
    }

    fn take_orders(&mut self) {
        let path = self.setup.state_dir.orders(self.spec.id);
        let Ok((orders, offset)) = attempt::orders(&path, self.orders_offset) else { return };
        self.orders_offset = offset;
        for order in orders {
            match order {
                Order::Signal { signal, script_only } => self.signal(signal, script_only),
                Order::Stop { grace_s, banner } => self.stop(grace_s, &banner),
                Order::Limit { time_limit_s } => self.limit(time_limit_s),
            }
        }
    }

    /// The deadlines follow from it. A script that was warned of the old end is warned of a later one again.
    fn limit(&mut self, time_limit_s: Option<u64>) {
        self.time_limit_s = time_limit_s;
        if self.warn_us().is_none_or(|at| at > boottime_us()) {
            self.warned = false;
        }
    }

    /// A second stop may shorten the grace of the first, or of a time limit; it never lengthens it and never changes the cause.
    fn stop(&mut self, grace_s: u32, banner: &str) {
        let kill_at_us = boottime_us() + u64::from(grace_s) * 1_000_000;
        match &mut self.ending {
            Some(ending) => ending.kill_at_us = ending.kill_at_us.min(kill_at_us),
            None if self.leader_status.is_none() => self.end(EndCause::Stopped, grace_s, banner),
            None => {}
        }
    }

    fn end(&mut self, cause: EndCause, grace_s: u32, banner: &str) {
        self.ending = Some(Ending { cause, kill_at_us: boottime_us() + u64::from(grace_s) * 1_000_000 });
        self.catch_up();
        if self.started_us.is_none() {
            // Nothing of the job's own runs yet that could use a grace.
            return self.kill();
        }
        banner::write(self.spec, &self.setup.node, &self.group, banner);
        self.signal(libc::SIGTERM, false);
        // A stopped process acts on it only when it goes on.
        self.signal(libc::SIGCONT, false);
        self.say_completing();
    }

    fn signal(&mut self, signal: i32, script_only: bool) {
        match self.leader.filter(|_| self.leader_status.is_none()) {
            // Ours and not reaped, so the number is its own. It may have ended just now: nothing to signal then.
            Some(leader) if script_only => unsafe {
                libc::kill(leader.as_raw(), signal);
            },
            _ if script_only => {}
            _ => signal_all(&self.group, signal),
        }
    }

    fn kill(&mut self) {
        self.killed_us.get_or_insert_with(boottime_us);
        // Tried again until all are gone; what prevents it shows as an end that does not come.
        let _ = self.group.kill();
    }

    fn say_completing(&mut self) {
        if !self.completing && self.record.add(&Entry::Completing).is_ok() {
            self.completing = true;
            self.record.poke(self.spec.id);
        }
    }

    fn read_reports(&mut self) {
        let Some(reports) = &self.reports else { return };
        let mut buffer = [0; 4096];
        match nix::unistd::read(reports, &mut buffer) {
            Ok(0) => self.reports = None,
            Ok(length) => return self.reports_read.extend_from_slice(&buffer[..length]),
            Err(nix::errno::Errno::EINTR) => return,
            Err(_) => self.reports = None,
        }
        match ChildReport::read(&self.reports_read) {
            ChildReport::Running { at_us } => self.started(at_us),
            ChildReport::Failed(failure) => {
                if failure.exit_code.is_some() {
                    self.started(boottime_us());
                }
                self.failure = Some(failure);
            }
            // Killed on its way.
            ChildReport::Nothing => {}
        }
    }

    /// Takes what the child has said by now: an order may come before the word that the script runs was read.
    fn catch_up(&mut self) {
        while let Some(reports) = &self.reports
            && matches!(sys::wait_readable([reports.as_fd()], Some(Duration::ZERO)), Ok([true]))
        {
            self.read_reports();
        }
    }

    fn started(&mut self, at_us: u64) {
        self.started_us = Some(at_us);
        if self.record.add(&Entry::Started { at_us }).is_ok() {
            self.record.poke(self.spec.id);
        }
    }

    fn reap(&mut self) {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return,
                Ok(status) => {
                    if status.pid() == self.leader && self.leader_status.is_none() {
                        self.leader_status = Some(status);
                        while self.reports.is_some() {
                            self.read_reports();
                        }
                    }
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => {
                    self.children_left = false;
                    return;
                }
            }
        }
    }

    fn outcome(&self) -> Outcome {
        let (exit_code, signal) = match self.leader_status {
            Some(WaitStatus::Exited(_, code)) => (Some(code), None),
            Some(WaitStatus::Signaled(_, signal, _)) => (None, Some(signal as i32)),
            _ => (None, None),
        };
        match (&self.failure, self.ending) {
            (Some(Failure { exit_code: Some(code), message }), None) => Outcome {
                cause: EndCause::Exited,
                exit_code: Some(*code),
                signal: None,
                message: Some(message.clone()),
            },
            (Some(failure), None) => Outcome::not_launched(failure.message.clone()),
            (_, Some(ending)) => {
                let early = self.started_us.is_none().then(|| "before the script could start".to_owned());
                // A child that was still preparing has no exit status worth telling.
                let (exit_code, signal) = if early.is_some() { (None, None) } else { (exit_code, signal) };
                Outcome { cause: ending.cause, exit_code, signal, message: early }
            }
            (None, None) if self.started_us.is_none() => {
                Outcome::not_launched("the script's process was killed before it could start".to_owned())
            }
            (None, None) => Outcome { cause: EndCause::Exited, exit_code, signal, message: None },
        }
    }

    /// Counts, removes the group and the script's file, and writes the end, for as long as it takes.
    fn finish(&mut self, outcome: Outcome) {
        let (usage, oom) = self.group.usage();
        let outcome = judge_memory(outcome, &usage, oom, self.spec.mem_mib);
        self.remove_group();
        if let Some(script) = self.script.take() {
            script.remove();
        }
        let end = Entry::Ended(End {
            at_us: boottime_us(),
            started_us: self.started_us,
            cause: outcome.cause,
            exit_code: outcome.exit_code,
            signal: outcome.signal,
            message: outcome.message,
            usage,
        });
        while self.record.add(&end).and_then(|()| self.sync_if_alone()).is_err() {
            std::thread::sleep(RETRY);
        }
        self.record.poke(self.spec.id);
    }

    fn remove_group(&mut self) {
        let since = *self.killed_us.get_or_insert_with(boottime_us);
        let mut wait = RETRY_FIRST;
        // An error is tried again like a busy group: there is no end to report before the node is clean.
        while !matches!(self.group.remove(), Ok(true)) {
            let _ = self.group.kill();
            if boottime_us().saturating_sub(since) > KILL_PATIENCE_US {
                self.say_completing();
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(RETRY);
        }
    }

    /// Where a noded runs, it has the end in its journal within milliseconds; where none does, this file must last until one comes.
    fn sync_if_alone(&self) -> io::Result<()> {
        let guard = File::options()
            .read(true)
            .write(true)
            .open(self.setup.state_dir.root.join(crate::run::LOCK_FILE))?;
        if sys::is_locked(&guard)? { Ok(()) } else { self.record.file.sync_all() }
    }
}

/// An end by itself becomes one for want of memory if the kernel had killed a process, whatever the exit status says.
fn judge_memory(outcome: Outcome, usage: &Usage, oom: OomCounts, mem_mib: u64) -> Outcome {
    if outcome.cause != EndCause::Exited || usage.oom_kills == 0 {
        return outcome;
    }
    let killed = match usage.oom_kills {
        1 => "a process was killed".to_owned(),
        n => format!("{n} processes were killed"),
    };
    // On v1 the counters of hits stay 0 on new kernels, so a group that was nearly full counts as well.
    let nearly_full = usage.mem_peak_bytes.is_none_or(|peak| peak / 7 >= mem_mib.saturating_mul(1 << 20) / 8);
    let why = match oom.limit_hits > 0 || nearly_full {
        true => format!("the job reached its {mem_mib} MiB"),
        false => "the node, not the job, was out of memory".to_owned(),
    };
    Outcome { cause: EndCause::OutOfMemory, message: Some(format!("{killed} for memory: {why}")), ..outcome }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_by_itself_becomes_one_for_want_of_memory() {
        let judged = |cause, oom_kills, limit_hits, peak_mib: u64| {
            let outcome = Outcome { cause, exit_code: Some(0), signal: None, message: None };
            let usage = Usage { cpu_us: 1, mem_peak_bytes: Some(peak_mib << 20), oom_kills };
            let outcome = judge_memory(outcome, &usage, OomCounts { kills: oom_kills, limit_hits }, 100);
            (outcome.cause, outcome.message.unwrap_or_default())
        };
        assert_eq!(judged(EndCause::Exited, 0, 5, 100), (EndCause::Exited, String::new()));
        assert_eq!(judged(EndCause::TimeLimit, 2, 5, 100).0, EndCause::TimeLimit);
        let (cause, message) = judged(EndCause::Exited, 1, 0, 99);
        assert_eq!(
            (cause, message.as_str()),
            (EndCause::OutOfMemory, "a process was killed for memory: the job reached its 100 MiB")
        );
        assert!(
            judged(EndCause::Exited, 3, 0, 20).1.starts_with("3 processes were killed for memory: the node")
        );
        assert!(judged(EndCause::Exited, 1, 7, 20).1.contains("the job reached"));
    }
}
