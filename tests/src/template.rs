//! A controller's state directory with an empty, migrated database in it, made once for each build of ctld and then copied.
//!
//! Making a database takes some three seconds of processor time, copying one a tenth of one: with a cluster for each test that is
//! minutes. The copy is what ctld itself made and stopped in good order; a cluster can do without (`fresh_database`).

use crate::daemon::{Daemon, tail};
use crate::http::Connection;
use crate::processes;
use crate::programs::program;
use crate::until::becomes;
use nix::fcntl::{Flock, FlockArg};
use proto::api::Health;
use std::collections::hash_map::DefaultHasher;
use std::fs::{DirBuilder, File};
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LOCK: &str = "/tmp/bct-template.lock";
const PREFIX: &str = "bct-template-";
const MADE_WITHIN: Duration = Duration::from_secs(180);

/// Puts a copy at `to`, which must not exist.
pub fn copy_state(to: &Path) {
    let file = File::create(LOCK).expect("/tmp can be written");
    let dir = dir();
    let shared = Flock::lock(file, FlockArg::LockShared).expect("a lock can be waited for");
    let _lock = if whole(&dir) {
        shared
    } else {
        let file = shared.unlock().map_err(|(_, error)| error).expect("a lock that is held can be let go");
        let exclusive = Flock::lock(file, FlockArg::LockExclusive).expect("a lock can be waited for");
        if !whole(&dir) {
            make(&dir);
        }
        exclusive
    };
    let copied = Command::new("cp").args(["-a", "--reflink=auto"]).arg(dir.join("ctld")).arg(to).output();
    let copied = copied.expect("cp can be run");
    assert!(copied.status.success(), "cp: {}", String::from_utf8_lossy(&copied.stderr));
}

/// Named for the very program that makes it.
fn dir() -> PathBuf {
    let path = program("ctld");
    let found = path.metadata().expect("a file that is there can be looked at");
    let mut hash = DefaultHasher::new();
    (path, found.ino(), found.mtime(), found.mtime_nsec(), found.len()).hash(&mut hash);
    PathBuf::from(format!("/tmp/{PREFIX}{:x}", hash.finish()))
}

fn whole(dir: &Path) -> bool {
    dir.join("whole").exists()
}

fn make(dir: &Path) {
    remove_old();
    DirBuilder::new().mode(0o755).create(dir).expect("/tmp can be written");
    let (config, log, socket) = (dir.join("ctld.toml"), dir.join("log"), dir.join("ctld.sock"));
    let text = format!("state_dir = \"{}/ctld\"\nsocket = \"{}\"\n", dir.display(), socket.display());
    std::fs::write(&config, text).expect("a new directory can be written");
    let mut ctld = Daemon::start("ctld", &program("ctld"), &config, &log);
    let ready = becomes(MADE_WITHIN, || {
        let health = Connection::open(&socket).ok().and_then(|mut api| api.get::<Health>("/v1/check").ok());
        health.is_some() || !ctld.running()
    });
    assert!(ready && ctld.running(), "the controller does not start:\n{}", tail(&log));
    let status = ctld.terminate(MADE_WITHIN);
    assert!(status.success(), "the controller does not stop well ({status}):\n{}", tail(&log));
    let left = processes::database_processes(dir);
    assert!(left.is_empty(), "the stopped controller left its database running: {left:?}");
    std::fs::write(dir.join("whole"), "").expect("a new directory can be written");
}

/// Those of earlier builds, and half-made ones.
fn remove_old() {
    let Ok(entries) = std::fs::read_dir("/tmp") else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(PREFIX)) {
            processes::end_daemons_of(&entry.path());
            processes::end_database_in(&entry.path());
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
