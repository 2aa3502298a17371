//! The controller's rules, pure: what a submission must satisfy, which transitions are legal, how an attempt's end is read,
//! what a GPU can be divided in, how much of what is booked when, whose quota holds what, and the planner.
//!
//! No clock, I/O, async, SQL, log or randomness: time and seeds come in as arguments, reasons go out as values. What is
//! decided here is recorded by `ctld`'s store, whose constraints refuse the same impossibilities.

pub mod admission;
pub mod atom;
pub mod gpu_modes;
pub mod holds;
pub mod lifecycle;
pub mod liveness;
pub mod mig;
pub mod mode_change;
pub mod plan;
pub mod quota;
pub mod recurrence;
pub mod span;
pub mod timeline;

pub use proto::gpu_share;
