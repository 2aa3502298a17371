//! `ctld`: the Better Compute controller.

use anyhow::Context;
use clap::Parser;
use ctld::config::{CONFIG_PATH, Config};
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// The Better Compute controller: queues jobs, books GPUs, tells nodes what to run.
#[derive(Debug, Parser)]
#[command(name = "ctld", version)]
struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = CONFIG_PATH)]
    config: PathBuf,
    /// Check the configuration, say what is wrong with it, and do nothing.
    #[arg(long)]
    check_config: bool,
    /// Log as JSON lines instead of text.
    #[arg(long)]
    log_json: bool,
}

fn main() -> ExitCode {
    match start(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ctld: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: Args) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    if args.check_config {
        return Ok(());
    }
    let filter =
        EnvFilter::try_new(&config.log).with_context(|| format!("log = \"{}\" is no filter", config.log))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if args.log_json {
        log.json().init()
    } else {
        log.with_ansi(false).init()
    }
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?
        .block_on(ctld::run::run(config))
}
