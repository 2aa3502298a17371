//! A private PostgreSQL for ctld, run from the system's installed programs.
//!
//! Owns everything under its own directory (`data/`, `run/`, `log/`): makes the cluster, starts the server, finds it
//! again, starts it anew when it died, stops it. Never speaks the product's SQL, and never signals a process that it has
//! not recognised as the postmaster or a backend of that very data directory.
//!
//! What may surprise: the server outlives ctld on purpose. A ctld killed with -9 leaves it running and the next one
//! adopts it in milliseconds; only [`Embedded::stop`] ends it. It listens on a unix socket only, in a directory of mode
//! 0700; `pg_hba.conf` lets in root, the server's own user and the user who made the cluster, by peer credentials, and
//! nobody else, whatever a client claims.

mod binaries;
mod cluster;
mod layout;
mod postmaster;
mod server;
#[cfg(test)]
mod tests;

pub use binaries::VERSION_MIN;

use binaries::Binaries;
use layout::{Layout, ServerUser};
use postmaster::Postmaster;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::Mutex;

/// The database made for ctld, and the role that owns it.
pub const DATABASE: &str = "better_compute";
const ROLE: &str = "better_compute";

/// How long a running server may take to answer: crash recovery replays at most `max_wal_size` of log.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// How long old backends of a killed postmaster may take to go; they are told to after a moment.
const ORPHANS_GONE_WITHIN: Duration = Duration::from_secs(30);
/// A fast shutdown writes a checkpoint; past this the server is stopped without one and recovers at its next start.
const FAST_STOP_WITHIN: Duration = Duration::from_secs(60);
const IMMEDIATE_STOP_WITHIN: Duration = Duration::from_secs(10);

/// Where the private server lives and as whom it runs.
#[derive(Clone, Debug)]
pub struct EmbeddedSettings {
    /// Its directory, absolute; made when missing. Every directory above must let the server's user pass.
    pub dir: PathBuf,
    /// The unprivileged user that runs the server when ctld is root; absent is `postgres`. As an ordinary user the
    /// server runs as that same user, and naming another is an error.
    pub user: Option<String>,
}

/// The private server, running or to be run again.
#[derive(Debug)]
pub struct Embedded {
    layout: Layout,
    user: ServerUser,
    binaries: Binaries,
    /// Held while the server is looked for and started, so that two callers start one server.
    starting: Mutex<()>,
}

/// Why the private PostgreSQL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// No usable `postgres` and `initdb`.
    #[error(
        "no PostgreSQL {VERSION_MIN} or newer is installed (looked in {searched}); install the server programs, \
         `apt-get install postgresql-15` or the distribution's `postgresql`, or set `database` to the URL of a server"
    )]
    NotInstalled {
        /// Where it was looked for.
        searched: String,
    },
    /// The cluster was made by another major version.
    #[error(
        "the database in \"{}\" was made by PostgreSQL {wanted}, which is not installed (found: {found}); install \
         postgresql-{wanted}, or bring the data to a newer version with pg_upgrade", dir.display()
    )]
    OtherVersion {
        /// The data directory.
        dir: PathBuf,
        /// The major version it needs.
        wanted: String,
        /// The versions found.
        found: String,
    },
    /// The user to run the server as is missing or will not do.
    #[error("{0}")]
    User(String),
    /// A directory cannot be used as asked.
    #[error("{0}")]
    Directory(String),
    /// Reading or writing a file of the cluster failed.
    #[error("cannot {act} \"{}\"", path.display())]
    File {
        /// What was attempted.
        act: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Making the cluster failed.
    #[error("making the database cluster in \"{}\" failed ({status}): {output}", dir.display())]
    Initdb {
        /// Where.
        dir: PathBuf,
        /// How the program ended.
        status: String,
        /// The end of what it said.
        output: String,
    },
    /// The server ended or did not answer.
    #[error("the embedded PostgreSQL did not start: {why}; its log is in \"{}\"{tail}", log_dir.display())]
    NotStarted {
        /// What was seen.
        why: String,
        /// Where the logs are.
        log_dir: PathBuf,
        /// The end of the log, on lines of its own.
        tail: String,
    },
    /// The server would not stop.
    #[error("the embedded PostgreSQL (pid {pid}) is still there {waited_s} s after it was told to stop")]
    NotStopped {
        /// Its process id.
        pid: u32,
        /// How long it was waited for.
        waited_s: u64,
    },
}

/// Makes the cluster when there is none, adopts the server when it runs, and starts it otherwise; returns once the
/// server takes connections.
pub async fn start(settings: &EmbeddedSettings) -> Result<Embedded, EmbeddedError> {
    let user = ServerUser::resolve(settings.user.as_deref())?;
    let layout = Layout::prepare(&settings.dir, &user)?;
    let lock = layout.lock().await?;
    let binaries = binaries::find(layout.data_version()?.as_deref(), &layout.data)?;
    cluster::ensure_made(&layout, &binaries, &user).await?;
    drop(lock);
    let embedded = Embedded { layout, user, binaries, starting: Mutex::new(()) };
    embedded.ensure_running().await?;
    Ok(embedded)
}

impl Embedded {
    /// The URL of ctld's database, as sqlx reads it. It holds no secret: the socket's directory and the peer's
    /// credentials decide who may connect.
    pub fn url(&self) -> String {
        self.layout.url(DATABASE, ROLE)
    }

    /// The postmaster's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        Postmaster::find(&self.layout, &self.user).map(|postmaster| postmaster.pid())
    }

    /// Returns once the server takes connections, having started it if it was gone. Cheap when it runs: one connection.
    /// After a crash of the postmaster this waits for its old backends to go, and tells them to.
    pub async fn ensure_running(&self) -> Result<(), EmbeddedError> {
        let _one = self.starting.lock().await;
        let _lock = self.layout.lock().await?;
        if let Some(postmaster) = Postmaster::find(&self.layout, &self.user) {
            if server::wait_ready(&self.layout, &postmaster, READY_WITHIN).await? {
                tracing::debug!(postgres.pid = postmaster.pid(), "embedded PostgreSQL is running");
                return Ok(());
            }
            tracing::warn!(
                postgres.pid = postmaster.pid(),
                "embedded PostgreSQL ended while it was waited for"
            );
        }
        cluster::write_configuration(&self.layout, &self.user)?;
        server::start(&self.layout, &self.binaries, &self.user).await
    }

    /// Stops the server: a fast shutdown (transactions under way are rolled back, a checkpoint is written), an immediate
    /// one if that takes too long. Returns when its process is gone; a server that does not run is a success.
    pub async fn stop(&self) -> Result<(), EmbeddedError> {
        let _one = self.starting.lock().await;
        let _lock = self.layout.lock().await?;
        let Some(postmaster) = Postmaster::find(&self.layout, &self.user) else { return Ok(()) };
        let pid = postmaster.pid();
        postmaster.signal(libc::SIGINT);
        if postmaster.gone_within(FAST_STOP_WITHIN).await {
            tracing::info!(postgres.pid = pid, "embedded PostgreSQL stopped");
            return Ok(());
        }
        tracing::warn!(
            postgres.pid = pid,
            "embedded PostgreSQL is slow to stop: stopping it at once, it recovers at its next start"
        );
        postmaster.signal(libc::SIGQUIT);
        if postmaster.gone_within(IMMEDIATE_STOP_WITHIN).await {
            return Ok(());
        }
        Err(EmbeddedError::NotStopped { pid, waited_s: (FAST_STOP_WITHIN + IMMEDIATE_STOP_WITHIN).as_secs() })
    }
}
