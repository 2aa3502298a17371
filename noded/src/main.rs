//! The `noded` program: its command line, and which of its kinds of process this one is.
//!
//! The launcher is decided first, before any thread or runtime exists: what it forks must be single-threaded.

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use noded::address::Address;
use noded::{config, join, launcher, run};
use std::path::PathBuf;
use std::process::ExitCode;

/// The Better Compute node daemon: runs jobs on this machine.
#[derive(Parser)]
#[command(name = "noded", version)]
struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT_PATH, global = true)]
    config: PathBuf,
    /// Read the configuration, say what is wrong with it, and stop
    #[arg(long)]
    check_config: bool,
    #[command(subcommand)]
    act: Option<Act>,
}

/// What to do instead of running jobs.
#[derive(Subcommand)]
enum Act {
    /// Make this machine known to a controller on another: trades a token of `bctl node token` for a certificate, and stops
    Join(JoinArguments),
}

/// `noded join`
#[derive(Args)]
struct JoinArguments {
    /// The controller: https://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = Address::parse)]
    controller: Address,
    /// A file with the token in it; - is standard input
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// The node's name, to hold against the configuration's: another is refused
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == launcher::MODE) {
        return launcher::main();
    }
    let arguments = Arguments::parse();
    let config = match config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("noded: {error}");
            return ExitCode::from(2);
        }
    };
    if arguments.check_config {
        return ExitCode::SUCCESS;
    }
    let done = match arguments.act {
        Some(Act::Join(arguments)) => join(config, arguments),
        None => serve(config),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("noded: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn join(config: config::Config, arguments: JoinArguments) -> anyhow::Result<()> {
    if let Some(name) = arguments.name.filter(|name| *name != config.node) {
        anyhow::bail!(
            "the configuration names this node \"{}\", not \"{name}\": set node = \"{name}\" there first",
            config.node
        );
    }
    let token = join::read_token(&arguments.token_file)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    let said = runtime.block_on(join::join(&config, &arguments.controller, &token))?;
    eprintln!("noded: {said}");
    Ok(())
}

fn serve(config: config::Config) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log)?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    // One thread: the work is small and its order matters; what blocks has threads of its own.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    runtime.block_on(run::run(config))
}
