//! `bctl up` and `bctl down`: a whole cluster on this machine.
//!
//! Owns one directory ([`place`]): the configuration of a controller and its nodes, their state and logs, and what is needed
//! to find their processes again ([`daemon`]). Both commands may be repeated: `up` starts what does not run, `down` stops what
//! runs, and neither touches a process that it has not recognised as its own. Jobs live apart from all this: they go on
//! under their shepherds while a cluster is down, and the next `up` finds them.

mod args;
mod configure;
mod daemon;
mod database;
mod follow;
mod groups;
mod place;
mod progress;
mod record;
mod start;
mod stop;
#[cfg(test)]
mod tests;

pub use args::{Down, Up};

use crate::fail::Fail;
use crate::frame::block_on;
use crate::out;
use place::Place;
use proto::ErrorCode;
use serde::Serialize;
use start::Started;
use std::process::ExitCode;
use stop::Jobs;

/// Runs `bctl up`.
pub fn up(args: Up) -> Result<ExitCode, Fail> {
    must_be_root("up")?;
    block_on(async move {
        let wanted = args.wanted()?;
        let place = Place::prepare(args.dir.as_deref())?;
        let lock = place.lock().await?;
        let started = start::start(&place, wanted).await?;
        drop(lock);
        report_up(&place, &started, args.json)?;
        if args.foreground {
            return follow::until_stopped(&place, started).await;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Runs `bctl down`.
pub fn down(args: Down) -> Result<ExitCode, Fail> {
    must_be_root("down")?;
    block_on(async move {
        let place = Place::existing(args.dir.as_deref())?;
        let _lock = place.lock().await?;
        let jobs = if args.cancel { Jobs::Cancel } else { Jobs::Keep };
        let stopped = stop::stop(&place, jobs).await?;
        if args.json {
            let text = serde_json::to_vec(&stopped)
                .map_err(|e| Fail::here(format!("cannot write the answer: {e}")))?;
            out::write_json(&text)?;
        } else {
            out::write(stopped.sentence(&place).as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn must_be_root(command: &str) -> Result<(), Fail> {
    if nix::unistd::Uid::effective().is_root() {
        return Ok(());
    }
    let message = format!(
        "`bctl {command}` needs root: the nodes run each job as its own user in its own control group"
    );
    Err(Fail::new(ErrorCode::PermissionDenied, message).hint(format!("try `sudo bctl {command}`")))
}

#[derive(Serialize)]
struct Answer<'a> {
    dir: &'a str,
    server: String,
    env: String,
    /// Whether anything had to be started.
    started: bool,
    ctld: Running<'a>,
    nodes: Vec<Running<'a>>,
}

#[derive(Serialize)]
struct Running<'a> {
    name: &'a str,
    pid: u32,
}

fn report_up(place: &Place, started: &Started, json: bool) -> Result<(), Fail> {
    let dir = place.dir.display().to_string();
    let env = place.env_file().display().to_string();
    if json {
        let running = |daemon: &daemon::Daemon| (daemon.name().to_owned(), daemon.pid());
        let ctld = running(&started.ctld);
        let nodes: Vec<_> = started.nodes.iter().map(running).collect();
        let answer = Answer {
            dir: &dir,
            server: place.server(),
            env,
            started: started.anything,
            ctld: Running { name: &ctld.0, pid: ctld.1 },
            nodes: nodes.iter().map(|(name, pid)| Running { name, pid: *pid }).collect(),
        };
        let text =
            serde_json::to_vec(&answer).map_err(|e| Fail::here(format!("cannot write the answer: {e}")))?;
        return out::write_json(&text);
    }
    let nodes = match started.nodes.len() {
        1 => "1 node".to_owned(),
        n => format!("{n} nodes"),
    };
    let state = if started.anything { "is up" } else { "was already up" };
    let default = place.is_default();
    let down = if default { "bctl down".to_owned() } else { format!("bctl down --dir {dir}") };
    out::write(
        format!("The cluster in {dir} {state}: {nodes}.\nUse it:   . {env}\nStop it:  {down}\n").as_bytes(),
    )
}
