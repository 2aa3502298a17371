//! `noded.toml`: what it may say, and refusing what it may not.
//!
//! Read once at start. An unknown key is refused and the nearest known one named, since a misspelt limit that is ignored would be found out by the
//! wrong people. Every error names the file, and the line where there is one.

use crate::address::{ADDRESS_DEFAULT, Address, Addresses};
use crate::gpus::{self, DeclarationError};
use proto::session::{GpuFacts, Inventory};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Where the configuration lies unless the command line says otherwise.
pub const DEFAULT_PATH: &str = "/etc/better-compute/noded.toml";
/// Every key, for the message about an unknown one.
const KEYS: [&str; 13] = [
    "node",
    "pool",
    "controller",
    "state_dir",
    "cgroup_base",
    "cpus",
    "mem",
    "disk",
    "scratch",
    "gpus",
    "root_jobs",
    "pids_max",
    "log",
];
/// The longest node name, as for a host name's label.
const NODE_NAME_BYTES_MAX: usize = 63;

/// What the file says, with the defaults filled in and everything checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The node's name.
    pub node: String,
    /// The pool it joins.
    pub pool: String,
    /// The controllers, in the order in which they are tried: one at least.
    pub controllers: Vec<Address>,
    /// Where journal, attempts and scripts lie.
    pub state_dir: PathBuf,
    /// The control group under which everything of noded's stands, in each hierarchy.
    pub cgroup_base: String,
    /// What it may give to jobs.
    pub inventory: Inventory,
    /// Whether jobs may run as root.
    pub root_jobs: RootJobs,
    /// The most processes and threads of one job.
    pub pids_max: u64,
    /// The log filter.
    pub log: String,
}

/// Whether jobs may run as root: such a job can leave its control groups, so no limit holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootJobs {
    /// They are not launched.
    #[default]
    Refuse,
    /// They are.
    Allow,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    node: Option<String>,
    pool: Option<String>,
    controller: Option<Addresses>,
    state_dir: Option<PathBuf>,
    cgroup_base: Option<String>,
    cpus: Option<u32>,
    mem: Option<Amount>,
    disk: Option<Amount>,
    scratch: Option<PathBuf>,
    gpus: Option<Vec<String>>,
    root_jobs: Option<RootJobs>,
    pids_max: Option<u64>,
    log: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected MiB as a number, or a text like \"64G\"")]
enum Amount {
    Mib(u64),
    Text(String),
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It says something that it must not.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A key has a value that cannot be used.
    #[error("{}: {key}: {message}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What is wrong and what would be right.
        message: String,
    },
}

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    parse(path, &text)
}

/// Checks the text of a configuration file; `path` is for the messages.
pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let file: File = toml::from_str(text).map_err(|error| syntax(path, text, &error))?;
    let value = |key, message: String| ConfigError::Value { path: path.to_owned(), key, message };

    let node = match file.node {
        Some(node) => node,
        None => short_hostname()
            .map_err(|e| value("node", format!("not given, and the host name cannot be read: {e}")))?,
    };
    check_name(&node).map_err(|m| value("node", m))?;
    let pool = file.pool.unwrap_or_else(|| "main".to_owned());
    check_name(&pool).map_err(|m| value("pool", m))?;
    let controllers = file.controller.unwrap_or_else(|| Addresses::One(ADDRESS_DEFAULT.to_owned()));
    let controllers = controllers.read().map_err(|m| value("controller", m))?;
    let state_dir = file.state_dir.unwrap_or_else(|| PathBuf::from("/var/lib/better-compute/noded"));
    if !state_dir.is_absolute() {
        return Err(value("state_dir", format!("\"{}\" is not an absolute path", state_dir.display())));
    }
    let cgroup_base = file.cgroup_base.unwrap_or_else(|| "better-compute".to_owned());
    check_group(&cgroup_base).map_err(|m| value("cgroup_base", m))?;
    let cpus = match file.cpus {
        Some(0) => return Err(value("cpus", "0 is not a number of CPUs: expected 1 or more".to_owned())),
        Some(cpus) => cpus,
        None => machine_cpus(),
    };
    let mem_mib = match file.mem {
        Some(amount) => amount.mib("memory").map_err(|m| value("mem", m))?,
        None => machine_mem_mib()
            .map_err(|e| value("mem", format!("not given, and /proc/meminfo cannot be read: {e}")))?,
    };
    if mem_mib == 0 {
        return Err(value("mem", "0 is no memory: expected MiB, or a text like \"64G\"".to_owned()));
    }
    let scratch = file.scratch.unwrap_or_else(|| PathBuf::from("/tmp"));
    if !scratch.is_absolute() {
        return Err(value("scratch", format!("\"{}\" is not an absolute path", scratch.display())));
    }
    let disk_mib = match file.disk {
        Some(amount) => amount.mib("disk").map_err(|m| value("disk", m))?,
        None => file_system_mib(&scratch).map_err(|e| {
            let shown = scratch.display();
            value(
                "disk",
                format!("not given, and the file system of scratch = \"{shown}\" cannot be read: {e}"),
            )
        })?,
    };
    let gpus: Vec<GpuFacts> = match file.gpus {
        Some(declarations) => gpus::declared(&node, &declarations)
            .map_err(|e: DeclarationError| value("gpus", e.to_string()))?,
        None => gpus::discover(),
    };
    let pids_max = file.pids_max.unwrap_or(32768);
    if pids_max < 8 {
        return Err(value(
            "pids_max",
            format!("{pids_max} is too few for a script to run: expected 8 or more"),
        ));
    }
    let log = file.log.unwrap_or_else(|| "info".to_owned());
    if let Err(error) = log.parse::<tracing_subscriber::filter::EnvFilter>() {
        return Err(value("log", format!("\"{log}\" is no log filter: {error}")));
    }
    let inventory = Inventory { cpus, mem_mib, disk_mib, gpus };
    let root_jobs = file.root_jobs.unwrap_or_default();
    Ok(Config { node, pool, controllers, state_dir, cgroup_base, inventory, root_jobs, pids_max, log })
}

fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
    let said = error.message();
    let message = match said.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()) {
        Some(key) => match nearest(key) {
            Some(known) => format!("unknown key \"{key}\": did you mean \"{known}\"?"),
            None => format!("unknown key \"{key}\": known keys are {}", KEYS.join(", ")),
        },
        None => said.to_owned(),
    };
    ConfigError::Syntax { path: path.to_owned(), line, message }
}

fn nearest(key: &str) -> Option<&'static str> {
    let scored = KEYS.iter().map(|known| (strsim::jaro_winkler(key, known), *known));
    scored.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(score, _)| *score > 0.75).map(|(_, known)| known)
}

fn check_name(name: &str) -> Result<(), String> {
    let sound = !name.is_empty()
        && name.len() <= NODE_NAME_BYTES_MAX
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && name.as_bytes()[0].is_ascii_alphanumeric();
    match sound {
        true => Ok(()),
        false => Err(format!(
            "\"{name}\" is no name: expected up to {NODE_NAME_BYTES_MAX} letters, digits, \"-\", \"_\" or \".\", the first a letter or digit"
        )),
    }
}

fn check_group(base: &str) -> Result<(), String> {
    let sound = !base.is_empty()
        && base.split('/').all(|part| {
            !part.is_empty() && part != "." && part != ".." && part.bytes().all(|b| b.is_ascii_graphic())
        });
    match sound {
        true => Ok(()),
        false => Err(format!(
            "\"{base}\" is no control group: expected a name, or names joined by \"/\", relative to each hierarchy's root"
        )),
    }
}

impl Amount {
    fn mib(&self, of: &str) -> Result<u64, String> {
        match self {
            Amount::Mib(mib) => Ok(*mib),
            Amount::Text(text) => amount_mib(text, of),
        }
    }
}

fn amount_mib(text: &str, of: &str) -> Result<u64, String> {
    let form = || {
        format!(
            "\"{text}\" is no amount of {of}: expected MiB, or a number followed by M, G or T (1024-based)"
        )
    };
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "M"),
    };
    let factor: u64 = match unit.to_ascii_uppercase().as_str() {
        "M" | "MB" | "MIB" => 1,
        "G" | "GB" | "GIB" => 1 << 10,
        "T" | "TB" | "TIB" => 1 << 20,
        _ => return Err(form()),
    };
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).ok_or_else(form)
}

fn short_hostname() -> Result<String, String> {
    let name = nix::unistd::gethostname().map_err(|e| e.desc().to_owned())?;
    let name = name.into_string().map_err(|_| "it is no text".to_owned())?;
    Ok(name.split('.').next().unwrap_or_default().to_owned())
}

fn machine_cpus() -> u32 {
    // SAFETY: sysconf has no memory effects.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(online).unwrap_or(1).max(1)
}

fn machine_mem_mib() -> Result<u64, String> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|e| e.to_string())?;
    let kib = text
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib / 1024).ok_or_else(|| "no MemTotal".to_owned())
}

/// The whole size of the file system that holds a directory: what is on it now comes and goes with jobs.
fn file_system_mib(dir: &Path) -> Result<u64, String> {
    let stat = nix::sys::statvfs::statvfs(dir).map_err(|e| e.desc().to_owned())?;
    Ok(stat.blocks().saturating_mul(stat.fragment_size()) >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        parse(Path::new("/x/noded.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn an_empty_file_gives_the_machine_and_the_defaults() {
        let config = read("").unwrap();
        assert_eq!(config.pool, "main");
        assert_eq!(config.controllers, [Address::Unix("/run/better-compute/ctld.sock".into())]);
        assert_eq!(config.root_jobs, RootJobs::Refuse);
        assert_eq!((config.pids_max, config.inventory.gpus.len()), (32768, 0));
        assert!(config.inventory.cpus >= 1 && config.inventory.mem_mib > 64);
        assert!(!config.node.is_empty() && !config.node.contains('.'));
        assert_eq!(config.inventory.disk_mib, file_system_mib(Path::new("/tmp")).unwrap());
        assert!(config.inventory.disk_mib > 0);
    }

    #[test]
    fn every_key_is_read() {
        let config = read(
            "node = \"n1\"\npool = \"p\"\ncontroller = \"unix:///s\"\nstate_dir = \"/d\"\ncgroup_base = \"a/b\"\ncpus = 64\n\
             mem = \"64G\"\ngpus = [\"a100-80gb:2\"]\nroot_jobs = \"allow\"\npids_max = 100\nlog = \"debug\"\n",
        )
        .unwrap();
        assert_eq!((config.inventory.cpus, config.inventory.mem_mib), (64, 65536));
        assert_eq!(config.inventory.gpus.len(), 2);
        assert_eq!((config.root_jobs, config.pids_max, config.log.as_str()), (RootJobs::Allow, 100, "debug"));
        let both = read("controller = [\"unix:///a,b\", \"unix:///c\"]").unwrap().controllers;
        assert_eq!(both, [Address::Unix("/a,b".into()), Address::Unix("/c".into())]);
        assert_eq!(read("mem = 512").unwrap().inventory.mem_mib, 512);
        assert_eq!(read("disk = \"100G\"\nscratch = \"/nonesuch\"").unwrap().inventory.disk_mib, 102_400);
        assert_eq!(read("disk = 0").unwrap().inventory.disk_mib, 0, "a node may give none");
        let shm = file_system_mib(Path::new("/dev/shm")).unwrap();
        assert_eq!(read("scratch = \"/dev/shm\"").unwrap().inventory.disk_mib, shm);
    }

    #[test]
    fn an_unknown_key_names_file_line_and_the_nearest_known_one() {
        let error = read("node = \"n1\"\n\nstatedir = \"/d\"\n").unwrap_err();
        assert_eq!(error, "/x/noded.toml:3: unknown key \"statedir\": did you mean \"state_dir\"?");
        let error = read("zzz = 1").unwrap_err();
        assert!(error.contains("known keys are node, pool,"), "{error}");
    }

    #[test]
    fn values_that_cannot_be_used_are_refused_by_name() {
        for (text, said) in [
            ("controller = \"http://c:1\"", "scheme \"http\" is not supported"),
            ("controller = \"https://c\"", "expected https://HOST:PORT"),
            ("controller = \"/run/x\"", "\"/run/x\" is no address"),
            ("controller = []", "controller: 0 addresses: expected 1 to 16"),
            ("controller = [\"unix:///a\", \"b\"]", "\"b\" is no address"),
            ("controller = 3", "expected an address, or a list of addresses"),
            ("node = \"a b\"", "\"a b\" is no name"),
            ("node = \"../x\"", "\"../x\" is no name"),
            ("cpus = 0", "cpus: 0 is not"),
            ("cpus = -1", "/x/noded.toml:1: "),
            ("mem = \"64X\"", "\"64X\" is no amount of memory"),
            ("mem = \"\"", "\"\" is no amount of memory"),
            ("mem = true", "expected MiB as a number"),
            ("disk = \"9X\"", "\"9X\" is no amount of disk"),
            ("scratch = \"tmp\"", "\"tmp\" is not an absolute path"),
            ("scratch = \"/nonesuch\"", "the file system of scratch = \"/nonesuch\" cannot be read"),
            ("gpus = [\"a100:x\"]", "\"a100:x\" declares no GPUs"),
            ("root_jobs = \"maybe\"", "unknown variant `maybe`, expected `refuse` or `allow`"),
            ("pids_max = 1", "1 is too few"),
            ("state_dir = \"x\"", "\"x\" is not an absolute path"),
            ("cgroup_base = \"../x\"", "\"../x\" is no control group"),
            ("node = ", "/x/noded.toml:1: "),
            ("log = \"a=b=c\"", "\"a=b=c\" is no log filter"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn every_known_key_is_listed_in_the_message() {
        for key in KEYS {
            let error = read(&format!("{key} = {{}}")).unwrap_err();
            assert!(!error.contains("unknown key"), "{error}");
        }
    }

    #[test]
    fn the_sample_is_read_and_shows_every_key() {
        let sample = include_str!("../../contrib/noded.toml");
        assert!(read(sample).is_ok(), "{:?}", read(sample));
        let shown =
            |key: &str| sample.lines().any(|l| l.trim_start_matches('#').starts_with(&format!("{key} = ")));
        for key in KEYS {
            assert!(shown(key), "{key} is not in the sample");
        }
        // What it shows as the default is the default.
        let (sample, default) = (read(sample).unwrap(), read("").unwrap());
        assert_eq!(Config { log: default.log.clone(), ..sample.clone() }, default);
        // With its examples uncommented it is read too.
        let examples: String = include_str!("../../contrib/noded.toml")
            .lines()
            .map(|l| if l.starts_with("# ") || l == "#" { String::new() } else { l.trim_start_matches('#').to_owned() } + "\n")
            .collect();
        assert_eq!(read(&examples).unwrap().inventory.cpus, 64);
    }
}
