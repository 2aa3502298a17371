//! The unprivileged users that tests submit as, made on the machine when they are not there.

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Gid, Uid};
use std::fs::File;
use std::process::Command;

/// Two tests at once must not both add a user.
const LOCK: &str = "/tmp/bct-users.lock";

/// Somebody of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The user id.
    pub uid: Uid,
    /// The primary group.
    pub gid: Gid,
}

impl User {
    /// The administrator.
    pub fn root() -> User {
        User { name: "root".into(), uid: Uid::from_raw(0), gid: Gid::from_raw(0) }
    }

    /// A test user: `bctest1`.
    pub fn one() -> User {
        User::named("bctest1")
    }

    /// Another: `bctest2`.
    pub fn two() -> User {
        User::named("bctest2")
    }

    fn named(name: &str) -> User {
        let file = File::create(LOCK).expect("/tmp can be written");
        let _lock = Flock::lock(file, FlockArg::LockExclusive).expect("a lock can be waited for");
        if let Some(user) = User::find(name) {
            return user;
        }
        // No home is made: a job must do without.
        let added = Command::new("useradd")
            .args([
                "--user-group",
                "--no-create-home",
                "--home-dir",
                "/nonexistent",
                "--shell",
                "/bin/bash",
                name,
            ])
            .output()
            .expect("useradd can be run (the tests need root)");
        assert!(added.status.success(), "useradd {name}: {}", String::from_utf8_lossy(&added.stderr));
        User::find(name).expect("the user that was just added is there")
    }

    fn find(name: &str) -> Option<User> {
        let found = nix::unistd::User::from_name(name).expect("the user database answers")?;
        Some(User { name: found.name, uid: found.uid, gid: found.gid })
    }
}
