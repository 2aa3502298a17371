//! What a task is charged: everything it may take, as it was asked for; and what all tasks of a job are together.
//!
//! A job for a whole node is charged what it asked for, and the rest when it gets one ([`given`]). Products are checked: a million tasks of a million nodes of an
//! exbibyte are refused, not wrapped.

use super::{AMOUNT_MAX, Charge, Resource};
use crate::gpu_share::GpuShare;
use std::fmt;

/// What each task of a job asks for, as far as it is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Nodes, each with all of the following.
    pub node_count: u32,
    /// CPUs.
    pub cpus: u64,
    /// Memory, MiB.
    pub mem_mib: u64,
    /// Local disk, MiB.
    pub disk_mib: u64,
    /// GPUs or parts of GPUs.
    pub atoms: u32,
    /// How much of a GPU each of those is.
    pub share: GpuShare,
    /// Their model, as asked for or as booked; `None` is any.
    pub model: Option<String>,
}

/// A charge larger than can be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooMuch {
    /// Of what.
    pub resource: Resource,
    /// How much each of them.
    pub each: u64,
    /// How many: nodes, or tasks.
    pub times: u64,
}

/// What a task that asks for this is charged.
pub fn charge(asked: &Asked) -> Result<Charge, TooMuch> {
    let gpus = asked.share.times(asked.atoms.into()).unwrap_or(GpuShare::from_units(u64::MAX)).units();
    let models = asked.model.iter().flat_map(|model| Resource::of_model(model)).map(|model| (model, gpus));
    let amounts = [
        (Resource::Cpus, asked.cpus),
        (Resource::MemMib, asked.mem_mib),
        (Resource::DiskMib, asked.disk_mib),
        (Resource::Gpus, gpus),
        (Resource::Atoms, asked.atoms.into()),
    ];
    let on_each: Charge = amounts.into_iter().chain(models).collect();
    let mut all = on_each.times(asked.node_count.into())?;
    all.add(&[(Resource::Jobs, 1)].into_iter().collect());
    Ok(all)
}

/// What is charged for this on one node: what a placement gives there, with whole GPUs of these models.
pub fn given<'a>(cpus: u64, mem_mib: u64, disk_mib: u64, models: impl Iterator<Item = &'a str>) -> Charge {
    let gpu = GpuShare::ONE.units();
    let each = |model: &'a str| {
        let names = Resource::of_model(model).into_iter().map(move |name| (name, gpu));
        names.chain([(Resource::Gpus, gpu), (Resource::Atoms, 1)])
    };
    let amounts = [(Resource::Cpus, cpus), (Resource::MemMib, mem_mib), (Resource::DiskMib, disk_mib)];
    amounts.into_iter().chain(models.flat_map(each)).collect()
}

impl Charge {
    /// Of a task's charge, what it is for each of its nodes.
    pub fn on_each_of(&self, node_count: u32) -> Charge {
        let amounts = self.amounts().filter(|(resource, _)| **resource != Resource::Jobs);
        amounts.map(|(resource, amount)| (resource.clone(), amount / u64::from(node_count.max(1)))).collect()
    }

    /// So many of these: of a task's charge, that of all tasks.
    pub fn times(&self, times: u64) -> Result<Charge, TooMuch> {
        let product = |(resource, each): (&Resource, u64)| {
            let product = each.checked_mul(times).filter(|product| *product <= AMOUNT_MAX);
            let amount = product.ok_or_else(|| TooMuch { resource: resource.clone(), each, times })?;
            Ok((resource.clone(), amount))
        };
        self.amounts().map(product).collect()
    }
}

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooMuch { resource, each, times } = self;
        write!(f, "{times} times {} {resource} are more than can be counted", resource.show(*each))
    }
}

impl std::error::Error for TooMuch {}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked {
            node_count: 2,
            cpus: 8,
            mem_mib: 1024,
            disk_mib: 10,
            atoms: 4,
            share: GpuShare::ONE,
            model: Some("A100-80gb".to_owned()),
        }
    }

    fn shown(charge: &Charge) -> String {
        charge.amounts().map(|(r, n)| format!("{} {r}", r.show(n))).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn every_task_is_charged_on_every_node() {
        let tasks = charge(&asked()).unwrap().times(3).unwrap();
        assert_eq!(
            shown(&tasks),
            "3 jobs, 48 cpus, 6G mem, 60M disk, 24 gpus, 24 gpus:a100, 24 gpus:a100-80gb, 24 atoms"
        );
    }

    #[test]
    fn parts_are_charged_as_parts_and_any_model_in_all_alone() {
        let charge = charge(&Asked { share: GpuShare::fraction(2, 7), model: None, ..asked() }).unwrap();
        assert_eq!(shown(&charge), "1 jobs, 16 cpus, 2G mem, 20M disk, 2 2/7 gpus, 8 atoms");
    }

    #[test]
    fn a_job_without_gpus_is_charged_for_none_of_any_model() {
        let charge = charge(&Asked { atoms: 0, ..asked() }).unwrap();
        assert_eq!(shown(&charge), "1 jobs, 16 cpus, 2G mem, 20M disk");
        assert_eq!(charge.times(0), Ok(Charge::default()));
    }

    #[test]
    fn the_largest_that_can_be_counted_is_charged_and_one_more_is_refused() {
        let half = (1 << 62) - 1;
        let of = |mem_mib| charge(&Asked { node_count: 2, mem_mib, ..asked() });
        assert_eq!(of(half).unwrap().of(&Resource::MemMib), AMOUNT_MAX - 1);
        assert_eq!(of(half + 1), Err(TooMuch { resource: Resource::MemMib, each: half + 1, times: 2 }));
        let error = charge(&asked()).unwrap().times(u64::MAX).unwrap_err();
        assert_eq!(error.resource, Resource::Jobs);
        let error = charge(&Asked { share: GpuShare::from_units(u64::MAX), ..asked() }).unwrap_err();
        assert_eq!(error.resource, Resource::Gpus);
    }
}
