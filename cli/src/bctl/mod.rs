//! `bctl`: operates a cluster.
//!
//! Each subcommand is a function here or in a file of its own; `up` and `down` are [`crate::up`]'s.

pub mod args;
mod audit;
mod certificates;
pub mod events;
mod gpu_name;
pub mod gpus;
pub mod holds;
mod nodes;
pub mod reservations;
pub mod sinks;
mod tenants;

use crate::bcancel::{report, split};
use crate::client::{Client, decode, encode};
use crate::fail::Fail;
use crate::frame::{self, Parsed};
use crate::{manual, out, up};
use args::{Act, BctlArgs, CheckArgs, JobsArgs, Shell};
use clap::{CommandFactory, FromArgMatches};
use proto::JobRef;
use proto::api::{ACT_IDS_MAX, ActRequest, ActResults, Health};
use std::fmt::Write;
use std::process::ExitCode;

const NAME: &str = "bctl";

/// The command.
pub fn main() -> ExitCode {
    frame::run(NAME, |argv| {
        let matches = match frame::parse(NAME, BctlArgs::command(), argv)? {
            Parsed::Run(matches) => matches,
            Parsed::Done(code) => return Ok(code),
        };
        let args = BctlArgs::from_arg_matches(&matches).map_err(|e| frame::usage(NAME, &e))?;
        match args.act {
            Act::Node(act) => frame::block_on(nodes::node(act)),
            Act::Drain(args) => frame::block_on(holds::drain(args)),
            Act::Resume(args) => frame::block_on(holds::resume(args)),
            Act::Holds(args) => frame::block_on(holds::list(args)),
            Act::Gpu(act) => frame::block_on(gpus::gpu(act)),
            Act::Hold(args) => frame::block_on(jobs("hold", args)),
            Act::Release(args) => frame::block_on(jobs("release", args)),
            Act::Requeue(args) => frame::block_on(jobs("requeue", args)),
            Act::Reserve(args) => frame::block_on(reservations::reserve(*args)),
            Act::Reservation(act) => frame::block_on(reservations::reservation(act)),
            Act::Extend(args) => frame::block_on(reservations::extend(args)),
            Act::Tenant(act) => frame::block_on(tenants::tenant(act)),
            Act::Quota(act) => frame::block_on(tenants::quota(act)),
            Act::Check(args) => frame::block_on(check(args)),
            Act::Audit(args) => frame::block_on(audit::audit(args)),
            Act::Events(args) => frame::block_on(events::events(args)),
            Act::Sink(act) => frame::block_on(sinks::sink(act)),
            Act::Up(args) => up::up(args),
            Act::Down(args) => up::down(args),
            Act::Completions(args) => completions(args.shell),
        }
    })
}

async fn jobs(act: &str, args: JobsArgs) -> Result<ExitCode, Fail> {
    let ids = args
        .ids
        .iter()
        .flat_map(|word| split(word))
        .map(|id| id.parse::<JobRef>().map(|id| id.to_string()).map_err(|e| Fail::usage(e.to_string())));
    let ids: Vec<String> = ids.collect::<Result<_, _>>()?;
    let mut client = Client::find()?;
    let mut all = ActResults::default();
    for ids in ids.chunks(ACT_IDS_MAX) {
        let body = client.post(&format!("/v1/jobs/{act}"), &ActRequest { ids: ids.to_vec() }).await?;
        all.results.append(&mut decode::<ActResults>(&body)?.results);
    }
    if args.json {
        out::write_json(&encode(&all)?)?;
    }
    Ok(report(NAME, &all, args.json, args.verbose && !args.json))
}

async fn check(args: CheckArgs) -> Result<ExitCode, Fail> {
    let body = Client::find()?.get("/v1/check").await?;
    let health: Health = decode(&body)?;
    if args.json {
        out::write_json(&body)?;
    } else {
        out::write(health_lines(&health).as_bytes())?;
    }
    Ok(if health.ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn health_lines(health: &Health) -> String {
    let mut text = String::new();
    for check in &health.checks {
        let mark = if check.ok { "ok  " } else { "FAIL" };
        writeln!(text, "{mark} {}: {}", check.name, crate::text::visible(&check.message))
            .expect("a String takes all");
    }
    if let Some(database) = &health.database {
        let how = if database.embedded { "embedded" } else { "external" };
        let pid = database.pid.map_or(String::new(), |pid| format!(", process {pid}"));
        writeln!(text, "     database ({how}{pid}): {}", database.url).expect("a String takes all");
    }
    writeln!(
        text,
        "     ctld {}, process {}; {} of {} nodes connected",
        health.version, health.pid, health.nodes_connected, health.nodes_total
    )
    .expect("a String takes all");
    text
}

fn completions(shell: Shell) -> Result<ExitCode, Fail> {
    let mut script = Vec::new();
    for mut command in crate::commands() {
        manual::complete(shell, &mut command, &mut script);
    }
    out::write(&script)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::{DatabaseHealth, HealthCheck};

    #[test]
    fn health_is_a_line_a_check() {
        let check = |name: &str, ok, message: &str| HealthCheck {
            name: name.to_owned(),
            ok,
            message: message.to_owned(),
        };
        let health = Health {
            ok: false,
            checks: vec![check("database", true, "answers in 1 ms"), check("clock.skew", false, "3 s ahead")],
            version: "0.1.0".to_owned(),
            pid: 42,
            database: Some(DatabaseHealth {
                url: "postgres:///bc".to_owned(),
                embedded: true,
                pid: Some(43),
            }),
            nodes_connected: 1,
            nodes_total: 2,
        };
        insta::assert_snapshot!(health_lines(&health), @"
        ok   database: answers in 1 ms
        FAIL clock.skew: 3 s ahead
             database (embedded, process 43): postgres:///bc
             ctld 0.1.0, process 42; 1 of 2 nodes connected
        ");
    }

    #[test]
    fn a_drain_needs_its_reason() {
        let parse = |line: &str| BctlArgs::command().try_get_matches_from(line.split(' '));
        assert!(parse("bctl drain node1").is_err());
        assert!(parse("bctl drain node1 node2 --reason fan").is_ok());
        assert!(parse("bctl resume").is_err());
        BctlArgs::command().debug_assert();
    }
}
