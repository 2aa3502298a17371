//! `bctl node`.
//!
//! Giving a node up ends jobs: on a terminal a person confirms it. Tokens and certificates are in [`certificates`].

use super::args::{NodeAct, NodeListArgs, NodeLostArgs, NodeShowArgs};
use super::holds::{confirmed, described};
use super::{NAME, certificates};
use crate::binfo::{node_state, nodes_table};
use crate::client::{Client, decode, escape};
use crate::fail::{Fail, say};
use crate::out;
use crate::table::{Column, Table, terminal_width};
use crate::text::visible;
use proto::api::{LostRequest, Node, NodeList};
use proto::memory;
use std::borrow::Cow;
use std::fmt::Write;
use std::io::IsTerminal;
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
            let body = client.get(&path(&node)?).await?;
            if json {
                out::write_json(&body)?;
            } else {
                let list: NodeList = decode(&body)?;
                out::write(list.nodes.iter().map(record).collect::<Vec<_>>().join("\n").as_bytes())?;
            }
        }
        NodeAct::Lost(args) => return lost(&mut client, args).await,
        NodeAct::Token(args) => certificates::token(&mut client, args).await?,
        NodeAct::Certificates(NodeListArgs { noheader, json }) => {
            certificates::show(&client.get("/v1/node-certificates").await?, noheader, json)?;
        }
        NodeAct::Revoke(NodeShowArgs { node, json }) => {
            let body = client.post(&format!("{}/revoke", path(&node)?), &serde_json::json!({})).await?;
            certificates::show(&body, false, json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives a node up, once a person who is there has seen what that ends.
async fn lost(client: &mut Client, args: NodeLostArgs) -> Result<ExitCode, Fail> {
    let path = path(&args.node)?;
    if !args.yes && std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        let list: NodeList = client.get_as(&path).await?;
        for node in &list.nodes {
            let jobs = if node.jobs.is_empty() { "nothing".to_owned() } else { node.jobs.join(",") };
            say(
                NAME,
                "",
                &format!("node {} is {}; this ends what it has: {jobs}", node.name, node_state(node)),
            );
        }
        if !confirmed(&format!(
            "Is its machine gone, so that nothing runs on {} any more?",
            visible(&args.node)
        ))? {
            say(NAME, "", "nothing is given up");
            return Ok(ExitCode::from(1));
        }
    }
    let body = client.post(&format!("{path}/lost"), &LostRequest { reason: args.reason }).await?;
    if args.json {
        out::write_json(&body)?;
        return Ok(ExitCode::SUCCESS);
    }
    let list: NodeList = decode(&body)?;
    for node in &list.nodes {
        say(NAME, "", &format!("node {} is {}", node.name, node_state(node)));
    }
    Ok(ExitCode::SUCCESS)
}

fn path(node: &str) -> Result<String, Fail> {
    match node {
        "" | "." | ".." => {
            Err(Fail::usage(format!("{node:?} is no node's name")).hint("`bctl node list` lists them"))
        }
        node => Ok(format!("/v1/nodes/{}", escape(node))),
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
        let part = hold.target.strip_prefix(&node.name).filter(|part| !part.is_empty());
        let of = part.map_or(String::new(), |part| format!("{}: ", part.trim_start_matches('/')));
        line("Hold", &format!("{of}{}", described(hold)));
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
        assert_eq!(path("a/../b").unwrap(), "/v1/nodes/a%2F..%2Fb");
        for name in ["", ".", ".."] {
            assert_eq!(path(name).unwrap_err().exit_code(), 2);
        }
    }
}
