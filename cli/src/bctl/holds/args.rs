//! The flags of `bctl drain`, `resume` and `holds`.

use clap::Args;
use proto::HoldKind;
use proto::duration::{Limit, parse_limit};

/// `bctl drain`
#[derive(Args, Debug, Clone)]
pub struct DrainArgs {
    /// Nodes, GPUs or parts of GPUs: node1, node1/0, GPU-…, node1/0/mig:1g.10gb@3, node1/0/slot:2/8
    #[arg(value_name = "TARGET", required = true)]
    pub targets: Vec<String>,
    /// Why; shown to everybody who looks
    #[arg(short = 'r', long, value_name = "TEXT", required = true)]
    pub reason: String,
    /// From when on: now+2hours, 16:00, tomorrow, 2026-12-01T08:00:00 (local time), or with a zone (…Z); otherwise now
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// For how long: minutes, H:M:S, D-H; otherwise until it is lifted
    #[arg(long = "for", value_name = "TIME", value_parser = parse_limit)]
    pub for_: Option<Limit>,
    /// What kind of hold: drain, cordon, taint, quarantine or maintenance
    #[arg(long, value_name = "KIND", default_value = "drain", value_parser = kind, hide_default_value = true)]
    pub kind: HoldKind,
    /// On whose behalf, and who may lift it; otherwise one's own
    #[arg(long, value_name = "NAME")]
    pub owner: Option<String>,
    /// Show what it would touch, and change nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(short = 'y', long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Make this request once, however often it is sent
    #[arg(long, value_name = "KEY", value_parser = crate::bsub::args::key)]
    pub idempotency_key: Option<String>,
    /// Print the holds as JSON, or with --dry-run what they would touch
    #[arg(long)]
    pub json: bool,
}

/// `bctl resume`
#[derive(Args, Debug, Clone)]
pub struct ResumeArgs {
    /// What is held, as it was named to `bctl drain`
    #[arg(value_name = "TARGET", required = true)]
    pub targets: Vec<String>,
    /// Lift what this owner holds, not one's own
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub owner: Option<String>,
    /// Lift what others hold, too, not only one's own
    #[arg(long)]
    pub all: bool,
    /// Lift what has not begun, too
    #[arg(long)]
    pub planned: bool,
    /// Make this request once, however often it is sent
    #[arg(long, value_name = "KEY", value_parser = crate::bsub::args::key)]
    pub idempotency_key: Option<String>,
    /// Print the holds that were lifted as JSON
    #[arg(long)]
    pub json: bool,
}

/// `bctl holds`
#[derive(Args, Debug)]
pub struct HoldsArgs {
    /// Only what keeps this node, GPU or part of a GPU from work
    #[arg(value_name = "TARGET")]
    pub target: Option<String>,
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

fn kind(word: &str) -> Result<HoldKind, String> {
    let kind: HoldKind = word.parse().map_err(|e: proto::hold_kind::UnknownHoldKind| e.to_string())?;
    if kind.is_for_people() {
        return Ok(kind);
    }
    Err(format!("a hold of kind {kind} is the controller's own finding"))
}
