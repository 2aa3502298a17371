//! The private server's directory: what is where, whose it is, and whether its user can get there.
//!
//! `data/` and `run/` (the socket) are mode 0700 and the server user's own, `log/` too. `data.new/` is a cluster being
//! made; it becomes `data/` by one rename, so that `data/` is always whole. `lock` keeps two ctlds from starting at once.

use super::EmbeddedError;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Gid, Uid, User, chown};
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a unix socket's path, without the closing zero.
const SOCKET_PATH_MAX: usize = 107;
/// The port, which on a unix socket is only a part of the file's name.
pub(super) const PORT: u16 = 5432;
const LOCK_WITHIN: Duration = Duration::from_secs(60);

/// Whom the server runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerUser {
    pub(super) name: String,
    pub(super) uid: Uid,
    pub(super) gid: Gid,
    /// Whether this process must become that user first.
    pub(super) switch: bool,
}

impl ServerUser {
    /// The user for this process: itself, or an unprivileged one when it is root.
    pub(super) fn resolve(wanted: Option<&str>) -> Result<ServerUser, EmbeddedError> {
        let me = Uid::effective();
        if !me.is_root() {
            let own = User::from_uid(me).ok().flatten().map(|user| user.name);
            let name = own.ok_or_else(|| {
                EmbeddedError::User(format!(
                    "user id {me} has no name, which PostgreSQL needs: add it to the user database"
                ))
            })?;
            if let Some(wanted) = wanted.filter(|wanted| *wanted != name) {
                return Err(EmbeddedError::User(format!(
                    "the embedded PostgreSQL cannot run as \"{wanted}\" when ctld runs as \"{name}\": leave \
                     embedded_user out, or start ctld as root"
                )));
            }
            return Ok(ServerUser { name, uid: me, gid: Gid::effective(), switch: false });
        }
        let name = wanted.unwrap_or("postgres");
        let user = User::from_name(name).map_err(|errno| {
            EmbeddedError::User(format!(
                "cannot look up user \"{name}\" for the embedded PostgreSQL: {errno}"
            ))
        })?;
        let user = user.ok_or_else(|| {
            EmbeddedError::User(format!(
                "there is no user \"{name}\" to run the embedded PostgreSQL: install the distribution's postgresql \
                 package, or name an unprivileged user with embedded_user"
            ))
        })?;
        if user.uid.is_root() {
            return Err(EmbeddedError::User(format!(
                "PostgreSQL refuses to run as root, which \"{name}\" is: name an unprivileged user with embedded_user"
            )));
        }
        Ok(ServerUser { name: user.name, uid: user.uid, gid: user.gid, switch: true })
    }
}

/// The paths under the private server's directory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) dir: PathBuf,
    pub(super) data: PathBuf,
    pub(super) data_new: PathBuf,
    pub(super) run: PathBuf,
    pub(super) log: PathBuf,
}

impl Layout {
    /// Makes what is missing and checks the rest.
    pub(super) fn prepare(dir: &Path, user: &ServerUser) -> Result<Layout, EmbeddedError> {
        if !dir.is_absolute() {
            let text =
                format!("the embedded PostgreSQL needs an absolute directory, not \"{}\"", dir.display());
            return Err(EmbeddedError::Directory(text));
        }
        if let Some(parent) = dir.parent() {
            // Passable, not listable: what is above the private directories holds no secret, but is nobody's business.
            DirBuilder::new()
                .recursive(true)
                .mode(0o711)
                .create(parent)
                .map_err(|source| file("create directory", parent, source))?;
        }
        make_private(dir, user)?;
        // The server names its directory by this path, and so does the test whether a process is that server.
        let dir = dir.canonicalize().map_err(|source| file("resolve", dir, source))?;
        let layout = Layout {
            data: dir.join("data"),
            data_new: dir.join("data.new"),
            run: dir.join("run"),
            log: dir.join("log"),
            dir,
        };
        layout.check_socket_length()?;
        check_passable(&layout.dir, user)?;
        make_private(&layout.run, user)?;
        make_private(&layout.log, user)?;
        layout.check_data_owner(user)?;
        Ok(layout)
    }

    /// The path of the server's socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.run.join(format!(".s.PGSQL.{PORT}"))
    }

    pub(super) fn pid_file(&self) -> PathBuf {
        self.data.join("postmaster.pid")
    }

    pub(super) fn startup_log(&self) -> PathBuf {
        self.log.join("startup.log")
    }

    pub(super) fn url(&self, database: &str, role: &str) -> String {
        let host = percent_encoded(&self.run);
        format!("postgres:///{database}?host={host}&port={PORT}&user={role}")
    }

    /// The major version of the cluster in `data/`; `None` when there is no cluster yet.
    pub(super) fn data_version(&self) -> Result<Option<String>, EmbeddedError> {
        let path = self.data.join("PG_VERSION");
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if std::fs::read_dir(&self.data).is_ok_and(|mut entries| entries.next().is_some()) {
                    return Err(EmbeddedError::Directory(format!(
                        "\"{}\" is neither empty nor a database cluster (it has no PG_VERSION): restore it from a backup, or \
                         move it away to begin with an empty database",
                        self.data.display()
                    )));
                }
                Ok(None)
            }
            Err(source) => Err(file("read", &path, source)),
        }
    }

    /// The lock under which the server is made, started and stopped.
    pub(super) async fn lock(&self) -> Result<Flock<File>, EmbeddedError> {
        let path = self.dir.join("lock");
        let mut open = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(|source| file("open", &path, source))?;
        let until = Instant::now() + LOCK_WITHIN;
        loop {
            match Flock::lock(open, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((_, errno)) if Instant::now() >= until => {
                    return Err(EmbeddedError::Directory(format!(
                        "another ctld has held \"{}\" for {} s ({errno}): one ctld at a time can use this directory",
                        path.display(),
                        LOCK_WITHIN.as_secs()
                    )));
                }
                Err((back, _)) => open = back,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn check_socket_length(&self) -> Result<(), EmbeddedError> {
        let socket = self.socket();
        let length = socket.as_os_str().len();
        if length <= SOCKET_PATH_MAX {
            return Ok(());
        }
        Err(EmbeddedError::Directory(format!(
            "the database's socket \"{}\" would have a path of {length} bytes, the system allows {SOCKET_PATH_MAX}: use a \
             state directory with a shorter path",
            socket.display()
        )))
    }

    fn check_data_owner(&self, user: &ServerUser) -> Result<(), EmbeddedError> {
        let owner = match std::fs::metadata(&self.data) {
            Ok(found) => Uid::from_raw(found.uid()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(file("look at", &self.data, source)),
        };
        if owner == user.uid {
            return Ok(());
        }
        let name = User::from_uid(owner).ok().flatten().map_or_else(|| owner.to_string(), |found| found.name);
        Err(EmbeddedError::Directory(format!(
            "the database in \"{}\" belongs to user \"{name}\", and the server would run as \"{}\": start ctld as it was \
             before, or name the user with embedded_user",
            self.data.display(),
            user.name
        )))
    }
}

pub(super) fn file(act: &'static str, path: &Path, source: std::io::Error) -> EmbeddedError {
    EmbeddedError::File { act, path: path.to_path_buf(), source }
}

/// A directory of mode 0700 that is the server user's own.
fn make_private(path: &Path, user: &ServerUser) -> Result<(), EmbeddedError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(file("create directory", path, source)),
    }
    let found = std::fs::symlink_metadata(path).map_err(|source| file("look at", path, source))?;
    if found.file_type().is_symlink() {
        // Following it, root would give away whatever it points at.
        return Err(EmbeddedError::Directory(format!(
            "\"{}\" is a symbolic link: name the directory it points at instead",
            path.display()
        )));
    }
    if found.uid() != user.uid.as_raw() {
        chown(path, Some(user.uid), Some(user.gid))
            .map_err(|errno| file("give to its user", path, errno.into()))?;
    }
    if found.permissions().mode() & 0o777 != 0o700 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
            .map_err(|source| file("set the mode of", path, source))?;
    }
    Ok(())
}

/// Every directory above must let the server's user pass; root's own rights hide that until the server fails to start.
fn check_passable(dir: &Path, user: &ServerUser) -> Result<(), EmbeddedError> {
    for above in dir.ancestors().skip(1) {
        let found = std::fs::metadata(above).map_err(|source| file("look at", above, source))?;
        let bit = if found.uid() == user.uid.as_raw() {
            0o100
        } else if found.gid() == user.gid.as_raw() {
            0o010
        } else {
            0o001
        };
        // An ordinary user who got this far has passed by other means, such as a supplementary group.
        if user.switch && found.permissions().mode() & bit == 0 {
            return Err(EmbeddedError::Directory(format!(
                "user \"{}\" runs the embedded PostgreSQL and cannot pass through \"{}\": use a state directory elsewhere, \
                 such as /var/lib/better-compute, or `chmod o+x` that directory",
                user.name,
                above.display()
            )));
        }
    }
    Ok(())
}

/// The path for a URL's query: everything but unreserved characters and `/` in hexadecimal.
fn percent_encoded(path: &Path) -> String {
    use std::fmt::Write as _;
    use std::os::unix::ffi::OsStrExt as _;
    let mut text = String::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(*byte as char)
            }
            _ => write!(text, "%{byte:02X}").expect("writing to a String does not fail"),
        }
    }
    text
}
