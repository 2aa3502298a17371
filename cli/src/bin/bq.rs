//! bq.
fn main() {}
