//! The environment that a job's script begins with, and the names of its files.
//!
//! The submitter's variables first, then ours over them: `BC_*`, and the `SLURM_*` that existing programs read. Nothing in those families
//! survives from the submitter (a job submitted from within a job would otherwise believe that it is that job), but for `BC_SERVER`, which says
//! where the controller is and is no fact about a job. Pure: the node's facts come in as arguments.

use crate::identity::Identity;
use crate::nodelist;
use proto::pattern::{self, Names};
use proto::session::{Assignment, GpuFacts};
use std::collections::BTreeMap;
use std::path::Path;

/// The search path of a job whose submitter sent none.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Families and names that only we set.
const OURS: [&str; 2] = ["SLURM_", "BC_"];
const OURS_EXACT: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURMD_NODENAME"];
const KEPT: &str = "BC_SERVER";

/// The environment, and the home directory to check if `HOME` was ours to set.
pub fn of(
    a: &Assignment,
    who: &Identity,
    node: &str,
    node_gpus: &[GpuFacts],
) -> (BTreeMap<String, String>, Option<String>) {
    let ours = |name: &str| {
        name != KEPT && (OURS.iter().any(|family| name.starts_with(family)) || OURS_EXACT.contains(&name))
    };
    let mut env: BTreeMap<String, String> = a.env.clone();
    env.retain(|name, _| !ours(name));

    let mut default = |name: &str, value: &str| {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned()).as_str() == value
    };
    default("PATH", PATH);
    default("USER", &a.user);
    default("LOGNAME", &a.user);
    default("SHELL", if who.shell.is_empty() { "/bin/sh" } else { &who.shell });
    let had_home = a.env.contains_key("HOME");
    let home = if who.home.is_empty() { "/" } else { who.home.as_str() };
    default("HOME", home);

    let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
    job(&mut set, a);
    placement(&mut set, a, node);
    gpus(&mut set, a, node_gpus);
    (env, (!had_home).then(|| home.to_owned()))
}

fn job(set: &mut impl FnMut(&str, String) -> Option<String>, a: &Assignment) {
    let mut both = |name: &str, value: &str| {
        set(&format!("BC_{name}"), value.to_owned());
        set(&format!("SLURM_{name}"), value.to_owned());
    };
    both("JOB_ID", &a.job_id.to_string());
    both("JOB_NAME", &a.name);
    both("JOB_USER", &a.user);
    both("JOB_UID", &a.uid.to_string());
    both("SUBMIT_DIR", &a.submit_dir);
    both("SUBMIT_HOST", &a.submit_host);
    both("JOB_START_TIME", &a.start_epoch_s.to_string());
    if let Some(limit) = a.time_limit_s {
        both("JOB_END_TIME", &a.start_epoch_s.saturating_add_unsigned(limit).to_string());
    }
    if let Some(account) = &a.account {
        both("JOB_ACCOUNT", account);
    }
    if let Some(task) = a.task {
        both("ARRAY_JOB_ID", &a.job_id.to_string());
        both("ARRAY_TASK_ID", &task.to_string());
    }
    if let Some(array) = &a.array {
        both("ARRAY_TASK_COUNT", &array.count.to_string());
        both("ARRAY_TASK_MIN", &array.min.to_string());
        both("ARRAY_TASK_MAX", &array.max.to_string());
        both("ARRAY_TASK_STEP", &array.step.to_string());
    }
    if let Some(ntasks) = a.ntasks {
        both("NTASKS", &ntasks.to_string());
    }
    if let Some(cpus) = a.cpus_per_task {
        both("CPUS_PER_TASK", &cpus.to_string());
    }
    if let Some(ntasks) = a.ntasks {
        set("SLURM_NPROCS", ntasks.to_string());
    }
    set("SLURM_JOBID", a.job_id.to_string());
    set("SLURM_JOB_PARTITION", a.pool.clone());
    set("SLURM_RESTART_COUNT", (a.attempt - 1).max(0).to_string());
    set("SLURM_CLUSTER_NAME", a.cluster.clone());
    set("BC_POOL", a.pool.clone());
    set("BC_TENANT", a.tenant.clone());
    set("BC_ATTEMPT", a.attempt.to_string());
    set("BC_ALLOCATION_ID", a.allocation_id.to_string());
}

fn placement(set: &mut impl FnMut(&str, String) -> Option<String>, a: &Assignment, node: &str) {
    let nodes = a.nodes.len().max(1);
    let list = match a.nodes.is_empty() {
        true => node.to_owned(),
        false => nodelist::compress(&a.nodes),
    };
    set("SLURM_JOB_NODELIST", list.clone());
    set("SLURM_NODELIST", list.clone());
    set("BC_NODES", list);
    set("SLURM_JOB_NUM_NODES", nodes.to_string());
    set("SLURM_NNODES", nodes.to_string());
    set("BC_NUM_NODES", nodes.to_string());
    set("SLURM_JOB_CPUS_PER_NODE", repeated(&vec![u64::from(a.cpus); nodes]));
    set("SLURM_TASKS_PER_NODE", repeated(&tasks_per_node(a.ntasks, nodes)));
    set("SLURM_CPUS_ON_NODE", a.cpus.to_string());
    set("BC_CPUS", a.cpus.to_string());
    set("SLURM_MEM_PER_NODE", a.mem_mib.to_string());
    set("BC_MEM_MIB", a.mem_mib.to_string());
    set("SLURMD_NODENAME", node.to_owned());
    set("BC_NODE", node.to_owned());
    set("SLURM_NODEID", "0".to_owned());
    set("SLURM_PROCID", "0".to_owned());
    set("SLURM_LOCALID", "0".to_owned());
    set("SLURM_GTIDS", "0".to_owned());
}

fn gpus(set: &mut impl FnMut(&str, String) -> Option<String>, a: &Assignment, node_gpus: &[GpuFacts]) {
    if a.gpus.is_empty() {
        if !node_gpus.is_empty() {
            // Both hide every device; unset would show them all.
            set("CUDA_VISIBLE_DEVICES", String::new());
            set("NVIDIA_VISIBLE_DEVICES", "void".to_owned());
        }
        return;
    }
    // UUIDs, since an index depends on which other devices are hidden.
    let uuids = a.gpus.join(",");
    let index =
        |uuid: &String| node_gpus.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| gpu.index.to_string());
    let indices: Vec<String> = a.gpus.iter().filter_map(index).collect();
    set("CUDA_VISIBLE_DEVICES", uuids.clone());
    set("NVIDIA_VISIBLE_DEVICES", uuids.clone());
    set("BC_GPUS", uuids);
    set("SLURM_JOB_GPUS", indices.join(","));
    set("SLURM_GPUS_ON_NODE", a.gpus.len().to_string());
}

/// Tasks go to nodes as evenly as can be, the first ones getting what is left over.
fn tasks_per_node(ntasks: Option<u32>, nodes: usize) -> Vec<u64> {
    let nodes = nodes as u64;
    let tasks = u64::from(ntasks.unwrap_or(nodes as u32)).max(1);
    (0..nodes).map(|at| tasks / nodes + u64::from(at < tasks % nodes)).collect()
}

/// Slurm's `72(x2),36`.
fn repeated(values: &[u64]) -> String {
    let runs = values.chunk_by(|a, b| a == b);
    let shown = runs.map(|run| match run.len() {
        1 => run[0].to_string(),
        n => format!("{}(x{n})", run[0]),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// The names of a job's files as its patterns give them: output, error (absent joins the output), input (absent is `/dev/null`).
pub fn files(a: &Assignment, node: &str) -> (String, Option<String>, Option<String>) {
    let names = Names {
        job_id: a.job_id,
        array_job_id: a.job_id,
        task: a.task,
        job_name: &a.name,
        user: &a.user,
        node: node.split('.').next().unwrap_or(node),
        node_index: 0,
        attempt: a.attempt,
    };
    let expand = |text: &str| pattern::expand(text, &names);
    let output = expand(a.output.as_deref().unwrap_or(pattern::default_output(a.task.is_some())));
    let error = a.error.as_deref().map(expand).filter(|error| *error != output);
    (output, error, a.input.as_deref().map(expand))
}

/// The absolute paths of the files, for the report.
pub fn paths(a: &Assignment, node: &str) -> [String; 3] {
    let (output, error, input) = files(a, node);
    let absolute = |name: &str| Path::new(&a.chdir).join(name).display().to_string();
    let error = absolute(error.as_deref().unwrap_or(&output));
    [absolute(&output), error, input.as_deref().map_or("/dev/null".to_owned(), absolute)]
}

#[cfg(test)]
mod tests;
