//! bctl.
fn main() {}
