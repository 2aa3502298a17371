//! The `noded` program: its command line, and which of its kinds of process this one is.
//!
//! The launcher is decided first, before any thread or runtime exists: what it forks must be single-threaded.

use anyhow::Context;
use clap::Parser;
use noded::{config, launcher, run};
use std::path::PathBuf;
use std::process::ExitCode;

/// The Better Compute node daemon: runs jobs on this machine.
#[derive(Parser)]
#[command(name = "noded", version)]
struct Arguments {
    /// The configuration file
    #[arg(long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
    config: PathBuf,
    /// Read the configuration, say what is wrong with it, and stop
    #[arg(long)]
    check_config: bool,
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
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("noded: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(config: config::Config) -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log)?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    // One thread: the work is small and its order matters; what blocks has threads of its own.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")?;
    runtime.block_on(run::run(config))
}
