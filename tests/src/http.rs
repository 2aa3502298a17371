//! The API as a test sees it: one HTTP/1.1 connection on the controller's socket, kept open, blocking.
//!
//! Small on purpose, and no code of the product's own client: what the tests conclude from must not share its faults. Answers
//! have a length; nothing else is understood. The benchmark sends through this too, where what the client costs would count.

use crate::users::User;
use proto::ApiError;
use proto::error::ErrorBody;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// A kept connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
    request: Vec<u8>,
}

/// No success.
#[derive(Debug)]
pub enum Refusal {
    /// The controller's word.
    Api(u16, ApiError),
    /// The connection broke: nobody knows whether the request was carried out.
    Lost(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Lost(error)
    }
}

impl Connection {
    /// Connects.
    pub fn open(socket: &Path) -> io::Result<Connection> {
        Connection::over(UnixStream::connect(socket)?)
    }

    /// Connects as somebody else.
    pub fn open_as(socket: &Path, user: &User) -> io::Result<Connection> {
        Connection::over(connect_as(socket, user)?)
    }

    fn over(stream: UnixStream) -> io::Result<Connection> {
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        Ok(Connection { stream, buffer: Vec::with_capacity(4096), request: Vec::with_capacity(4096) })
    }

    /// `GET`.
    pub fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Refusal> {
        read(self.exchange("GET", path, &[])?)
    }

    /// `GET`, as text.
    pub fn get_text(&mut self, path: &str) -> Result<String, Refusal> {
        let (status, body) = self.exchange("GET", path, &[])?;
        match status {
            200..=299 => Ok(String::from_utf8_lossy(&body).into_owned()),
            _ => Err(refusal(status, &body)),
        }
    }

    /// `POST`.
    pub fn post<T: DeserializeOwned>(&mut self, path: &str, body: &impl Serialize) -> Result<T, Refusal> {
        let body = serde_json::to_vec(body).map_err(io::Error::other)?;
        read(self.exchange("POST", path, &body)?)
    }

    /// One request and its answer: status and body.
    pub fn exchange(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        self.request.clear();
        write!(self.request, "{method} {path} HTTP/1.1\r\nhost: ctld\r\n")?;
        if method != "GET" {
            write!(self.request, "content-type: application/json\r\ncontent-length: {}\r\n", body.len())?;
        }
        self.request.extend_from_slice(b"\r\n");
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request)?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<(u16, Vec<u8>)> {
        let head_end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            self.fill()?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..head_end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let (Some(status), Some(length)) = (status, length) else {
            return Err(io::Error::other(format!("an answer without status or length: {head:?}")));
        };
        while self.buffer.len() < head_end + length {
            self.fill()?;
        }
        let body = self.buffer[head_end..head_end + length].to_vec();
        self.buffer.drain(..head_end + length);
        Ok((status, body))
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut chunk = [0; 64 << 10];
        match self.stream.read(&mut chunk)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.buffer.extend_from_slice(&chunk[..n]);
                Ok(())
            }
        }
    }
}

/// A connection by somebody else: the kernel tells the other side who connected.
pub fn connect_as(socket: &Path, user: &User) -> io::Result<UnixStream> {
    let (uid, gid) = (user.uid.as_raw(), user.gid.as_raw());
    // Credentials are a thread's to the kernel, whatever libc makes of it: this thread ends right after.
    let connect = || {
        // SAFETY: both calls take numbers only.
        let changed = unsafe {
            libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
                && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
        };
        if changed { UnixStream::connect(socket) } else { Err(io::Error::last_os_error()) }
    };
    std::thread::scope(|scope| scope.spawn(connect).join().expect("connecting does not panic"))
}

fn read<T: DeserializeOwned>((status, body): (u16, Vec<u8>)) -> Result<T, Refusal> {
    if !(200..300).contains(&status) {
        return Err(refusal(status, &body));
    }
    serde_json::from_slice(&body).map_err(|error| {
        Refusal::Lost(io::Error::other(format!("{error} in {}", String::from_utf8_lossy(&body))))
    })
}

fn refusal(status: u16, body: &[u8]) -> Refusal {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(body) => Refusal::Api(status, body.error),
        Err(_) => {
            Refusal::Lost(io::Error::other(format!("status {status}: {}", String::from_utf8_lossy(body))))
        }
    }
}
