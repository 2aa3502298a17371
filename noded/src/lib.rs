//! The node daemon, as a library so that tests can reach its parts.
//!
//! Three kinds of process come out of this one program. `noded` keeps the session with the controller, the journal and the
//! allocations' states (`run`, `keeper`, `session`, `journal`). The `launcher`, started once by `noded` and single-threaded,
//! forks a `shepherd` for each attempt. A shepherd is its job's parent: it makes the control groups, starts the script as the
//! user, enforces the time limit, reaps, and writes down the end. Once it holds its attempt's lock it depends on
//! neither of the others. What they share lies in files under the state directory: `attempt` says which.

pub mod address;
pub mod ask;
pub mod attempt;
pub mod cgroup;
pub mod clock;
pub mod config;
pub mod credentials;
pub mod dial;
pub mod environment;
pub mod frame;
pub mod gpus;
pub mod identity;
pub mod join;
pub mod journal;
pub mod keeper;
pub mod launcher;
pub mod nodelist;
pub mod notify;
pub mod renewal;
pub mod run;
pub mod session;
pub mod shepherd;
pub mod spec;
pub mod spool;
pub mod sys;
