//! Control groups: one per attempt, in whichever hierarchies this machine has.
//!
//! Three modes, detected and not configured: `v2` (one unified hierarchy), `v1` (a hierarchy per controller), `hybrid` (v1 controllers beside a
//! unified hierarchy, which then does the freezing, killing and counting of CPU time). Under each hierarchy stand
//! `BASE/NODE/shepherds`, never under a job's limits, and `BASE/NODE/jobs/ALLOCATION`, one per allocation and never reused (what a job left in a
//! tmpfs stays charged to its group). Only what is needed gets a group: making and removing them is half the cost of a short job.
//!
//! Plain files and `libc`, not `cgroups-rs`: measured on 0.5.1, that crate takes a hybrid machine for v1, answers `Ok` for limits that limit
//! nothing there, fixes the unified mount to one path, reads no OOM kills on v2, drops errors of enabling controllers, has no device
//! control on v2 and brings 75 crates. A limit that cannot be set must be an error here: a job never runs unguarded.
//!
//! `mounts` finds the hierarchies, `group` is one attempt's group, `kill` ends what is in it.

mod group;
mod kill;
mod mounts;

pub use group::{JobGroup, Limits, OomCounts};
pub use kill::signal_all;

use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What kind of machine this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A hierarchy per controller.
    V1,
    /// One hierarchy for all.
    V2,
    /// v1 controllers, and a unified hierarchy that has the rest.
    Hybrid,
}

impl Mode {
    /// As in the node's greeting.
    pub fn name(self) -> &'static str {
        match self {
            Mode::V1 => "v1",
            Mode::V2 => "v2",
            Mode::Hybrid => "hybrid",
        }
    }
}

/// A controller that limits or counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    /// CPU quota.
    Cpu,
    /// Memory limit and OOM counts.
    Memory,
    /// How many processes.
    Pids,
    /// CPU time used, on v1.
    Cpuacct,
    /// Stopping a whole group, on v1.
    Freezer,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpuacct => "cpuacct",
            Controller::Freezer => "freezer",
        }
    }
}

/// One mounted hierarchy and what it is used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Whether it is the unified one.
    pub unified: bool,
    /// The controllers used of it.
    pub controllers: Vec<Controller>,
}

impl Tree {
    fn has(&self, controller: Controller) -> bool {
        self.controllers.contains(&controller)
    }
}

/// All hierarchies in use, and where in them this node's groups stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The mode.
    pub mode: Mode,
    /// The hierarchies.
    pub trees: Vec<Tree>,
    /// `BASE/NODE`.
    pub base: PathBuf,
}

/// Control groups that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// A file or folder could not be read, written or made.
    #[error("control group {}: {}", path.display(), crate::sys::io_text(source))]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A value was not taken.
    #[error("control group {}: \"{value}\" was refused: {}", path.display(), crate::sys::io_text(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
        /// Why.
        source: io::Error,
    },
    /// A controller is mounted nowhere.
    #[error(
        "no mounted control group hierarchy has the controller \"{0}\": mount cgroup2 with it (or cgroup v1), jobs are never run without their limits"
    )]
    NoController(&'static str),
}

impl CgroupError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
        move |source| CgroupError::Io { path: path.to_owned(), source }
    }
}

impl Layout {
    /// Finds this machine's hierarchies. `base` is the configured name, `node` the node's.
    pub fn detect(base: &str, node: &str) -> Result<Layout, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        Layout::of_mounts(&fs::read_to_string(path).map_err(CgroupError::io(path))?, base, node)
    }

    /// The same from the text of a mountinfo file.
    pub fn of_mounts(mountinfo: &str, base: &str, node: &str) -> Result<Layout, CgroupError> {
        let (mode, trees) = mounts::choose(&mounts::parse(mountinfo), |mount| {
            fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default()
        })?;
        Ok(Layout { mode, trees, base: Path::new(base).join(node) })
    }

    /// Makes the groups that stand as long as noded is installed, and enables the controllers below them.
    pub fn prepare(&self) -> Result<(), CgroupError> {
        for tree in &self.trees {
            let mut at = tree.mount.clone();
            for part in self.base.iter().chain([std::ffi::OsStr::new("jobs")]) {
                enable_below(&at, tree)?;
                at.push(part);
                make_group(&at)?;
            }
            enable_below(&at, tree)?;
            make_group(&tree.mount.join(&self.base).join("shepherds"))?;
        }
        Ok(())
    }

    /// Moves the calling process to the shepherds' groups.
    pub fn enter_shepherds(&self) -> Result<(), CgroupError> {
        for tree in &self.trees {
            write(&tree.mount.join(&self.base).join("shepherds/cgroup.procs"), "0")?;
        }
        Ok(())
    }

    /// The folder whose lock says that a noded uses these groups.
    pub fn guard_dir(&self) -> PathBuf {
        self.trees[0].mount.join(&self.base)
    }

    /// The allocations that have a group in any hierarchy.
    pub fn job_ids(&self) -> Result<Vec<i64>, CgroupError> {
        let mut ids = Vec::new();
        for tree in &self.trees {
            let jobs = tree.mount.join(&self.base).join("jobs");
            for entry in fs::read_dir(&jobs).map_err(CgroupError::io(&jobs))? {
                let entry = entry.map_err(CgroupError::io(&jobs))?;
                ids.extend(entry.file_name().to_str().and_then(|name| name.parse::<i64>().ok()));
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }
}

fn make_group(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(CgroupError::io(path)(e)),
        _ => Ok(()),
    }
}

/// On the unified hierarchy a controller must be enabled in each group above the one that it limits.
fn enable_below(path: &Path, tree: &Tree) -> Result<(), CgroupError> {
    if !tree.unified || tree.controllers.is_empty() {
        return Ok(());
    }
    let file = path.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&file).map_err(CgroupError::io(&file))?;
    for controller in &tree.controllers {
        if !enabled.split_whitespace().any(|name| name == controller.name()) {
            write(&file, &format!("+{}", controller.name()))?;
        }
    }
    Ok(())
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    let refused = |source| CgroupError::Write { path: path.to_owned(), value: value.to_owned(), source };
    let mut file = fs::File::options().write(true).open(path).map_err(CgroupError::io(path))?;
    io::Write::write_all(&mut file, value.as_bytes()).map_err(refused)
}
