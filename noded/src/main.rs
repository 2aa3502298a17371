//! Node daemon.
fn main() {}
