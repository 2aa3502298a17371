//! Where PostgreSQL's server programs are.
//!
//! Distributions keep several major versions side by side, outside of PATH. A new cluster takes the newest; a cluster that
//! exists needs its own major version, whatever else is installed.

use super::EmbeddedError;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest major version that will do.
pub const VERSION_MIN: u32 = 15;

/// Folders that hold one folder a major version, and what is below it: Debian and Ubuntu, then the PostgreSQL project's
/// own packages for Red Hat and its kin.
const VERSIONED: [(&str, &str, &str); 2] = [("/usr/lib/postgresql", "", "bin"), ("/usr", "pgsql-", "bin")];

/// The programs of one installed version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binaries {
    pub(super) dir: PathBuf,
    pub(super) major: u32,
}

impl Binaries {
    pub(super) fn postgres(&self) -> PathBuf {
        self.dir.join("postgres")
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.dir.join("initdb")
    }
}

/// The programs for a cluster of version `wanted` (the text of its `PG_VERSION`), or the newest for a new one.
pub(super) fn find(wanted: Option<&str>, data: &Path) -> Result<Binaries, EmbeddedError> {
    choose(installed(), wanted, data)
}

fn choose(
    mut installed: Vec<Binaries>,
    wanted: Option<&str>,
    data: &Path,
) -> Result<Binaries, EmbeddedError> {
    installed.retain(|found| found.major >= VERSION_MIN);
    // The stable sort keeps a distribution's folder before PATH's copy of the same version.
    installed.sort_by_key(|found| std::cmp::Reverse(found.major));
    if installed.is_empty() {
        let searched = "/usr/lib/postgresql/*/bin, /usr/pgsql-*/bin and PATH".into();
        return Err(EmbeddedError::NotInstalled { searched });
    }
    let Some(wanted) = wanted else { return Ok(installed.swap_remove(0)) };
    let found = installed.iter().map(|found| found.major.to_string()).collect::<Vec<_>>().join(", ");
    installed.into_iter().find(|found| found.major.to_string() == wanted).ok_or_else(|| {
        EmbeddedError::OtherVersion { dir: data.to_path_buf(), wanted: wanted.to_owned(), found }
    })
}

fn installed() -> Vec<Binaries> {
    let mut found = Vec::new();
    for (base, prefix, below) in VERSIONED {
        // A base that cannot be read holds no usable programs.
        let Ok(entries) = std::fs::read_dir(base) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let version =
                name.to_str().and_then(|name| name.strip_prefix(prefix)).and_then(|v| v.parse().ok());
            let Some(major) = version else { continue };
            let dir = entry.path().join(below);
            if complete(&dir) {
                found.push(Binaries { dir, major });
            }
        }
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    for dir in std::env::split_paths(&path).filter(|dir| dir.is_absolute() && complete(dir)) {
        if let Some(major) = asked_version(&dir) {
            found.push(Binaries { dir, major });
        }
    }
    found
}

fn complete(dir: &Path) -> bool {
    dir.join("postgres").is_file() && dir.join("initdb").is_file()
}

fn asked_version(dir: &Path) -> Option<u32> {
    let answer = Command::new(dir.join("postgres")).arg("--version").output().ok()?;
    major_of(&String::from_utf8_lossy(&answer.stdout))
}

/// `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` is 15, `postgres (PostgreSQL) 17beta1` is 17.
fn major_of(answer: &str) -> Option<u32> {
    let version = answer.split(") ").nth(1)?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(dir: &str, major: u32) -> Binaries {
        Binaries { dir: dir.into(), major }
    }

    #[test]
    fn a_new_cluster_takes_the_newest_and_an_old_one_its_own() {
        let all = || vec![at("/a", 13), at("/b", 15), at("/c", 17)];
        assert_eq!(choose(all(), None, Path::new("/d")).unwrap(), at("/c", 17));
        assert_eq!(choose(all(), Some("15"), Path::new("/d")).unwrap(), at("/b", 15));
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_install() {
        let none = choose(vec![at("/a", 14)], None, Path::new("/d")).unwrap_err().to_string();
        assert!(none.contains("apt-get install postgresql-15"), "{none}");
        let other = choose(vec![at("/c", 17)], Some("16"), Path::new("/d")).unwrap_err().to_string();
        assert!(other.contains("postgresql-16") && other.contains("found: 17"), "{other}");
    }

    #[test]
    fn the_version_is_read_from_what_postgres_says() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 17beta1\n"), Some(17));
        assert_eq!(major_of("sh: not found"), None);
    }
}
