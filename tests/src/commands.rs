//! Running a command as somebody, to its end, within a time.

use crate::users::User;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A command that takes longer hangs.
pub const COMMAND_WITHIN: Duration = Duration::from_secs(150);

/// What came of a command.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The command line, for messages.
    pub line: String,
    /// The exit status; 128 + N for signal N, as a shell says it.
    pub status: i32,
    /// What it printed.
    pub stdout: String,
    /// What it said.
    pub stderr: String,
}

impl Ran {
    /// Its output, when it ended well.
    ///
    /// # Panics
    /// When it did not, showing what it said.
    #[track_caller]
    pub fn ok(&self) -> &str {
        self.exits(0);
        &self.stdout
    }

    /// Checks its exit status, and gives itself.
    ///
    /// # Panics
    /// When it is another one.
    #[track_caller]
    pub fn exits(&self, status: i32) -> &Ran {
        assert_eq!(self.status, status, "`{}`\nstdout: {}\nstderr: {}", self.line, self.stdout, self.stderr);
        self
    }

    /// Checks that it said something, and gives itself.
    ///
    /// # Panics
    /// When stderr does not hold it.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Ran {
        assert!(self.stderr.contains(text), "`{}` does not say {text:?}, but: {}", self.line, self.stderr);
        self
    }

    /// Checks that it was refused without a word on stdout.
    ///
    /// # Panics
    /// When it was not.
    #[track_caller]
    pub fn refused(&self, status: i32) -> &Ran {
        self.exits(status);
        assert_eq!(self.stdout, "", "`{}` was refused and printed something", self.line);
        assert!(!self.stderr.is_empty(), "`{}` was refused without a word", self.line);
        self
    }

    /// Its output as JSON: exactly one document.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            panic!("`{}` does not print one JSON document: {error}\n{}", self.line, self.stdout)
        })
    }
}

/// A command of somebody's, with nothing of the test's environment.
pub fn command(user: &User, program: &Path, cwd: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(cwd).env_clear();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8");
    command.env("USER", &user.name).env("LOGNAME", &user.name).env("HOME", cwd).env("SHELL", "/bin/bash");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if !user.uid.is_root() {
        // Also drops the supplementary groups.
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command
}

/// Runs it to its end, with this on its standard input.
///
/// # Panics
/// When it hangs.
#[track_caller]
pub fn run(command: &mut Command, input: &[u8]) -> Ran {
    let running = Running::start(command, input);
    running.finish(COMMAND_WITHIN)
}

/// A command under way.
#[derive(Debug)]
pub struct Running {
    line: String,
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    /// Starts it.
    #[track_caller]
    pub fn start(command: &mut Command, input: &[u8]) -> Running {
        let line = line(command);
        if !input.is_empty() {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run `{line}`: {error}"));
        if let Some(mut stdin) = child.stdin.take() {
            let input = input.to_vec();
            // A command that does not read it all closes the pipe.
            std::thread::spawn(move || drop(stdin.write_all(&input)));
        }
        let stdout = child.stdout.take().map(drain);
        let stderr = child.stderr.take().map(drain);
        Running { line, child, stdout, stderr }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id fits")
    }

    /// Whether it still runs.
    pub fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it is still there after `within`; it is killed then.
    #[track_caller]
    pub fn finish(mut self, within: Duration) -> Ran {
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a child can be waited for") {
                Some(status) => break status,
                None if began.elapsed() > within => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    panic!("`{}` hangs: not done within {} s", self.line, within.as_secs());
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let text = |handle: Option<JoinHandle<Vec<u8>>>| {
            let bytes = handle.map(|h| h.join().expect("reading does not panic")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (stdout, stderr) = (text(self.stdout.take()), text(self.stderr.take()));
        Ran { line: self.line, status: number(status), stdout, stderr }
    }
}

fn drain(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

fn number(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).expect("an ended child has a status")
}

fn line(command: &Command) -> String {
    let name =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| format!(" {}", argument.to_string_lossy()));
    name + &arguments.collect::<String>()
}
