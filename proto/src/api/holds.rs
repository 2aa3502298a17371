//! Holds: why nodes, GPUs and parts of GPUs take no new work, and what a hold would touch.

use super::Begin;
use crate::{Atom, HoldKind};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who owns what the controller holds by itself. Nobody else can be called so when it comes to holds.
pub const CONTROLLER: &str = "controller";

/// Holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HoldList {
    /// By node, oldest first.
    pub holds: Vec<Hold>,
}

/// Why a node, GPU or part of a GPU takes no new work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// Its id.
    pub id: i64,
    /// What kind, which says what it means for work.
    pub kind: HoldKind,
    /// What is held, as commands name it: `n1`, `n1/0`, `n1/0/mig:1g.10gb@3`.
    pub target: String,
    /// The node.
    pub node: String,
    /// The GPU held, by UUID; absent is the whole node.
    pub gpu: Option<String>,
    /// The part of the GPU that is held; absent is all of it.
    #[schema(value_type = Option<String>)]
    pub atom: Option<Atom>,
    /// On whose behalf it stands, and who may lift it.
    pub owner: String,
    /// Who put it.
    pub author: String,
    /// Why.
    pub reason: String,
    /// From when on it holds.
    pub from: DateTime<Utc>,
    /// Until when; absent is until it is lifted.
    pub until: Option<DateTime<Utc>>,
    /// Whether it holds now.
    pub in_effect: bool,
}

/// A hold to put.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// The same key and body are answered alike for ever.
    pub idempotency_key: String,
    /// What: `NODE`, `NODE/GPU` with the GPU's index or UUID, a GPU's UUID, each GPU perhaps with a part of it:
    /// `n1/0/mig:1g.10gb@3`, `GPU-…/slot:2/8`.
    pub target: String,
    /// What kind.
    #[serde(default)]
    pub kind: HoldKind,
    /// Why; shown to everybody who looks.
    pub reason: String,
    /// On whose behalf; absent is the caller's own.
    #[serde(default)]
    pub owner: Option<String>,
    /// From when on; absent is now.
    #[serde(default)]
    pub at: Option<Begin>,
    /// For how long, seconds; absent is until it is lifted.
    #[serde(default)]
    pub for_s: Option<u64>,
}

/// Holds to lift: the caller's own that are in effect, unless told otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeRequest {
    /// The same key and body are answered alike for ever.
    pub idempotency_key: String,
    /// What is held, as for a hold.
    pub target: String,
    /// This owner's instead of the caller's.
    #[serde(default)]
    pub owner: Option<String>,
    /// Every person's. The controller's own are lifted by the controller.
    #[serde(default)]
    pub all: bool,
    /// Those that have not begun, too.
    #[serde(default)]
    pub planned: bool,
}

/// What a hold would touch, as things are booked now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HoldImpact {
    /// What would be held, as commands name it.
    pub target: String,
    /// What kind.
    pub kind: HoldKind,
    /// From when on it would hold.
    pub from: DateTime<Utc>,
    /// Until when; absent is until it is lifted.
    pub until: Option<DateTime<Utc>>,
    /// What runs there. It goes on.
    pub jobs: Vec<HeldJob>,
    /// Reservations that would lose their place there.
    pub reservations: Vec<HeldReservation>,
}

/// A job, or a task of one, that runs on what would be held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldJob {
    /// `12` or `12_3`.
    pub job: String,
    /// Whose.
    pub user: String,
    /// When it is over at the latest; absent for one without a limit.
    pub until: Option<DateTime<Utc>>,
    /// Whether it may still run when the hold begins.
    pub runs_into: bool,
}

/// A reservation that is booked on what would be held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldReservation {
    /// Its name.
    pub name: String,
    /// Whose.
    pub owner: String,
    /// When it begins.
    pub from: DateTime<Utc>,
    /// When it ends.
    pub until: DateTime<Utc>,
}
