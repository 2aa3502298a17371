//! One daemon started by a test: a child with its log in a file.

use crate::processes::{alive, kill};
use crate::until::becomes;
use nix::sys::signal::Signal;
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// How much of a log a failed test shows.
const TAIL_LINES: usize = 60;

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Daemon {
    /// Starts `program --config CONFIG`, its words added to `log`.
    pub fn start(name: &str, program: &Path, config: &Path, log: &Path) -> Daemon {
        let file = OpenOptions::new().create(true).append(true).open(log).expect("a log can be opened");
        let also = file.try_clone().expect("a descriptor can be had twice");
        let mut command = Command::new(program);
        command.arg("--config").arg(config).current_dir("/").stdin(Stdio::null()).stdout(file).stderr(also);
        // As a service manager would start it.
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("LANG", "C.UTF-8").env("RUST_BACKTRACE", "1");
        // SAFETY: only async-signal-safe calls, on memory of the closure's own.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 {
                    files.rlim_cur = files.rlim_max;
                    libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
                }
                Ok(())
            });
        }
        let child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        Daemon { name: name.to_owned(), log: log.to_path_buf(), child }
    }

    /// What it is called in its cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id fits")
    }

    /// Whether it still runs.
    pub fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// `kill -9`, and its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and its exit status.
    ///
    /// # Panics
    /// When it does not end in time.
    pub fn terminate(&mut self, within: Duration) -> ExitStatus {
        kill(self.pid(), Signal::SIGTERM);
        let ended = becomes(within, || matches!(self.child.try_wait(), Ok(Some(_))));
        assert!(ended, "{} does not stop within {} s", self.name, within.as_secs());
        self.child.wait().expect("an ended child has a status")
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if alive(self.pid()) {
            self.kill();
        }
    }
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
