//! Quotas: which of a batch of charges a tenant's limits allow, in their order.
//!
//! A tenant is charged for every task that has not ended, pending ones included, so a limit is reached by what is
//! submitted, not by what happens to run. A charge is refused by the first limit it would pass, in the order of
//! [`Resource`], with limit, use and what was asked; the refusal is final for the request, and later, smaller charges
//! are still tried. A limit only refuses what asks for its resource: with a limit set below what is in use, jobs that
//! take none of it go on. The store's guarded update is what counts; it uses the same numbers.
//!
//! GPUs are counted in shares (`GpuShare`), in all and by model, under each name that the model asked for satisfies: a job
//! for an `a100-80gb` counts as `a100`, too, so that each limit is one number to compare with. A job that leaves the model
//! open counts in all and, while it waits, for no model: charged to every model at once, it would use up quotas of GPUs it
//! never gets. What a placement gives beyond what was charged, the model or the rest of a node, is charged with it.

use std::collections::BTreeMap;
use std::fmt;

pub mod charge;

pub use charge::{Asked, TooMuch, charge, given};
pub use proto::quota::Resource;

/// The most of anything that is counted: what a `bigint` holds. Over it is a refusal, as if it were a limit.
pub const AMOUNT_MAX: u64 = i64::MAX as u64;

/// A tenant's limits; absent is unlimited.
pub type Limits = BTreeMap<Resource, u64>;

/// What a job is charged, or what a tenant is charged for everything together. Holds no zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charge(BTreeMap<Resource, u64>);

/// A limit that a charge would pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Which.
    pub resource: Resource,
    /// How much it allows.
    pub limit: u64,
    /// How much is in use, by what was accepted before in the batch, too.
    pub used: u64,
    /// How much more was asked.
    pub asked: u64,
}

/// What becomes of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// For each charge, in order: accepted, or the first limit it would pass.
    pub answers: Vec<Result<(), Exceeded>>,
    /// The tenant's use with what was accepted.
    pub used: Charge,
}

/// Decides a batch of one tenant's charges in their order: each is accepted exactly if it fits beside what is used and
/// what was accepted before it.
pub fn decide(limits: &Limits, used: Charge, charges: &[&Charge]) -> Decision {
    let mut used = used;
    let answer = |asked: &&Charge| {
        check(limits, &used, asked)?;
        used.add(asked);
        Ok(())
    };
    let answers = charges.iter().map(answer).collect();
    Decision { answers, used }
}

/// Whether this fits beside what is used, or the first limit that it would pass.
pub fn check(limits: &Limits, used: &Charge, asked: &Charge) -> Result<(), Exceeded> {
    for (resource, asked) in asked.amounts() {
        let limit = limits.get(resource).copied().unwrap_or(AMOUNT_MAX).min(AMOUNT_MAX);
        let used = used.of(resource);
        if used.checked_add(asked).is_none_or(|sum| sum > limit) {
            return Err(Exceeded { resource: resource.clone(), limit, used, asked });
        }
    }
    Ok(())
}

impl Charge {
    /// How much of this.
    pub fn of(&self, resource: &Resource) -> u64 {
        self.0.get(resource).copied().unwrap_or(0)
    }

    /// What is charged, in the order in which limits refuse.
    pub fn amounts(&self) -> impl Iterator<Item = (&Resource, u64)> {
        self.0.iter().map(|(resource, amount)| (resource, *amount))
    }

    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what was checked to fit, or adds up what is to be checked: then at most [`u64::MAX`], which never fits.
    pub fn add(&mut self, charge: &Charge) {
        for (resource, amount) in charge.amounts() {
            let sum = self.0.entry(resource.clone()).or_default();
            *sum = sum.saturating_add(amount);
        }
    }

    /// What this is more than the other.
    pub fn beyond(&self, other: &Charge) -> Charge {
        self.amounts()
            .map(|(resource, amount)| (resource.clone(), amount.saturating_sub(other.of(resource))))
            .collect()
    }
}

impl FromIterator<(Resource, u64)> for Charge {
    fn from_iter<I: IntoIterator<Item = (Resource, u64)>>(amounts: I) -> Charge {
        let mut charge = Charge::default();
        for (resource, amount) in amounts.into_iter().filter(|(_, amount)| *amount > 0) {
            let sum = charge.0.entry(resource).or_default();
            *sum = sum.saturating_add(amount);
        }
        charge
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exceeded { resource, limit, used, asked } = self;
        let [limit, used, asked] = [limit, used, asked].map(|amount| resource.show(*amount));
        write!(f, "{used} of at most {limit} {resource} in use; {asked} more asked")
    }
}

impl std::error::Error for Exceeded {}

#[cfg(test)]
mod tests;
