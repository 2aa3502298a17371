//! Who a job's user is on this node: the user database must agree with what the submission said.
//!
//! Asked by noded in threads of its own (a name service may be slow or hang: that delays only the jobs that wait for the answer) and kept for
//! some seconds. Neither launcher nor shepherd asks it.

use nix::unistd::{Gid, User, getgrouplist};
use std::ffi::CString;

/// Who is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    /// The name.
    pub user: String,
    /// The user id it should have.
    pub uid: u32,
    /// The group that the user should be in.
    pub gid: u32,
}

/// What the node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Every group of the user.
    pub groups: Vec<u32>,
    /// Home directory, as written.
    pub home: String,
    /// Login shell.
    pub shell: String,
}

/// Asks the user database. The error is for the job's record.
pub fn look_up(asked: &Asked) -> Result<Identity, String> {
    let Asked { user, uid, gid } = asked;
    let found =
        User::from_name(user).map_err(|e| format!("user {user:?} cannot be looked up here: {}", e.desc()))?;
    let Some(found) = found else {
        return Err(format!("user {user:?} is unknown on this node"));
    };
    if found.uid.as_raw() != *uid {
        return Err(format!("user {user} has uid {} here, {uid} at submission", found.uid));
    }
    let name = CString::new(user.as_str()).map_err(|_| format!("user {user:?} is no name"))?;
    let groups = getgrouplist(&name, found.gid)
        .map_err(|e| format!("the groups of user {user:?} cannot be looked up here: {}", e.desc()))?;
    let groups: Vec<u32> = groups.into_iter().map(Gid::as_raw).collect();
    if !groups.contains(gid) {
        return Err(format!(
            "user {user} is not in group {gid} here, which was the primary group at submission"
        ));
    }
    let home = found.dir.to_string_lossy().into_owned();
    Ok(Identity { groups, home, shell: found.shell.to_string_lossy().into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(user: &str, uid: u32, gid: u32) -> Result<Identity, String> {
        look_up(&Asked { user: user.to_owned(), uid, gid })
    }

    #[test]
    fn the_user_database_must_agree() {
        let root = ask("root", 0, 0).unwrap();
        assert!(root.groups.contains(&0) && root.home.starts_with('/'));
        assert_eq!(ask("root", 5, 0).unwrap_err(), "user root has uid 0 here, 5 at submission");
        assert_eq!(ask("no-such-user", 5, 5).unwrap_err(), "user \"no-such-user\" is unknown on this node");
        let error = ask("root", 0, 4_000_000).unwrap_err();
        assert!(error.contains("not in group 4000000 here"), "{error}");
    }
}
