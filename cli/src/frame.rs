//! From arguments to an exit status: the frame that every command runs in.
//!
//! Turns clap's errors into our wording (`bsub: …`, `hint: …`, exit code 2, or a JSON document where `--json` was written
//! anywhere), prints help and version without a panic when nobody reads, and gives a command its runtime.

use crate::fail::Fail;
use crate::out;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};
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
    match command.color(clap::ColorChoice::Auto).try_get_matches_from(args) {
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
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let mut message: Vec<&str> = Vec::new();
    let mut tips: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        match line.strip_prefix("tip: ") {
            Some(tip) => tips.push(tip),
            None if !line.is_empty() => message.push(line),
            None => {}
        }
    }
    // A subcommand left out renders as the whole help.
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Fail::usage("a subcommand is needed").hint(format!("see `{program} --help`"));
    }
    let message = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(arg))) => {
            format!("unknown option or argument {arg:?}")
        }
        _ => message.join(" "),
    };
    let hint = match tips.is_empty() {
        true => format!("see `{program} --help`"),
        false => tips.join("; "),
    };
    Fail::usage(message).hint(hint)
}

/// Runs a command to its exit status; a failure is reported here and nowhere else.
pub fn run(program: &str, body: impl FnOnce(Vec<OsString>) -> Result<ExitCode, Fail>) -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // A usage error must come as JSON too, so the flag is looked for before anything is parsed.
    let json = args.iter().skip(1).take_while(|a| *a != "--").any(|a| a == "--json");
    match body(args) {
        Ok(code) => code,
        Err(fail) => {
            fail.report(program, json);
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
