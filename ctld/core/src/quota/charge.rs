//! What a job is charged: everything that all of its tasks that have not ended may take, as it was asked for.
//!
//! A job for a whole node is charged what it asked for until it is placed, then what it got; see
//! [`super::recharge`]. Products are checked: a million tasks of a million nodes of an exbibyte are refused, not wrapped.

use super::{AMOUNT_MAX, Charge, Resource};
use crate::gpu_share::GpuShare;
use std::fmt;

/// What a job asks for, as far as it is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Tasks that have not ended: 1 for a job that is no array.
    pub tasks: u64,
    /// Nodes for each task, each with all of the following.
    pub node_count: u32,
    /// CPUs.
    pub cpus: u64,
    /// Memory, MiB.
    pub mem_mib: u64,
    /// GPUs or parts of GPUs.
    pub atoms: u32,
    /// How much of a GPU each of those is: where the model is not known yet, the most it can be.
    pub share: GpuShare,
    /// Their model, as asked for or as placed; `None` is any.
    pub model: Option<String>,
}

/// A charge larger than can be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooMuch {
    /// Of what.
    pub resource: Resource,
    /// How much on each node; GPUs in 5040ths.
    pub each: u64,
    /// On how many nodes.
    pub node_count: u32,
    /// For how many tasks.
    pub tasks: u64,
}

/// What a job that asks for this is charged.
pub fn charge(asked: &Asked) -> Result<Charge, TooMuch> {
    let &Asked { tasks, node_count, .. } = asked;
    let all = |resource: Resource, each: u128| {
        let total = each.checked_mul(u128::from(node_count)).and_then(|n| n.checked_mul(u128::from(tasks)));
        match total.and_then(|total| u64::try_from(total).ok()).filter(|total| *total <= AMOUNT_MAX) {
            Some(total) => Ok(total),
            None => {
                Err(TooMuch { resource, each: u64::try_from(each).unwrap_or(u64::MAX), node_count, tasks })
            }
        }
    };
    if tasks > AMOUNT_MAX {
        return Err(TooMuch { resource: Resource::Jobs, each: 1, node_count: 1, tasks });
    }
    let share_each = u128::from(asked.share.units()) * u128::from(asked.atoms);
    let gpus = GpuShare::from_units(all(Resource::Gpus, share_each)?);
    let of_model = asked.model.as_ref().filter(|_| gpus > GpuShare::ZERO);
    Ok(Charge {
        jobs: tasks,
        cpus: all(Resource::Cpus, asked.cpus.into())?,
        mem_mib: all(Resource::MemMib, asked.mem_mib.into())?,
        gpus,
        gpus_of: of_model.map(|model| (model.to_ascii_lowercase(), gpus)).into_iter().collect(),
        atoms: all(Resource::Atoms, asked.atoms.into())?,
    })
}

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooMuch { resource, each, node_count, tasks } = self;
        let each = resource.show(*each);
        write!(
            f,
            "{each} {resource} on each of {node_count} nodes for {tasks} tasks are more than can be counted"
        )
    }
}

impl std::error::Error for TooMuch {}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked {
            tasks: 3,
            node_count: 2,
            cpus: 8,
            mem_mib: 1024,
            atoms: 4,
            share: GpuShare::ONE,
            model: Some("A100-80gb".to_owned()),
        }
    }

    #[test]
    fn every_task_is_charged_on_every_node() {
        let charge = charge(&asked()).unwrap();
        let gpus = GpuShare::whole(24).unwrap();
        let want = Charge {
            jobs: 3,
            cpus: 48,
            mem_mib: 6144,
            gpus,
            gpus_of: [("a100-80gb".to_owned(), gpus)].into(),
            atoms: 24,
        };
        assert_eq!(charge, want);
    }

    #[test]
    fn parts_are_charged_as_parts_and_any_model_in_all_alone() {
        let share = GpuShare::fraction(2, 7);
        let charge = charge(&Asked { share, model: None, ..asked() }).unwrap();
        assert_eq!((charge.gpus.to_string().as_str(), charge.atoms), ("6 6/7", 24));
        assert!(charge.gpus_of.is_empty());
    }

    #[test]
    fn a_job_without_gpus_is_charged_for_none_of_any_model() {
        let charge = charge(&Asked { atoms: 0, ..asked() }).unwrap();
        assert_eq!((charge.gpus, charge.gpus_of.len(), charge.atoms), (GpuShare::ZERO, 0, 0));
        assert_eq!(super::charge(&Asked { tasks: 0, ..asked() }).unwrap(), Charge::default());
    }

    #[test]
    fn the_largest_that_can_be_counted_is_charged_and_one_more_is_refused() {
        let half = (1 << 62) - 1;
        let fits = Asked { tasks: 2, node_count: 1, mem_mib: half, ..asked() };
        assert_eq!(charge(&fits).unwrap().mem_mib, AMOUNT_MAX - 1);
        let error = charge(&Asked { mem_mib: half + 1, ..fits }).unwrap_err();
        assert_eq!(error, TooMuch { resource: Resource::MemMib, each: half + 1, node_count: 1, tasks: 2 });
    }

    #[test]
    fn products_never_wrap() {
        let million = Asked { tasks: 1_000_000, node_count: 1_000_000, mem_mib: 1 << 40, ..asked() };
        let error = charge(&million).unwrap_err().to_string();
        assert!(
            error.contains("1099511627776 mem_mib on each of 1000000 nodes for 1000000 tasks"),
            "{error}"
        );
        let refused = |change: fn(&mut Asked)| {
            let mut asked = Asked { node_count: u32::MAX, ..asked() };
            change(&mut asked);
            charge(&asked).unwrap_err().resource
        };
        assert_eq!(refused(|a| a.cpus = u64::MAX), Resource::Cpus);
        assert_eq!(refused(|a| (a.atoms, a.tasks) = (u32::MAX, AMOUNT_MAX)), Resource::Gpus);
        assert_eq!(
            refused(|a| (a.atoms, a.share) = (u32::MAX, GpuShare::from_units(u64::MAX))),
            Resource::Gpus
        );
        assert_eq!(refused(|a| a.tasks = u64::MAX), Resource::Jobs);
        assert_eq!(
            refused(|a| (a.cpus, a.mem_mib, a.share, a.tasks) = (0, 0, GpuShare::ZERO, AMOUNT_MAX)),
            Resource::Atoms
        );
    }
}
