//! One daemon of the cluster: starting it, finding it again, ending it.
//!
//! A pid file holds the process id, when that process started (in clock ticks since boot) and which boot that was. Only the
//! process that matches all three is ours; it is held by a pidfd before it is compared, so that a signal cannot reach
//! another one that got the number meanwhile. Each daemon has a session of its own and outlives bctl.

use super::place::{Place, cannot};
use crate::fail::Fail;
use proto::ErrorCode;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A log is put aside when its daemon starts and it is longer.
const LOG_BYTES_MAX: u64 = 16 << 20;
const TAIL_LINES: usize = 15;
const TAIL_BYTES: u64 = 16 << 10;

/// A daemon that runs.
#[derive(Debug)]
pub(super) struct Daemon {
    name: String,
    process: Process,
}

impl Daemon {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid
    }

    pub(super) fn gone(&self) -> bool {
        self.process.gone()
    }

    pub(super) fn signal(&self, signal: i32) -> Result<(), Fail> {
        self.process.signal(signal).map_err(|error| {
            Fail::here(format!(
                "cannot signal {} (pid {}): {}",
                self.name,
                self.pid(),
                crate::text::os_error(&error)
            ))
        })
    }

    /// Waits for its end; false when it is still there after `limit`.
    pub(super) async fn gone_within(&self, limit: Duration) -> bool {
        self.process.gone_within(limit).await
    }

    /// The running daemon that the pid file names, if it is that very process.
    pub(super) fn find(place: &Place, name: &str) -> Result<Option<Daemon>, Fail> {
        let path = place.pid_file(name);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(cannot("read", &path, &error)),
        };
        let Some(identity) = Identity::parse(&text) else {
            return Err(Fail::here(format!("{} is no pid file of bctl", path.display()))
                .hint("if nothing of this cluster runs, remove the file"));
        };
        let Some(process) = Process::open(identity.pid) else { return Ok(None) };
        let ours = !process.gone() && Identity::of(identity.pid).is_ok_and(|found| found == identity);
        Ok(ours.then(|| Daemon { name: name.to_owned(), process }))
    }

    /// Starts `program --config CONFIG`.
    pub(super) fn start(place: &Place, name: &str, program: &Path, config: &Path) -> Result<Daemon, Fail> {
        refuse_stranger(name, program, config)?;
        let log_path = place.log(name);
        put_aside_long(&log_path)?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(&log_path)
            .map_err(|e| cannot("open", &log_path, &e))?;
        let also = log.try_clone().map_err(|e| cannot("open", &log_path, &e))?;
        let mut command = Command::new(program);
        command.arg("--config").arg(config).current_dir("/").stdin(Stdio::null()).stdout(log).stderr(also);
        // Nothing of the shell that happens to start a cluster goes into it, and so into jobs, but the search path.
        command.env_clear().env("LANG", "C.UTF-8");
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into()));
        // SAFETY: the closure makes only system calls that are async-signal-safe, on memory of its own stack.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() == -1 {
                    return Err(std::io::Error::last_os_error());
                }
                libc::umask(0o022);
                // Nor does what the shell had open, such as a lock that would be held for as long as the cluster runs. The
                // descriptors stay until the exec, which reports its own failure through one of them. A kernel older than
                // this call leaves them as they are, which harms nobody but that shell.
                libc::syscall(
                    libc::SYS_close_range,
                    3 as libc::c_uint,
                    libc::c_uint::MAX,
                    libc::CLOSE_RANGE_CLOEXEC,
                );
                // A controller has a connection for each waiting client, a node one for each job.
                let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 {
                    files.rlim_cur = files.rlim_max;
                    libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
                }
                Ok(())
            });
        }
        let child = command.spawn().map_err(|e| cannot("run", program, &e))?;
        let pid = child.id();
        let process =
            Process::open(pid).ok_or_else(|| Fail::here(format!("cannot watch {name} (pid {pid})")))?;
        let identity =
            Identity::of(pid).map_err(|e| Fail::here(format!("cannot look at {name} (pid {pid}): {e}")))?;
        place.write_file(&place.pid_file(name), &identity.text())?;
        Ok(Daemon { name: name.to_owned(), process })
    }

    /// The end of its log, for a failure's message.
    pub(super) fn failed(place: &Place, name: &str, what: &str) -> Fail {
        let path = place.log(name);
        let tail = tail(&path);
        let log = if tail.is_empty() { ", and its log is empty".to_owned() } else { format!(":\n{tail}") };
        Fail::here(format!("{name} {what}{log}")).hint(format!("the whole log: {}", path.display()))
    }
}

/// A daemon that somebody else started with this cluster's configuration would be a second one beside ours.
fn refuse_stranger(name: &str, program: &Path, config: &Path) -> Result<(), Fail> {
    let entries = std::fs::read_dir("/proc").map_err(|e| cannot("read directory", Path::new("/proc"), &e))?;
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let mut arguments =
            line.split(|byte| *byte == 0).map(|part| Path::new(std::str::from_utf8(part).unwrap_or("")));
        let same_program = arguments.next().and_then(Path::file_name) == program.file_name();
        if same_program && arguments.any(|argument| argument == config) {
            let message = format!(
                "a {name} that `bctl up` did not start already uses {} (pid {pid})",
                config.display()
            );
            return Err(Fail::new(ErrorCode::Conflict, message).hint(format!("end it first: kill {pid}")));
        }
    }
    Ok(())
}

fn put_aside_long(path: &Path) -> Result<(), Fail> {
    match std::fs::metadata(path) {
        Ok(found) if found.len() > LOG_BYTES_MAX => {
            std::fs::rename(path, path.with_extension("log.old")).map_err(|e| cannot("rename", path, &e))
        }
        _ => Ok(()),
    }
}

fn tail(path: &Path) -> String {
    let read = || {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..]
        .iter()
        .map(|line| format!("  {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Which process a pid file means, across reuse of its number and across boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) pid: u32,
    start_ticks: u64,
    boot: String,
}

impl Identity {
    pub(super) fn of(pid: u32) -> std::io::Result<Identity> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let start_ticks =
            start_ticks(&stat).ok_or_else(|| std::io::Error::other("/proc/PID/stat has another form"))?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Identity { pid, start_ticks, boot })
    }

    pub(super) fn text(&self) -> String {
        format!("{} {} {}\n", self.pid, self.start_ticks, self.boot)
    }

    pub(super) fn parse(text: &str) -> Option<Identity> {
        let mut words = text.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        let start_ticks = words.next()?.parse().ok()?;
        let boot = words.next()?.to_owned();
        words.next().is_none().then_some(Identity { pid, start_ticks, boot })
    }
}

/// The 22nd field; the second, the program's name in parentheses, may hold blanks and parentheses itself.
fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A process held by a pidfd.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    fd: OwnedFd,
}

impl Process {
    pub(super) fn open(pid: u32) -> Option<Process> {
        let raw_pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
        // SAFETY: the call takes two integers and touches no memory of ours.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, raw_pid, 0) };
        let raw = i32::try_from(raw).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it.
        Some(Process { pid, fd: unsafe { OwnedFd::from_raw_fd(raw) } })
    }

    /// Sends a signal; a process that ended meanwhile is no error.
    pub(super) fn signal(&self, signal: i32) -> std::io::Result<()> {
        // SAFETY: an open descriptor, an integer, a null pointer (the kernel fills in an ordinary siginfo), no flags.
        let sent = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), signal, std::ptr::null::<u8>(), 0)
        };
        match std::io::Error::last_os_error() {
            error if sent != 0 && error.raw_os_error() != Some(libc::ESRCH) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether it ended, collected or not.
    pub(super) fn gone(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, which lives through the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    pub(super) async fn gone_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !self.gone() {
            if Instant::now() >= until {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }
}

/// A program of ours: beside bctl itself, as both a build and an installation have it, else on the search path.
pub(super) fn program(name: &str) -> Result<PathBuf, Fail> {
    let own = std::env::current_exe().ok().and_then(|exe| exe.canonicalize().ok());
    let beside = own.and_then(|exe| Some(exe.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An installation has the daemons in sbin.
    let sbin = beside.as_ref().and_then(|path| Some(path.parent()?.parent()?.join("sbin").join(name)));
    let found = beside
        .into_iter()
        .chain(sbin)
        .chain(std::env::split_paths(&path).filter(|dir| dir.is_absolute()).map(|dir| dir.join(name)))
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        Fail::here(format!("cannot find the program {name}: it is neither beside bctl nor on PATH"))
            .hint("install all of Better Compute's programs, or build them with `cargo build --workspace`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_read_past_a_program_name_made_to_confuse() {
        let stat = "17 (a) R 9 (x) S 1 17 17 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 1 0 4711 9999 88 18446744073709551615";
        assert_eq!(start_ticks(stat), Some(4711));
        assert_eq!(start_ticks("17 (cat"), None);
    }

    #[test]
    fn a_pid_file_names_one_process_only() {
        let me = Identity::of(std::process::id()).unwrap();
        assert_eq!(Identity::parse(&me.text()), Some(me.clone()));
        assert_eq!(Identity::parse("12"), None);
        assert_eq!(Identity::parse("12 13 boot more"), None);
        let later = Identity { start_ticks: me.start_ticks + 1, ..me.clone() };
        assert_ne!(later, me);
    }
}
