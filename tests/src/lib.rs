//! Whole-process tests: real daemons, a real PostgreSQL, real control groups, commands run as real users.
//!
//! A test makes a [`Cluster`], speaks to it as people do (the commands, run by a [`User`]) and looks at it through the API. What it
//! waits for it polls with a deadline ([`until`]); nothing sleeps for a fixed time. Whatever a cluster started (processes, control
//! groups, mounts, files) ends with it, also when the test panics; what a killed test run left is cleared by the next one.
//! The tests themselves are in `tests/tests/`, the benchmark is `src/bin/bench/`.

pub mod cluster;
pub mod commands;
pub mod daemon;
pub mod groups;
pub mod http;
pub mod processes;
pub mod programs;
pub mod proxy;
pub mod scratch;
pub mod submissions;
pub mod template;
pub mod until;
pub mod users;

pub use cluster::{Cluster, ClusterOptions, NodeOptions};
pub use commands::Ran;
pub use http::{Connection, Refusal};
pub use scratch::Scratch;
pub use submissions::small_job;
pub use until::{SOON, until};
pub use users::User;
