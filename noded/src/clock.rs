//! The clocks a node may read.
//!
//! Everything that is measured or enforced uses `CLOCK_BOOTTIME`, which no administrator can set and which goes on while the machine
//! sleeps; it means something only together with the kernel's boot id. Wall time appears in two places: the line for
//! people in a job's error file, and the question whether the node's certificate is to be renewed.

use std::io;

/// Microseconds since the machine booted.
pub fn boottime_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call only writes the value passed. It fails for clocks that the kernel lacks; this one is there since 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// The kernel's id of this boot.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Seconds since 1970, as far as this machine knows: nothing but an early or late renewal may come of it.
pub fn wall_s() -> i64 {
    // SAFETY: with a null pointer the call writes nothing.
    unsafe { libc::time(std::ptr::null_mut()) }
}

/// Now, for people: `2026-11-30T19:00:00Z`.
pub fn wall_for_people() -> String {
    // SAFETY: both calls only write to the values that are passed; gmtime_r is the reentrant form.
    let tm = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut tm: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&now, &mut tm);
        tm
    };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_is_written_as_rfc_3339() {
        let text = wall_for_people();
        assert_eq!(text.len(), 20, "{text}");
        assert!(text.starts_with("20") && text.ends_with('Z') && text.as_bytes()[10] == b'T', "{text}");
    }

    #[test]
    fn the_boot_id_stays() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert!(boottime_us() > 0);
    }
}
