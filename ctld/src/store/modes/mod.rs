//! The modes of GPUs over time: what each is set to, and the changes that are booked.
//!
//! A change of mode or layout books what it touches of the GPU for its window, so it is accepted exactly when nothing is
//! booked there; and since what is booked behind it was booked for the mode before, it is accepted only when nothing is
//! booked behind its beginning that the new setting does not have. The mode timeline then says the old setting up to the
//! window and the new one from its beginning on. The GPU's row is locked first, as a placement locks it: whichever commits
//! second sees the first.

mod cancel;
mod change;
mod complete;
mod gpu;
mod push;
mod read;

pub use cancel::cancel;
pub use change::change;
pub use complete::complete_due;
pub(super) use push::push_changes;
pub use read::list;

use super::{StoreError, row_error};
use ctld_core::mode_change::Target;
use proto::{Atom, GpuMode};
use sqlx::PgPool;

/// Seconds until the next change begins, if there is one.
pub async fn next_s(db: &PgPool) -> Result<Option<f64>, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT extract(epoch FROM min(lower(during)) - compute_now())::double precision AS s
           FROM gpu_changes WHERE ended_at IS NULL"#
    )
    .fetch_one(db)
    .await?)
}

/// A setting as it is stored.
fn target(mode: &str, slots: i32, layout: Option<Vec<String>>) -> Result<Target, StoreError> {
    let mode: GpuMode = mode.parse().map_err(|_| row_error("gpu_modes", "mode", mode))?;
    let slots = u16::try_from(slots).map_err(|_| row_error("gpu_modes", "slots", slots.to_string()))?;
    Ok(Target { mode, slots, layout: layout.map(|atoms| atoms_of(&atoms)).transpose()? })
}

fn atoms_of(texts: &[String]) -> Result<Vec<Atom>, StoreError> {
    texts
        .iter()
        .map(|text| text.parse().map_err(|_| row_error("gpu_modes", "layout", text.as_str())))
        .collect()
}
