//! Ending what is in a group, and signalling it.
//!
//! Killing never races with forking: by `cgroup.kill`, else by freezing the group first. Signalling goes through pidfds
//! that were opened while the process was listed in the group before and after, so that a number which was given to a stranger
//! meanwhile is never signalled.

use super::{CgroupError, Controller, JobGroup};
use crate::sys;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for a group to freeze: a process in an uninterruptible wait never does.
const FREEZE_WAIT: Duration = Duration::from_millis(500);
/// Rounds of listing and signalling, for processes that fork meanwhile.
const SIGNAL_ROUNDS: usize = 4;

impl JobGroup<'_> {
    /// Sends SIGKILL to everything in the group. Says nothing about whether it is gone already.
    pub fn kill(&self) -> Result<(), CgroupError> {
        for tree in self.trees().iter().filter(|tree| tree.unified) {
            let file = self.dir(tree).join("cgroup.kill");
            match fs::write(&file, "1") {
                Ok(()) => return self.kill_stragglers(),
                // Either the group is gone or the kernel is older than 5.14: the freezer decides.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(CgroupError::io(&file)(e)),
            }
        }
        self.set_frozen(true)?;
        let result = self.kill_stragglers();
        self.set_frozen(false)?;
        result
    }

    /// Kills what is listed in any hierarchy: a child that was forked but had not entered every one of them yet.
    fn kill_stragglers(&self) -> Result<(), CgroupError> {
        signal_listed(self, libc::SIGKILL, 1);
        Ok(())
    }

    fn set_frozen(&self, frozen: bool) -> Result<(), CgroupError> {
        for tree in self.trees() {
            let dir = self.dir(tree);
            let (file, value) = match (tree.unified, frozen) {
                (true, true) => (dir.join("cgroup.freeze"), "1"),
                (true, false) => (dir.join("cgroup.freeze"), "0"),
                (false, _) if !tree.has(Controller::Freezer) => continue,
                (false, true) => (dir.join("freezer.state"), "FROZEN"),
                (false, false) => (dir.join("freezer.state"), "THAWED"),
            };
            match fs::write(&file, value) {
                Ok(()) if frozen => wait_frozen(&dir, tree.unified),
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(CgroupError::io(&file)(e)),
            }
        }
        Ok(())
    }
}

fn wait_frozen(dir: &Path, unified: bool) {
    let (file, wanted) = if unified { ("cgroup.events", "frozen 1") } else { ("freezer.state", "FROZEN") };
    let deadline = Instant::now() + FREEZE_WAIT;
    while Instant::now() < deadline {
        let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
        if text.lines().any(|line| line.trim() == wanted) {
            return;
        }
        sleep(Duration::from_millis(1));
    }
}

/// Sends a signal to every process of the group, those that are forked meanwhile included.
pub fn signal_all(group: &JobGroup<'_>, signal: i32) {
    signal_listed(group, signal, SIGNAL_ROUNDS);
}

fn signal_listed(group: &JobGroup<'_>, signal: i32, rounds: usize) {
    let mut done: BTreeMap<i32, OwnedFd> = BTreeMap::new();
    for _ in 0..rounds {
        let opened: BTreeMap<i32, OwnedFd> = group
            .processes()
            .into_iter()
            .filter(|pid| *pid > 0 && !done.contains_key(pid))
            .filter_map(|pid| Some((pid, sys::pidfd_open(pid).ok()?)))
            .collect();
        if opened.is_empty() {
            return;
        }
        let still: Vec<i32> = group.processes();
        for (pid, pidfd) in opened {
            if still.binary_search(&pid).is_ok() {
                // It may have ended by itself in between: then there is nothing to signal.
                let _ = sys::pidfd_signal(&pidfd, signal);
            }
            // Kept open, so that the number is not signalled a second time.
            done.insert(pid, pidfd);
        }
    }
}
