//! The options of `bctl up` and `bctl down`, and what they ask for.

use super::record::Wanted;
use crate::fail::Fail;
use clap::Args;
use proto::memory::{self, Memory};
use std::path::PathBuf;

/// The most nodes on one machine: more than a test needs, few enough to start in seconds.
const NODES_MAX: u32 = 64;

/// Start a cluster on this machine, or what of it does not run.
///
/// Starts a controller with a database of its own and as many node daemons as asked for, waits until every node is connected,
/// and writes DIR/env, to be sourced by a shell that wants to use it. Options left out keep what the cluster was last started
/// with; a cluster that runs is not changed: `bctl down` first. Jobs may run as root here.
#[derive(Args, Clone, Debug)]
pub struct Up {
    /// The cluster's directory [default: /var/lib/better-compute/local]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// How many nodes, each with a daemon of its own: node1, node2, … [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=NODES_MAX as i64))]
    pub nodes: Option<u32>,
    /// GPUs to declare on each node, without devices behind them: MODEL:COUNT, as in a100-80gb:8; several by commas
    #[arg(long, value_name = "MODEL:COUNT", value_delimiter = ',')]
    pub gpus: Option<Vec<String>>,
    /// CPUs of each node [default: the machine's, shared out]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub cpus: Option<u32>,
    /// Memory of each node, as in 16G [default: 7/8 of the machine's, shared out]
    #[arg(long, value_name = "SIZE")]
    pub mem: Option<String>,
    /// Local disk of each node, as in 100G [default: that of /tmp, shared out]
    #[arg(long, value_name = "SIZE")]
    pub disk: Option<String>,
    /// Stay, show the daemons' logs, and stop the cluster on SIGINT or SIGTERM (jobs keep running)
    #[arg(long)]
    pub foreground: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Stop the cluster on this machine that `bctl up` started.
///
/// Jobs that run are left running under their shepherds; the next `bctl up` finds them, or how they ended. Queue, history and
/// configuration stay.
#[derive(Args, Clone, Debug)]
pub struct Down {
    /// The cluster's directory [default: /var/lib/better-compute/local]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Cancel every job first, waiting ones too, and wait until they have ended
    #[arg(long)]
    pub cancel: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

impl Up {
    /// What the options ask for, each checked for its form.
    pub(super) fn wanted(&self) -> Result<Wanted, Fail> {
        let mem_mib = match self.mem.as_deref().map(memory::parse).transpose() {
            Ok(Some(Memory::All)) => {
                let fail = Fail::usage("--mem 0 gives the nodes no memory");
                return Err(
                    fail.hint("leave --mem out to share out the machine's, or give an amount such as 16G")
                );
            }
            Ok(Some(Memory::Mib(mib))) => Some(mib),
            Ok(None) => None,
            Err(error) => return Err(Fail::usage(format!("--mem: {error}"))),
        };
        let disk_mib = match self.disk.as_deref().map(memory::parse).transpose() {
            // A node without disk is a sound wish, for jobs that ask for none.
            Ok(Some(Memory::All)) => Some(0),
            Ok(Some(Memory::Mib(mib))) => Some(mib),
            Ok(None) => None,
            Err(error) => return Err(Fail::usage(format!("--disk: {error}"))),
        };
        for text in self.gpus.iter().flatten() {
            check_gpus(text)?;
        }
        Ok(Wanted { nodes: self.nodes, gpus: self.gpus.clone(), cpus: self.cpus, mem_mib, disk_mib })
    }
}

/// `MODEL:COUNT` or `MODEL`; the node daemon checks the rest.
fn check_gpus(text: &str) -> Result<(), Fail> {
    let (model, count) = text.rsplit_once(':').unwrap_or((text, "1"));
    let count_fits = count.bytes().all(|b| b.is_ascii_digit()) && count.parse::<u32>().is_ok_and(|n| n > 0);
    let model_fits =
        !model.is_empty() && model.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if count_fits && model_fits {
        return Ok(());
    }
    Err(Fail::usage(format!("--gpus {text:?} declares no GPUs"))
        .hint("expected MODEL:COUNT, as in a100-80gb:8"))
}
