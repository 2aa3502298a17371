//! The control groups that a stopped node leaves: empty ones are removed, so that `down` ends with nothing left.
//!
//! A node whose jobs run on keeps all of its groups, also those that are empty just now: a shepherd may be about to read from
//! one what its job used.

use std::path::{Path, PathBuf};

/// Removes a node's groups from every hierarchy, unless a process is in any of them.
pub(super) fn remove_empty(base: &str) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    remove_if_idle(&hierarchies(&mounts).iter().map(|hierarchy| hierarchy.join(base)).collect::<Vec<_>>());
}

fn remove_if_idle(groups: &[PathBuf]) {
    if !groups.iter().any(|group| busy(group)) {
        groups.iter().for_each(|group| remove_below(group));
    }
}

fn busy(group: &Path) -> bool {
    // The kernel's files have no size: only reading tells.
    std::fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|processes| !processes.is_empty())
        || children(group).iter().any(|child| busy(child))
}

fn children(group: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn hierarchies(mounts: &str) -> Vec<PathBuf> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let groups = fields.filter(|fields| matches!(fields.get(2), Some(&("cgroup" | "cgroup2"))));
    groups.map(|fields| PathBuf::from(fields[1])).collect()
}

/// Children first. A group that got a process meanwhile stays, by the kernel's own rule.
fn remove_below(group: &Path) {
    children(group).iter().for_each(|child| remove_below(child));
    let _ = std::fs::remove_dir(group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hierarchy_is_found_whatever_its_version() {
        let mounts = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n";
        assert_eq!(
            hierarchies(mounts),
            [Path::new("/sys/fs/cgroup/unified"), Path::new("/sys/fs/cgroup/pids")]
        );
    }

    #[test]
    fn idle_groups_go_and_one_process_keeps_all_of_them() {
        let top = tempfile::tempdir().unwrap();
        let groups = [top.path().join("cpu/base"), top.path().join("pids/base")];
        for group in &groups {
            std::fs::create_dir_all(group.join("jobs/7")).unwrap();
        }
        let processes = groups[1].join("jobs/7/cgroup.procs");
        std::fs::write(&processes, "12\n").unwrap();
        remove_if_idle(&groups);
        assert!(groups[0].join("jobs/7").exists(), "an empty group beside a busy one is kept");
        std::fs::remove_file(&processes).unwrap();
        remove_if_idle(&groups);
        assert!(groups.iter().all(|group| !group.exists()));
    }
}
