//! The line in a job's error file that says who ended it.
//!
//! Written by a process of its own, as the user, inside the job's group: a dead file system holds up that process and not the end of the job.

use super::child::become_user;
use crate::cgroup::JobGroup;
use crate::clock;
use crate::spec::AttemptSpec;
use crate::sys::{self, Forked};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

/// Writes the banner `CANCELLED by alice` as `*** JOB 12 ON n1 CANCELLED AT 2026-11-30T19:00:00Z by alice ***`. Waits for nothing.
pub fn write(spec: &AttemptSpec, node: &str, group: &JobGroup<'_>, banner: &str) {
    if banner.is_empty() {
        return;
    }
    let line = line(&spec.job, node, banner);
    // SAFETY: a shepherd has one thread. A fork that fails costs the line only.
    if let Ok(Forked::Child) = unsafe { sys::fork() } {
        let written = append(spec, group, &line);
        // SAFETY: ends the process without running anything of the shepherd's.
        unsafe { libc::_exit(i32::from(written.is_err())) }
    }
}

fn line(job: &str, node: &str, banner: &str) -> String {
    let (act, rest) = banner.split_once(' ').unwrap_or((banner, ""));
    let rest = if rest.is_empty() { String::new() } else { format!(" {rest}") };
    format!("better-compute: *** JOB {job} ON {node} {act} AT {}{rest} ***\n", clock::wall_for_people())
}

fn append(spec: &AttemptSpec, group: &JobGroup<'_>, line: &str) -> io::Result<()> {
    // The attempt's lock must not outlive the shepherd by way of this process.
    // SAFETY: every descriptor from 3 on belongs to the shepherd, whose copies these are; none is used below.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    group.enter(false).map_err(io::Error::other)?;
    become_user(spec)?;
    std::env::set_current_dir(&spec.chdir)?;
    let path = spec.error.as_deref().unwrap_or(&spec.output);
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    File::options().append(true).custom_flags(flags).open(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_goes_after_the_act() {
        let text = line("12_3", "n1", "CANCELLED by alice");
        assert!(text.starts_with("better-compute: *** JOB 12_3 ON n1 CANCELLED AT 20"), "{text}");
        assert!(text.ends_with("Z by alice ***\n"), "{text}");
    }
}
