//! `binfo`: the pools, and the nodes and GPUs with what holds them.

use crate::client::{Client, decode};
use crate::fail::Fail;
use crate::frame::{self, Parsed};
use crate::out;
use crate::table::{Column, Table, terminal_width};
use crate::wall;
use bytes::Bytes;
use clap::{CommandFactory, FromArgMatches, Parser};
use proto::api::{Connection, Drain, Hold, Node, NodeList, Pool, PoolList};
use proto::duration::{Short, show_limit};
use proto::{ErrorCode, memory};
use std::borrow::Cow;
use std::process::ExitCode;

const NAME: &str = "binfo";

/// Show pools, nodes and GPUs.
#[derive(Parser, Debug, Default, Clone)]
#[command(
    name = "binfo",
    version,
    about = "Show pools, nodes and GPUs, and what holds them",
    args_override_self = true,
    after_help = crate::bsub::args::EXIT_CODES
)]
pub struct BinfoArgs {
    /// Show each node, with what is booked on it
    #[arg(short = 'N', long)]
    pub nodes: bool,
    /// Show each GPU, with the job that has it
    #[arg(short = 'G', long, conflicts_with = "nodes")]
    pub gpus: bool,
    /// Only this pool
    #[arg(short = 'p', long, visible_alias = "partition", value_name = "POOL")]
    pub pool: Option<String>,
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it: the pools, or with --nodes or --gpus the nodes
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

/// The command.
pub fn main() -> ExitCode {
    frame::run(NAME, |argv| {
        let matches = match frame::parse(NAME, BinfoArgs::command(), argv)? {
            Parsed::Run(matches) => matches,
            Parsed::Done(code) => return Ok(code),
        };
        let args = BinfoArgs::from_arg_matches(&matches).map_err(|e| frame::usage(NAME, &e))?;
        frame::block_on(run(&args))?;
        Ok(ExitCode::SUCCESS)
    })
}

async fn run(args: &BinfoArgs) -> Result<(), Fail> {
    let mut client = Client::find()?;
    let by_node = args.nodes || args.gpus;
    // A pool's own table also tells whether there is such a pool.
    let pools = if by_node && args.pool.is_none() { None } else { Some(client.get("/v1/pools").await?) };
    let nodes = if by_node || !args.json { Some(client.get("/v1/nodes").await?) } else { None };
    let pool_list = pools.as_ref().map(|body| decode::<PoolList>(body)).transpose()?;
    if let (Some(pool), Some(list)) = (&args.pool, &pool_list) {
        known(pool, list)?;
    }
    if args.json {
        return json(args, if by_node { nodes } else { pools });
    }
    let mut node_list: NodeList = nodes.map(|body| decode(&body)).transpose()?.unwrap_or_default();
    node_list.nodes.retain(|node| args.pool.as_ref().is_none_or(|pool| node.pool == *pool));
    let mut pools = pool_list.unwrap_or_default().pools;
    pools.retain(|pool| args.pool.as_ref().is_none_or(|name| pool.name == *name));
    let table = match (args.nodes, args.gpus) {
        (true, _) => nodes_table(&node_list.nodes),
        (_, true) => gpus_table(&node_list.nodes),
        _ => pools_table(&pools, &node_list.nodes),
    };
    out::write(table.render(!args.noheader, terminal_width()).as_bytes())
}

fn known(pool: &str, list: &PoolList) -> Result<(), Fail> {
    if list.pools.iter().any(|known| known.name == pool) {
        return Ok(());
    }
    let names: Vec<&str> = list.pools.iter().map(|pool| pool.name.as_str()).collect();
    Err(Fail::new(ErrorCode::NotFound, format!("there is no pool {pool:?}"))
        .hint(format!("there are {}", names.join(", "))))
}

/// The answer as it came, or with a pool chosen the entries of that pool.
fn json(args: &BinfoArgs, body: Option<Bytes>) -> Result<(), Fail> {
    let body = body.unwrap_or_default();
    let Some(pool) = &args.pool else { return out::write_json(&body) };
    let mut document: serde_json::Value = decode(&body)?;
    let (list, key) = if args.nodes || args.gpus { ("nodes", "pool") } else { ("pools", "name") };
    if let Some(entries) = document.get_mut(list).and_then(|entries| entries.as_array_mut()) {
        entries.retain(|entry| entry[key] == pool.as_str());
    }
    out::write_json(document.to_string().as_bytes())
}

fn own<'a>(value: impl ToString) -> Cow<'a, str> {
    Cow::Owned(value.to_string())
}

/// A pool's line: what it has and what is free on its nodes that take work.
pub fn pools_table<'a>(pools: &'a [Pool], nodes: &[Node]) -> Table<'a> {
    let rows = pools.iter().map(|pool| {
        let mine: Vec<&Node> = nodes.iter().filter(|node| node.pool == pool.name).collect();
        let usable = mine.iter().filter(|node| takes_work(node)).count();
        let sum = |of: &dyn Fn(&Node) -> u64| mine.iter().map(|node| of(node)).sum::<u64>();
        let free =
            |all: &dyn Fn(&Node) -> u64| mine.iter().filter(|n| takes_work(n)).map(|n| all(n)).sum::<u64>();
        let cpus_free = free(&|n| n.cpus.saturating_sub(n.cpus_booked).into());
        let gpus_free =
            free(&|n| n.gpus.iter().filter(|gpu| gpu.eligible && gpu.job.is_none()).count() as u64);
        let limit = pool.time_limit_max_s.map_or_else(|| show_limit(None), |s| Short(s).to_string());
        vec![
            own(format!("{}{}", pool.name, if pool.default { "*" } else { "" })),
            own(format!("{usable}/{}", mine.len())),
            own(format!("{cpus_free}/{}", sum(&|n| n.cpus.into()))),
            own(format!("{gpus_free}/{}", sum(&|n| n.gpus.len() as u64))),
            own(limit),
            own(pool.running),
            own(pool.pending),
            own(mine.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(",")),
        ]
    });
    Table {
        columns: vec![
            Column::whole("POOL"),
            Column::number("NODES(UP/ALL)"),
            Column::number("CPUS(FREE/ALL)"),
            Column::number("GPUS(FREE/ALL)"),
            Column::number("TIMELIMIT"),
            Column::number("RUNNING"),
            Column::number("PENDING"),
            Column::soft("NODELIST"),
        ],
        rows: rows.collect(),
    }
}

fn takes_work(node: &Node) -> bool {
    node.eligible && node.connection == Connection::Connected
}

/// A node's state in a word; the holds say the rest.
pub fn node_state(node: &Node) -> &'static str {
    match (node.connection, node.drain) {
        (Connection::Disconnected, _) => "disconnected",
        (Connection::Unreachable, _) => "unreachable",
        (Connection::Lost, _) => "lost",
        (_, Some(Drain::Drained)) => "drained",
        (_, Some(Drain::Draining)) => "draining",
        (Connection::Connected, None) if !node.eligible => "held",
        (Connection::Connected, None) if node.cpus_booked == 0 && node.jobs.is_empty() => "idle",
        (Connection::Connected, None) if node.cpus_booked >= node.cpus => "full",
        (Connection::Connected, None) => "mixed",
    }
}

/// A hold in a cell: what it is on where that is not the whole node, and from when on where that is to come.
fn held(hold: &Hold) -> String {
    let part = hold.target.strip_prefix(&hold.node).unwrap_or_default();
    let part = if part.is_empty() { String::new() } else { format!("{}: ", part.trim_start_matches('/')) };
    let from = if hold.in_effect { String::new() } else { format!(" from {}", wall::show(hold.from)) };
    format!("{part}{} by {}{from}: {}", hold.kind, hold.owner, hold.reason)
}

/// The nodes' lines.
pub fn nodes_table(nodes: &[Node]) -> Table<'_> {
    let rows = nodes.iter().map(|node| {
        let holds = node.holds.iter().map(held);
        let taken = node.gpus.iter().filter(|gpu| gpu.job.is_some()).count();
        vec![
            Cow::Borrowed(node.name.as_str()),
            Cow::Borrowed(node.pool.as_str()),
            Cow::Borrowed(node_state(node)),
            own(format!("{}/{}", node.cpus_booked, node.cpus)),
            own(format!("{}/{}", memory::show(node.mem_booked_mib), memory::show(node.mem_mib))),
            own(format!("{}/{}", memory::show(node.disk_booked_mib), memory::show(node.disk_mib))),
            own(format!("{taken}/{}", node.gpus.len())),
            own(models(node)),
            own(node.jobs.join(",")),
            own(holds.collect::<Vec<_>>().join("; ")),
        ]
    });
    Table {
        columns: vec![
            Column::whole("NODE"),
            Column::whole("POOL"),
            Column::whole("STATE").painted(crate::colour::of_node_state),
            Column::number("CPUS(USED/ALL)"),
            Column::number("MEM(USED/ALL)"),
            Column::number("DISK(USED/ALL)"),
            Column::number("GPUS(USED/ALL)"),
            Column::soft("GPU_MODELS"),
            Column::soft("JOBS"),
            Column::soft("HELD"),
        ],
        rows: rows.collect(),
    }
}

/// `a100-80gb:8,h100:2`
fn models(node: &Node) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for gpu in &node.gpus {
        match counts.iter_mut().find(|(model, _)| *model == gpu.model) {
            Some((_, count)) => *count += 1,
            None => counts.push((&gpu.model, 1)),
        }
    }
    counts.iter().map(|(model, count)| format!("{model}:{count}")).collect::<Vec<_>>().join(",")
}

fn gpus_table(nodes: &[Node]) -> Table<'_> {
    let rows = nodes.iter().flat_map(|node| {
        node.gpus.iter().map(move |gpu| {
            let holds =
                node.holds.iter().filter(|hold| hold.gpu.as_ref().is_none_or(|uuid| *uuid == gpu.uuid));
            let holds = holds.map(held);
            vec![
                Cow::Borrowed(node.name.as_str()),
                own(gpu.index),
                Cow::Borrowed(gpu.model.as_str()),
                own(memory::show(gpu.mem_mib)),
                Cow::Borrowed(gpu.mode.as_str()),
                Cow::Borrowed(match (&gpu.job, gpu.eligible && takes_work(node)) {
                    (Some(_), _) => "taken",
                    (None, true) => "free",
                    (None, false) => "held",
                }),
                Cow::Borrowed(gpu.job.as_deref().unwrap_or_default()),
                Cow::Borrowed(gpu.uuid.as_str()),
                own(holds.collect::<Vec<_>>().join("; ")),
            ]
        })
    });
    Table {
        columns: vec![
            Column::whole("NODE"),
            Column::number("GPU"),
            Column::whole("MODEL"),
            Column::number("MEM"),
            Column::whole("MODE"),
            Column::whole("STATE").painted(crate::colour::of_node_state),
            Column::whole("JOB"),
            Column::whole("UUID"),
            Column::soft("HELD"),
        ],
        rows: rows.collect(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proto::HoldKind;
    use proto::api::Gpu;

    /// A node of 8 CPUs and two GPUs, one of them taken.
    pub fn node(name: &str) -> Node {
        let gpu = |index: u32, job: Option<&str>| Gpu {
            uuid: format!("GPU-{name}-{index}"),
            index,
            model: "a100-80gb".to_owned(),
            mem_mib: 81_920,
            mode: "whole".to_owned(),
            eligible: true,
            job: job.map(str::to_owned),
        };
        Node {
            name: name.to_owned(),
            pool: "main".to_owned(),
            connection: Connection::Connected,
            last_seen_s: Some(0.2),
            version: Some("0.1.0".to_owned()),
            cgroup_mode: Some("v2".to_owned()),
            eligible: true,
            drain: None,
            holds: Vec::new(),
            cpus: 8,
            cpus_booked: 2,
            mem_mib: 16_384,
            mem_booked_mib: 2048,
            disk_mib: 102_400,
            disk_booked_mib: 10_240,
            gpus: vec![gpu(0, Some("7")), gpu(1, None)],
            jobs: vec!["7".to_owned()],
        }
    }

    /// A drain of a node.
    pub fn hold(node: &str) -> Hold {
        Hold {
            id: 1,
            kind: HoldKind::Drain,
            target: node.to_owned(),
            node: node.to_owned(),
            gpu: None,
            atom: None,
            owner: "op".to_owned(),
            author: "op".to_owned(),
            reason: "fan\tbroken".to_owned(),
            from: "2026-11-30T14:00:00Z".parse().expect("an instant"),
            until: None,
            in_effect: true,
        }
    }

    /// The same, draining.
    pub fn draining(name: &str) -> Node {
        let hold = hold(name);
        Node { eligible: false, drain: Some(Drain::Draining), holds: vec![hold], ..node(name) }
    }

    fn pool() -> Pool {
        Pool {
            name: "main".to_owned(),
            default: true,
            time_limit_max_s: None,
            time_limit_default_s: None,
            mem_per_cpu_default_mib: 1024,
            nodes: vec!["node1".to_owned(), "node2".to_owned()],
            pending: 3,
            running: 1,
        }
    }

    #[test]
    fn pools_nodes_and_gpus_are_tables() {
        let nodes = [node("node1"), draining("node2")];
        insta::assert_snapshot!(pools_table(&[pool()], &nodes).render(true, None), @"
        POOL  NODES(UP/ALL) CPUS(FREE/ALL) GPUS(FREE/ALL) TIMELIMIT RUNNING PENDING NODELIST
        main*           1/2           6/16            1/4 UNLIMITED       1       3 node1,node2
        ");
        insta::assert_snapshot!(nodes_table(&nodes).render(true, None), @r"
        NODE  POOL STATE    CPUS(USED/ALL) MEM(USED/ALL) DISK(USED/ALL) GPUS(USED/ALL) GPU_MODELS  JOBS HELD
        node1 main mixed               2/8        2G/16G       10G/100G            1/2 a100-80gb:2 7
        node2 main draining            2/8        2G/16G       10G/100G            1/2 a100-80gb:2 7    drain by op: fan\tbroken
        ");
        insta::assert_snapshot!(gpus_table(&nodes).render(true, None), @r"
        NODE  GPU MODEL     MEM MODE  STATE JOB UUID        HELD
        node1   0 a100-80gb 80G whole taken 7   GPU-node1-0
        node1   1 a100-80gb 80G whole free      GPU-node1-1
        node2   0 a100-80gb 80G whole taken 7   GPU-node2-0 drain by op: fan\tbroken
        node2   1 a100-80gb 80G whole held      GPU-node2-1 drain by op: fan\tbroken
        ");
    }

    #[test]
    fn a_nodes_state_is_one_word() {
        let idle = Node { cpus_booked: 0, jobs: vec![], ..node("n") };
        let full = Node { cpus_booked: 8, ..node("n") };
        let away = |connection| Node { connection, ..draining("n") };
        let held = Node { eligible: false, ..node("n") };
        let words = [
            node("n"),
            idle,
            full,
            draining("n"),
            away(Connection::Disconnected),
            away(Connection::Unreachable),
            away(Connection::Lost),
            held,
        ]
        .map(|n| node_state(&n));
        assert_eq!(
            words,
            ["mixed", "idle", "full", "draining", "disconnected", "unreachable", "lost", "held"]
        );
    }

    #[test]
    fn an_unknown_pool_is_not_found() {
        let fail = known("gpu", &PoolList { pools: vec![pool()] }).unwrap_err();
        assert_eq!((fail.exit_code(), fail.error.hint.as_deref()), (4, Some("there are main")));
    }
}
