//! What the audit found.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Every invariant, checked against what the database holds.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// Whether each was checked and holds.
    pub ok: bool,
    /// How long it took, seconds.
    pub took_s: f64,
    /// The invariants.
    pub invariants: Vec<Audited>,
}

/// One invariant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Audited {
    /// Its stable name.
    pub name: String,
    /// What it says.
    pub says: String,
    /// How many rows were looked at.
    pub checked: u64,
    /// How many offend it; absent if it took too long to tell.
    pub violations: Option<u64>,
    /// Those that offend it, the first hundred.
    pub rows: Vec<Violation>,
}

/// What offends an invariant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Violation {
    /// The thing: a node, a GPU, a job.
    pub what: String,
    /// What is wrong with it.
    pub detail: String,
}
