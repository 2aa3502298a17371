//! What a tenant's limits leave for what a placement gives beyond what was asked for, and charged, at submission: the model
//! of a GPU that was left open, the rest of a node taken whole.
//!
//! The planner offers nothing that the limits refuse, and looks for a place that they allow: GPUs of another model, another
//! node. The charge in the store, under the rows' locks, is what counts; it compares the same numbers.

use super::{NodeFree, Shape, Share};
use crate::quota::{Charge, Exceeded, Limits, check, given};
use proto::{Condition, Reason};

/// A tenant's limits and use while a plan is made.
#[derive(Clone, Debug, Default)]
pub struct Allowance {
    /// Its name, for reasons.
    pub tenant: String,
    /// Its limits.
    pub limits: Limits,
    /// What is charged, with what the plan gives.
    pub used: Charge,
}

/// Who pays for a task.
#[derive(Clone, Copy, Debug)]
pub struct Payer<'a> {
    /// What its tenant may have.
    pub allowance: &'a Allowance,
    /// What the task was charged for each of its nodes when it was submitted.
    pub charged: &'a Charge,
}

impl Payer<'_> {
    /// Whether as many GPUs of this model as the shape asks for on a node may be given.
    pub(super) fn may_take(&self, model: &str, shape: &Shape) -> bool {
        let gpus = given(0, 0, 0, (0..shape.gpus).map(|_| model));
        self.check(&gpus.beyond(self.charged)).is_ok()
    }

    /// What this share gives beyond what was charged.
    pub(super) fn extra(&self, node: &NodeFree, share: &Share) -> Charge {
        let taken = node.gpus_free.iter().filter(|gpu| share.gpu_ids.contains(&gpu.id));
        share.gives(taken.map(|gpu| gpu.model.as_str())).beyond(self.charged)
    }

    /// Whether this much more is within the limits.
    pub(super) fn check(&self, extra: &Charge) -> Result<(), Exceeded> {
        check(&self.allowance.limits, &self.allowance.used, extra)
    }

    /// Why a task waits that would fit, but that no place it fits is within the limits for.
    pub(super) fn refusal(&self, exceeded: &Exceeded) -> Condition {
        let tenant = &self.allowance.tenant;
        let message = format!("what it would be given is over its quota: tenant \"{tenant}\" has {exceeded}");
        Condition::new(Reason::QuotaExceeded, message)
    }
}

impl Share {
    /// What it is charged as, with GPUs of these models.
    pub fn gives<'a>(&self, models: impl Iterator<Item = &'a str>) -> Charge {
        given(self.cpus.unsigned_abs(), self.mem_mib.unsigned_abs(), self.disk_mib.unsigned_abs(), models)
    }
}
