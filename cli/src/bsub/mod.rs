//! `bsub`: submits a script.
//!
//! The steps are in [`submit`]: options from command line, environment and script; the submission made and checked; sent under a
//! key until there is an answer; the id printed; with `--wait` the job's end awaited. Nothing is on stdout but for a success
//! (or, with `--json`, the one document of an error).

pub mod args;
pub mod directives;
pub mod environ;
pub mod export;
pub mod foreign;
pub mod layers;
pub mod limits;
pub mod lsf;
pub mod script;
pub mod shape;
pub mod submission;
pub mod wait;

use crate::client::{Client, decode, encode, retry};
use crate::fail::{Fail, say, warn};
use crate::frame::{self, Parsed};
use crate::out;
use args::{BsubArgs, Options};
use clap::FromArgMatches;
use directives::{Found, Kind, Line};
use proto::api::{Submission, Submitted};
use std::cell::Cell;
use std::ffi::OsString;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

const NAME: &str = "bsub";
/// What is added to the exit code of a failure of `bsub --wait` itself, to tell it from the job's own status.
const WAIT_FAILED: u8 = 240;
const INTERRUPTED: u8 = 130;

/// The command.
pub fn main() -> ExitCode {
    frame::run_with(NAME, |argv, json| {
        // Until the arguments are understood, the flag as a word is the best guess for a usage error's exit code.
        let waits = Cell::new(argv.iter().skip(1).any(|word| word == "--wait" || word == "-W"));
        run(argv, &waits, json).or_else(|fail| {
            if !waits.get() {
                return Err(fail);
            }
            fail.report(NAME, json.get());
            Ok(ExitCode::from(WAIT_FAILED + fail.exit_code()))
        })
    })
}

fn run(argv: Vec<OsString>, waits: &Cell<bool>, json: &Cell<bool>) -> Result<ExitCode, Fail> {
    let args = match parse_command_line(argv)? {
        Ok(args) => args,
        Err(done) => return Ok(done),
    };
    waits.set(args.options.wait);
    json.set(args.delivery.json);
    let script = match &args.delivery.wrap {
        Some(command) if args.script.is_empty() => script::wrap(command)?,
        Some(_) => {
            return Err(Fail::usage("--wrap and a script exclude one another")
                .hint("put the whole command line into --wrap, quoted"));
        }
        None => {
            script::read(args.script.first().map(OsString::as_os_str), std::env::var_os("PATH").as_deref())?
        }
    };
    let variables =
        std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
    let environment = environ::read(variables)?;
    let found = directives::find(&script.text);
    let mut warnings = foreign_lines(&found, &script.shown)?;
    let directives = layers::directives(&found.block, &script.shown)?;
    warnings.extend(directives.warnings);
    warnings.extend(late(&found, &script.shown));
    let options = layers::over(layers::over(directives.options, environment), args.options);
    waits.set(options.wait);
    let prepared =
        submission::prepare(&options, &args.delivery, script, args.script.get(1..).unwrap_or_default())?;
    if !options.quiet {
        warnings.iter().chain(&prepared.warnings).for_each(|warning| warn(NAME, warning));
    }
    frame::block_on(submit(&options, args.delivery.json, prepared.submission))
}

/// Reads the command line; the inner error is help or version, printed.
pub fn parse_command_line(argv: Vec<OsString>) -> Result<Result<BsubArgs, ExitCode>, Fail> {
    let matches = match frame::parse(NAME, args::parser(), argv.clone()) {
        Ok(Parsed::Run(matches)) => matches,
        Ok(Parsed::Done(code)) => return Ok(Err(code)),
        Err(fail) => return Err(foreign::explain(&argv, fail)),
    };
    let args = BsubArgs::from_arg_matches(&matches).map_err(|e| frame::usage(NAME, &e))?;
    foreign::refuse_lsf(&argv, args.script.len())?;
    foreign::refuse(&matches)?;
    Ok(Ok(args))
}

/// Sends the submission, prints its id, and waits for the job where that is asked for.
async fn submit(options: &Options, json: bool, submission: Submission) -> Result<ExitCode, Fail> {
    let key = submission.idempotency_key.clone();
    let mut client = Client::find()?;
    let body = encode(&submission)?;
    // From here on an interrupt must say what became of the job.
    let mut interrupt = match options.wait {
        true => Some(
            signal(SignalKind::interrupt()).map_err(|e| Fail::here(format!("cannot await signals: {e}")))?,
        ),
        false => None,
    };
    if options.verbose > 0 {
        say(NAME, "", &format!("submitting {:?} with key {key}", submission.name));
    }
    let answer = tokio::select! {
        answer = retry::post(&mut client, "/v1/jobs", body, &key, retry::RETRY_TIME) => answer?,
        () = interrupted(&mut interrupt) => {
            say(NAME, "", "interrupted before the controller answered: the job may have been submitted");
            say("hint", "", &format!("the same command with --idempotency-key={key} finds out, and submits nothing twice"));
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    let submitted: Submitted = decode(&answer)?;
    if json {
        out::write_json(&answer)?;
    } else if options.parsable {
        out::write(format!("{}\n", submitted.id).as_bytes())?;
    } else if !options.quiet {
        out::write(format!("Submitted batch job {}\n", submitted.id).as_bytes())?;
    }
    if options.verbose > 0 && submitted.replayed {
        say(
            NAME,
            "",
            &format!("the key had been seen before: this is the job of that time, {}", submitted.id),
        );
    }
    if !options.wait {
        return Ok(ExitCode::SUCCESS);
    }
    tokio::select! {
        status = wait::wait(&mut client, submitted.id, options.quiet) => Ok(ExitCode::from(status?)),
        () = interrupted(&mut interrupt) => {
            say(NAME, "", &format!("job {0} goes on; to cancel it: bcancel {0}", submitted.id));
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

async fn interrupted(interrupt: &mut Option<tokio::signal::unix::Signal>) {
    let came = match interrupt {
        Some(signal) => signal.recv().await.is_some(),
        None => false,
    };
    if !came {
        std::future::pending::<()>().await;
    }
}

/// Other schedulers' directives: refused with what to write instead; only named where the script also speaks to us.
fn foreign_lines(found: &Found<'_>, script: &str) -> Result<Vec<String>, Fail> {
    let foreign = |line: &&Line<'_>| matches!(line.kind, Kind::Bsub | Kind::Pbs);
    let lines: Vec<&Line<'_>> = found.block.iter().filter(foreign).collect();
    let Some(first) = lines.first() else { return Ok(Vec::new()) };
    let prefix = first.kind.prefix();
    if found.block.len() > lines.len() {
        let numbers = numbers(lines.iter().copied());
        return Ok(vec![format!(
            "{script}: {prefix} lines are not read here, the others are (line {numbers})"
        )]);
    }
    let mut answer =
        format!("{script}: {prefix} lines are another scheduler's and are not read here; write instead");
    for line in lines {
        let instead = match line.kind {
            Kind::Bsub => lsf::instead_of_bsub(line.text),
            _ => lsf::instead_of_pbs(line.text),
        };
        // A remark stands alone, options get their prefix.
        let directive = if instead.starts_with('-') { format!("#BATCH {instead}") } else { instead };
        answer.push_str(&format!(
            "\n  line {}: {}{} -> {directive}",
            line.number,
            line.kind.prefix(),
            line.text
        ));
    }
    Err(Fail::usage(answer).hint("the script's #BATCH lines and the command line are read; see bsub(1)"))
}

/// Directives after the first command change nothing: they are named, since their author may think otherwise.
fn late(found: &Found<'_>, script: &str) -> Option<String> {
    let first = found.late.first()?;
    let what = if found.late.len() == 1 { "line" } else { "lines" };
    Some(format!(
        "{script}: {what} {} not read: {} lines count only before the first command",
        numbers(found.late.iter()),
        first.kind.prefix()
    ))
}

fn numbers<'a>(lines: impl Iterator<Item = &'a Line<'a>>) -> String {
    lines.map(|line| line.number.to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
