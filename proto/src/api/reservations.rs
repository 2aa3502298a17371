//! Advance reservations, and the extension of what is booked.

use super::Begin;
use crate::{Condition, GpuAtom};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most reservations of one series.
pub const SERIES_MAX: u32 = 366;
/// The most nodes, GPUs' parts, users or accounts that one request names.
pub const RESERVE_NAMES_MAX: usize = 1000;

/// Capacity for a time of one's own choosing. It is booked as asked, all of it, or refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest {
    /// The same key and body are answered with the same reservation for ever.
    pub idempotency_key: String,
    /// What jobs name it by: unique among those that have not ended.
    pub name: String,
    /// For whom; another than the caller for operators only.
    #[serde(default)]
    pub owner: Option<String>,
    /// Where; absent is the default pool.
    #[serde(default)]
    pub pool: Option<String>,
    /// When it begins; absent is now.
    #[serde(default)]
    pub begin: Option<Begin>,
    /// How long it lasts, seconds. Either this or `end_at`.
    #[serde(default)]
    pub duration_s: Option<u64>,
    /// When it ends.
    #[serde(default)]
    pub end_at: Option<DateTime<Utc>>,
    /// How many nodes, each with all of the following; absent is 1, or as many as are named.
    #[serde(default)]
    pub nodes: Option<u32>,
    /// These nodes and no others.
    #[serde(default)]
    pub node_names: Vec<String>,
    /// CPUs on each node.
    #[serde(default)]
    pub cpus: u32,
    /// Memory on each node, MiB.
    #[serde(default)]
    pub mem_mib: u64,
    /// Disk on each node, MiB.
    #[serde(default)]
    pub disk_mib: u64,
    /// Everything the nodes have, and nobody else on them.
    #[serde(default)]
    pub exclusive: bool,
    /// Whole GPUs on each node.
    #[serde(default)]
    pub gpus: u32,
    /// Their model; absent is any.
    #[serde(default)]
    pub gpu_type: Option<String>,
    /// These GPUs or parts of GPUs: `GPU-…`, `GPU-…/mig:1g.10gb@3`, `GPU-…/slot:2/8`.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub atoms: Vec<GpuAtom>,
    /// Who may run jobs in it besides its owner.
    #[serde(default)]
    pub users: Vec<String>,
    /// Whose jobs under these accounts may run in it.
    #[serde(default)]
    pub accounts: Vec<String>,
    /// Again and again; absent is once.
    #[serde(default)]
    pub repeat: Option<Repeat>,
}

/// How a reservation recurs. Every one of the series is booked at once, or none is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// How often.
    pub every: RepeatEvery,
    /// How many in all, the first included.
    pub times: u32,
}

/// How often a reservation recurs: at the same time of day, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RepeatEvery {
    /// Every day.
    Day,
    /// Monday to Friday.
    Weekday,
    /// Every seven days.
    Week,
}

/// Reservations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReservationList {
    /// By their beginning.
    pub reservations: Vec<Reservation>,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Reservation {
    /// Its id.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub owner: String,
    /// Who made it.
    pub author: String,
    /// Who is billed.
    pub tenant: String,
    /// Its pool.
    pub pool: String,
    /// `booked`, `running`, `completed`, `cancelled`.
    pub state: String,
    /// When it begins.
    pub begin_at: DateTime<Utc>,
    /// When it ends.
    pub end_at: DateTime<Utc>,
    /// The first of its series, where there are several, and its place in it from 1.
    pub series: Option<i64>,
    /// See `series`.
    pub occurrence: u32,
    /// Who may run jobs in it besides its owner.
    pub users: Vec<String>,
    /// See `users`.
    pub accounts: Vec<String>,
    /// What it has booked on each node.
    pub nodes: Vec<ReservedNode>,
    /// Why it does not have all of it.
    pub condition: Option<Condition>,
    /// Jobs that wait for it or run in it.
    pub jobs: Vec<i64>,
}

/// A reservation's share of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservedNode {
    /// The node.
    pub node: String,
    /// CPUs.
    pub cpus: u32,
    /// Memory, MiB.
    pub mem_mib: u64,
    /// Disk, MiB.
    pub disk_mib: u64,
    /// GPUs and parts of GPUs.
    #[schema(value_type = Vec<String>)]
    pub atoms: Vec<GpuAtom>,
}

/// More time for a job or a reservation. Granted exactly if the book is free.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// The same key and body are answered alike for ever.
    pub idempotency_key: String,
    /// A job's id, or a reservation's name.
    pub what: String,
    /// So many seconds more. Either this or `end_at`.
    #[serde(default)]
    pub by_s: Option<u64>,
    /// Until then.
    #[serde(default)]
    pub end_at: Option<DateTime<Utc>>,
}

/// What was extended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Extended {
    /// A job's id, or a reservation's name.
    pub what: String,
    /// A job's time limit now, seconds.
    pub time_limit_s: Option<u64>,
    /// When it ends at the latest; absent for a job that has not started.
    pub end_at: Option<DateTime<Utc>>,
}
