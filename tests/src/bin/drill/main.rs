//! `drill [--seed N] [--seconds N] [--rounds N] [--json]`: two sixes against eight, under four forms of the same sale.
//!
//! What may never be: that more of an event is sold than the eight it has. Each form is attacked twice on a database of its own
//! in the server that `DATABASE_URL` names (`scripts/test-db`, which `make drill` asks to be durable): two buyers of six at
//! once, again and again, and eight buyers of any size for some seconds. Then the rows that stand are audited by a statement
//! that no form uses. The naive form is there to be caught: an attack that it survives proves nothing about the others, so the
//! exit status is 0 only if it oversold and the others did not.

mod forms;
mod ledger;
mod load;
mod report;

use forms::Form;
use ledger::Ledger;
use load::Load;
use report::Report;
use std::process::ExitCode;

const USAGE: &str = "usage: drill [--seed N] [--seconds N] [--rounds N] [--json]
  --seed N     draw sizes, starts and pauses from this; drawn and printed otherwise
  --seconds N  how long eight buyers contend, a form (5)
  --rounds N   how often two buyers of six meet, a form (100)
  --json       a JSON line a form instead of the table";

fn main() -> ExitCode {
    let (load, json) = match options(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(complaint) => {
            eprintln!("drill: {complaint}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let Ok(server) = std::env::var("DATABASE_URL") else {
        eprintln!(
            "drill: DATABASE_URL names no server to drill on\nhint: `make drill`, or scripts/test-db --durable drill"
        );
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    match runtime.block_on(drill(&server, load)) {
        Ok(report) => {
            if json {
                report.print_json();
            } else {
                report.print_table();
            }
            for complaint in report.complaints() {
                eprintln!("drill: {complaint}");
            }
            if report.complaints().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("drill: cannot drill on {server:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Attacks each form, and removes the database again.
async fn drill(server: &str, load: Load) -> Result<Report, sqlx::Error> {
    let ledger = Ledger::create(server).await?;
    let attacked = attack(&ledger, load).await;
    ledger.remove().await?;
    attacked
}

async fn attack(ledger: &Ledger, load: Load) -> Result<Report, sqlx::Error> {
    let mut report = Report::new(load, ledger.durable().await?);
    for form in Form::ALL {
        ledger.open(load.events()).await?;
        let sixes = load.two_sixes(form, ledger).await?;
        let sold_twelve = ledger.oversold_to(load.rounds).await?;
        let contended = load.contended(form, ledger).await?;
        report.add(form, sold_twelve, sixes, contended, ledger.audit().await?);
    }
    Ok(report)
}

/// What was asked for; `None` if it was help.
fn options(mut arguments: impl Iterator<Item = String>) -> Result<Option<(Load, bool)>, String> {
    let (mut load, mut json) =
        (Load { seed: rand::random_range(0..1_000_000), seconds: 5, rounds: 100 }, false);
    while let Some(name) = arguments.next() {
        let mut number = |least: u64, most: u64| {
            let given = arguments.next().unwrap_or_default();
            let number = given.parse().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| format!("{name} takes a whole number from {least} to {most}, not {given:?}"))
        };
        match name.as_str() {
            "--seed" => load.seed = number(0, u64::MAX)?,
            "--seconds" => load.seconds = number(1, 600)?,
            "--rounds" => load.rounds = number(1, 10_000)? as i64,
            "--json" => json = true,
            "-h" | "--help" => return Ok(None),
            other => return Err(format!("there is no option {other:?}")),
        }
    }
    Ok(Some((load, json)))
}
