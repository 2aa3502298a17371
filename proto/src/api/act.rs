//! Acting on jobs: cancel, signal, hold, release, requeue.

use crate::{ApiError, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most ids in one cancel, hold, release or requeue.
pub const ACT_IDS_MAX: usize = 10_000;

/// Which jobs to cancel or signal: by id, or by filter (joined by "and"). Neither is an error.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Ids as [`crate::JobRef`] reads them.
    #[serde(default)]
    pub ids: Vec<String>,
    /// Jobs of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Jobs of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Jobs of this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Jobs in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// Send this signal to every process of the running ones instead of cancelling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// With `signal`: to the batch script only.
    #[serde(default)]
    pub script_only: bool,
}

/// Jobs to hold, release or requeue.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActRequest {
    /// Ids as [`crate::JobRef`] reads them.
    pub ids: Vec<String>,
}

/// One result an id, or one a job found by the filter.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ActResults {
    /// The results, in the order of the ids.
    pub results: Vec<ActResult>,
}

/// What became of one id.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ActResult {
    /// As it was asked for.
    pub id: String,
    /// What happened.
    pub outcome: ActOutcome,
    /// For an error: what and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
}

/// What became of a cancel, signal, hold, release or requeue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActOutcome {
    /// Done, and committed (a running job's processes are being ended).
    Done,
    /// Nothing to do: it had ended, or was already so.
    Already,
    /// Refused: see `error`.
    Error,
}
