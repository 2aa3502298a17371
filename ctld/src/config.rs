//! ctld's configuration: `/etc/better-compute/ctld.toml`.
//!
//! Everything is read and checked once, at start; what comes out is typed and in range, with defaults filled in. All problems
//! are reported at once, each with its line; a key that is not known names the nearest that is. Nothing here touches the
//! machine but reading the one file: whether a directory can be used shows when it is used.

mod check;
#[cfg(test)]
mod tests;

use crate::embedded::EmbeddedSettings;
use crate::store::events::Keep;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where ctld looks when it is not told.
pub const CONFIG_PATH: &str = "/etc/better-compute/ctld.toml";
/// Where commands and local nodes find the API.
pub const SOCKET_PATH: &str = "/run/better-compute/ctld.sock";

/// The checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the truth is kept.
    pub database: Database,
    /// ctld's own directory.
    pub state_dir: PathBuf,
    /// The API's unix socket.
    pub socket: PathBuf,
    /// Where nodes on other machines connect, over TLS; `None` is nowhere.
    pub listen: Option<SocketAddr>,
    /// By what names and addresses they do; without any, the machine's host name.
    pub listen_names: Vec<String>,
    /// How many days a node's certificate is good for.
    pub node_certificate_days: u32,
    /// The cluster's name, as jobs see it.
    pub cluster: String,
    /// What to log, as `tracing_subscriber::EnvFilter` reads it.
    pub log: String,
    /// Who administers beside root, by user name.
    pub operators: Vec<String>,
    /// The pools by name: one at least, at most one of them the default.
    pub pools: BTreeMap<String, PoolConfig>,
    /// Seconds between SIGTERM and SIGKILL when a job is ended.
    pub kill_grace_s: u64,
    /// The unprivileged user that runs the embedded database when ctld is root.
    pub embedded_user: Option<String>,
    /// Addresses that are not public and that webhooks may go to all the same, also without TLS.
    pub webhooks_allow: Vec<ipnet::IpNet>,
    /// A file with certificates of authorities that webhooks' receivers may have, beside those that browsers trust.
    pub webhooks_ca: Option<PathBuf>,
    /// How long events and dead letters are kept.
    pub keep: Keep,
}

/// Where the truth is kept.
#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    /// A private PostgreSQL that ctld runs.
    Embedded,
    /// A server somebody else runs. It may hold a password: show [`Database::shown`] instead.
    Url(String),
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Whether a job that names no pool goes here.
    pub default: bool,
    /// The longest time limit allowed, in seconds; `None` is no limit.
    pub time_limit_max_s: Option<u64>,
    /// The time limit of a job that names none; `None` is unlimited.
    pub time_limit_default_s: Option<u64>,
    /// Memory for each CPU of a job that names none.
    pub mem_per_cpu_default_mib: u64,
    /// How much more is given out than the nodes have, in hundredths: 100 is what they have.
    pub ratios: Ratios,
    /// What its machines are.
    pub kind: PoolKind,
    /// Seconds as unreachable after which a node's jobs are given up; `None` is never.
    pub lost_after_s: Option<u64>,
}

/// What a pool's machines are: whether one that is away may be taken for gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolKind {
    /// Our own. What runs on one that is cut off may run for ever, and is never given up by itself.
    #[default]
    BareMetal,
    /// Hired from a provider, who ends them.
    Provider,
    /// Virtual machines on a host that ends them.
    VpsHost,
}

impl PoolKind {
    /// Every kind.
    pub const ALL: [PoolKind; 3] = [PoolKind::BareMetal, PoolKind::Provider, PoolKind::VpsHost];

    /// Its name in the configuration and in the database.
    pub fn name(self) -> &'static str {
        match self {
            PoolKind::BareMetal => "bare-metal",
            PoolKind::Provider => "provider",
            PoolKind::VpsHost => "vps-host",
        }
    }
}

/// Overcommitment of a pool's nodes, in hundredths, 100 to 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratios {
    /// CPUs.
    pub cpus: u32,
    /// Memory.
    pub mem: u32,
    /// Disk.
    pub disk: u32,
}

impl Default for Ratios {
    fn default() -> Ratios {
        Ratios { cpus: 100, mem: 100, disk: 100 }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration \"{}\": {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// What it says will not do.
    #[error("{}", lines(problems))]
    Invalid {
        /// Everything that is wrong, in the file's order.
        problems: Vec<Problem>,
    },
}

/// One thing wrong in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

impl Config {
    /// Seconds between SIGTERM and SIGKILL when a job is ended.
    pub fn grace_s(&self) -> u32 {
        u32::try_from(self.kill_grace_s).unwrap_or(u32::MAX)
    }

    /// Reads and checks the file.
    pub fn load(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
        let path = path.as_ref();
        let read = |source| ConfigError::Read { path: path.to_path_buf(), source };
        let text = std::fs::read_to_string(path).map_err(read)?;
        let mode = std::fs::metadata(path).map_err(read)?.mode();
        check::parse(&text, path, mode & 0o004 != 0)
    }

    /// The settings of the private PostgreSQL, when there is one.
    pub fn embedded_settings(&self) -> Option<EmbeddedSettings> {
        (self.database == Database::Embedded).then(|| EmbeddedSettings {
            dir: self.state_dir.join("postgres"),
            user: self.embedded_user.clone(),
        })
    }
}

impl Default for Config {
    /// What an empty file means.
    fn default() -> Config {
        check::parse("", Path::new(CONFIG_PATH), false).expect("the defaults pass their own checks")
    }
}

impl Database {
    /// For people and logs: the URL without its password.
    pub fn shown(&self) -> String {
        match self {
            Database::Embedded => "embedded".into(),
            Database::Url(url) => without_password(url),
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// `postgres://user:secret@host/db?password=secret` without either secret.
fn without_password(url: &str) -> String {
    let (main, query) = url.split_once('?').map_or((url, None), |(main, query)| (main, Some(query)));
    let scheme_end = main.find("://").map_or(0, |at| at + 3);
    let authority_end = main[scheme_end..].find('/').map_or(main.len(), |at| scheme_end + at);
    let authority = &main[scheme_end..authority_end];
    let mut shown = main[..scheme_end].to_owned();
    match authority.rsplit_once('@') {
        Some((login, host)) => {
            shown.push_str(login.split(':').next().unwrap_or_default());
            shown.push('@');
            shown.push_str(host);
        }
        None => shown.push_str(authority),
    }
    shown.push_str(&main[authority_end..]);
    let kept: Vec<&str> =
        query.into_iter().flat_map(|q| q.split('&')).filter(|p| !p.starts_with("password=")).collect();
    if !kept.is_empty() {
        shown.push('?');
        shown.push_str(&kept.join("&"));
    }
    shown
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}
