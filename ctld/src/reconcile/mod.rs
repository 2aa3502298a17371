//! Reconcilers: told nothing about what changed, they read the truth, decide with the core, write, and may run twice.

pub mod audit;
pub mod holds;
pub mod liveness;
pub mod modes;
pub mod planner;
pub mod reservations;
pub mod retention;
pub mod sinks;
