//! bcancel.
fn main() {}
