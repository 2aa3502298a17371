//! The planner: from a snapshot of what is free and the queue in its order, to placements and the reasons of the rest.
//!
//! A plan is a pure function of its arguments. The store applies it in one transaction and drops what no longer holds, so a
//! stale snapshot costs a replan and never a double booking. Each task goes where it leaves the least behind: GPU work on the
//! node with the fewest free GPUs that suffice, other work on nodes without free GPUs first, so that whole GPUs and whole
//! nodes stay free for those that need them.
//!
//! Surprising: a request that fails is remembered by its shape, so that ten thousand equal ones cost one look.

mod allowance;
mod amounts;

pub use allowance::{Allowance, Payer};
pub use amounts::{Amount, Amounts, Booked};

use crate::quota::Charge;
use proto::duration::show_limit;
use proto::{Check, Condition, IndexSet, Reason};
use std::collections::HashMap;

/// What is free on one node that takes work.
#[derive(Clone, Debug)]
pub struct NodeFree {
    /// The node's id.
    pub id: i64,
    /// Its name, for reasons.
    pub name: String,
    /// Its pool.
    pub pool_id: i32,
    /// CPUs, memory and disk.
    pub amounts: Amounts,
    /// For how long it may be used, microseconds from now; `None` is without end. A reservation ends.
    pub until_us: Option<i64>,
    /// When a maintenance of it begins, microseconds from now: what begins before must be over by then.
    pub maintenance_us: Option<i64>,
    /// GPUs that nobody has now, in the order of their ids.
    pub gpus_free: Vec<GpuFree>,
    /// Every GPU's model, free or not.
    pub gpu_models: Vec<String>,
}

/// A GPU nobody has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFree {
    /// Its id in the book.
    pub id: i64,
    /// Its model.
    pub model: String,
    /// When it is booked next, microseconds from now; `None`: it is not.
    pub until_us: Option<i64>,
}

/// What each task of a job asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Where.
    pub pool_id: i32,
    /// How many nodes, each with all of the following.
    pub node_count: u32,
    /// CPUs.
    pub cpus: i64,
    /// Memory, MiB.
    pub mem_mib: i64,
    /// Disk, MiB.
    pub disk_mib: i64,
    /// How long it is booked for, microseconds; `None` is without end.
    pub lasts_us: Option<u64>,
    /// GPUs.
    pub gpus: u32,
    /// Their model, lower case; `None` is any.
    pub gpu_type: Option<String>,
    /// Everything the node has, and nobody else on it.
    pub exclusive: bool,
    /// All of the node's memory.
    pub mem_all: bool,
    /// Nodes on which it failed for no fault of its own that is known: not these while there are others. Ascending.
    pub avoid: Vec<i64>,
}

/// A job with tasks to place.
#[derive(Clone, Debug)]
pub struct Request {
    /// The job.
    pub job_id: i64,
    /// Its tenant.
    pub tenant_id: i32,
    /// What each task was charged for each of its nodes when it was submitted.
    pub charged: Charge,
    /// What each task asks for.
    pub shape: Shape,
    /// Tasks not yet placed.
    pub pending: IndexSet,
    /// How many more tasks may start, where the array has a throttle.
    pub throttle_left: Option<u32>,
}

/// A task and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The job.
    pub job_id: i64,
    /// The task: 0 for a job that is no array.
    pub task: u32,
    /// How long it is booked for, microseconds; `None` is without end.
    pub lasts_us: Option<u64>,
    /// One share a node, the first runs the script.
    pub shares: Vec<Share>,
}

/// What a task gets on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The node.
    pub node_id: i64,
    /// CPUs.
    pub cpus: i64,
    /// Memory, MiB.
    pub mem_mib: i64,
    /// Disk, MiB.
    pub disk_mib: i64,
    /// GPUs, ascending.
    pub gpu_ids: Vec<i64>,
}

/// What should happen now.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Tasks to start, in the order of the queue.
    pub placements: Vec<Placement>,
    /// Why jobs with tasks left over wait, in the order of the queue. A job not looked at is not here.
    pub waits: Vec<(i64, Condition)>,
    /// Whether the plan stopped at its limit with work that might still fit.
    pub more: bool,
}

/// The free capacity while a plan is made.
pub struct Planner {
    nodes: Vec<NodeFree>,
    blocked: HashMap<Shape, Condition>,
    allowances: HashMap<i32, Allowance>,
    /// Shapes that a tenant's quota refused.
    refused: HashMap<(i32, Shape), Condition>,
    plan: Plan,
    placements_max: usize,
}

impl Planner {
    /// A planner over what is free now, which places at most `placements_max` tasks.
    pub fn new(nodes: Vec<NodeFree>, placements_max: usize) -> Planner {
        let (blocked, allowances, refused) = (HashMap::new(), HashMap::new(), HashMap::new());
        Planner { nodes, blocked, allowances, refused, plan: Plan::default(), placements_max }
    }

    /// Gives these tenants no more than their quotas allow; the others have no limits.
    pub fn within(self, allowances: HashMap<i32, Allowance>) -> Planner {
        Planner { allowances, ..self }
    }

    /// Whether nothing more can be placed: the limit is reached, or no node has a CPU left.
    pub fn exhausted(&self) -> bool {
        self.plan.more || self.nodes.iter().all(|n| n.amounts.cpus.free < 1 || n.amounts.mem_mib.free < 1)
    }

    /// Looks at the next jobs of the queue, in its order.
    pub fn consider(&mut self, queue: &[Request]) {
        for request in queue {
            if self.plan.more {
                return;
            }
            self.consider_one(request);
        }
    }

    /// The plan.
    pub fn finish(self) -> Plan {
        self.plan
    }

    /// Why this request cannot be placed, where another of its shape has shown it.
    fn known(&self, request: &Request) -> Option<Condition> {
        let blocked = self.blocked.get(&request.shape);
        let refused = || {
            let limited = self.allowances.contains_key(&request.tenant_id);
            limited.then(|| self.refused.get(&(request.tenant_id, request.shape.clone()))).flatten()
        };
        blocked.or_else(refused).cloned()
    }

    fn consider_one(&mut self, request: &Request) {
        let mut left = request.throttle_left.unwrap_or(u32::MAX);
        for task in request.pending.iter() {
            if left == 0 {
                let message = "the array runs as many tasks as its throttle allows";
                self.plan.waits.push((request.job_id, Condition::new(Reason::ArrayThrottle, message)));
                return;
            }
            if self.plan.placements.len() >= self.placements_max {
                self.plan.more = true;
                return;
            }
            if let Some(why) = self.known(request) {
                self.plan.waits.push((request.job_id, why));
                return;
            }
            let allowance = self.allowances.get_mut(&request.tenant_id);
            let payer = allowance.as_deref().map(|allowance| Payer { allowance, charged: &request.charged });
            match place(&mut self.nodes, &request.shape, payer) {
                Ok((shares, extra)) => {
                    if let Some(allowance) = allowance {
                        allowance.used.add(&extra);
                    }
                    let lasts_us = request.shape.lasts_us;
                    self.plan.placements.push(Placement { job_id: request.job_id, task, lasts_us, shares });
                    left -= 1;
                }
                Err(why) => {
                    let shape = request.shape.clone();
                    if why.reason == Reason::QuotaExceeded {
                        self.refused.insert((request.tenant_id, shape), why.clone());
                    } else {
                        self.blocked.insert(shape, why.clone());
                    }
                    self.plan.waits.push((request.job_id, why));
                    return;
                }
            }
        }
    }
}

/// Why a request of this shape cannot start now, or `None` if it can. The same code as [`Planner::consider`] uses. Without
/// a payer there is no limit.
pub fn why_not(nodes: &[NodeFree], shape: &Shape, payer: Option<Payer<'_>>) -> Option<Condition> {
    place(&mut nodes.to_vec(), shape, payer).err()
}

/// Takes what the shape asks for out of `nodes`, and returns it with what is to be charged for it; or says why that is
/// impossible and takes nothing.
pub fn place(
    nodes: &mut [NodeFree],
    shape: &Shape,
    payer: Option<Payer<'_>>,
) -> Result<(Vec<Share>, Charge), Condition> {
    let mut fits: Vec<(usize, Share)> = Vec::new();
    for (index, node) in nodes.iter().enumerate().filter(|(_, n)| n.pool_id == shape.pool_id) {
        if let Some(share) = share_on(node, shape, payer) {
            fits.push((index, share));
        }
    }
    if fits.len() < shape.node_count as usize {
        return Err(unschedulable(nodes, shape, fits.len()));
    }
    fits.sort_by_key(|(index, share)| {
        let node = &nodes[*index];
        let gpus_left = node.gpus_free.len() - share.gpu_ids.len();
        let Amounts { cpus, mem_mib, .. } = &node.amounts;
        (gpus_left, cpus.free - share.cpus, mem_mib.free - share.mem_mib, node.id)
    });
    let (chosen, extra) = match payer {
        Some(payer) => affordable(nodes, shape, fits, payer)?,
        None => {
            fits.truncate(shape.node_count as usize);
            (fits, Charge::default())
        }
    };
    let take = |(index, share): (usize, Share)| {
        let node: &mut NodeFree = &mut nodes[index];
        node.amounts.take(&share, shape.lasts_us);
        node.gpus_free.retain(|gpu| !share.gpu_ids.contains(&gpu.id));
        share
    };
    Ok((chosen.into_iter().map(take).collect(), extra))
}

/// The first of these shares, as many as the shape asks for, that are together within the payer's limits.
fn affordable(
    nodes: &[NodeFree],
    shape: &Shape,
    fits: Vec<(usize, Share)>,
    payer: Payer<'_>,
) -> Result<(Vec<(usize, Share)>, Charge), Condition> {
    let (mut chosen, mut extra, mut refused) = (Vec::new(), Charge::default(), None);
    for (index, share) in fits {
        let mut sum = extra.clone();
        sum.add(&payer.extra(&nodes[index], &share));
        match payer.check(&sum) {
            Ok(()) => {
                extra = sum;
                chosen.push((index, share));
            }
            Err(exceeded) => refused = refused.or(Some(exceeded)),
        }
        if chosen.len() == shape.node_count as usize {
            return Ok((chosen, extra));
        }
    }
    // There were enough: one at least is refused.
    Err(refused.map_or_else(|| Condition::plain(Reason::QuotaExceeded), |exceeded| payer.refusal(&exceeded)))
}

fn share_on(node: &NodeFree, shape: &Shape, payer: Option<Payer<'_>>) -> Option<Share> {
    if !checks_on(node, shape).is_empty() {
        return None;
    }
    let whole = shape.exclusive;
    let gpu_ids = if whole {
        node.gpus_free.iter().map(|gpu| gpu.id).collect()
    } else {
        let mut gpus: Vec<&GpuFree> = node.gpus_free.iter().filter(|gpu| wanted(gpu, shape)).collect();
        if let Some(payer) = payer {
            // Those of models that the quota has room for first; the ids stay in order within each.
            gpus.sort_by_cached_key(|gpu| !payer.may_take(&gpu.model, shape));
        }
        let mut ids: Vec<i64> = gpus.into_iter().take(shape.gpus as usize).map(|gpu| gpu.id).collect();
        ids.sort_unstable();
        ids
    };
    Some(Share {
        node_id: node.id,
        cpus: if whole { node.amounts.cpus.total } else { shape.cpus },
        mem_mib: if whole || shape.mem_all { node.amounts.mem_mib.total } else { shape.mem_mib },
        disk_mib: shape.disk_mib,
        gpu_ids,
    })
}

fn wanted(gpu: &GpuFree, shape: &Shape) -> bool {
    of_type(gpu, shape) && long_enough(gpu.until_us, shape.lasts_us)
}

fn of_type(gpu: &GpuFree, shape: &Shape) -> bool {
    shape.gpu_type.as_deref().is_none_or(|model| model_matches(&gpu.model, model))
}

/// Whether what is free until then is free for so long.
fn long_enough(until_us: Option<i64>, lasts_us: Option<u64>) -> bool {
    until_us.is_none_or(|until| lasts_us.is_some_and(|lasts| i128::from(lasts) <= i128::from(until)))
}

/// Whether a GPU of this model satisfies a request for that type: the whole name, or its leading part, any case
/// (`a100` asks for `a100-80gb` or `a100-40gb`).
pub fn model_matches(model: &str, asked: &str) -> bool {
    let (model, asked) = (model.to_ascii_lowercase(), asked.to_ascii_lowercase());
    model == asked || model.strip_prefix(&asked).is_some_and(|rest| rest.starts_with('-'))
}

/// Every check that this node fails for this shape, with both numbers.
fn checks_on(node: &NodeFree, shape: &Shape) -> Vec<Check> {
    let check = |resource: &str, asked: i64, free: i64, total: i64| Check {
        place: node.name.clone(),
        resource: resource.to_owned(),
        asked,
        free,
        total,
    };
    let mut failed = Vec::new();
    if shape.avoid.binary_search(&node.id).is_ok() {
        failed.push(check(FAILED_HERE, 1, 0, 1));
    }
    let [cpus_free, mem_free, disk_free] = node.amounts.free_over(shape.lasts_us);
    let Amounts { cpus: all_cpus, mem_mib: all_mem, disk_mib: all_disk, .. } = &node.amounts;
    let cpus = if shape.exclusive { all_cpus.total.max(shape.cpus) } else { shape.cpus };
    if cpus > cpus_free {
        failed.push(check("cpus", cpus, cpus_free, all_cpus.total));
    }
    let whole_mem = shape.exclusive || shape.mem_all;
    let mem = if whole_mem { all_mem.total.max(shape.mem_mib) } else { shape.mem_mib };
    if mem > mem_free {
        failed.push(check("mem_mib", mem, mem_free, all_mem.total));
    }
    if shape.disk_mib > disk_free {
        failed.push(check("disk_mib", shape.disk_mib, disk_free, all_disk.total));
    }
    if !long_enough(node.until_us, shape.lasts_us) {
        let seconds = |us: i64| us / 1_000_000;
        let asked = shape.lasts_us.map_or(i64::MAX, |us| i64::try_from(us).unwrap_or(i64::MAX));
        let left = seconds(node.until_us.unwrap_or(i64::MAX));
        failed.push(check("seconds", seconds(asked), left, left));
    }
    if !long_enough(node.maintenance_us, shape.lasts_us) {
        let asked = shape.lasts_us.map_or(i64::MAX, |us| i64::try_from(us).unwrap_or(i64::MAX)) / 1_000_000;
        // After the maintenance there is as much time as anybody asks for.
        failed.push(check(
            BEFORE_MAINTENANCE,
            asked,
            node.maintenance_us.unwrap_or(i64::MAX) / 1_000_000,
            asked,
        ));
    }
    let free = node.gpus_free.iter().filter(|gpu| wanted(gpu, shape)).count() as i64;
    let total = node
        .gpu_models
        .iter()
        .filter(|model| shape.gpu_type.as_deref().is_none_or(|asked| model_matches(model, asked)))
        .count() as i64;
    let gpus = i64::from(shape.gpus);
    let every_gpu_free = node.gpus_free.len() == node.gpu_models.len();
    if gpus > free || (shape.exclusive && !every_gpu_free) {
        let asked = if shape.exclusive { gpus.max(total) } else { gpus };
        failed.push(check("gpus", asked, free, total));
    }
    failed
}

/// What a check of a node is of on which the job failed before.
const FAILED_HERE: &str = "another_try_here";

/// What a check of the time before a maintenance is of.
const BEFORE_MAINTENANCE: &str = "seconds_before_maintenance";

/// The most nodes whose checks a condition carries: enough to see what is wrong, small enough to store a thousand times.
const NODES_IN_CONDITION: usize = 8;

fn unschedulable(nodes: &[NodeFree], shape: &Shape, fitting: usize) -> Condition {
    let pool: Vec<&NodeFree> = nodes.iter().filter(|n| n.pool_id == shape.pool_id).collect();
    let mut failing: Vec<Vec<Check>> =
        pool.iter().map(|node| checks_on(node, shape)).filter(|checks| !checks.is_empty()).collect();
    let never = failing.iter().filter(|checks| checks.iter().any(|c| c.asked > c.total)).count();
    let could = pool.len() - never;
    // Nodes that only lack free capacity first: they are what the job waits for.
    failing.sort_by_key(|checks| (checks.iter().any(|c| c.asked > c.total), checks.len()));
    let wanted = shape.node_count as usize;
    let message = if pool.is_empty() {
        "no node of its pool takes work now".to_owned()
    } else if could < wanted {
        format!(
            "asks for {} on {wanted} {}; {could} of the {} that take work now could ever fit it",
            asks(shape),
            plural(wanted, "node"),
            plural_of(pool.len(), "node")
        )
    } else if wanted > 1 {
        format!("asks for {wanted} nodes at once with {}; {fitting} fit it now", asks(shape))
    } else {
        match failing.first().and_then(|checks| checks.first()) {
            Some(c) if c.resource == FAILED_HERE => {
                format!("waits for another node: an attempt of it failed on {}", c.place)
            }
            Some(c) if c.resource == BEFORE_MAINTENANCE => format!(
                "may last {} with its grace; {} is under maintenance in {}",
                show_limit((c.asked < i64::MAX / 1_000_000).then_some(c.asked.unsigned_abs())),
                c.place,
                show_limit(Some(c.free.unsigned_abs()))
            ),
            Some(c) => {
                let later = booked_later(&pool, shape).unwrap_or_default();
                format!(
                    "asks for {} {}; {} has {} free of {}{later}",
                    c.asked, c.resource, c.place, c.free, c.total
                )
            }
            None => Reason::Unschedulable.sentence().to_owned(),
        }
    };
    failing.truncate(NODES_IN_CONDITION);
    Condition { reason: Reason::Unschedulable, message, checks: failing.into_iter().flatten().collect() }
}

/// GPUs of the kind asked for that nobody has now, but that are booked before the request would be done.
fn booked_later(pool: &[&NodeFree], shape: &Shape) -> Option<String> {
    let idle = pool.iter().flat_map(|node| &node.gpus_free);
    let short: Vec<i64> = idle
        .filter(|gpu| of_type(gpu, shape) && !wanted(gpu, shape))
        .filter_map(|gpu| gpu.until_us)
        .collect();
    let longest = show_limit(Some((*short.iter().max()? / 1_000_000).unsigned_abs()));
    let are = if short.len() == 1 { "is" } else { "are" };
    (shape.gpus > 0).then(|| format!("; {} more {are} idle but booked within {longest}", short.len()))
}

fn asks(shape: &Shape) -> String {
    let mut parts = vec![plural_of(shape.cpus as usize, "cpu"), format!("{} MiB of memory", shape.mem_mib)];
    if shape.gpus > 0 {
        let model = shape.gpu_type.as_deref().map(|m| format!("{m} ")).unwrap_or_default();
        parts.push(format!("{} {model}{}", shape.gpus, plural(shape.gpus as usize, "gpu")));
    }
    if shape.disk_mib > 0 {
        parts.push(format!("{} MiB of disk", shape.disk_mib));
    }
    if shape.exclusive {
        parts.push("the whole node".to_owned());
    }
    parts.join(", ")
}

fn plural(n: usize, word: &str) -> String {
    if n == 1 { word.to_owned() } else { format!("{word}s") }
}

fn plural_of(n: usize, word: &str) -> String {
    format!("{n} {}", plural(n, word))
}

#[cfg(test)]
mod tests;
