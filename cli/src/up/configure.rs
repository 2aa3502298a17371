//! The configuration files of a cluster on this machine, and `env` for its users' shells.

use super::place::{Place, make};
use super::record::Record;
use crate::fail::Fail;
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct Ctld {
    database: &'static str,
    state_dir: String,
    socket: String,
    cluster: &'static str,
    operators: Vec<String>,
}

#[derive(Serialize)]
struct Noded {
    node: String,
    controller: String,
    state_dir: String,
    cgroup_base: String,
    cpus: u32,
    mem: u64,
    disk: u64,
    /// Absent, the node daemon looks for real ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gpus: Vec<String>,
    root_jobs: &'static str,
}

/// What the machine has to share out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) cpus: u32,
    pub(super) mem_mib: u64,
    /// Of the file system of /tmp, where jobs put what is to be gone after them.
    pub(super) disk_mib: u64,
}

impl Machine {
    /// This machine, as far as this process may use it.
    pub(super) fn look() -> Result<Machine, Fail> {
        let cpus = std::thread::available_parallelism().map_err(|e| {
            Fail::here(format!("cannot count the machine's CPUs: {e}")).hint("name a number with --cpus")
        })?;
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
        let kib = kib.ok_or_else(|| Fail::here("cannot read the machine's memory from /proc/meminfo"))?;
        let disk = nix::sys::statvfs::statvfs("/tmp").map_err(|e| {
            Fail::here(format!("cannot read the size of /tmp: {}", e.desc()))
                .hint("name an amount with --disk")
        })?;
        Ok(Machine {
            cpus: u32::try_from(cpus.get()).unwrap_or(u32::MAX),
            mem_mib: kib / 1024,
            disk_mib: disk.blocks().saturating_mul(disk.fragment_size()) >> 20,
        })
    }
}

/// Writes every file.
pub(super) fn write(place: &Place, record: &Record, machine: Machine, programs: &Path) -> Result<(), Fail> {
    place.write_file(&place.ctld_config(), &ctld(place, invoker())?)?;
    for name in record.node_names() {
        make(&place.node(&name), 0o755)?;
        place.write_file(&place.node_config(&name), &noded(place, record, machine, &name)?)?;
    }
    place.write_file(&place.env_file(), &env(place, programs))
}

/// The person behind `sudo` administers the cluster that they started.
fn invoker() -> Option<String> {
    std::env::var("SUDO_USER").ok().filter(|name| !name.is_empty() && name != "root")
}

pub(super) fn ctld(place: &Place, operator: Option<String>) -> Result<String, Fail> {
    let text = toml::to_string(&Ctld {
        database: "embedded",
        state_dir: shown(&place.ctld_state()),
        socket: shown(&place.socket()),
        cluster: "local",
        operators: operator.into_iter().collect(),
    });
    headed(text)
}

pub(super) fn noded(place: &Place, record: &Record, machine: Machine, name: &str) -> Result<String, Fail> {
    let share = u64::from(record.nodes);
    let cpus = record.cpus.unwrap_or((machine.cpus / record.nodes).max(1));
    // An eighth stays with the system, the controller and its database.
    let mem = record.mem_mib.unwrap_or((machine.mem_mib / 8 * 7 / share).max(64));
    let disk = record.disk_mib.unwrap_or(machine.disk_mib / share);
    let text = toml::to_string(&Noded {
        node: name.to_owned(),
        controller: place.server(),
        state_dir: shown(&place.node(name).join("state")),
        cgroup_base: cgroup_base(place, name),
        cpus,
        mem,
        disk,
        gpus: record.gpus.clone(),
        // A cluster of one machine is its owner's, who may well submit as root.
        root_jobs: "allow",
    });
    headed(text)
}

/// For `. DIR/env`.
fn env(place: &Place, programs: &Path) -> String {
    format!(
        "# Source this to use the cluster in {dir}: . {dir}/env\n\
         BC_SERVER={server}\n\
         export BC_SERVER\n\
         case \":$PATH:\" in\n\
         *:{programs}:*) ;;\n\
         *) PATH={programs}:$PATH; export PATH ;;\n\
         esac\n",
        dir = shown(&place.dir),
        server = shell_words::quote(&place.server()),
        programs = shell_words::quote(&shown(programs)),
    )
}

/// Two clusters on one machine, and two nodes of one cluster, never share a control group.
pub(super) fn cgroup_base(place: &Place, node: &str) -> String {
    // FNV-1a: short, and the same for ever, as a name that a later `up` must find again has to be.
    let hash = shown(&place.dir)
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("better-compute-{hash:08x}-{node}")
}

fn headed(text: Result<String, toml::ser::Error>) -> Result<String, Fail> {
    let text = text.map_err(|e| Fail::here(format!("cannot write the configuration as TOML: {e}")))?;
    Ok(format!("# Written anew by each `bctl up`.\n{text}"))
}

/// [`Place`] lets only UTF-8 paths in.
fn shown(path: &Path) -> String {
    path.display().to_string()
}
