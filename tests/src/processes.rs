//! Processes seen from outside: whether they live, ending those that belong to a test.
//!
//! A process is only ever signalled because it is a child of the test, is in a control group of the test's own, or names the test's
//! own directory in its arguments or as its working directory.

use crate::until::becomes;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::time::Duration;

const GONE_WITHIN: Duration = Duration::from_secs(20);

/// Whether a process runs; one that only waits to be collected does not.
pub fn alive(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name, in parentheses, may hold anything.
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

/// Sends a signal; a process that has gone is no error.
pub fn kill(pid: i32, signal: Signal) {
    let _ = nix::sys::signal::kill(Pid::from_raw(pid), signal);
}

/// Resident memory of a process now and at its most, in KiB.
pub fn memory_kib(pid: i32) -> Option<(u64, u64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = |key: &str| {
        let line = status.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Some((value("VmRSS:")?, value("VmHWM:")?))
}

/// Every process and its arguments.
fn all() -> impl Iterator<Item = (i32, Vec<PathBuf>)> {
    let pids = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let text = String::from_utf8_lossy(&line).into_owned();
        Some((pid, text.split('\0').filter(|part| !part.is_empty()).map(PathBuf::from).collect()))
    })
}

/// The daemons whose arguments name something below this directory.
pub fn daemons_of(dir: &Path) -> Vec<i32> {
    let is_daemon = |arguments: &[PathBuf]| {
        let program = arguments.first().and_then(|first| first.file_name()).and_then(|name| name.to_str());
        matches!(program, Some("ctld" | "noded"))
            && arguments.iter().any(|argument| argument.starts_with(dir))
    };
    all().filter(|(_, arguments)| is_daemon(arguments)).map(|(pid, _)| pid).collect()
}

/// Kills the daemons of this directory.
pub(crate) fn end_daemons_of(dir: &Path) {
    let gone = becomes(GONE_WITHIN, || {
        let left = daemons_of(dir);
        left.iter().for_each(|pid| kill(*pid, Signal::SIGKILL));
        left.iter().all(|pid| !alive(*pid))
    });
    if !gone {
        eprintln!("daemons of {} do not end: {:?}", dir.display(), daemons_of(dir));
    }
}

/// The PostgreSQL processes that work below this directory.
pub fn database_processes(dir: &Path) -> Vec<i32> {
    let here = |pid: &i32| {
        let below = std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        below && name.trim() == "postgres"
    };
    all().map(|(pid, _)| pid).filter(here).collect()
}

/// The postmaster that `postmaster.pid` under this state directory of ctld names, if it is one that works there.
pub fn postmaster(ctld_state: &Path) -> Option<i32> {
    let data = ctld_state.join("postgres/data");
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let pid: i32 = text.lines().next()?.trim().parse().ok()?;
    let here = std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data);
    (here && alive(pid)).then_some(pid)
}

/// Ends PostgreSQL processes that work below this directory.
pub(crate) fn end_database_in(dir: &Path) {
    let gone = becomes(GONE_WITHIN, || {
        let left = database_processes(dir);
        left.iter().for_each(|pid| kill(*pid, Signal::SIGKILL));
        left.iter().all(|pid| !alive(*pid))
    });
    if !gone {
        eprintln!("PostgreSQL in {} does not end: {:?}", dir.display(), database_processes(dir));
    }
}
