//! From arguments to an exit status: the frame that every command runs in.
//!
//! Turns clap's errors into our wording (`bsub: …`, `hint: …`, exit code 2, or a JSON document where `--json` was written
//! anywhere), prints help and version without a panic when nobody reads, and gives a command its runtime.

use crate::fail::Fail;
use crate::out;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};
use std::cell::Cell;
use std::ffi::OsString;
use std::process::ExitCode;

/// What a command's parse came to.
pub enum Parsed {
    /// Go on.
    Run(ArgMatches),
    /// Help or version was asked for and printed.
    Done(ExitCode),
}

/// Parses the arguments (the program's name included). Usage errors are values, help and version are printed.
pub fn parse(program: &str, command: Command, args: Vec<OsString>) -> Result<Parsed, Fail> {
    match command.try_get_matches_from(args) {
        Ok(matches) => Ok(Parsed::Run(matches)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            out::write(error.render().to_string().as_bytes())?;
            Ok(Parsed::Done(ExitCode::SUCCESS))
        }
        Err(error) => Err(usage(program, &error)),
    }
}

/// Clap's error in our wording.
pub fn usage(program: &str, error: &clap::Error) -> Fail {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    // "--time <TIME>" is "--time"; a positional argument is "<ID>...".
    let arg = context(ContextKind::InvalidArg).unwrap_or_default();
    let option = arg.split([' ', '=', '[']).next().unwrap_or_default();
    let value = context(ContextKind::InvalidValue).unwrap_or_default();
    let message = match (error.kind(), std::error::Error::source(error)) {
        (ErrorKind::ValueValidation, Some(cause)) => format!("{option}: {cause}"),
        (ErrorKind::InvalidValue, _) if value.is_empty() => format!("{option} needs a value"),
        (ErrorKind::NoEquals, _) => {
            format!("{option} takes its value only with an equals sign, as {option}=VALUE")
        }
        (ErrorKind::InvalidValue, _) => {
            let values = context(ContextKind::ValidValue).unwrap_or_default();
            format!("{option}: {value:?} is not one of {values}")
        }
        (ErrorKind::UnknownArgument, _) => format!("unknown option or argument {arg:?}"),
        (ErrorKind::InvalidSubcommand, _) => {
            format!("unknown subcommand {:?}", context(ContextKind::InvalidSubcommand).unwrap_or_default())
        }
        (ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            "a subcommand is needed".to_owned()
        }
        (ErrorKind::MissingRequiredArgument, _) => format!("{arg} is needed"),
        (ErrorKind::ArgumentConflict, _) => {
            format!("{arg} and {} exclude one another", context(ContextKind::PriorArg).unwrap_or_default())
        }
        _ => first_paragraph(error),
    };
    let near = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    Fail::usage(message).hint(match near.into_iter().find_map(context) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("see `{program} --help`"),
    })
}

fn first_paragraph(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines = text
        .strip_prefix("error: ")
        .unwrap_or(&text)
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Runs a command to its exit status; a failure is reported here and nowhere else.
pub fn run(program: &str, body: impl FnOnce(Vec<OsString>) -> Result<ExitCode, Fail>) -> ExitCode {
    run_with(program, |args, _| body(args))
}

/// The same for a command whose arguments may hold another's: it sets whether `--json` was its own once it knows.
pub fn run_with(
    program: &str,
    body: impl FnOnce(Vec<OsString>, &Cell<bool>) -> Result<ExitCode, Fail>,
) -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // A usage error must come as JSON too, so the flag is looked for before anything is parsed.
    let json = Cell::new(args.iter().skip(1).take_while(|a| *a != "--").any(|a| a == "--json"));
    match body(args, &json) {
        Ok(code) => code,
        Err(fail) => {
            fail.report(program, json.get());
            ExitCode::from(fail.exit_code())
        }
    }
}

/// Runs a future on a runtime of this thread's own.
pub fn block_on<T>(future: impl Future<Output = Result<T, Fail>>) -> Result<T, Fail> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Fail::here(format!("cannot start: {}", crate::text::os_error(&e))))?;
    runtime.block_on(future)
}
