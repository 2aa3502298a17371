//! Recognising the server's processes and signalling them, and no others.
//!
//! A process id is only a number that another process may have by now. So a process is first held by a pidfd, which stays
//! with that one process, then recognised (its user, its program, its working directory, its arguments), and signalled
//! through the pidfd.

use super::layout::{Layout, ServerUser};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The running postmaster of one data directory.
#[derive(Debug)]
pub(super) struct Postmaster {
    process: Process,
}

impl Postmaster {
    /// The postmaster that `postmaster.pid` names, if it runs and is that data directory's.
    pub(super) fn find(layout: &Layout, user: &ServerUser) -> Option<Postmaster> {
        let text = std::fs::read_to_string(layout.pid_file()).ok()?;
        let pid_file = PidFile::parse(&text)?;
        if Path::new(pid_file.data) != layout.data {
            return None;
        }
        let process = Process::open(pid_file.pid)?;
        (process.is_of_server(layout, user) && process.is_postmaster()).then_some(Postmaster { process })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Sends a signal; a postmaster that ended meanwhile is none.
    pub(super) fn signal(&self, signal: i32) {
        self.process.signal(signal);
    }

    pub(super) fn gone(&self) -> bool {
        self.process.gone()
    }

    /// Waits for its end; false when it is still there after `limit`.
    pub(super) async fn gone_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !self.gone() {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        true
    }
}

/// The server's processes (a postmaster or its backends) that live in the data directory, found by looking at every
/// process: what a killed postmaster leaves behind.
pub(super) fn processes_in(layout: &Layout, user: &ServerUser) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.metadata().is_ok_and(|found| found.uid() == user.uid.as_raw()))
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .filter_map(Process::open)
        .filter(|process| !process.gone() && process.is_of_server(layout, user))
        .collect()
}

/// One process, held by a pidfd.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    fd: OwnedFd,
}

impl Process {
    fn open(pid: u32) -> Option<Process> {
        let raw_pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
        // SAFETY: the call takes two integers and touches no memory of ours.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, raw_pid, 0) };
        let raw = i32::try_from(raw).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
        Some(Process { pid, fd: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    pub(super) fn signal(&self, signal: i32) {
        // SAFETY: an open descriptor, an integer, a null pointer (the kernel fills in an ordinary siginfo), no flags.
        let sent = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), signal, std::ptr::null::<u8>(), 0)
        };
        if sent != 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::ESRCH) {
                tracing::warn!(process.pid = self.pid, signal, %error, "cannot signal a process of the embedded PostgreSQL");
            }
        }
    }

    /// Whether it ended. A pidfd becomes readable then, also while nobody has collected the exit status.
    pub(super) fn gone(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, which lives through the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    /// The server's user, a program called postgres, and the data directory as its working directory: the postmaster goes
    /// there first thing, and backends stay.
    fn is_of_server(&self, layout: &Layout, user: &ServerUser) -> bool {
        let proc = Path::new("/proc").join(self.pid.to_string());
        let owner_fits = std::fs::metadata(&proc).is_ok_and(|found| found.uid() == user.uid.as_raw());
        // After a package upgrade the kernel shows the replaced program as "postgres (deleted)".
        let program_fits = std::fs::read_link(proc.join("exe"))
            .is_ok_and(|exe| exe.file_name().is_some_and(|name| name.as_bytes().starts_with(b"postgres")));
        let directory_fits = std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd == layout.data);
        owner_fits && program_fits && directory_fits
    }

    /// A backend shows what it does in place of its arguments ("postgres: checkpointer"); the postmaster keeps them.
    fn is_postmaster(&self) -> bool {
        std::fs::read(format!("/proc/{}/cmdline", self.pid))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|argument| argument == b"-D"))
    }
}

/// What the first lines of `postmaster.pid` say.
#[derive(Debug, PartialEq, Eq)]
struct PidFile<'a> {
    pid: u32,
    data: &'a str,
}

impl PidFile<'_> {
    fn parse(text: &str) -> Option<PidFile<'_>> {
        let mut lines = text.lines();
        // A single-user server writes its process id negated; it is no postmaster.
        let pid = lines.next()?.trim().parse().ok()?;
        Some(PidFile { pid, data: lines.next()?.trim_end() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_files_are_read_and_half_written_ones_are_not() {
        let text = "4711\n/var/lib/x/data\n1764532000\n5432\n/var/lib/x/run\n\n  1234 5\nready   \n";
        assert_eq!(PidFile::parse(text), Some(PidFile { pid: 4711, data: "/var/lib/x/data" }));
        assert_eq!(PidFile::parse("-4711\n/var/lib/x/data\n"), None);
        assert_eq!(PidFile::parse("4711\n"), None);
        assert_eq!(PidFile::parse(""), None);
    }

    #[test]
    fn a_process_is_gone_once_it_ended_even_before_it_is_collected() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert!(!process.gone());
        process.signal(libc::SIGKILL);
        let until = Instant::now() + Duration::from_secs(10);
        while !process.gone() {
            assert!(Instant::now() < until, "the process is still there");
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
