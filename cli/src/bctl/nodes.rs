//! `bctl node`, `drain` and `resume`.

use super::NAME;
use super::args::{DrainArgs, NodeAct, NodeListArgs, NodeShowArgs, ResumeArgs};
use crate::binfo::{node_state, nodes_table};
use crate::client::{Client, decode, encode, escape};
use crate::fail::{Fail, say};
use crate::out;
use crate::table::{Column, Table, terminal_width};
use crate::text::visible;
use crate::wall;
use proto::api::{DrainRequest, Node, NodeList, ResumeRequest};
use proto::memory;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write;
use std::process::ExitCode;

/// Shows nodes.
pub async fn node(act: NodeAct) -> Result<ExitCode, Fail> {
    let mut client = Client::find()?;
    match act {
        NodeAct::List(NodeListArgs { noheader, json }) => {
            let body = client.get("/v1/nodes").await?;
            if json {
                out::write_json(&body)?;
            } else {
                let list: NodeList = decode(&body)?;
                out::write(nodes_table(&list.nodes).render(!noheader, terminal_width()).as_bytes())?;
            }
        }
        NodeAct::Show(NodeShowArgs { node, json }) => {
            let body = client.get(&path(&node, "")?).await?;
            if json {
                out::write_json(&body)?;
            } else {
                let list: NodeList = decode(&body)?;
                out::write(list.nodes.iter().map(record).collect::<Vec<_>>().join("\n").as_bytes())?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Drains nodes.
pub async fn drain(args: DrainArgs) -> Result<ExitCode, Fail> {
    if args.reason.trim().is_empty() {
        return Err(Fail::usage("--reason is empty").hint("say why, for whoever finds the node draining"));
    }
    act(&args.nodes, "/drain", &DrainRequest { reason: args.reason }, args.json).await
}

/// Resumes nodes.
pub async fn resume(args: ResumeArgs) -> Result<ExitCode, Fail> {
    act(&args.nodes, "/resume", &ResumeRequest { all: args.all }, args.json).await
}

/// Does the same to each node; one that is refused does not keep the others from it.
async fn act(nodes: &[String], what: &str, body: &impl Serialize, json: bool) -> Result<ExitCode, Fail> {
    let mut client = Client::find()?;
    let mut done = NodeList::default();
    let mut first_failure = None;
    for node in nodes {
        let answer = match path(node, what) {
            Ok(path) => client.post(&path, body).await,
            Err(fail) => Err(fail),
        };
        match answer {
            Ok(body) => done.nodes.append(&mut decode::<NodeList>(&body)?.nodes),
            // With one node the failure is the command's own.
            Err(fail) if nodes.len() == 1 => return Err(fail),
            Err(fail) => {
                fail.report(NAME, false);
                first_failure.get_or_insert(fail.exit_code());
            }
        }
    }
    if json {
        out::write_json(&encode(&done)?)?;
    } else {
        for node in &done.nodes {
            say(NAME, "", &format!("node {} is {}", node.name, node_state(node)));
        }
    }
    Ok(ExitCode::from(first_failure.unwrap_or(0)))
}

fn path(node: &str, what: &str) -> Result<String, Fail> {
    match node {
        "" | "." | ".." => {
            Err(Fail::usage(format!("{node:?} is no node's name")).hint("`bctl node list` lists them"))
        }
        node => Ok(format!("/v1/nodes/{}{what}", escape(node))),
    }
}

/// A node in full, as labelled lines.
fn record(node: &Node) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| {
        if !value.is_empty() {
            let label = format!("{label}:");
            writeln!(text, "{label:12} {}", visible(value)).expect("a String takes all that is written");
        }
    };
    line("Node", &node.name);
    line("Pool", &node.pool);
    line("State", node_state(node));
    line("Takes work", if node.eligible { "yes" } else { "no" });
    for hold in &node.holds {
        let gpu = hold.gpu.as_ref().map_or(String::new(), |gpu| format!(" of GPU {gpu}"));
        line(
            "Hold",
            &format!(
                "{}{gpu} by {} since {}: {}",
                hold.kind,
                hold.owner,
                wall::show(hold.since),
                hold.reason
            ),
        );
    }
    line("Last seen", &node.last_seen_s.map(|s| format!("{s:.1} s ago")).unwrap_or_default());
    line("Version", node.version.as_deref().unwrap_or_default());
    line("Cgroups", node.cgroup_mode.as_deref().unwrap_or_default());
    line("CPUs", &format!("{} of {} booked", node.cpus_booked, node.cpus));
    line(
        "Memory",
        &format!("{} of {} booked", memory::show(node.mem_booked_mib), memory::show(node.mem_mib)),
    );
    line(
        "Disk",
        &format!("{} of {} booked", memory::show(node.disk_booked_mib), memory::show(node.disk_mib)),
    );
    line("Jobs", &node.jobs.join(","));
    if !node.gpus.is_empty() {
        let rows = node.gpus.iter().map(|gpu| {
            vec![
                Cow::Owned(gpu.index.to_string()),
                Cow::Borrowed(gpu.model.as_str()),
                Cow::Owned(memory::show(gpu.mem_mib)),
                Cow::Borrowed(gpu.mode.as_str()),
                Cow::Borrowed(if gpu.eligible { "yes" } else { "no" }),
                Cow::Borrowed(gpu.job.as_deref().unwrap_or_default()),
                Cow::Borrowed(gpu.uuid.as_str()),
            ]
        });
        let columns = vec![
            Column::number("GPU"),
            Column::whole("MODEL"),
            Column::number("MEM"),
            Column::whole("MODE"),
            Column::whole("TAKES_WORK"),
            Column::whole("JOB"),
            Column::whole("UUID"),
        ];
        text.push('\n');
        text.push_str(&Table { columns, rows: rows.collect() }.render(true, None));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binfo::tests::{draining, node};

    #[test]
    fn a_node_is_shown_in_full() {
        insta::assert_snapshot!(record(&node("node1")), @"
        Node:        node1
        Pool:        main
        State:       mixed
        Takes work:  yes
        Last seen:   0.2 s ago
        Version:     0.1.0
        Cgroups:     v2
        CPUs:        2 of 8 booked
        Memory:      2G of 16G booked
        Disk:        10G of 100G booked
        Jobs:        7

        GPU MODEL     MEM MODE  TAKES_WORK JOB UUID
          0 a100-80gb 80G whole yes        7   GPU-node1-0
          1 a100-80gb 80G whole yes            GPU-node1-1
        ");
        let held = record(&draining("node2"));
        assert!(held.contains("Hold:        drain by op since ") && held.contains(r"fan\tbroken"), "{held}");
    }

    #[test]
    fn a_nodes_name_is_one_part_of_a_path() {
        assert_eq!(path("a/../b", "/drain").unwrap(), "/v1/nodes/a%2F..%2Fb/drain");
        for name in ["", ".", ".."] {
            assert_eq!(path(name, "").unwrap_err().exit_code(), 2);
        }
    }
}
