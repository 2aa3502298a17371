//! Bringing the cluster down: jobs as asked, then the nodes, the controller, and the database.

use super::configure::cgroup_base;
use super::daemon::Daemon;
use super::place::{Place, cannot};
use super::progress::Progress;
use super::start::{client, running};
use super::{database, groups};
use crate::client::Client;
use crate::fail::{self, Fail};
use proto::ErrorCode;
use proto::api::{CancelRequest, NodeList, PoolList};
use serde::Serialize;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// A daemon that does not heed SIGTERM is killed: jobs and the book survive that by design.
const DAEMON_STOPS_WITHIN: Duration = Duration::from_secs(30);
/// Covers the database's checkpoint, which the controller waits for.
const CONTROLLER_STOPS_WITHIN: Duration = Duration::from_secs(75);
/// Beyond the longest grace between SIGTERM and SIGKILL of a job.
const JOBS_END_WITHIN: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What becomes of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Jobs {
    /// They run on; the next `up` finds them.
    Keep,
    /// All are cancelled, waiting ones too, and their ends waited for.
    Cancel,
}

/// What was stopped.
#[derive(Debug, Serialize)]
pub(super) struct Stopped {
    /// Daemons that ran and were stopped, in that order.
    pub(super) stopped: Vec<String>,
    /// Jobs that run on under their shepherds; absent where the controller could not tell.
    pub(super) jobs_running: Option<Vec<String>>,
}

impl Stopped {
    pub(super) fn sentence(&self, place: &Place) -> String {
        let dir = place.dir.display();
        let mut text = match self.stopped.is_empty() {
            true => format!("The cluster in {dir} was not running.\n"),
            false => format!("The cluster in {dir} is down.\n"),
        };
        if let Some(jobs) = self.jobs_running.as_ref().filter(|jobs| !jobs.is_empty()) {
            let shown = jobs.iter().take(10).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = jobs.len().saturating_sub(10);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            text += &format!("Jobs still running, to be found again by `bctl up`: {shown}{more}\n");
        }
        text
    }
}

/// Stops every part that runs.
pub(super) async fn stop(place: &Place, jobs: Jobs) -> Result<Stopped, Fail> {
    let mut progress = Progress::new();
    let daemons = running(place)?;
    let controller_runs = daemons.iter().any(|daemon| daemon.name() == "ctld");
    let mut client = client(place);
    let jobs_running = match jobs {
        Jobs::Cancel if !controller_runs => {
            let message = "jobs cannot be cancelled while the controller does not run";
            return Err(
                Fail::new(ErrorCode::Unavailable, message).hint("`bctl up` first, then `bctl down --cancel`")
            );
        }
        Jobs::Cancel => {
            cancel_all(&mut client, &mut progress).await?;
            Some(Vec::new())
        }
        Jobs::Keep if controller_runs => match jobs_on_nodes(&mut client).await {
            Ok(jobs) => Some(jobs),
            Err(failure) => {
                fail::warn("bctl", &format!("cannot tell which jobs run: {failure}"));
                None
            }
        },
        Jobs::Keep => None,
    };

    let (controller, nodes): (Vec<Daemon>, Vec<Daemon>) =
        daemons.into_iter().partition(|daemon| daemon.name() == "ctld");
    let mut stopped = Vec::new();
    progress.say("stopping the nodes");
    for node in &nodes {
        node.signal(libc::SIGTERM)?;
    }
    for node in nodes {
        end(&node, DAEMON_STOPS_WITHIN).await?;
        stopped.push(node.name().to_owned());
    }
    progress.say("stopping the controller and its database");
    for ctld in controller {
        ctld.signal(libc::SIGTERM)?;
        end(&ctld, CONTROLLER_STOPS_WITHIN).await?;
        stopped.push("ctld".to_owned());
    }
    if database::stop(place).await? {
        stopped.push("database".to_owned());
    }
    for name in place.with_pid_files()? {
        groups::remove_empty(&cgroup_base(place, &name));
        let path = place.pid_file(&name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(cannot("remove", &path, &error)),
            _ => {}
        }
    }
    Ok(Stopped { stopped, jobs_running })
}

async fn end(daemon: &Daemon, limit: Duration) -> Result<(), Fail> {
    if daemon.gone_within(limit).await {
        return Ok(());
    }
    let (name, pid) = (daemon.name(), daemon.pid());
    fail::warn(
        "bctl",
        &format!("{name} (pid {pid}) did not stop within {} s and is killed", limit.as_secs()),
    );
    daemon.signal(libc::SIGKILL)?;
    if daemon.gone_within(DAEMON_STOPS_WITHIN).await {
        return Ok(());
    }
    Err(Fail::here(format!("{name} (pid {pid}) cannot be ended: it hangs in the kernel")))
}

async fn jobs_on_nodes(client: &mut Client) -> Result<Vec<String>, Fail> {
    let list: NodeList = client.get_as("/v1/nodes").await?;
    let mut jobs: Vec<String> = list.nodes.into_iter().flat_map(|node| node.jobs).collect();
    jobs.sort();
    jobs.dedup();
    Ok(jobs)
}

async fn cancel_all(client: &mut Client, progress: &mut Progress) -> Result<(), Fail> {
    let pools: PoolList = client.get_as("/v1/pools").await?;
    for pool in pools.pools {
        let request = CancelRequest { pool: Some(pool.name), ..CancelRequest::default() };
        client.post("/v1/jobs/cancel", &request).await?;
    }
    let began = Instant::now();
    loop {
        let jobs = jobs_on_nodes(client).await?;
        if jobs.is_empty() {
            return Ok(());
        }
        if began.elapsed() > JOBS_END_WITHIN {
            let message = format!(
                "jobs still run {} s after they were cancelled: {}",
                JOBS_END_WITHIN.as_secs(),
                jobs.join(", ")
            );
            return Err(Fail::here(message)
                .hint("`bq JOB` tells why; `bctl down` without --cancel leaves them running"));
        }
        progress.say(&format!("waiting for {} cancelled jobs to end", jobs.len()));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
