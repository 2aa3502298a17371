//! Bringing the cluster up: what runs stays, what does not is started, and then every part must answer.

use super::configure::{self, Machine};
use super::daemon::{Daemon, program};
use super::place::Place;
use super::progress::Progress;
use super::record::{Record, Wanted};
use crate::client::{Client, Servers};
use crate::fail::{self, Fail};
use proto::ErrorCode;
use proto::api::{Connection, Health, NodeList};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Making the database takes seconds; recovering one after a crash may take minutes.
const CONTROLLER_WITHIN: Duration = Duration::from_secs(300);
const NODES_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A cluster that answers.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) ctld: Daemon,
    pub(super) nodes: Vec<Daemon>,
    /// Whether any part had to be started.
    pub(super) anything: bool,
}

/// Starts what does not run and waits until the controller is well and every node is connected.
pub(super) async fn start(place: &Place, wanted: Wanted) -> Result<Started, Fail> {
    let before = Record::read(place)?;
    let record = Record::with(before.as_ref(), wanted);
    let running = running(place)?;
    if let Some(before) = before.as_ref().filter(|_| !running.is_empty()) {
        let differences = before.differences(&record);
        if !differences.is_empty() {
            let message =
                format!("the cluster in {} runs otherwise: {}", place.dir.display(), differences.join("; "));
            let hint = "`bctl down` first, then `bctl up` with the new options; without options it keeps the old ones";
            return Err(Fail::new(ErrorCode::Conflict, message).hint(hint));
        }
    }
    let (ctld, noded) = (program("ctld")?, program("noded")?);
    // First, since it marks the directory as a cluster's.
    record.write(place)?;
    // A shell that sources `env` finds the commands where this one is.
    let own =
        std::env::current_exe().map_err(|e| Fail::here(format!("cannot tell where bctl itself is: {e}")))?;
    let programs = own.parent().unwrap_or(&place.dir);
    configure::write(place, &record, Machine::look()?, programs)?;

    let mut progress = Progress::new();
    let mut anything = false;
    let ctld = match Daemon::find(place, "ctld")? {
        Some(daemon) => daemon,
        None => {
            progress.say("starting the controller and its database");
            anything = true;
            Daemon::start(place, "ctld", &ctld, &place.ctld_config())?
        }
    };
    let mut client = client(place);
    controller_answers(place, &ctld, &mut client, &mut progress).await?;
    let mut nodes = Vec::new();
    for name in record.node_names() {
        nodes.push(match Daemon::find(place, &name)? {
            Some(daemon) => daemon,
            None => {
                progress.say(&format!("starting {name}"));
                anything = true;
                Daemon::start(place, &name, &noded, &place.node_config(&name))?
            }
        });
    }
    nodes_connected(place, &ctld, &nodes, &mut client, &mut progress).await?;
    drop(progress);
    controller_is_well(&mut client, &record.node_names()).await?;
    Ok(Started { ctld, nodes, anything })
}

/// A client of this cluster's controller, whatever the environment says.
pub(super) fn client(place: &Place) -> Client {
    Client::new(Servers::one(place.socket(), "bctl up"))
}

/// The daemons of this cluster that run.
pub(super) fn running(place: &Place) -> Result<Vec<Daemon>, Fail> {
    let mut found = Vec::new();
    for name in place.with_pid_files()? {
        found.extend(Daemon::find(place, &name)?);
    }
    Ok(found)
}

async fn controller_answers(
    place: &Place,
    ctld: &Daemon,
    client: &mut Client,
    progress: &mut Progress,
) -> Result<(), Fail> {
    let began = Instant::now();
    loop {
        let failure = match client.get_as::<Health>("/v1/check").await {
            Ok(_) => return Ok(()),
            Err(failure) => failure,
        };
        if ctld.gone() {
            return Err(Daemon::failed(place, "ctld", "ended while it was starting"));
        }
        if failure.error.code != ErrorCode::Unavailable {
            return Err(failure);
        }
        if began.elapsed() > CONTROLLER_WITHIN {
            let what = format!("does not answer after {} s ({failure})", CONTROLLER_WITHIN.as_secs());
            return Err(Daemon::failed(place, "ctld", &what));
        }
        if began.elapsed() > Duration::from_secs(2) {
            progress.say("waiting for the controller");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn nodes_connected(
    place: &Place,
    ctld: &Daemon,
    nodes: &[Daemon],
    client: &mut Client,
    progress: &mut Progress,
) -> Result<(), Fail> {
    let began = Instant::now();
    loop {
        let list: NodeList = client.get_as("/v1/nodes").await.map_err(|failure| match ctld.gone() {
            true => Daemon::failed(place, "ctld", "ended while the nodes were starting"),
            false => failure,
        })?;
        let known = list.nodes.iter().filter(|node| node.connection == Connection::Connected);
        let connected: BTreeSet<&str> = known.map(|node| node.name.as_str()).collect();
        let missing: Vec<&Daemon> = nodes.iter().filter(|node| !connected.contains(node.name())).collect();
        if let Some(dead) = missing.iter().find(|node| node.gone()) {
            return Err(Daemon::failed(place, dead.name(), "ended while it was starting"));
        }
        let Some(first) = missing.first() else { return Ok(()) };
        if began.elapsed() > NODES_WITHIN {
            let what = format!("is not connected to the controller after {} s", NODES_WITHIN.as_secs());
            return Err(Daemon::failed(place, first.name(), &what));
        }
        progress.say(&format!(
            "waiting for nodes: {} of {} connected",
            nodes.len() - missing.len(),
            nodes.len()
        ));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Every check but the one that every node known is connected: ours are, and one of a larger cluster that was here before is
/// only worth a warning.
async fn controller_is_well(client: &mut Client, ours: &[String]) -> Result<(), Fail> {
    let health: Health = client.get_as("/v1/check").await?;
    let failed = health.checks.iter().filter(|check| !check.ok && check.name != "nodes");
    let failed: Vec<String> = failed.map(|check| format!("{}: {}", check.name, check.message)).collect();
    if !failed.is_empty() {
        let message = format!("the cluster is up but not well: {}", failed.join("; "));
        return Err(Fail::here(message).hint("`bctl check` shows every check"));
    }
    let list: NodeList = client.get_as("/v1/nodes").await?;
    let left: Vec<String> =
        list.nodes.into_iter().map(|node| node.name).filter(|name| !ours.contains(name)).collect();
    if !left.is_empty() {
        let left = left.join(", ");
        fail::warn(
            "bctl",
            &format!("{left} of an earlier, larger cluster stays known, and without a session"),
        );
    }
    Ok(())
}
