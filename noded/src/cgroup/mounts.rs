//! Finding the hierarchies: `/proc/self/mountinfo`, never a mount's name.
//!
//! Distributions mount v1 controllers under many names and together (`cpu,cpuacct`); what a hierarchy has is in its super
//! options. A controller that is bound to v1 is not offered by the unified hierarchy, so each is looked for in v1 first.

use super::{CgroupError, Controller, Mode, Tree};
use std::path::{Path, PathBuf};

/// One mount of a control group hierarchy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    path: PathBuf,
    unified: bool,
    options: Vec<String>,
}

/// The control group mounts of a mountinfo text.
pub(super) fn parse(mountinfo: &str) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut right = right.split(' ');
        let (Some(kind), Some(_source), Some(options)) = (right.next(), right.next(), right.next()) else {
            continue;
        };
        let unified = match kind {
            "cgroup2" => true,
            "cgroup" => false,
            _ => continue,
        };
        let Some(path) = left.split(' ').nth(4) else { continue };
        let options: Vec<String> = options.split(',').map(str::to_owned).collect();
        let path = PathBuf::from(unescape(path));
        // A later mount at the same place hides the earlier one.
        mounts.retain(|mount| mount.path != path);
        mounts.push(Mount { path, unified, options });
    }
    mounts
}

/// mountinfo writes blanks and the like as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match after.get(..3).filter(|_| byte == b'\\').and_then(octal) {
            Some(value) => {
                bytes.push(value);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Decides which hierarchy is used for what. `offered` reads the controllers that a unified mount has.
pub(super) fn choose(
    mounts: &[Mount],
    offered: impl Fn(&Path) -> String,
) -> Result<(Mode, Vec<Tree>), CgroupError> {
    let mut trees: Vec<Tree> = Vec::new();
    let unified = mounts.iter().find(|mount| mount.unified);
    let offered = unified.map(|mount| offered(&mount.path)).unwrap_or_default();
    let v1 = |controller: Controller| {
        mounts.iter().find(|m| !m.unified && m.options.iter().any(|o| o == controller.name()))
    };
    let mut take = |mount: &Mount, controller: Option<Controller>| {
        let at = trees.iter().position(|tree| tree.mount == mount.path).unwrap_or_else(|| {
            trees.push(Tree { mount: mount.path.clone(), unified: mount.unified, controllers: Vec::new() });
            trees.len() - 1
        });
        trees[at].controllers.extend(controller);
    };
    let mut any_v1 = false;
    for controller in [Controller::Memory, Controller::Cpu, Controller::Pids] {
        match (v1(controller), unified) {
            (Some(mount), _) => {
                any_v1 = true;
                take(mount, Some(controller));
            }
            (None, Some(mount)) if offered.split_whitespace().any(|name| name == controller.name()) => {
                take(mount, Some(controller));
            }
            _ => return Err(CgroupError::NoController(controller.name())),
        }
    }
    match unified {
        // Counts CPU time, freezes and kills without any controller.
        Some(mount) => take(mount, None),
        None => {
            for controller in [Controller::Cpuacct, Controller::Freezer] {
                take(v1(controller).ok_or(CgroupError::NoController(controller.name()))?, Some(controller));
            }
        }
    }
    let mode = match (any_v1, unified.is_some()) {
        (false, _) => Mode::V2,
        (true, true) => Mode::Hybrid,
        (true, false) => Mode::V1,
    };
    Ok((mode, trees))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
34 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:14 - cgroup cgroup rw,cpu,cpuacct
35 30 0:31 / /sys/fs/cgroup/mem\\040ory rw - cgroup whatever rw,memory
36 30 0:32 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
37 30 0:33 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
38 30 0:34 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";
    const UNIFIED: &str = "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";

    fn chosen(text: &str, offered: &str) -> Result<(Mode, Vec<Tree>), CgroupError> {
        choose(&parse(text), |_| offered.to_owned())
    }

    fn uses(trees: &[Tree]) -> Vec<(String, Vec<Controller>)> {
        trees.iter().map(|t| (t.mount.display().to_string(), t.controllers.clone())).collect()
    }

    #[test]
    fn v1_controllers_that_are_mounted_together_share_a_group() {
        let (mode, trees) = chosen(V1, "").unwrap();
        assert_eq!(mode, Mode::V1);
        assert_eq!(
            uses(&trees),
            [
                ("/sys/fs/cgroup/mem ory".to_owned(), vec![Controller::Memory]),
                ("/sys/fs/cgroup/cpu,cpuacct".to_owned(), vec![Controller::Cpu, Controller::Cpuacct]),
                ("/sys/fs/cgroup/pids".to_owned(), vec![Controller::Pids]),
                ("/sys/fs/cgroup/freezer".to_owned(), vec![Controller::Freezer]),
            ]
        );
    }

    #[test]
    fn beside_v1_the_unified_hierarchy_counts_and_kills() {
        let (mode, trees) = chosen(&format!("{UNIFIED}{V1}"), "hugetlb").unwrap();
        assert_eq!(mode, Mode::Hybrid);
        assert_eq!(trees.len(), 4);
        assert_eq!(trees.last().unwrap().mount, Path::new("/sys/fs/cgroup/unified"));
        assert!(!trees.iter().any(|t| t.has(Controller::Freezer) || t.has(Controller::Cpuacct)));
    }

    #[test]
    fn one_unified_hierarchy_does_everything() {
        let text = "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let (mode, trees) = chosen(text, "cpuset cpu io memory pids").unwrap();
        assert_eq!(mode, Mode::V2);
        assert_eq!(trees.len(), 1);
        assert_eq!(trees[0].controllers, [Controller::Memory, Controller::Cpu, Controller::Pids]);
    }

    #[test]
    fn a_controller_that_is_nowhere_is_named() {
        let text = "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let error = chosen(text, "cpu memory").unwrap_err().to_string();
        assert!(error.contains("\"pids\""), "{error}");
        assert!(chosen("", "").is_err());
    }
}
