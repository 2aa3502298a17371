//! Waiting for something to become so: polled, with a deadline, and a panic that says what did not happen.

use std::time::{Duration, Instant};

/// Between two looks: short beside what tests wait for, long beside what a look costs.
const LOOK_EVERY: Duration = Duration::from_millis(15);
/// For what takes a moment, on a machine that does other things as well.
pub const SOON: Duration = Duration::from_secs(60);

/// Looks until there is something to return.
///
/// # Panics
/// After `within`, naming `what`.
#[track_caller]
pub fn until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < within, "{what}: not within {} s", within.as_secs());
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Looks until it is so; false after `within`.
pub fn becomes(within: Duration, mut look: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if look() {
            return true;
        }
        if began.elapsed() >= within {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
