//! The flags of `bsub`, defined once: the command line, `#BATCH` and `#SBATCH` lines and the environment all read these.
//!
//! [`Options`] may come from any of them, [`Delivery`] from the command line only. What was typed stays what was typed here;
//! what it comes to is worked out in `shape` and `submission`. A repeated option counts as written last, as in Slurm, but
//! `--export`, whose values add up.

use super::foreign;
use clap::{Args, CommandFactory, Parser, ValueEnum};
use proto::IndexSet;
use proto::api::WarnSignal;
use proto::duration::{Limit, parse_limit};
use proto::gres::{Gpus, parse_gpus, parse_gres};
use proto::memory::{Memory, MemoryError};
use std::ffi::OsString;
use std::path::PathBuf;

/// Submit a script to run as a batch job.
#[derive(Parser, Debug)]
#[command(
    name = "bsub",
    version,
    about = "Submit a batch job",
    long_about = "Submit a batch job: a script file, a script on standard input, or one command with --wrap.\n\n\
                  The script's leading comment lines may hold options: #BATCH --time=1:00:00 (or, as they are, #SBATCH lines). \
                  The command line wins over the environment (BSUB_TIME, then SBATCH_TIMELIMIT), the environment over the script.",
    override_usage = "bsub [OPTIONS] SCRIPT [ARGS]...\n       bsub [OPTIONS] --wrap COMMAND\n       bsub [OPTIONS] < SCRIPT",
    args_override_self = true,
    after_help = EXIT_CODES
)]
pub struct BsubArgs {
    /// The job's options.
    #[command(flatten)]
    pub options: Options,
    /// How this one submission is made.
    #[command(flatten)]
    pub delivery: Delivery,
    /// The script, then its arguments; "-" or nothing reads the script from standard input
    #[arg(value_name = "SCRIPT [ARGS]", trailing_var_arg = true)]
    pub script: Vec<OsString>,
}

/// What every command's help ends with.
pub const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 usage, 3 controller not reached, 4 not found, 5 not permitted, \
                              6 conflict or quota, 7 outcome unknown.";

/// The full definition: with the options that are known only to be refused by name.
pub fn parser() -> clap::Command {
    foreign::add(BsubArgs::command())
}

/// The definition that people see.
pub fn command() -> clap::Command {
    BsubArgs::command()
}

/// Options of the job, from the command line, the environment or the script.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The job's name; the script's file name if not given
    #[arg(short = 'J', long, value_name = "NAME", help_heading = "The job")]
    pub job_name: Option<String>,
    /// The pool to run in; `binfo` lists them
    #[arg(short = 'p', long, alias = "partition", value_name = "POOL", help_heading = "The job")]
    pub pool: Option<String>,
    /// The account to charge
    #[arg(short = 'A', long, value_name = "ACCOUNT", help_heading = "The job")]
    pub account: Option<String>,
    /// A quality of service; "normal" is the only one so far
    #[arg(short = 'q', long, value_name = "QOS", help_heading = "The job")]
    pub qos: Option<String>,
    /// Make an array: indices such as 0-9, 1,3,5 or 0-99:10; %N lets at most N of its tasks run at once
    #[arg(short = 'a', long, value_name = "INDICES[%N]", value_parser = array, allow_hyphen_values = true, help_heading = "The job")]
    pub array: Option<Array>,
    /// Free text kept with the job
    #[arg(long, value_name = "TEXT", help_heading = "The job")]
    pub comment: Option<String>,
    /// Lower the priority by N (100 if N is left out); raising it takes an operator
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "100",
          allow_negative_numbers = true, help_heading = "The job")]
    pub nice: Option<i32>,

    /// CPUs for each task
    #[arg(short = 'c', long, value_name = "N", value_parser = count, allow_hyphen_values = true, help_heading = "Resources")]
    pub cpus_per_task: Option<u32>,
    /// How many tasks the script means to start, over all nodes; each has its --cpus-per-task
    #[arg(short = 'n', long, value_name = "N", value_parser = count, allow_hyphen_values = true, help_heading = "Resources")]
    pub ntasks: Option<u32>,
    /// Tasks on each node
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true, help_heading = "Resources")]
    pub ntasks_per_node: Option<u32>,
    /// How many nodes; the script runs on the first
    #[arg(short = 'N', long, value_name = "N", value_parser = nodes, help_heading = "Resources")]
    pub nodes: Option<u32>,
    /// Memory on each node: a number of MiB, or with K, M, G or T; fractions are rounded up to a MiB; 0 is all of the node's
    #[arg(long, value_name = "SIZE", value_parser = proto::memory::parse, allow_hyphen_values = true, help_heading = "Resources")]
    pub mem: Option<Memory>,
    /// Memory for each CPU, instead of --mem
    #[arg(long, value_name = "SIZE", value_parser = some_memory, allow_hyphen_values = true, help_heading = "Resources")]
    pub mem_per_cpu: Option<u64>,
    /// Memory for each GPU, instead of --mem
    #[arg(long, value_name = "SIZE", value_parser = some_memory, allow_hyphen_values = true, help_heading = "Resources")]
    pub mem_per_gpu: Option<u64>,
    /// Local disk on each node: a number of MiB, or with K, M, G or T; booked, not fenced
    #[arg(long, value_name = "SIZE", value_parser = disk, allow_hyphen_values = true, help_heading = "Resources")]
    pub tmp: Option<u64>,
    /// CPUs for each GPU, instead of --cpus-per-task
    #[arg(long, value_name = "N", value_parser = count, allow_hyphen_values = true, help_heading = "Resources")]
    pub cpus_per_gpu: Option<u32>,
    /// GPUs in all, divided evenly over the nodes; MODEL as `binfo` shows it
    #[arg(short = 'G', long, value_name = "[MODEL:]N", value_parser = parse_gpus, help_heading = "Resources")]
    pub gpus: Option<Gpus>,
    /// GPUs on each node
    #[arg(long, value_name = "[MODEL:]N", value_parser = parse_gpus, help_heading = "Resources")]
    pub gpus_per_node: Option<Gpus>,
    /// GPUs on each node, in Slurm's form: gpu:2 or gpu:a100-80gb:2
    #[arg(long, value_name = "gpu[:MODEL]:N", value_parser = parse_gres, help_heading = "Resources")]
    pub gres: Option<Gpus>,
    /// Take whole nodes, with all their CPUs, memory and GPUs
    #[arg(long, value_name = "user", num_args = 0..=1, require_equals = true, default_missing_value = "",
          value_parser = exclusive, help_heading = "Resources")]
    pub exclusive: Option<()>,

    /// The time limit: MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]]; 0 or UNLIMITED is none
    #[arg(short = 't', long, value_name = "TIME", value_parser = parse_limit, allow_hyphen_values = true, help_heading = "Time")]
    pub time: Option<Limit>,
    /// Do not start before: now+1hour, 16:00, tomorrow, 2026-12-01T08:00:00 (local time), or with a zone (…Z)
    #[arg(short = 'b', long, value_name = "TIME", help_heading = "Time")]
    pub begin: Option<String>,
    /// Run in this reservation, which admits its owner and those it names; see `bctl reservation list`
    #[arg(long, value_name = "NAME", help_heading = "Time")]
    pub reservation: Option<String>,
    /// Submit held; `bctl release` lets it go
    #[arg(short = 'H', long, help_heading = "Time")]
    pub hold: bool,
    /// Send SIGNAL to the job SECONDS (60) before its time limit; with B: to the script only
    #[arg(long, value_name = "[B:]SIGNAL[@SECONDS]", value_parser = crate::signals::parse_warn, help_heading = "Time")]
    pub signal: Option<WarnSignal>,
    /// Start the job again from the beginning if its node fails (the default)
    #[arg(long, overrides_with = "no_requeue", help_heading = "Time")]
    pub requeue: bool,
    /// Never start the job again by itself
    #[arg(long, overrides_with = "requeue", help_heading = "Time")]
    pub no_requeue: bool,

    /// The output file; %j is the job's id, %x its name, %A_%a array and index, %u the user, %N the node
    #[arg(short = 'o', long, value_name = "PATTERN", value_parser = pattern, help_heading = "Files and environment")]
    pub output: Option<String>,
    /// The error file; joins the output if not given
    #[arg(short = 'e', long, value_name = "PATTERN", value_parser = pattern, help_heading = "Files and environment")]
    pub error: Option<String>,
    /// The file that is the script's standard input; /dev/null if not given
    #[arg(short = 'i', long, value_name = "PATTERN", value_parser = pattern, help_heading = "Files and environment")]
    pub input: Option<String>,
    /// Empty an output file that is there, or add to it
    #[arg(long, value_name = "MODE", value_enum, ignore_case = true, help_heading = "Files and environment")]
    pub open_mode: Option<OpenMode>,
    /// The working directory; where bsub is called if not given
    #[arg(short = 'D', long, value_name = "DIR", help_heading = "Files and environment")]
    pub chdir: Option<PathBuf>,
    /// The environment: ALL (the default), NONE, or names and NAME=VALUE, with ALL added to the caller's; given again, they add up
    #[arg(long, value_name = "LIST", action = clap::ArgAction::Append, help_heading = "Files and environment")]
    pub export: Vec<String>,
    /// Take the environment from a file of NAME=VALUE entries, each ended by a NUL
    #[arg(long, value_name = "FILE", help_heading = "Files and environment")]
    pub export_file: Option<PathBuf>,
    /// Which of the caller's soft limits the job gets: ALL (the default), NONE, or names such as NOFILE,CORE
    #[arg(long, value_name = "LIMITS", num_args = 0..=1, require_equals = true, default_missing_value = "ALL",
          help_heading = "Files and environment")]
    pub propagate: Option<String>,

    /// Wait for the job's end, and exit with its status (128 + N for signal N; own failures 240 + code)
    #[arg(short = 'W', long, help_heading = "Output")]
    pub wait: bool,
    /// Print the id alone
    #[arg(long, help_heading = "Output")]
    pub parsable: bool,
    /// Print nothing but errors
    #[arg(short = 'Q', long, help_heading = "Output")]
    pub quiet: bool,
    /// Say on stderr what is being done
    #[arg(short = 'v', long, action = clap::ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,
    /// Taken for scripts' sake, with a warning: no mail is sent yet
    #[arg(long, value_name = "TYPES", help_heading = "Output")]
    pub mail_type: Option<String>,
    /// Taken for scripts' sake, with a warning: no mail is sent yet
    #[arg(long, value_name = "USER", help_heading = "Output")]
    pub mail_user: Option<String>,
}

/// What only the command line says.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct Delivery {
    /// Run this command line with /bin/sh instead of a script
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true, help_heading = "The job")]
    pub wrap: Option<String>,
    /// Print one JSON document, also for an error
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Name the submission: the same key and job give the same id for ever; made anew if not given
    #[arg(long, value_name = "KEY", value_parser = key, help_heading = "Output")]
    pub idempotency_key: Option<String>,
}

/// What `--array` asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The indices.
    pub indices: IndexSet,
    /// The most at once.
    pub throttle: Option<u32>,
}

/// What `--open-mode` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OpenMode {
    /// Empty the file first
    Truncate,
    /// Add at its end
    Append,
}

/// The most of anything that is counted: more than any cluster has.
const COUNT_MAX: u32 = 1_000_000;

fn count(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if (1..=COUNT_MAX).contains(&n) && text.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
        _ => Err(format!("{text:?} is not a number from 1 to {COUNT_MAX}")),
    }
}

fn array(text: &str) -> Result<Array, String> {
    let (indices, throttle) = proto::index_set::parse_array(text).map_err(|e| format!("{text:?}: {e}"))?;
    Ok(Array { indices, throttle })
}

fn nodes(text: &str) -> Result<u32, String> {
    match text.split_once('-') {
        None => count(text),
        Some((least, most)) => match (count(least)?, count(most)?) {
            (least, most) if least == most => Ok(least),
            (least, _) => Err(format!("a range of nodes is not supported yet: write --nodes={least}")),
        },
    }
}

fn some_memory(text: &str) -> Result<u64, String> {
    match proto::memory::parse(text).map_err(|e| e.to_string())? {
        Memory::Mib(mib) => Ok(mib),
        Memory::All => Err("0 is no memory at all: write --mem=0 for all of the node's".to_owned()),
    }
}

/// In Slurm's form, where 0 is none.
fn disk(text: &str) -> Result<u64, String> {
    match proto::memory::parse(text) {
        Ok(Memory::All) => Ok(0),
        Ok(Memory::Mib(mib)) => Ok(mib),
        Err(MemoryError::TooMuch(_)) => Err(format!("{text:?} is more than a PiB")),
        Err(MemoryError::Form(_) | MemoryError::Zero(_)) => Err(format!(
            "{text:?} is not an amount of disk: expected a number of MiB, or one with K, M, G or T, such as 500M or 10G; 0 is none"
        )),
    }
}

fn exclusive(text: &str) -> Result<(), String> {
    match text {
        "" | "exclusive" => Ok(()),
        other => Err(format!("{other:?} is not supported yet: write --exclusive for whole nodes")),
    }
}

fn pattern(text: &str) -> Result<String, String> {
    proto::pattern::check(text).map_err(|e| e.to_string())?;
    Ok(text.to_owned())
}

/// An idempotency key.
pub fn key(text: &str) -> Result<String, String> {
    match text.len() {
        1..=200 if !text.chars().any(char::is_control) => Ok(text.to_owned()),
        _ => Err("expected 1 to 200 bytes without control characters, such as a UUID".to_owned()),
    }
}
