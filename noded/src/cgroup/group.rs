//! One allocation's group: made, limited, entered, counted and removed in every hierarchy in use.
//!
//! Removing is retried by the caller: a group is busy until its last process is gone from the kernel's tables, which
//! may take a while after the kill. Counters die with the group, so they are read before.

use super::{CgroupError, Controller, Layout, Tree, make_group, write};
use proto::api::Usage;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The period of the CPU quota, microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;

/// What one attempt may use on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// CPUs.
    pub cpus: u32,
    /// Memory in MiB, swap included.
    pub mem_mib: u64,
    /// Processes and threads.
    pub pids_max: u64,
}

/// What the kernel did for want of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomCounts {
    /// Processes of the group that were killed.
    pub kills: u64,
    /// Times that the group's own limit was hit; 0 beside kills says that the machine, not the group, was short.
    pub limit_hits: u64,
}

/// The group of one allocation. The value names it; `make` makes it.
pub struct JobGroup<'a> {
    layout: &'a Layout,
    id: i64,
}

impl<'a> JobGroup<'a> {
    /// The group of this allocation.
    pub fn new(layout: &'a Layout, id: i64) -> JobGroup<'a> {
        JobGroup { layout, id }
    }

    pub(super) fn dir(&self, tree: &Tree) -> PathBuf {
        tree.mount.join(&self.layout.base).join("jobs").join(self.id.to_string())
    }

    pub(super) fn trees(&self) -> &'a [Tree] {
        &self.layout.trees
    }

    fn dir_of(&self, controller: Controller) -> Option<(PathBuf, bool)> {
        let tree = self.layout.trees.iter().find(|tree| tree.has(controller))?;
        Some((self.dir(tree), tree.unified))
    }

    /// Makes it in every hierarchy and sets the limits. A limit that the kernel does not take is an error.
    pub fn make(&self, limits: &Limits) -> Result<(), CgroupError> {
        for tree in &self.layout.trees {
            let dir = self.dir(tree);
            make_group(&dir)?;
            for controller in &tree.controllers {
                set_limit(&dir, *controller, tree.unified, limits)?;
            }
        }
        Ok(())
    }

    /// The folder in the unified hierarchy, opened so that a child can be born in it.
    pub fn open_unified(&self) -> Result<Option<File>, CgroupError> {
        let Some(tree) = self.layout.trees.iter().find(|tree| tree.unified) else { return Ok(None) };
        let dir = self.dir(tree);
        let file = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(&dir);
        file.map(Some).map_err(CgroupError::io(&dir))
    }

    /// Moves the calling, single-threaded process into the group. `born_in_unified`: it is in that hierarchy already.
    ///
    /// On v1 a thread that moves itself by `tasks` is spared the lock that stops every fork and exit on the machine.
    pub fn enter(&self, born_in_unified: bool) -> Result<(), CgroupError> {
        for tree in &self.layout.trees {
            match tree.unified {
                true if born_in_unified => {}
                true => write(&self.dir(tree).join("cgroup.procs"), "0")?,
                false => write(&self.dir(tree).join("tasks"), "0")?,
            }
        }
        Ok(())
    }

    /// What it has used. Zeros where a counter cannot be read (the group is gone).
    pub fn usage(&self) -> (Usage, OomCounts) {
        let oom = self.oom_counts();
        let mem_peak_bytes = self.dir_of(Controller::Memory).and_then(|(dir, unified)| {
            read_number(&dir.join(if unified { "memory.peak" } else { "memory.max_usage_in_bytes" }))
        });
        let cpu_us = match self.layout.trees.iter().find(|tree| tree.unified) {
            Some(tree) => read_keyed(&self.dir(tree).join("cpu.stat"), "usage_usec"),
            None => self
                .dir_of(Controller::Cpuacct)
                .and_then(|(dir, _)| read_number(&dir.join("cpuacct.usage")))
                .map(|ns| ns / 1000),
        };
        (Usage { cpu_us: cpu_us.unwrap_or(0), mem_peak_bytes, oom_kills: oom.kills }, oom)
    }

    /// v1 counts a kill in the victim's own group only, so all groups below are summed; v2 counts up the tree.
    fn oom_counts(&self) -> OomCounts {
        let Some((dir, unified)) = self.dir_of(Controller::Memory) else { return OomCounts::default() };
        if unified {
            let events = dir.join("memory.events");
            return OomCounts {
                kills: read_keyed(&events, "oom_kill").unwrap_or(0),
                limit_hits: read_keyed(&events, "oom").unwrap_or(0),
            };
        }
        let kills = |dir: &Path| read_keyed(&dir.join("memory.oom_control"), "oom_kill").unwrap_or(0);
        let hits = |dir: &Path| {
            ["memory.failcnt", "memory.memsw.failcnt"]
                .iter()
                .filter_map(|f| read_number(&dir.join(f)))
                .sum::<u64>()
        };
        let dirs = subtree(&dir);
        let kills = dirs.iter().map(|d| kills(d)).sum();
        // Hits mean something beside kills only.
        let limit_hits = if kills == 0 { 0 } else { dirs.iter().map(|d| hits(d)).sum() };
        OomCounts { kills, limit_hits }
    }

    /// Every process in it, in any hierarchy and in groups that the job made below.
    pub fn processes(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = Vec::new();
        for tree in &self.layout.trees {
            for dir in subtree(&self.dir(tree)) {
                let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            }
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Removes it everywhere, deepest first. `Ok(false)`: something in it is still busy.
    pub fn remove(&self) -> Result<bool, CgroupError> {
        let mut clean = true;
        for tree in &self.layout.trees {
            let dir = self.dir(tree);
            match fs::remove_dir(&dir) {
                Ok(()) => continue,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => {}
            }
            // Busy: by a process, or by groups that the job made below.
            for dir in subtree(&dir).iter().rev() {
                match fs::remove_dir(dir) {
                    Ok(()) => {}
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) if e.raw_os_error() == Some(libc::EBUSY) => clean = false,
                    Err(e) => return Err(CgroupError::io(dir)(e)),
                }
            }
        }
        Ok(clean)
    }
}

fn set_limit(dir: &Path, controller: Controller, unified: bool, limits: &Limits) -> Result<(), CgroupError> {
    let bytes = limits.mem_mib.saturating_mul(1 << 20).min(i64::MAX as u64).to_string();
    let quota = u64::from(limits.cpus) * CPU_PERIOD_US;
    match (controller, unified) {
        (Controller::Memory, true) => {
            write(&dir.join("memory.max"), &bytes)?;
            // Absent where the kernel has no swap.
            write_if_there(&dir.join("memory.swap.max"), "0")
        }
        (Controller::Memory, false) => {
            write(&dir.join("memory.limit_in_bytes"), &bytes)?;
            write_if_there(&dir.join("memory.memsw.limit_in_bytes"), &bytes)
        }
        (Controller::Cpu, true) => write(&dir.join("cpu.max"), &format!("{quota} {CPU_PERIOD_US}")),
        (Controller::Cpu, false) => write(&dir.join("cpu.cfs_quota_us"), &quota.to_string()),
        (Controller::Pids, _) => write(&dir.join("pids.max"), &limits.pids_max.to_string()),
        (Controller::Cpuacct | Controller::Freezer, _) => Ok(()),
    }
}

fn write_if_there(path: &Path, value: &str) -> Result<(), CgroupError> {
    match write(path, value) {
        Err(CgroupError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The folder and all below it, parents first. A folder without children costs one `stat`.
pub(super) fn subtree(dir: &Path) -> Vec<PathBuf> {
    let mut all = vec![dir.to_owned()];
    let mut at = 0;
    while at < all.len() {
        // A folder has a link from each child's "..".
        if fs::metadata(&all[at]).is_ok_and(|meta| meta.nlink() > 2) {
            let entries = fs::read_dir(&all[at]).into_iter().flatten().flatten();
            let below: Vec<PathBuf> =
                entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect();
            all.extend(below);
        }
        at += 1;
    }
    all
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read_keyed(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}
