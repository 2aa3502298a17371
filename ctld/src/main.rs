//! Controller.
fn main() {}
