//! Quotas: which of a batch of charges a tenant's limits allow, in their order.
//!
//! A tenant is charged for every task that has not ended, pending ones included, so a limit is reached by what is
//! submitted, not by what happens to run. A charge is refused by the first limit it would pass, in the order of
//! [`Resource`], with limit, use and what was asked; the refusal is final for the request, and later, smaller charges
//! are still tried. A limit only refuses what asks for its resource: with a limit set below what is in use, jobs that
//! take none of it go on. The store's guarded update is what counts; it uses the same numbers.
//!
//! GPUs are counted in shares ([`GpuShare`]), in all and by model. A limit on a model is named as a request names one:
//! `a100` limits every A100, `a100-80gb` those of 80 GB. Use is kept under the name that was asked for. So a job that asks
//! for any GPU counts in all and not yet for a model, one that asks for an `a100` not yet for `a100-80gb`; they do once
//! they are placed ([`recharge`]), and a placement that would pass the limit is none. Charged to every model at once, a
//! job would use up quotas of GPUs it never gets, and `h100: 0`, for a tenant who may have none, would refuse all jobs
//! that leave the model open.

use crate::gpu_share::GpuShare;
use crate::plan::model_matches;
use std::collections::BTreeMap;
use std::fmt;

pub mod charge;

pub use charge::{Asked, TooMuch, charge};

/// The most of anything that is counted: what a `bigint` holds. Over it is a refusal, as if it were a limit.
pub const AMOUNT_MAX: u64 = i64::MAX as u64;

/// What limits are set on, in the order in which they refuse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Tasks that have not ended; a job that is no array is one.
    Jobs,
    /// CPUs.
    Cpus,
    /// Memory, MiB.
    MemMib,
    /// GPUs of any model, in 5040ths.
    Gpus,
    /// GPUs of the models that this name matches, in 5040ths.
    GpusOf(String),
    /// Parts of GPUs, whole ones included, by number.
    Atoms,
}

/// A tenant's limits; absent is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Tasks that have not ended.
    pub jobs: Option<u64>,
    /// CPUs.
    pub cpus: Option<u64>,
    /// Memory, MiB.
    pub mem_mib: Option<u64>,
    /// GPUs of any model.
    pub gpus: Option<GpuShare>,
    /// GPUs by model, or by the leading part of models' names.
    pub gpus_of: BTreeMap<String, GpuShare>,
    /// Parts of GPUs.
    pub atoms: Option<u64>,
}

/// What a job is charged, or what a tenant is charged for all jobs together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Tasks that have not ended.
    pub jobs: u64,
    /// CPUs.
    pub cpus: u64,
    /// Memory, MiB.
    pub mem_mib: u64,
    /// GPUs, those of named models included.
    pub gpus: GpuShare,
    /// GPUs by the model asked for or placed on.
    pub gpus_of: BTreeMap<String, GpuShare>,
    /// Parts of GPUs.
    pub atoms: u64,
}

/// A limit that a charge would pass. Amounts of GPUs are in 5040ths.
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
pub fn decide(limits: &Limits, used: Charge, charges: &[Charge]) -> Decision {
    let mut used = used;
    let answer = |asked: &Charge| {
        check(limits, &used, &Charge::default(), asked)?;
        used.add(asked);
        Ok(())
    };
    let answers = charges.iter().map(answer).collect();
    Decision { answers, used }
}

/// Why a charge that is in use cannot become another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RechargeError {
    /// A limit that the growth would pass.
    Exceeded(Exceeded),
    /// The old charge is not in use: what is recorded contradicts itself.
    NotInUse,
}

/// The use after a charge became another: a job for any GPU was placed on a model, or one for a whole node got its size.
/// Only what grows is held against limits.
pub fn recharge(limits: &Limits, used: &Charge, from: &Charge, to: &Charge) -> Result<Charge, RechargeError> {
    let mut rest = used.minus(from).ok_or(RechargeError::NotInUse)?;
    check(limits, used, from, to).map_err(RechargeError::Exceeded)?;
    rest.add(to);
    Ok(rest)
}

impl Charge {
    /// What is left when this is given back, or `None` if not all of it is in use.
    pub fn minus(&self, charge: &Charge) -> Option<Charge> {
        let mut gpus_of = self.gpus_of.clone();
        for (model, share) in charge.gpus_of.iter().filter(|(_, share)| **share > GpuShare::ZERO) {
            let left = gpus_of.remove(model)?.units().checked_sub(share.units())?;
            if left > 0 {
                gpus_of.insert(model.clone(), GpuShare::from_units(left));
            }
        }
        Some(Charge {
            jobs: self.jobs.checked_sub(charge.jobs)?,
            cpus: self.cpus.checked_sub(charge.cpus)?,
            mem_mib: self.mem_mib.checked_sub(charge.mem_mib)?,
            gpus: GpuShare::from_units(self.gpus.units().checked_sub(charge.gpus.units())?),
            gpus_of,
            atoms: self.atoms.checked_sub(charge.atoms)?,
        })
    }

    /// Adds what [`check`] let pass, which no sum here can be too large for.
    fn add(&mut self, charge: &Charge) {
        let sum = |a: GpuShare, b: GpuShare| a.plus(b).expect("checked before it is added");
        self.jobs += charge.jobs;
        self.cpus += charge.cpus;
        self.mem_mib += charge.mem_mib;
        self.gpus = sum(self.gpus, charge.gpus);
        for (model, share) in charge.gpus_of.iter().filter(|(_, share)| **share > GpuShare::ZERO) {
            let used = self.gpus_of.entry(model.clone()).or_default();
            *used = sum(*used, *share);
        }
        self.atoms += charge.atoms;
    }

    /// What counts for a limit on this model, at most [`u64::MAX`].
    fn gpus_counted_for(&self, limit: &str) -> u64 {
        let counted = self.gpus_of.iter().filter(|(model, _)| model_matches(model, limit));
        counted.fold(0, |sum, (_, share)| sum.saturating_add(share.units()))
    }
}

/// The first limit that a change of a charge from `from` to `to` would pass; `used` holds `from`.
fn check(limits: &Limits, used: &Charge, from: &Charge, to: &Charge) -> Result<(), Exceeded> {
    let units = |share: Option<GpuShare>| share.map(GpuShare::units);
    within(&Resource::Jobs, limits.jobs, used.jobs, from.jobs, to.jobs)?;
    within(&Resource::Cpus, limits.cpus, used.cpus, from.cpus, to.cpus)?;
    within(&Resource::MemMib, limits.mem_mib, used.mem_mib, from.mem_mib, to.mem_mib)?;
    let gpus = [used, from, to].map(|charge| charge.gpus.units());
    within(&Resource::Gpus, units(limits.gpus), gpus[0], gpus[1], gpus[2])?;
    // What is asked for is looked at under its own name, too, so that no sum can be too large to be kept.
    let names: std::collections::BTreeSet<&String> = limits.gpus_of.keys().chain(to.gpus_of.keys()).collect();
    for name in names {
        let counted = [used, from, to].map(|charge| charge.gpus_counted_for(name));
        let limit = units(limits.gpus_of.get(name).copied());
        within(&Resource::GpusOf(name.clone()), limit, counted[0], counted[1], counted[2])?;
    }
    within(&Resource::Atoms, limits.atoms, used.atoms, from.atoms, to.atoms)
}

fn within(resource: &Resource, limit: Option<u64>, used: u64, from: u64, to: u64) -> Result<(), Exceeded> {
    let limit = limit.unwrap_or(AMOUNT_MAX).min(AMOUNT_MAX);
    let asked = to.saturating_sub(from);
    if asked == 0 || used.checked_add(asked).is_some_and(|sum| sum <= limit) {
        return Ok(());
    }
    Err(Exceeded { resource: resource.clone(), limit, used, asked })
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Jobs => f.write_str("jobs"),
            Resource::Cpus => f.write_str("cpus"),
            Resource::MemMib => f.write_str("mem_mib"),
            Resource::Gpus => f.write_str("gpus"),
            Resource::GpusOf(model) => write!(f, "gpus:{model}"),
            Resource::Atoms => f.write_str("atoms"),
        }
    }
}

impl Resource {
    /// An amount of it as people read it.
    fn show(&self, amount: u64) -> String {
        match self {
            Resource::Gpus | Resource::GpusOf(_) => GpuShare::from_units(amount).to_string(),
            _ => amount.to_string(),
        }
    }
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [limit, used, asked] = [self.limit, self.used, self.asked].map(|n| self.resource.show(n));
        write!(f, "quota allows {limit} {}, {used} in use, {asked} asked", self.resource)
    }
}

impl std::error::Error for Exceeded {}

#[cfg(test)]
mod tests;
