//! The node daemon on real control groups, with real processes and users, against a fake controller that speaks the real protocol.
//!
//! Needs root: a test that cannot have it fails and says so. Each test has control groups, a state directory and a user database of its own (in a
//! private mount namespace), and leaves nothing behind.

mod bench;
mod crashes;
mod endings;
mod fake_ctld;
mod identity;
mod launching;
mod limits;
mod session;
mod site;
mod time_limits;
mod v1;
