//! `bench [--quick] [--lock] [NAME...]`: measures the product, one JSON line a figure on stdout, progress on stderr.
//!
//! Each benchmark has a fresh cluster of its own (durability on, four nodes of 16 declared CPUs and two declared GPUs), the release
//! programs that are beside this one, and jobs of an unprivileged user. What is measured, and with which load, follows the
//! scripts that measured Slurm, so that the figures stand beside each other. `quota` and `book` have a database alone. Every line has the share of the machine that others used
//! meanwhile (`foreign_cpu`); `--lock` waits for the machine's measuring lock first.

mod array;
mod book;
mod crash;
mod database;
mod e2e;
mod figures;
mod foreign;
mod latency;
mod load;
mod queue;
mod quota;
mod restart;
mod statements;
mod submit;

use figures::Report;
use nix::fcntl::{Flock, FlockArg};
use std::process::ExitCode;

/// The lock that every measurement on this machine takes.
const LOCK: &str = "/tmp/cpu.lock";

type Benchmark = fn(&mut Report);

const BENCHMARKS: [(&str, Benchmark, &str); 12] = [
    ("submit", submit::processes, "submissions a second, a process each"),
    ("submit-many", submit::one_client, "submissions a second through one client that sends many"),
    ("latency", latency::run, "submit to first instruction and to completion, idle cluster"),
    ("e2e", e2e::run, "first submission to last completion of many short jobs"),
    ("queue", queue::run, "listing and cancelling with 10,000 pending, and the memory for it"),
    ("array", array::run, "submitting arrays of 10,000 and 1,000,000"),
    ("restart", restart::run, "controller restart with 10,000 pending"),
    ("killloss", crash::run, "kill -9 of controller and database while clients submit"),
    (
        "statements",
        statements::run,
        "where the database's time goes while many short jobs run (not among all)",
    ),
    ("quota", quota::run, "reservations a second against one tenant's quota, and what they wait"),
    ("book", book::run, "bookings with 10,000 to 1,000,000 live ones there"),
    ("process", submit::floor, "what a command costs without the controller"),
];

fn main() -> ExitCode {
    let (mut quick, mut lock, mut names) = (false, false, Vec::new());
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => quick = true,
            "--lock" => lock = true,
            "-h" | "--help" => {
                usage();
                return ExitCode::SUCCESS;
            }
            name if BENCHMARKS.iter().any(|(known, ..)| *known == name) => names.push(name.to_owned()),
            other => {
                eprintln!("bench: there is no benchmark or option {other:?}");
                usage();
                return ExitCode::from(2);
            }
        }
    }
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("bench: node daemons need root: run it as root or with sudo");
        return ExitCode::FAILURE;
    }
    let _lock = lock.then(|| {
        eprintln!("bench: waiting for {LOCK}");
        let file = std::fs::File::create(LOCK).expect("/tmp can be written");
        Flock::lock(file, FlockArg::LockExclusive).expect("a lock can be waited for")
    });
    let mut report = Report::new(quick);
    let wanted = |name: &str| match names.as_slice() {
        [] => name != "statements",
        names => names.iter().any(|wanted| wanted == name),
    };
    for (name, run, _) in BENCHMARKS.iter().filter(|(name, ..)| wanted(name)) {
        eprintln!("bench: {name}");
        run(&mut report);
    }
    ExitCode::SUCCESS
}

fn usage() {
    eprintln!("usage: bench [--quick] [--lock] [NAME...]");
    for (name, _, about) in BENCHMARKS {
        eprintln!("  {name:<12} {about}");
    }
}
