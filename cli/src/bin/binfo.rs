//! binfo.
fn main() {}
