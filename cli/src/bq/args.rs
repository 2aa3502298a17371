//! The flags of `bq`, defined once. Slurm's `squeue` options that are not supported are refused by name.

use crate::fail::Fail;
use clap::{Arg, ArgAction, ArgMatches, Parser};

/// Show jobs.
#[derive(Parser, Debug, Default, Clone)]
#[command(
    name = "bq",
    version,
    about = "Show the queue, or a job in full",
    long_about = "Show the jobs that have not ended yet, or the jobs named in full.\n\n\
                  Filters are joined by \"and\"; a filter with several values, separated by commas, takes any of them.",
    override_usage = "bq [OPTIONS]\n       bq [--json] ID...\n       bq --why ID",
    args_override_self = true,
    disable_help_flag = true,
    after_help = crate::bsub::args::EXIT_CODES
)]
pub struct BqArgs {
    /// Show these jobs in full: 12, or a task of an array, 12_3
    #[arg(value_name = "ID", conflicts_with_all = ["why", "jobs", "states", "user", "me", "name", "pool", "nodelist",
          "account", "array", "long", "format", "sort", "parsable"])]
    pub ids: Vec<String>,
    /// Say why a job waits or how it ended, with every check that failed and its numbers
    #[arg(long, value_name = "ID")]
    pub why: Option<String>,

    /// Only these jobs: 12, 12_3, 12_[1-5]; ended ones too
    #[arg(short = 'j', long, visible_alias = "job", value_name = "IDS", help_heading = "Which jobs")]
    pub jobs: Option<String>,
    /// Only jobs in these states (pending, running, …, or Slurm's names); "all" for ended ones too
    #[arg(short = 't', long, visible_alias = "state", value_name = "STATES", value_parser = states, help_heading = "Which jobs")]
    pub states: Option<String>,
    /// Only jobs of these users
    #[arg(short = 'u', long, visible_alias = "users", value_name = "USERS", help_heading = "Which jobs")]
    pub user: Option<String>,
    /// Only my own jobs
    #[arg(long, conflicts_with = "user", help_heading = "Which jobs")]
    pub me: bool,
    /// Only jobs of these names
    #[arg(short = 'n', long, visible_alias = "names", value_name = "NAMES", help_heading = "Which jobs")]
    pub name: Option<String>,
    /// Only jobs in these pools
    #[arg(short = 'p', long, visible_aliases = ["partition", "pools"], value_name = "POOLS", help_heading = "Which jobs")]
    pub pool: Option<String>,
    /// Only jobs on these nodes
    #[arg(short = 'w', long, value_name = "NODES", help_heading = "Which jobs")]
    pub nodelist: Option<String>,
    /// Only jobs of these accounts
    #[arg(
        short = 'A',
        long,
        visible_alias = "accounts",
        value_name = "ACCOUNTS",
        help_heading = "Which jobs"
    )]
    pub account: Option<String>,
    /// One line for each task of an array that waits
    #[arg(short = 'r', long, help_heading = "Which jobs")]
    pub array: bool,

    /// Leave the titles out
    #[arg(short = 'h', long, alias = "no-header", help_heading = "How they are shown")]
    pub noheader: bool,
    /// Show the state's long name and the time limit too
    #[arg(short = 'l', long, help_heading = "How they are shown")]
    pub long: bool,
    /// Show these columns: names (id,name,state,reason; see bq(1)) or Slurm's letters ("%.18i %.9P %j")
    #[arg(
        short = 'o',
        long,
        value_name = "COLUMNS",
        conflicts_with = "long",
        help_heading = "How they are shown"
    )]
    pub format: Option<String>,
    /// Sort by these columns, names or Slurm's letters; a - before one turns it round
    #[arg(
        short = 'S',
        long,
        value_name = "COLUMNS",
        allow_hyphen_values = true,
        help_heading = "How they are shown"
    )]
    pub sort: Option<String>,
    /// Print JSON as the controller gives it; times are UTC
    #[arg(long, conflicts_with_all = ["format", "long", "sort", "noheader", "parsable"], help_heading = "How they are shown")]
    pub json: bool,
    /// Print columns separated by |, with \ | and control characters in values escaped by \; times are UTC
    #[arg(long, visible_alias = "parsable2", help_heading = "How they are shown")]
    pub parsable: bool,
    /// Show the list again whenever it changes, until interrupted
    #[arg(long, conflicts_with_all = ["ids", "why", "json"], help_heading = "How they are shown")]
    pub watch: bool,
    // -h is Slurm's "no header", so help has no short form here.
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
}

/// Slurm's options that are not supported: long, short, whether it has a value, what to do.
#[rustfmt::skip]
const FOREIGN: &[(&str, Option<char>, bool, &str)] = &[
    ("start", None, false, "planned starts come with a later version; `bq --why ID` tells what a job waits for"),
    ("iterate", Some('i'), true, "use --watch, which shows the list again whenever it changes"),
    ("Format", Some('O'), true, "use --format with names, such as -o id,name,state"),
    ("clusters", Some('M'), true, "BC_SERVER names another cluster's controller"),
    ("licenses", Some('L'), true, "leave it out"),
    ("priority", Some('P'), false, "jobs in several pools do not exist yet; leave it out"),
    ("qos", Some('q'), true, "normal is the only QOS so far; leave it out"),
    ("reservation", Some('R'), true, "leave it out"),
    ("steps", Some('s'), false, "a job is its own only step; leave it out"),
    ("yaml", None, false, "use --json"),
    ("notme", None, false, "use --user"),
    ("only-job-state", None, false, "use --format=id,state"),
];

/// The full definition: with the options that are known only to be refused by name.
pub fn parser() -> clap::Command {
    let args = FOREIGN.iter().map(|(long, short, value, _)| {
        let action = if *value { ArgAction::Set } else { ArgAction::SetTrue };
        // `--iterate=5`, `--start=x`: whatever is glued to it is refused with it.
        let arg = Arg::new(format!("foreign-{long}")).long(*long).hide(true).action(action);
        match short {
            Some(short) => arg.short(*short),
            None => arg,
        }
    });
    <BqArgs as clap::CommandFactory>::command().args(args)
}

/// Refuses what was given of those.
pub fn refuse(matches: &ArgMatches) -> Result<(), Fail> {
    let given = |(long, ..): &&(&str, Option<char>, bool, &str)| {
        matches.value_source(&format!("foreign-{long}")) == Some(clap::parser::ValueSource::CommandLine)
    };
    match FOREIGN.iter().find(given) {
        Some((long, _, _, advice)) => {
            Err(Fail::usage(format!("--{long} is not supported yet")).hint(*advice))
        }
        None => Ok(()),
    }
}

/// States by any name, made our own; `all` stays.
fn states(text: &str) -> Result<String, String> {
    if text.eq_ignore_ascii_case("all") {
        return Ok("all".to_owned());
    }
    let states = text.split(',').map(|word| word.parse::<proto::State>().map(proto::State::name));
    let mut names: Vec<&str> = states.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    // Slurm's PD is both of ours.
    let pending =
        text.split(',').any(|word| ["PD", "PENDING"].iter().any(|pd| pd.eq_ignore_ascii_case(word)));
    if pending && !names.contains(&"booked") {
        names.push("booked");
    }
    Ok(names.join(","))
}
