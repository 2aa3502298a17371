//! An interpreter for the benchmark's latency script: prints the wall clock, in nanoseconds, first thing.
//!
//! As the script's interpreter it is the job's first instruction; a shell would add its own start.

fn main() {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one timespec of our own to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    println!("{}", i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec));
}
