//! The flags of `bctl reserve`, `reservation` and `extend`.

use clap::{Args, Subcommand};
use proto::api::{Repeat, RepeatEvery};
use proto::duration::{Limit, parse_limit};
use proto::gres::{Gpus, parse_gpus};
use proto::memory::Memory;

/// `bctl reserve`
#[derive(Args, Debug, Clone)]
pub struct ReserveArgs {
    /// What jobs name it by
    #[arg(value_name = "NAME")]
    pub name: String,
    /// When it begins: now+2hours, 16:00, tomorrow, 2026-12-01T08:00:00 (local time), or with a zone (…Z); otherwise now
    #[arg(short = 'b', long, value_name = "TIME", help_heading = "When")]
    pub begin: Option<String>,
    /// How long it lasts: minutes, H:M:S, D-H
    #[arg(short = 't', long, value_name = "TIME", value_parser = parse_limit, required_unless_present = "end",
          conflicts_with = "end", help_heading = "When")]
    pub duration: Option<Limit>,
    /// When it ends, as --begin
    #[arg(long, value_name = "TIME", help_heading = "When")]
    pub end: Option<String>,
    /// Again, at the same time of day (UTC): day:5, weekday:10 or week:4, with how many in all
    #[arg(long, value_name = "EVERY:TIMES", value_parser = repeat, help_heading = "When")]
    pub repeat: Option<Repeat>,
    /// How many nodes, each with all of the following
    #[arg(short = 'N', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "What")]
    pub nodes: Option<u32>,
    /// These nodes: node1,node2 or node[1-4]
    #[arg(short = 'w', long, value_name = "NODES", help_heading = "What")]
    pub nodelist: Option<String>,
    /// CPUs on each node
    #[arg(short = 'c', long, value_name = "N", default_value_t = 0, help_heading = "What")]
    pub cpus: u32,
    /// Memory on each node
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "What")]
    pub mem: Option<u64>,
    /// Local disk on each node
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "What")]
    pub tmp: Option<u64>,
    /// Everything the nodes have, and nobody else on them
    #[arg(long, help_heading = "What")]
    pub exclusive: bool,
    /// Whole GPUs on each node
    #[arg(short = 'G', long, value_name = "[MODEL:]N", value_parser = parse_gpus, help_heading = "What")]
    pub gpus: Option<Gpus>,
    /// A GPU or a part of one: GPU-… or node1/0, alone or with a part such as node1/0/mig:1g.10gb@3; may be repeated
    #[arg(long, value_name = "GPU[/PART]", help_heading = "What")]
    pub atom: Vec<String>,
    /// In this pool
    #[arg(short = 'p', long, visible_alias = "partition", value_name = "POOL", help_heading = "What")]
    pub pool: Option<String>,
    /// Who may run jobs in it besides its owner, with commas between
    #[arg(
        short = 'u',
        long = "user",
        value_name = "USERS",
        value_delimiter = ',',
        help_heading = "For whom"
    )]
    pub users: Vec<String>,
    /// Whose jobs under these accounts may run in it
    #[arg(
        short = 'A',
        long = "account",
        value_name = "ACCOUNTS",
        value_delimiter = ',',
        help_heading = "For whom"
    )]
    pub accounts: Vec<String>,
    /// Reserve for this user (operators)
    #[arg(long, value_name = "USER", help_heading = "For whom")]
    pub owner: Option<String>,
    /// Make this request once, however often it is sent
    #[arg(long, value_name = "KEY", value_parser = crate::bsub::args::key, help_heading = "Output")]
    pub idempotency_key: Option<String>,
    /// Print the reservations as JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// `bctl reservation`
#[derive(Subcommand, Debug)]
pub enum ReservationAct {
    /// List reservations
    List(ListArgs),
    /// Show the reservations of a name in full
    Show(ShowArgs),
    /// Cancel reservations: what runs in them goes on, what they had booked is free
    Cancel(CancelArgs),
}

/// `bctl reservation list`
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Those that have ended too
    #[arg(short = 'a', long)]
    pub all: bool,
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

/// `bctl reservation show`
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// `bctl reservation cancel`
#[derive(Args, Debug)]
pub struct CancelArgs {
    /// Their names; of a series every one that has not ended is cancelled
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// Print the reservations as JSON
    #[arg(long)]
    pub json: bool,
}

/// `bctl extend`
#[derive(Args, Debug)]
pub struct ExtendArgs {
    /// A job's id, or a reservation's name
    #[arg(value_name = "JOB|NAME")]
    pub what: String,
    /// So much longer: minutes, H:M:S, D-H
    #[arg(long, value_name = "TIME", value_parser = parse_limit, required_unless_present = "to", conflicts_with = "to")]
    pub by: Option<Limit>,
    /// Until then: now+2hours, 16:00, 2026-12-01T08:00:00 (local time), or with a zone (…Z)
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// Make this request once, however often it is sent
    #[arg(long, value_name = "KEY", value_parser = crate::bsub::args::key)]
    pub idempotency_key: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    match proto::memory::parse(text) {
        Ok(Memory::Mib(mib)) => Ok(mib),
        Ok(Memory::All) => {
            Err("expected an amount such as 16G; for all a node has write --exclusive".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn repeat(text: &str) -> Result<Repeat, String> {
    let form = || {
        format!("{text:?} is no repetition: expected day:TIMES, weekday:TIMES or week:TIMES, such as week:4")
    };
    let (every, times) = text.split_once(':').ok_or_else(form)?;
    let every = match every {
        "day" | "daily" => RepeatEvery::Day,
        "weekday" | "weekdays" => RepeatEvery::Weekday,
        "week" | "weekly" => RepeatEvery::Week,
        _ => return Err(form()),
    };
    let times = times.parse().ok().filter(|times| *times > 0).ok_or_else(form)?;
    Ok(Repeat { every, times })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_names_its_interval_and_how_many() {
        assert_eq!(repeat("weekly:4"), Ok(Repeat { every: RepeatEvery::Week, times: 4 }));
        for text in ["", "week", "week:", "week:0", "week:-1", "month:2", "4"] {
            assert!(repeat(text).unwrap_err().starts_with(&format!("{text:?} is no repetition")), "{text}");
        }
    }

    #[test]
    fn nothing_stands_for_all_of_a_node_by_accident() {
        assert!(size("0").unwrap_err().contains("--exclusive"));
        assert_eq!(size("2G"), Ok(2048));
    }
}
