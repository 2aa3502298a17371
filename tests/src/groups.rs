//! The control groups of one cluster, looked at from outside: what is in them, ending it, removing them.
//!
//! A cluster's groups are `BASE/NODE/...` in every hierarchy, BASE being the name of its scratch directory.

use crate::processes::{alive, kill};
use crate::until::becomes;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ABOVE: &str = "/sys/fs/cgroup";
/// A process that was killed may take a moment to go.
const EMPTY_WITHIN: Duration = Duration::from_secs(20);

/// The top group of this name in each hierarchy.
fn tops(base: &str) -> Vec<PathBuf> {
    let mut found = vec![Path::new(ABOVE).join(base)];
    if let Ok(entries) = std::fs::read_dir(ABOVE) {
        found.extend(entries.flatten().map(|entry| entry.path().join(base)));
    }
    found.retain(|path| path.join("cgroup.procs").exists());
    found
}

/// A group and all below it, deepest first.
fn tree(top: &Path, into: &mut Vec<PathBuf>) {
    if let Ok(entries) = std::fs::read_dir(top) {
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            tree(&entry.path(), into);
        }
    }
    into.push(top.to_path_buf());
}

fn groups(base: &str) -> Vec<PathBuf> {
    let mut all = Vec::new();
    tops(base).iter().for_each(|top| tree(top, &mut all));
    all
}

/// Every process in any group of the cluster, in any hierarchy.
pub fn processes(base: &str) -> Vec<i32> {
    let mut pids: Vec<i32> = groups(base).iter().flat_map(|group| members(group)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// The processes in the jobs' groups of the cluster.
pub fn job_processes(base: &str) -> Vec<i32> {
    let in_jobs = |group: &PathBuf| group.components().any(|part| part.as_os_str() == "jobs");
    let mut pids: Vec<i32> =
        groups(base).iter().filter(|group| in_jobs(group)).flat_map(|group| members(group)).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// The jobs' groups that exist: `BASE/NODE/jobs/ALLOCATION` in each hierarchy.
pub fn job_groups(base: &str) -> Vec<PathBuf> {
    let mut all = groups(base);
    all.retain(|group| group.parent().is_some_and(|above| above.ends_with("jobs")));
    all
}

fn members(group: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Kills everything in the cluster's groups and removes them.
pub fn clear(base: &str) {
    let empty = becomes(EMPTY_WITHIN, || {
        for group in groups(base) {
            // A frozen process is killed only once it thaws.
            let freezer = group.join("freezer.state");
            if freezer.exists() {
                let _ = std::fs::write(&freezer, "THAWED");
            }
            let _ = std::fs::write(group.join("cgroup.kill"), "1");
        }
        let left = processes(base);
        left.iter().for_each(|pid| kill(*pid, nix::sys::signal::Signal::SIGKILL));
        left.iter().all(|pid| !alive(*pid))
    });
    if !empty {
        eprintln!("processes in control group {base} do not end: {:?}", processes(base));
    }
    let gone = becomes(EMPTY_WITHIN, || {
        for group in groups(base) {
            let _ = std::fs::remove_dir(&group);
        }
        tops(base).is_empty()
    });
    if !gone {
        eprintln!("control groups {base} cannot be removed: {:?}", groups(base));
    }
}
