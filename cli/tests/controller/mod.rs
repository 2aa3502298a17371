//! A pretended controller on a unix socket, and a way to run a command against it.
//!
//! It follows a script: one act a request, in order, whatever connection the request comes on. What it was asked is kept, so
//! that a test can look at the bodies. It knows nothing of jobs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

/// What is done with one request.
pub enum Act {
    /// Answer with this status and body.
    Say(u16, String),
    /// Read it and hang up.
    HangUp,
    /// Read it and answer nothing, with the connection open till the other side is gone.
    Silence,
}

/// A request as it came: its first line and its body.
pub struct Asked {
    pub line: String,
    pub body: String,
}

pub struct Controller {
    dir: tempfile::TempDir,
    thread: JoinHandle<Vec<Asked>>,
}

impl Controller {
    pub fn following(acts: Vec<Act>) -> Controller {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        Controller { thread: std::thread::spawn(move || follow(&listener, acts)), dir }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// Waits for the script's end, and gives what was asked.
    pub fn asked(self) -> Vec<Asked> {
        self.thread.join().unwrap()
    }
}

fn follow(listener: &UnixListener, acts: Vec<Act>) -> Vec<Asked> {
    let mut all = Vec::new();
    let mut open: Option<BufReader<UnixStream>> = None;
    for act in acts {
        let (mut stream, asked) = loop {
            let mut stream = open.take().unwrap_or_else(|| BufReader::new(listener.accept().unwrap().0));
            // The other side may have gone between two requests: the next one comes on another connection.
            if let Some(asked) = read_request(&mut stream) {
                break (stream, asked);
            }
        };
        all.push(asked);
        match act {
            Act::Say(status, body) => {
                let head = format!("HTTP/1.1 {status} -\r\ncontent-length: {}\r\n\r\n", body.len());
                // A reader that went away is the matter of some tests.
                let _ = stream.get_mut().write_all(format!("{head}{body}").as_bytes());
                open = Some(stream);
            }
            Act::HangUp => drop(stream),
            Act::Silence => while stream.read_line(&mut String::new()).is_ok_and(|n| n > 0) {},
        }
    }
    all
}

fn read_request(stream: &mut BufReader<UnixStream>) -> Option<Asked> {
    let mut line = String::new();
    if stream.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut length = 0;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).ok()?;
        if header == "\r\n" {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    std::io::Read::read_exact(stream, &mut body).ok()?;
    Some(Asked { line: line.trim_end().to_owned(), body: String::from_utf8(body).unwrap() })
}

/// A command of ours, with nothing of the caller's environment but `PATH`, and nothing on its input.
pub fn command(program: &str, words: &[&str]) -> Command {
    let path = match program {
        "bsub" => env!("CARGO_BIN_EXE_bsub"),
        "bq" => env!("CARGO_BIN_EXE_bq"),
        "bcancel" => env!("CARGO_BIN_EXE_bcancel"),
        "binfo" => env!("CARGO_BIN_EXE_binfo"),
        _ => env!("CARGO_BIN_EXE_bctl"),
    };
    let mut command = Command::new(path);
    command.args(words).env_clear().env("PATH", "/usr/bin:/bin").env("BC_SERVER", "/nonesuch/socket");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// How a command ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

pub fn ended(output: Output) -> Ended {
    Ended {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a command to its end, with a text on its input.
pub fn run(mut command: Command, input: &str) -> Ended {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // A command that refuses its arguments does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    ended(child.wait_with_output().unwrap())
}
