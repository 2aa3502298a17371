//! Where the programs under test are: in the target directory that this very program was built into.
//!
//! `tests` depends on no binary package, since cargo offers no such dependency: `make check` builds the whole workspace first. A
//! program that is missing or older than the tests' own build is told by name rather than taken from elsewhere.

use crate::scratch::Scratch;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The commands that users run.
const COMMANDS: [&str; 5] = ["bsub", "bq", "bcancel", "binfo", "bctl"];

/// The directory of the programs: `target/debug` or `target/release`.
pub fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let own = std::env::current_exe().expect("a running program has a path");
        let beside = own.parent().expect("a program is in a directory");
        // Test executables are in `deps`, below the programs.
        let dir = if beside.ends_with("deps") {
            beside.parent().expect("`deps` is in a directory")
        } else {
            beside
        };
        dir.to_path_buf()
    })
}

/// A program's path.
///
/// # Panics
/// When it was not built.
pub fn program(name: &str) -> PathBuf {
    let path = dir().join(name);
    assert!(
        path.is_file(),
        "{} is not there: build the programs first (`cargo build --workspace`, as `make check` does)",
        path.display()
    );
    path
}

/// A directory with the commands in it that every user can reach: the target directory itself, or copies where that is private.
pub fn for_users(scratch: &Scratch) -> PathBuf {
    let passable = |dir: &Path| dir.metadata().is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
    if dir().ancestors().all(passable) {
        return dir().to_path_buf();
    }
    let copies = scratch.make_dir("bin", 0o755);
    for name in COMMANDS {
        std::fs::copy(program(name), copies.join(name)).expect("a program can be copied");
    }
    copies
}
