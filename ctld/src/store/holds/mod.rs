//! Holds: why nodes, GPUs and parts of GPUs take no new work.
//!
//! A hold has an owner, so that two people or tools do not lift each other's, and a time, so that it may be put ahead. What
//! it means for work is `ctld_core::holds`', and everybody who places, reserves or extends reads [`standing`] and asks that.
//! Whoever puts or lifts one locks the node's row first, then the GPU's, which a placement locks `FOR SHARE` before it reads
//! the holds: the two are ordered, and whichever commits second sees the first. `eligible` on those rows is derived from the
//! holds in effect; [`advance`] keeps it current when holds begin and end by themselves.
//!
//! Surprising: a hold put for "now" has no beginning for those who read it, see `hold_in_effect` in the migrations.

mod advance;
mod impact;
mod put;
mod quarantine;
mod read;
mod resume;
mod standing;
mod suspects;
mod target;
mod unreachable;

pub use advance::{Advanced, advance, next_s};
pub use impact::impact;
pub use put::{Put, put};
pub use quarantine::{end_quarantine, quarantine};
pub use read::list;
pub use resume::resume;
pub use suspects::hold_suspects;

pub(super) use read::of_nodes;
pub(super) use standing::{span_of, standing};
pub(super) use unreachable::{reachable, unreachable};

use super::StoreError;
use proto::api::CONTROLLER;
use proto::{ApiError, ErrorCode};
use sqlx::PgConnection;

/// The longest reason and the longest name of an owner, bytes.
const REASON_BYTES_MAX: usize = 1000;
const OWNER_BYTES_MAX: usize = 64;

/// Sets what a placement looks at from the holds that are in effect on these nodes and GPUs, whose rows the caller has
/// locked. How many of them changed.
async fn derive_eligible(
    tx: &mut PgConnection,
    node_ids: &[i64],
    gpu_ids: &[i64],
) -> Result<u64, StoreError> {
    let nodes = sqlx::query!(
        "UPDATE nodes n SET eligible = NOT n.eligible, version = n.version + 1
         WHERE n.id = ANY($1) AND n.eligible = EXISTS (SELECT FROM holds h
             WHERE h.node_id = n.id AND h.gpu_id IS NULL AND h.closed_at IS NULL AND hold_in_effect(h))",
        node_ids
    )
    .execute(&mut *tx)
    .await?;
    // A part that is held leaves the others to be given.
    let gpus = sqlx::query!(
        "UPDATE gpus g SET eligible = NOT g.eligible, version = g.version + 1
         WHERE g.id = ANY($1) AND g.eligible = EXISTS (SELECT FROM holds h
             WHERE h.gpu_id = g.id AND h.atom IS NULL AND h.closed_at IS NULL AND hold_in_effect(h))",
        gpu_ids
    )
    .execute(tx)
    .await?;
    Ok(nodes.rows_affected() + gpus.rows_affected())
}

/// Whether this can be an owner's name that people use.
fn check_owner(owner: &str) -> Result<(), StoreError> {
    if owner == CONTROLLER {
        return Err(ApiError::new(
            ErrorCode::PermissionDenied,
            format!("the owner \"{CONTROLLER}\" is the controller itself"),
        )
        .hint("it puts and lifts its own holds; hold under another name")
        .into());
    }
    if owner.is_empty() || owner.len() > OWNER_BYTES_MAX || owner.contains(char::is_control) {
        return Err(invalid(format!(
            "the owner {owner:?} is not accepted: expected 1 to {OWNER_BYTES_MAX} bytes in one line"
        )));
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> StoreError {
    ApiError::new(ErrorCode::InvalidArgument, message).into()
}
