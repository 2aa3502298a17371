//! What the options ask of each node: CPUs, memory, GPUs, and how many nodes.
//!
//! Options speak of tasks, CPUs per task, GPUs in all; a submission speaks of nodes. Everything must divide evenly, since every
//! node of a job gives the same; what does not is refused with its numbers, never rounded. Pure arithmetic.

use super::args::Options;
use crate::fail::Fail;
use proto::gres::Gpus;
use proto::memory::Memory;

/// What each of so many nodes gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// How many nodes.
    pub nodes: u32,
    /// CPUs on each.
    pub cpus: u32,
    /// Memory on each in MiB; `None` is the pool's default.
    pub mem_mib: Option<u64>,
    /// All the memory of each.
    pub mem_all: bool,
    /// Local disk on each in MiB.
    pub disk_mib: u64,
    /// GPUs on each.
    pub gpus: u32,
    /// Their model.
    pub gpu_type: Option<String>,
    /// Tasks in all, where they were asked for.
    pub ntasks: Option<u32>,
    /// Whole nodes.
    pub exclusive: bool,
}

/// Works out the shape.
pub fn shape(options: &Options) -> Result<Shape, Fail> {
    let nodes = node_count(options)?;
    let gpus = gpus(options, nodes)?;
    let ntasks = match (options.ntasks, options.ntasks_per_node) {
        (Some(ntasks), _) => Some(ntasks),
        (None, Some(per_node)) => Some(product("tasks", per_node, nodes)?),
        (None, None) => None,
    };
    let tasks_per_node = match ntasks {
        None => 1,
        Some(ntasks) => split("tasks (--ntasks)", ntasks, nodes)?,
    };
    let cpus = match (options.cpus_per_gpu, options.cpus_per_task) {
        (Some(_), Some(_)) => return Err(one_of("--cpus-per-gpu", "--cpus-per-task")),
        (Some(per_gpu), None) => product("CPUs", per_gpu, needs_gpus(&gpus, "--cpus-per-gpu")?)?,
        (None, per_task) => product("CPUs", tasks_per_node, per_task.unwrap_or(1))?,
    };
    let (mem_mib, mem_all) = memory(options, cpus, &gpus)?;
    Ok(Shape {
        nodes,
        cpus,
        mem_mib,
        mem_all,
        disk_mib: options.tmp.unwrap_or(0),
        gpus: gpus.count,
        gpu_type: gpus.model,
        ntasks,
        exclusive: options.exclusive.is_some(),
    })
}

fn node_count(options: &Options) -> Result<u32, Fail> {
    match (options.nodes, options.ntasks, options.ntasks_per_node) {
        (Some(nodes), Some(ntasks), Some(per_node))
            if u64::from(nodes) * u64::from(per_node) != u64::from(ntasks) =>
        {
            Err(Fail::usage(format!(
                "--ntasks={ntasks} is not --nodes={nodes} times --ntasks-per-node={per_node}, which is {}",
                u64::from(nodes) * u64::from(per_node)
            ))
            .hint("leave one of the three out"))
        }
        (Some(nodes), _, _) => Ok(nodes),
        (None, Some(ntasks), Some(per_node)) => {
            if ntasks % per_node != 0 {
                return Err(Fail::usage(format!(
                    "{ntasks} tasks cannot be divided evenly into {per_node} for each node (--ntasks-per-node)"
                ))
                .hint("choose a multiple, or leave --ntasks out and give --nodes"));
            }
            Ok(ntasks / per_node)
        }
        (None, _, _) => Ok(1),
    }
}

fn gpus(options: &Options, nodes: u32) -> Result<Gpus, Fail> {
    let per_node = match (&options.gres, &options.gpus_per_node) {
        (Some(_), Some(_)) => return Err(one_of("--gres", "--gpus-per-node")),
        (gres, per_node) => gres.as_ref().or(per_node.as_ref()),
    };
    let Some(total) = &options.gpus else { return Ok(per_node.cloned().unwrap_or_default()) };
    let count = split("GPUs (--gpus)", total.count, nodes)?;
    let Some(per_node) = per_node else { return Ok(Gpus { model: total.model.clone(), count }) };
    if per_node.count != count {
        return Err(Fail::usage(format!(
            "--gpus={} over {nodes} node{} is {count} on each, but {} on each are asked for too",
            total.count,
            if nodes == 1 { "" } else { "s" },
            per_node.count
        ))
        .hint("leave --gpus out, or give --nodes"));
    }
    if total.model.is_some() && per_node.model.is_some() && total.model != per_node.model {
        return Err(Fail::usage("two GPU models are asked for").hint("name one"));
    }
    Ok(Gpus { model: total.model.clone().or_else(|| per_node.model.clone()), count })
}

fn memory(options: &Options, cpus: u32, gpus: &Gpus) -> Result<(Option<u64>, bool), Fail> {
    match (options.mem, options.mem_per_cpu, options.mem_per_gpu) {
        (None, None, None) => Ok((None, false)),
        (Some(Memory::All), None, None) => Ok((None, true)),
        (Some(Memory::Mib(mib)), None, None) => Ok((Some(mib), false)),
        (None, Some(mib), None) => Ok((Some(mem_product(mib, cpus)?), false)),
        (None, None, Some(mib)) => Ok((Some(mem_product(mib, needs_gpus(gpus, "--mem-per-gpu")?)?), false)),
        (Some(_), Some(_), _) => Err(one_of("--mem", "--mem-per-cpu")),
        (Some(_), _, Some(_)) => Err(one_of("--mem", "--mem-per-gpu")),
        (None, Some(_), Some(_)) => Err(one_of("--mem-per-cpu", "--mem-per-gpu")),
    }
}

fn mem_product(mib: u64, times: u32) -> Result<u64, Fail> {
    mib.checked_mul(u64::from(times)).filter(|mib| *mib <= proto::memory::MIB_MAX).ok_or_else(|| {
        Fail::usage(format!("{} of memory, {times} times, is more than a PiB", proto::memory::show(mib)))
    })
}

fn needs_gpus(gpus: &Gpus, option: &str) -> Result<u32, Fail> {
    match gpus.count {
        0 => Err(Fail::usage(format!("{option} needs GPUs, and none are asked for")).hint("add --gpus=N")),
        count => Ok(count),
    }
}

fn split(what: &str, total: u32, nodes: u32) -> Result<u32, Fail> {
    if !total.is_multiple_of(nodes) {
        return Err(Fail::usage(format!(
            "{total} {what} cannot be divided evenly over {nodes} nodes (--nodes)"
        ))
        .hint("every node of a job gives the same: choose a multiple"));
    }
    Ok(total / nodes)
}

fn product(what: &str, one: u32, other: u32) -> Result<u32, Fail> {
    one.checked_mul(other)
        .ok_or_else(|| Fail::usage(format!("{one} times {other} {what} are more than any node has")))
}

fn one_of(one: &str, other: &str) -> Fail {
    Fail::usage(format!("{one} and {other} exclude one another")).hint("give one of them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bsub::layers::{line_parser, parse_words};

    fn of(words: &str) -> Result<Shape, Fail> {
        let words = words.split_whitespace().map(str::to_owned).collect();
        shape(&parse_words(&mut line_parser(), words)?)
    }

    /// nodes, cpus, mem, gpus, ntasks
    fn numbers(words: &str) -> (u32, u32, Option<u64>, u32, Option<u32>) {
        let shape = of(words).expect(words);
        (shape.nodes, shape.cpus, shape.mem_mib, shape.gpus, shape.ntasks)
    }

    #[test]
    fn tasks_and_cpus_are_divided_over_the_nodes() {
        assert_eq!(numbers(""), (1, 1, None, 0, None));
        assert_eq!(numbers("-c 4"), (1, 4, None, 0, None));
        assert_eq!(numbers("-n 4 -c 2"), (1, 8, None, 0, Some(4)));
        assert_eq!(numbers("-n 4 -c 2 -N 2"), (2, 4, None, 0, Some(4)));
        assert_eq!(numbers("-N 2-2"), (2, 1, None, 0, None));
        assert_eq!(numbers("-N 2 --ntasks-per-node=3"), (2, 3, None, 0, Some(6)));
        assert_eq!(numbers("-n 6 --ntasks-per-node=3"), (2, 3, None, 0, Some(6)));
    }

    #[test]
    fn memory_is_for_each_node() {
        assert_eq!(numbers("--mem=0.5G").2, Some(512));
        assert_eq!(numbers("-c 4 --mem-per-cpu=1G").2, Some(4096));
        assert_eq!(numbers("-G 2 --mem-per-gpu=1G").2, Some(2048));
        assert!(of("--mem=0").unwrap().mem_all);
        assert_eq!(
            ["", "--tmp=0", "--tmp=512", "--tmp 1.5G"].map(|w| of(w).unwrap().disk_mib),
            [0, 0, 512, 1536]
        );
        assert!(of("--exclusive").unwrap().exclusive);
    }

    #[test]
    fn gpus_are_for_each_node() {
        assert_eq!(numbers("--gres=gpu:2 -N 2").3, 2);
        assert_eq!(numbers("--gpus=4 -N 2").3, 2);
        assert_eq!(numbers("--gpus=4 --gpus-per-node=2 -N 2").3, 2);
        assert_eq!(numbers("--gpus=2 --cpus-per-gpu=4"), (1, 8, None, 2, None));
        assert_eq!(of("--gpus=a100:1").unwrap().gpu_type.as_deref(), Some("a100"));
    }

    #[test]
    fn what_does_not_come_out_even_is_refused_with_its_numbers() {
        for (words, message) in [
            ("-n 3 -N 2", "3 tasks (--ntasks) cannot be divided evenly over 2 nodes (--nodes)"),
            (
                "-n 5 --ntasks-per-node=2",
                "5 tasks cannot be divided evenly into 2 for each node (--ntasks-per-node)",
            ),
            (
                "-n 5 -N 2 --ntasks-per-node=2",
                "--ntasks=5 is not --nodes=2 times --ntasks-per-node=2, which is 4",
            ),
            ("--gpus=3 -N 2", "3 GPUs (--gpus) cannot be divided evenly over 2 nodes (--nodes)"),
            (
                "--gpus=4 --gpus-per-node=2",
                "--gpus=4 over 1 node is 4 on each, but 2 on each are asked for too",
            ),
            ("--mem=1G --mem-per-cpu=1G", "--mem and --mem-per-cpu exclude one another"),
            ("--gres=gpu:1 --gpus-per-node=1", "--gres and --gpus-per-node exclude one another"),
            ("--mem-per-gpu=1G", "--mem-per-gpu needs GPUs, and none are asked for"),
            ("-n 1000000 -c 1000000", "1000000 times 1000000 CPUs are more than any node has"),
            ("-c 1000000 --mem-per-cpu=1T", "1T of memory, 1000000 times, is more than a PiB"),
        ] {
            assert_eq!(of(words).expect_err(words).error.message, message, "{words}");
        }
        assert!(of("-N 1-4").unwrap_err().error.message.contains("a range of nodes is not supported yet"));
        let fail = of("--tmp=much").unwrap_err();
        assert!(fail.error.message.starts_with("--tmp: \"much\" is not an amount of disk"), "{fail}");
        assert!(of("--mem-per-cpu=0").unwrap_err().error.message.contains("write --mem=0"));
        assert!(
            of("--exclusive=user")
                .unwrap_err()
                .error
                .message
                .contains("--exclusive: \"user\" is not supported yet")
        );
    }
}
