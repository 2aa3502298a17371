//! Cleaning up after a shepherd that is dead, or that nobody knows.
//!
//! Blocking, in a thread of its own: what is to be killed may take its time. Done only when the attempt's lock is free (every process that was
//! forked is in the group or gone) and the group is removed.

use crate::attempt::{self, StateDir};
use crate::cgroup::{JobGroup, Layout};
use proto::api::Usage;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Between attempts: short at first, since a killed group is usually free at once.
const WAIT_FIRST: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_millis(500);

/// Ends everything of an allocation, and says what it had used.
pub fn clear(layout: &Layout, state_dir: &StateDir, id: i64) -> Usage {
    let group = JobGroup::new(layout, id);
    let mut wait = WAIT_FIRST;
    let mut complained = false;
    let mut used = Usage::default();
    loop {
        let killed = group.kill();
        // Counters go with the group, so the last that could be read count.
        let usage = group.usage().0;
        if usage != Usage::default() {
            used = usage;
        }
        let free = attempt::examine(&state_dir.record(id)).map(|examined| !examined.held);
        let removed = group.remove();
        if matches!((&free, &removed), (Ok(true), Ok(true))) {
            return used;
        }
        if wait >= WAIT_MAX && !complained {
            complained = true;
            let pids = group.processes();
            tracing::warn!(
                allocation.id = id,
                ?pids,
                ?killed,
                ?free,
                ?removed,
                "it cannot be ended yet; trying on"
            );
        }
        std::thread::sleep(wait);
        wait = (wait * 2).min(WAIT_MAX);
    }
}

/// Removes scripts in the spool whose attempts are not `known`.
pub fn sweep_scripts(state_dir: &StateDir, known: impl Fn(i64) -> bool) -> io::Result<()> {
    for entry in std::fs::read_dir(&state_dir.scripts)? {
        let path = entry?.path();
        if !script_owner(&path).is_some_and(&known) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// The allocation in a script's name, `jobJOB-ID`.
fn script_owner(path: &Path) -> Option<i64> {
    path.file_name()?.to_str()?.rsplit_once('-')?.1.parse().ok()
}
