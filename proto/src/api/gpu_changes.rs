//! Changes of GPUs' modes and layouts.

use super::Begin;
use crate::{Atom, GpuMode};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How long a change has a GPU to itself where no time is given, seconds.
pub const CHANGE_WINDOW_S: u64 = 60;
/// The longest that it may, seconds.
pub const CHANGE_WINDOW_MAX_S: u64 = 86_400;

/// Sets a GPU to another mode, number of slots or layout. It is booked if nothing is in its way, or refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuChangeRequest {
    /// The same key and body are answered alike for ever.
    pub idempotency_key: String,
    /// The GPU's UUID.
    pub gpu: String,
    /// The mode.
    pub mode: GpuMode,
    /// In how many slots a time-sliced or MPS GPU is divided.
    #[serde(default)]
    pub slots: Option<u16>,
    /// The instances of a MIG GPU: `1g.10gb@3`, or `1g.10gb` for all where places are to be found; absent: made on demand.
    #[serde(default)]
    pub layout: Option<Vec<String>>,
    /// When; absent is now.
    #[serde(default)]
    pub begin: Option<Begin>,
    /// For how long nothing else is booked there, seconds; absent is [`CHANGE_WINDOW_S`].
    #[serde(default)]
    pub window_s: Option<u64>,
    /// Only say what would be in the way.
    #[serde(default)]
    pub preview: bool,
}

/// What a change is, or would be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuChangeAnswer {
    /// The change; absent in a preview.
    pub change: Option<GpuChange>,
    /// What is in its way, by its beginning; empty where it is booked.
    pub in_the_way: Vec<InTheWay>,
    /// From when on nothing would be, as the GPU is booked now.
    pub earliest_at: Option<DateTime<Utc>>,
}

/// A booking in the way of something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InTheWay {
    /// Whose it is: `job 12`, `reservation tue`, `change 3 of its mode`.
    pub whose: String,
    /// The part of the GPU.
    #[schema(value_type = String)]
    pub atom: Atom,
    /// From.
    pub begin_at: DateTime<Utc>,
    /// Until; absent has no end.
    pub end_at: Option<DateTime<Utc>>,
}

/// Changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuChangeList {
    /// By their beginning.
    pub changes: Vec<GpuChange>,
}

/// A change of a GPU's mode or layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuChange {
    /// Its id.
    pub id: i64,
    /// The node.
    pub node: String,
    /// The GPU's index on it.
    pub index: u32,
    /// The GPU's UUID.
    pub gpu: String,
    /// The mode it changes to.
    pub mode: GpuMode,
    /// See [`GpuChangeRequest::slots`].
    pub slots: u16,
    /// The instances, with their places.
    #[schema(value_type = Option<Vec<String>>)]
    pub layout: Option<Vec<Atom>>,
    /// `booked`, `done`, `cancelled`, `failed`.
    pub state: String,
    /// Who asked for it.
    pub author: String,
    /// When it begins.
    pub begin_at: DateTime<Utc>,
    /// Until when nothing else is booked there.
    pub end_at: DateTime<Utc>,
}
