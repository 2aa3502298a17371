//! The cluster's directory: what is where, and whether it will do.
//!
//! `ctld.toml`, `nodes/NAME/noded.toml`: configuration, written anew by each `up`. `ctld/`, `nodes/NAME/state/`: state. `run/`: the
//! API's socket and the pid files. `log/`: the daemons' logs. `env`: for shells. `cluster.json`: what it was started with.
//! The directory is root's, and everybody can pass through it to the socket, since jobs and users talk to the controller.

use crate::fail::Fail;
use crate::text::os_error;
use nix::fcntl::{Flock, FlockArg};
use proto::ErrorCode;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where a cluster is unless `--dir` says otherwise.
pub(super) const DIR: &str = "/var/lib/better-compute/local";
/// Bytes of a unix socket's path, without the closing zero.
const SOCKET_PATH_MAX: usize = 107;
/// The longest socket path below the directory: the database's.
const SOCKET_LONGEST: &str = "ctld/postgres/run/.s.PGSQL.5432";
/// Another `up` or `down` in the same directory takes seconds, unless it waits for jobs to end.
const LOCK_WITHIN: Duration = Duration::from_secs(90);

/// A cluster's directory.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
}

impl Place {
    /// The directory for `up`: made when missing, refused when it would not do.
    pub(super) fn prepare(dir: Option<&Path>) -> Result<Place, Fail> {
        let dir = absolute(dir)?;
        make(&dir, 0o755)?;
        let dir = dir.canonicalize().map_err(|e| cannot("resolve", &dir, &e))?;
        let place = Place { dir };
        place.check_lengths()?;
        place.check_owner()?;
        place.check_passable()?;
        place.check_is_ours()?;
        for (name, mode) in [("run", 0o755), ("log", 0o750), ("ctld", 0o711), ("nodes", 0o755)] {
            make(&place.dir.join(name), mode)?;
        }
        Ok(place)
    }

    /// The directory for `down`: there must be a cluster in it.
    pub(super) fn existing(dir: Option<&Path>) -> Result<Place, Fail> {
        let dir = absolute(dir)?;
        let place = Place { dir: dir.canonicalize().unwrap_or(dir) };
        if place.record_file().exists() {
            return Ok(place);
        }
        let fail = Fail::new(ErrorCode::NotFound, format!("there is no cluster in {}", place.dir.display()));
        Err(fail.hint("`bctl up` sets one up; --dir names the directory if it is elsewhere"))
    }

    /// Whether it is where a cluster is without `--dir`.
    pub(super) fn is_default(&self) -> bool {
        self.dir == Path::new(DIR)
    }

    pub(super) fn record_file(&self) -> PathBuf {
        self.dir.join("cluster.json")
    }

    pub(super) fn env_file(&self) -> PathBuf {
        self.dir.join("env")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("run/ctld.sock")
    }

    /// The controller's address, as `BC_SERVER` takes it.
    pub(super) fn server(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub(super) fn ctld_config(&self) -> PathBuf {
        self.dir.join("ctld.toml")
    }

    pub(super) fn ctld_state(&self) -> PathBuf {
        self.dir.join("ctld")
    }

    pub(super) fn database_data(&self) -> PathBuf {
        self.dir.join("ctld/postgres/data")
    }

    pub(super) fn node(&self, name: &str) -> PathBuf {
        self.dir.join("nodes").join(name)
    }

    pub(super) fn node_config(&self, name: &str) -> PathBuf {
        self.node(name).join("noded.toml")
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.dir.join("log").join(format!("{name}.log"))
    }

    pub(super) fn pid_file(&self, name: &str) -> PathBuf {
        self.dir.join("run").join(format!("{name}.pid"))
    }

    /// The daemons that have a pid file: nodes first, then the controller.
    pub(super) fn with_pid_files(&self) -> Result<Vec<String>, Fail> {
        let run = self.dir.join("run");
        let entries = match std::fs::read_dir(&run) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(cannot("read directory", &run, &error)),
        };
        let names = entries
            .flatten()
            .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".pid")?.to_owned()));
        let mut names: Vec<String> = names.collect();
        names.sort_by_key(|name| (name == "ctld", name.clone()));
        Ok(names)
    }

    /// Holds off every other `up` and `down` in this directory.
    pub(super) async fn lock(&self) -> Result<Flock<File>, Fail> {
        let path = self.dir.join("lock");
        let open = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let mut file = open.map_err(|e| cannot("open", &path, &e))?;
        let until = Instant::now() + LOCK_WITHIN;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((_, errno)) if errno != nix::errno::Errno::EWOULDBLOCK => {
                    return Err(cannot("lock", &path, &errno.into()));
                }
                Err(_) if Instant::now() >= until => {
                    let message =
                        format!("another `bctl up` or `bctl down` is at work in {}", self.dir.display());
                    return Err(
                        Fail::new(ErrorCode::Conflict, message).hint("wait for it to end, then try again")
                    );
                }
                Err((back, _)) => file = back,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Writes a file, whole or not at all.
    pub(super) fn write_file(&self, path: &Path, text: &str) -> Result<(), Fail> {
        let new = path.with_extension("new");
        let write = || {
            let mut file =
                OpenOptions::new().create(true).write(true).truncate(true).mode(0o644).open(&new)?;
            std::io::Write::write_all(&mut file, text.as_bytes())?;
            file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
            std::fs::rename(&new, path)
        };
        write().map_err(|error| cannot("write", path, &error))
    }

    fn check_lengths(&self) -> Result<(), Fail> {
        let length = self.dir.join(SOCKET_LONGEST).as_os_str().len();
        if length <= SOCKET_PATH_MAX {
            return Ok(());
        }
        let most = SOCKET_PATH_MAX - (length - self.dir.as_os_str().len());
        let message = format!(
            "{} is too long for a cluster's directory: it has {} bytes, and {most} leave room for its sockets",
            self.dir.display(),
            self.dir.as_os_str().len()
        );
        Err(Fail::usage(message).hint("name a shorter directory with --dir"))
    }

    /// Whoever can write here decides what root starts. (Only root gets here, but for the tests.)
    fn check_owner(&self) -> Result<(), Fail> {
        let found = std::fs::metadata(&self.dir).map_err(|e| cannot("look at", &self.dir, &e))?;
        if found.uid() == nix::unistd::Uid::effective().as_raw() && found.mode() & 0o022 == 0 {
            return Ok(());
        }
        let message = format!(
            "{} can be written by others than root, who would decide what root runs",
            self.dir.display()
        );
        Err(Fail::usage(message)
            .hint("use a directory that is root's alone: `chown root` and `chmod go-w` it, or name another"))
    }

    fn check_passable(&self) -> Result<(), Fail> {
        for above in self.dir.ancestors() {
            let found = std::fs::metadata(above).map_err(|e| cannot("look at", above, &e))?;
            if found.mode() & 0o001 == 0 {
                let message = format!(
                    "users cannot pass through {} to the cluster's socket, nor can the database's user",
                    above.display()
                );
                return Err(Fail::usage(message)
                    .hint("name a directory elsewhere with --dir, or `chmod o+x` that one"));
            }
        }
        Ok(())
    }

    fn check_is_ours(&self) -> Result<(), Fail> {
        if self.record_file().exists() {
            return Ok(());
        }
        // What a first `up` that was cut short leaves is ours too.
        const OURS: [&str; 7] = ["lock", "run", "log", "ctld", "nodes", "ctld.toml", "cluster.new"];
        let entries = std::fs::read_dir(&self.dir).map_err(|e| cannot("read directory", &self.dir, &e))?;
        let foreign = entries.flatten().find(|entry| !OURS.iter().any(|ours| entry.file_name() == *ours));
        let Some(foreign) = foreign else { return Ok(()) };
        let message = format!(
            "{} holds {:?} and is no cluster's directory",
            self.dir.display(),
            foreign.file_name().to_string_lossy()
        );
        Err(Fail::usage(message).hint("name an empty or new directory with --dir"))
    }
}

/// A file operation's failure, in words.
pub(super) fn cannot(act: &str, path: &Path, error: &std::io::Error) -> Fail {
    Fail::here(format!("cannot {act} {}: {}", path.display(), os_error(error)))
}

/// A directory with exactly this mode, whatever the umask; one that is there is left as it is.
pub(super) fn make(path: &Path, mode: u32) -> Result<(), Fail> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(above)
            .map_err(|e| cannot("create", above, &e))?;
    }
    DirBuilder::new().mode(mode).create(path).map_err(|e| cannot("create", path, &e))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|e| cannot("set the mode of", path, &e))
}

fn absolute(dir: Option<&Path>) -> Result<PathBuf, Fail> {
    let dir = dir.unwrap_or(Path::new(DIR));
    let dir = std::path::absolute(dir).map_err(|e| cannot("resolve", dir, &e))?;
    match dir.to_str() {
        Some(text) if !text.chars().any(char::is_control) => Ok(dir),
        _ => Err(Fail::usage(format!(
            "{dir:?} cannot be a cluster's directory: its name must be plain UTF-8 text"
        ))),
    }
}
