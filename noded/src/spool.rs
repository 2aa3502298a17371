//! Where scripts lie while their jobs run.
//!
//! On a tmpfs if the machine has one (`/run`, else `/dev/shm`): a script is made and removed for each attempt, which a
//! disk's file system takes its time for. Else in the state directory. The folder is root's, can be entered by all and
//! listed by none; one of that name that somebody else made is not used. What is lost with a tmpfs is nothing: no job survives the machine, and the
//! text is in the journal.

use anyhow::Context;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where a tmpfs usually is.
const CANDIDATES: [&str; 2] = ["/run", "/dev/shm"];
/// Enter, but do not list.
const MODE: u32 = 0o711;

/// Makes the folder for the scripts of the noded with this state directory.
pub fn prepare(state_dir: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("better-compute-{:08x}", crc32fast::hash(state_dir.as_os_str().as_encoded_bytes()));
    for candidate in CANDIDATES.map(Path::new) {
        if is_tmpfs(candidate)
            && let Ok(dir) = make(&candidate.join(&name))
        {
            return Ok(dir);
        }
    }
    let dir = state_dir.join("scripts");
    make(&dir).with_context(|| format!("{}", dir.display()))
}

/// Removes the folder if nothing is in it: jobs that go on keep it.
pub fn leave(scripts: &Path) {
    // Not empty is the other usual case.
    let _ = fs::remove_dir(scripts);
}

fn is_tmpfs(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).is_ok_and(|fs| fs.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC)
}

/// Makes a folder for scripts, or takes the one that is there if it is root's.
pub fn make(dir: &Path) -> io::Result<PathBuf> {
    match fs::DirBuilder::new().mode(MODE).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != 0 {
        return Err(io::Error::other("it is not a folder of root's"));
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(MODE))?;
    Ok(dir.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_roots_own_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let made = make(&dir.path().join("a")).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, MODE);
        assert!(make(&made).is_ok(), "an earlier one of ours is taken");
        std::os::unix::fs::symlink(&made, dir.path().join("link")).unwrap();
        assert!(make(&dir.path().join("link")).is_err());
        std::os::unix::fs::chown(&made, Some(65534), None).unwrap();
        assert!(make(&made).is_err());
    }
}
