//! A directory for one test, and what a test leaves behind.
//!
//! `/tmp/bct-PID-N`, whose name is also the name of the control groups made for it. Its lock file beside it (`….lock`) is held for
//! as long as the test lives: a directory whose lock is free was left by a test that was killed, and is cleared, with the
//! processes, control groups and mounts that belong to it, by the next test that makes one. Paths stay short for the sake of sockets.

use crate::{groups, processes};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, umount2};
use std::fs::{DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

const ABOVE: &str = "/tmp";
const PREFIX: &str = "bct-";

/// A test's directory. What belongs to it ends when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    dir: PathBuf,
    lock_path: PathBuf,
    _lock: Flock<File>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Scratch {
    /// A new directory, passable for everybody.
    pub fn new() -> Scratch {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let dir = Path::new(ABOVE).join(format!("{PREFIX}{}-{number}", std::process::id()));
            let lock_path = lock_of(&dir);
            let Ok(file) = File::create_new(&lock_path) else { continue };
            let Some(lock) = try_lock(file, &lock_path) else { continue };
            make(&dir, 0o755);
            return Scratch { dir, lock_path, _lock: lock };
        }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its name, which its control groups have too.
    pub fn name(&self) -> &str {
        name_of(&self.dir)
    }

    /// A directory in it with exactly this mode.
    pub fn make_dir(&self, name: &str, mode: u32) -> PathBuf {
        let dir = self.dir.join(name);
        make(&dir, mode);
        dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        clear(&self.dir);
        let _ = std::fs::remove_file(&self.lock_path);
    }
}

fn make(dir: &Path, mode: u32) {
    DirBuilder::new().recursive(true).mode(mode).create(dir).expect("a directory can be made");
    // Whatever the umask is.
    std::fs::set_permissions(dir, Permissions::from_mode(mode)).expect("our own directory's mode can be set");
}

fn lock_of(dir: &Path) -> PathBuf {
    Path::new(ABOVE).join(format!("{}.lock", name_of(dir)))
}

fn name_of(dir: &Path) -> &str {
    dir.file_name().and_then(|name| name.to_str()).expect("a scratch directory's name is plain text")
}

/// The lock, unless somebody has it or the file was replaced meanwhile.
fn try_lock(file: File, path: &Path) -> Option<Flock<File>> {
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
    let (held, there) = (lock.metadata().ok()?, std::fs::metadata(path).ok()?);
    (held.ino() == there.ino()).then_some(lock)
}

/// Clears what killed test runs left.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(ABOVE) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let Some(stem) =
            name.to_str().filter(|n| n.starts_with(PREFIX)).and_then(|n| n.strip_suffix(".lock"))
        else {
            continue;
        };
        if stem == "bct-users" || stem == "bct-template" {
            continue;
        }
        let Ok(file) = File::options().read(true).write(true).open(&path) else { continue };
        if let Some(_lock) = try_lock(file, &path) {
            eprintln!("clearing what a killed test left: {stem}");
            clear(&Path::new(ABOVE).join(stem));
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Ends every process of this directory, and removes its control groups, its mounts and itself.
fn clear(dir: &Path) {
    processes::end_daemons_of(dir);
    groups::clear(name_of(dir));
    // The database last: nothing asks it any more.
    processes::end_database_in(dir);
    for mount in mounts_below(dir) {
        let _ = umount2(&mount, MntFlags::MNT_DETACH);
    }
    if let Err(error) = std::fs::remove_dir_all(dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("cannot remove {}: {error}", dir.display());
    }
}

/// Deepest first.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1).map(PathBuf::from));
    let mut below: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    below.reverse();
    below
}
