//! Better Compute's command line: `bsub`, `bq`, `bcancel`, `binfo` and `bctl` over one library.
//!
//! Each command is a module with its flag definitions in `args.rs` (or at the top of its one file) and a `main` that the binary
//! calls. Shared below them: [`client`] speaks to the controller, [`fail`] is every way to end badly, [`frame`] turns
//! arguments into an exit status, [`out`] and [`table`] write. Data goes to stdout, everything else to stderr; a command
//! decides nothing about jobs, it asks the controller.

pub mod bcancel;
pub mod bctl;
pub mod binfo;
pub mod bq;
pub mod bsub;
pub mod client;
pub mod colour;
pub mod fail;
pub mod frame;
pub mod hostlist;
pub mod manual;
pub mod out;
pub mod signals;
pub mod table;
pub mod text;
pub mod up;
pub mod wall;

use clap::CommandFactory;

/// The flag definitions of every command, for completions, man pages and tests.
pub fn commands() -> Vec<clap::Command> {
    vec![
        bsub::args::command(),
        bq::args::BqArgs::command(),
        bcancel::BcancelArgs::command(),
        binfo::BinfoArgs::command(),
        bctl::args::BctlArgs::command(),
    ]
}
