//! Nodes and pools, and the controller's own health.

use super::Hold;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Nodes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// By name.
    pub nodes: Vec<Node>,
}

/// A node, what it has, and what holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Whether its daemon has a session.
    pub connection: Connection,
    /// Seconds since the controller last heard from it.
    pub last_seen_s: Option<f64>,
    /// The daemon's version.
    pub version: Option<String>,
    /// How it enforces: `v1`, `v2`, `hybrid`.
    pub cgroup_mode: Option<String>,
    /// Whether it takes new work: no open hold.
    pub eligible: bool,
    /// Draining (jobs still there) or drained (none), when a hold says so.
    pub drain: Option<Drain>,
    /// Open holds on the node, its GPUs or parts of them; those to come among them.
    pub holds: Vec<Hold>,
    /// CPUs it may give to jobs.
    pub cpus: u32,
    /// CPUs booked now.
    pub cpus_booked: u32,
    /// Memory it may give to jobs, MiB.
    pub mem_mib: u64,
    /// Memory booked now, MiB.
    pub mem_booked_mib: u64,
    /// Local disk it may give to jobs, MiB.
    #[serde(default)]
    pub disk_mib: u64,
    /// Local disk booked now, MiB.
    #[serde(default)]
    pub disk_booked_mib: u64,
    /// Its GPUs.
    pub gpus: Vec<Gpu>,
    /// Jobs on it now.
    pub jobs: Vec<String>,
}

/// Whether a node's daemon has a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// It has one.
    Connected,
    /// It has none; nothing is released.
    Disconnected,
    /// It has had none for too long: it takes no new work, and still nothing is released.
    Unreachable,
    /// Its machine was given up, and with it what ran there.
    Lost,
}

/// That a node's machine is gone, for good or bad: what ran there is given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LostRequest {
    /// How it is known that nothing runs there any more; shown with each job that it ends.
    pub reason: String,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Drain {
    /// Jobs are still there.
    Draining,
    /// Nothing runs there: safe to work on.
    Drained,
}

/// A physical GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: String,
    /// Its index on the node, for people; never used to tell GPUs apart.
    pub index: u32,
    /// Its model: `a100-80gb`.
    pub model: String,
    /// Its memory, MiB.
    pub mem_mib: u64,
    /// How it is shared: `whole`, `mig`, `timeslice`, `mps`.
    pub mode: String,
    /// Whether it takes new work: no hold on it now, nor on a part of it while it is given whole.
    pub eligible: bool,
    /// The job that has it now.
    pub job: Option<String>,
}

/// Pools.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct PoolList {
    /// By name.
    pub pools: Vec<Pool>,
}

/// A pool and what is free in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Whether a job that names no pool goes here.
    pub default: bool,
    /// The longest time limit allowed, seconds; absent is none.
    pub time_limit_max_s: Option<u64>,
    /// The time limit of a job that names none; absent is unlimited.
    pub time_limit_default_s: Option<u64>,
    /// Memory per CPU of a job that names none, MiB.
    pub mem_per_cpu_default_mib: u64,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// Jobs pending (array tasks counted).
    pub pending: u64,
    /// Jobs running.
    pub running: u64,
}

/// The controller's health.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether every check passed.
    pub ok: bool,
    /// The checks.
    pub checks: Vec<HealthCheck>,
    /// The controller's version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// The database, for operators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<DatabaseHealth>,
    /// Nodes with a session / nodes known.
    pub nodes_connected: u32,
    /// Nodes known.
    pub nodes_total: u32,
}

/// One check of the controller's health.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct HealthCheck {
    /// Its stable name: `database`, `clock.skew`, …
    pub name: String,
    /// Whether it passed.
    pub ok: bool,
    /// What was found.
    pub message: String,
}

/// Where the database is.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DatabaseHealth {
    /// Its URL, with any password left out.
    pub url: String,
    /// Whether ctld runs it itself.
    pub embedded: bool,
    /// Its process id, when embedded.
    pub pid: Option<u32>,
}
