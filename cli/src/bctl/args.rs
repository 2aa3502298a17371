//! The flags and subcommands of `bctl`, defined once.

use super::events::EventsArgs;
use super::gpus::GpuAct;
use super::holds::args::{DrainArgs, HoldsArgs, ResumeArgs};
use super::reservations::args::{ExtendArgs, ReservationAct, ReserveArgs};
use super::sinks::SinkAct;
use crate::up::{Down, Up};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Operate a cluster.
#[derive(Parser, Debug)]
#[command(
    name = "bctl",
    version,
    about = "Operate a cluster: nodes, jobs, health, and a whole cluster on this machine",
    subcommand_required = true,
    after_help = crate::bsub::args::EXIT_CODES
)]
pub struct BctlArgs {
    /// What to do.
    #[command(subcommand)]
    pub act: Act,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Act {
    /// Show nodes
    #[command(subcommand)]
    Node(NodeAct),
    /// Set GPUs to other modes
    #[command(subcommand)]
    Gpu(GpuAct),
    /// Let nodes, GPUs or parts of GPUs take no new work; what runs there goes on
    Drain(DrainArgs),
    /// Let them take work again
    Resume(ResumeArgs),
    /// List what takes no new work, and why
    Holds(HoldsArgs),
    /// Keep pending jobs from starting
    Hold(JobsArgs),
    /// Let held jobs start
    Release(JobsArgs),
    /// Send jobs back to the queue, to run again from the beginning
    Requeue(JobsArgs),
    /// Book capacity for a time of one's own choosing
    Reserve(Box<ReserveArgs>),
    /// Show and cancel reservations
    #[command(subcommand)]
    Reservation(ReservationAct),
    /// Give a job or a reservation more time, if the book is free
    Extend(ExtendArgs),
    /// Show tenants, and say who is in which
    #[command(subcommand)]
    Tenant(TenantAct),
    /// Show and set what tenants may have in use
    #[command(subcommand)]
    Quota(QuotaAct),
    /// Check the controller's health (exit code 0 when all is well, 1 when not)
    Check(CheckArgs),
    /// Check every invariant against what the database holds (exit code 0 when all hold, 1 when not)
    Audit(AuditArgs),
    /// Show what happened, and with --follow what happens
    Events(EventsArgs),
    /// Have events sent to webhooks
    #[command(subcommand)]
    Sink(SinkAct),
    /// Start a cluster on this machine
    Up(Up),
    /// Stop the cluster that `bctl up` started
    Down(Down),
    /// Print a shell's completion script for all commands
    Completions(CompletionsArgs),
}

/// Showing nodes, letting them in, and giving them up.
#[derive(Subcommand, Debug)]
pub enum NodeAct {
    /// List the nodes
    List(NodeListArgs),
    /// Show one node in full
    Show(NodeShowArgs),
    /// Give a node up whose machine is gone: its jobs end there, and run again elsewhere if they may
    Lost(NodeLostArgs),
    /// Print a token that one machine may join with, once (operators)
    Token(NodeTokenArgs),
    /// List nodes' certificates
    Certificates(NodeListArgs),
    /// Revoke a node's certificates and close its session; what runs there goes on (operators)
    Revoke(NodeShowArgs),
}

/// `bctl node list` and `certificates`
#[derive(Args, Debug)]
pub struct NodeListArgs {
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

/// `bctl node token`
#[derive(Args, Debug)]
pub struct NodeTokenArgs {
    /// The only node that may join with it; without it, any whose name no node has had
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// How long it is good for, at most 7d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
    pub ttl: std::time::Duration,
    /// Print it as JSON, with its end
    #[arg(long)]
    pub json: bool,
}

/// `bctl node show` and `revoke`
#[derive(Args, Debug)]
pub struct NodeShowArgs {
    /// The node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// `bctl node lost`
#[derive(Args, Debug)]
pub struct NodeLostArgs {
    /// The node
    #[arg(value_name = "NODE")]
    pub node: String,
    /// How it is known that nothing runs there any more; shown with each job that this ends
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// Print the node as JSON
    #[arg(long)]
    pub json: bool,
}

/// `bctl hold`, `release`, `requeue`
#[derive(Args, Debug)]
pub struct JobsArgs {
    /// Jobs: 12, a task of an array, 12_3, or several, 12_[1-5,8]
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// Say on stderr what became of each job
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// Tenants, and who is in which.
#[derive(Subcommand, Debug)]
pub enum TenantAct {
    /// List tenants: all for operators, one's own for others
    List(TenantListArgs),
    /// Show one tenant
    Show(TenantArgs),
    /// Make a tenant (operators)
    Add(TenantArgs),
    /// Move users into a tenant (operators)
    AddUser(TenantUsersArgs),
    /// Move users out of a tenant, to tenant default (operators)
    RemoveUser(TenantUsersArgs),
}

/// `bctl tenant list`
#[derive(Args, Debug)]
pub struct TenantListArgs {
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

/// `bctl tenant show` and `add`
#[derive(Args, Debug)]
pub struct TenantArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    pub tenant: String,
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// `bctl tenant add-user` and `remove-user`
#[derive(Args, Debug)]
pub struct TenantUsersArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    pub tenant: String,
    /// The users
    #[arg(value_name = "USER", required = true)]
    pub users: Vec<String>,
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// Quotas.
#[derive(Subcommand, Debug)]
pub enum QuotaAct {
    /// List quotas: every tenant's for operators, one's own for others
    List(QuotaListArgs),
    /// Show a tenant's quota
    Show(QuotaShowArgs),
    /// Set limits of a tenant, or take them away (operators)
    Set(QuotaSetArgs),
}

/// `bctl quota list`
#[derive(Args, Debug)]
pub struct QuotaListArgs {
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

/// `bctl quota show`
#[derive(Args, Debug)]
pub struct QuotaShowArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    pub tenant: String,
    /// Leave the titles out
    #[arg(long)]
    pub noheader: bool,
    /// Print JSON as the controller gives it
    #[arg(long, conflicts_with = "noheader")]
    pub json: bool,
}

/// `bctl quota set`
#[derive(Args, Debug)]
pub struct QuotaSetArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    pub tenant: String,
    /// Limits, such as gpus=8, gpus:a100=2.5, mem=64G, jobs=none: of jobs, cpus, mem, disk, gpus, gpus:MODEL and atoms
    #[arg(value_name = "RESOURCE=AMOUNT", required = true)]
    pub limits: Vec<String>,
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// `bctl check`
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// `bctl audit`
#[derive(Args, Debug)]
pub struct AuditArgs {
    /// Only these invariants, by name
    #[arg(value_name = "INVARIANT")]
    pub invariants: Vec<String>,
    /// Print JSON as the controller gives it
    #[arg(long)]
    pub json: bool,
}

/// `bctl completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Shells that there are completions for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash 4.2 or later
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}
