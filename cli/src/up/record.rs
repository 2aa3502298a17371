//! What a cluster was last started with: `DIR/cluster.json`.
//!
//! It marks a directory as a cluster's, and lets `up` without options start the same cluster again and tell in which way other
//! options would differ from what runs.

use super::place::Place;
use crate::fail::Fail;
use crate::text::os_error;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;

/// What the options of one `up` name; what they leave out stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) nodes: Option<u32>,
    pub(super) gpus: Option<Vec<String>>,
    pub(super) cpus: Option<u32>,
    pub(super) mem_mib: Option<u64>,
    pub(super) disk_mib: Option<u64>,
}

/// The cluster's shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) nodes: u32,
    /// GPUs declared on each node; empty is what the node daemon finds.
    pub(super) gpus: Vec<String>,
    /// CPUs of each node; absent is a share of the machine's.
    pub(super) cpus: Option<u32>,
    /// Memory of each node; absent is a share of the machine's.
    pub(super) mem_mib: Option<u64>,
    /// Local disk of each node; absent is a share of the machine's.
    pub(super) disk_mib: Option<u64>,
}

impl Record {
    /// The record of a directory; `None` where no cluster was set up.
    pub(super) fn read(place: &Place) -> Result<Option<Record>, Fail> {
        let path = place.record_file();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Fail::here(format!("cannot read {}: {}", path.display(), os_error(&error))));
            }
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| {
            Fail::here(format!("cannot understand {}: {error}", path.display())).hint(
                "was it written by another version of bctl? remove it to name all options of `bctl up` anew",
            )
        })
    }

    /// Writes it, whole or not at all.
    pub(super) fn write(&self, place: &Place) -> Result<(), Fail> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Fail::here(format!("cannot write the record: {e}")))?;
        place.write_file(&place.record_file(), &(text + "\n"))
    }

    /// The shape that `wanted` asks for, over what there was.
    pub(super) fn with(before: Option<&Record>, wanted: Wanted) -> Record {
        let before = before.cloned();
        let (nodes, gpus, cpus, mem_mib, disk_mib) = match before {
            Some(record) => (record.nodes, record.gpus, record.cpus, record.mem_mib, record.disk_mib),
            None => (1, Vec::new(), None, None, None),
        };
        Record {
            nodes: wanted.nodes.unwrap_or(nodes),
            gpus: wanted.gpus.unwrap_or(gpus),
            cpus: wanted.cpus.or(cpus),
            mem_mib: wanted.mem_mib.or(mem_mib),
            disk_mib: wanted.disk_mib.or(disk_mib),
        }
    }

    /// In which ways `asked` differs, for people; empty where it does not.
    pub(super) fn differences(&self, asked: &Record) -> Vec<String> {
        let shown = |value: Option<u64>, unit: &str| {
            value.map_or("the machine's".to_owned(), |v| format!("{v}{unit}"))
        };
        let gpus =
            |list: &[String]| if list.is_empty() { "none declared".to_owned() } else { list.join(",") };
        let pairs = [
            ("nodes", self.nodes.to_string(), asked.nodes.to_string()),
            ("gpus", gpus(&self.gpus), gpus(&asked.gpus)),
            ("cpus", shown(self.cpus.map(u64::from), ""), shown(asked.cpus.map(u64::from), "")),
            ("mem", shown(self.mem_mib, " MiB"), shown(asked.mem_mib, " MiB")),
            ("disk", shown(self.disk_mib, " MiB"), shown(asked.disk_mib, " MiB")),
        ];
        let differing = pairs.into_iter().filter(|(_, runs, asked)| runs != asked);
        differing.map(|(name, runs, asked)| format!("{name}: {runs} runs, {asked} asked for")).collect()
    }

    /// The names of the nodes.
    pub(super) fn node_names(&self) -> Vec<String> {
        (1..=self.nodes).map(|n| format!("node{n}")).collect()
    }
}
