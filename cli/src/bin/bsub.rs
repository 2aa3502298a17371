//! bsub.
fn main() {}
