//! Starting shepherds quickly: a small process that does nothing but fork.
//!
//! noded itself has threads and a large heap, so it may not fork without exec; an exec for each attempt costs more than a fork of this
//! process, which is single-threaded and has touched next to nothing. noded starts it once (again if it dies) and writes it one message for each
//! attempt. It takes the attempt's lock, forks, and answers with the shepherd's pidfd. It ends when noded does, having carried out what it was asked;
//! its shepherds do not end. There is one launcher at a time on a state directory: the next one waits for its end before it says that it is ready, and
//! noded looks at no attempt before that, or one could be launched by the old and, ended and forgotten, again by the new.
//!
//! `process` is that process; this file is the message format and `client`, noded's side.

mod client;
mod process;

pub use client::{Launcher, LauncherEvent, StartError};
pub use process::main;

use serde::{Deserialize, Serialize};
use std::io::{self, Read};

/// The word on the command line that makes `noded` a launcher.
pub const MODE: &str = "launcher";
/// Descriptors that the launcher is started with: requests (a stream), answers (packets), the shepherds' FIFO.
const REQUESTS_FD: i32 = 3;
const ANSWERS_FD: i32 = 4;
const EVENTS_FD: i32 = 5;
/// The longest request taken: a script, its arguments and environment in JSON fit several times.
const REQUEST_BYTES_MAX: usize = 64 << 20;
/// The longest answer.
const ANSWER_BYTES_MAX: usize = 4096;

/// What the launcher answers. [`Answer::Forked`] comes with the shepherd's pidfd.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// It is ready for requests.
    Ready,
    /// A shepherd has been forked.
    Forked {
        /// For which allocation.
        id: i64,
    },
    /// The attempt has a shepherd, or had one.
    Taken {
        /// Which.
        id: i64,
    },
    /// No shepherd could be started.
    Failed {
        /// For which allocation.
        id: i64,
        /// Why.
        message: String,
    },
}

/// One request's body: the allocation, a spare record to use, what its shepherd is told.
struct Request<'a> {
    id: i64,
    spare: Option<i64>,
    spec: &'a [u8],
}

impl Request<'_> {
    /// The two numbers; the spec follows. No allocation has the number 0.
    fn head(id: i64, spare: Option<i64>) -> Vec<u8> {
        [id.to_le_bytes(), spare.unwrap_or(0).to_le_bytes()].concat()
    }

    fn read(body: &[u8]) -> io::Result<Request<'_>> {
        let short = || io::Error::new(io::ErrorKind::InvalidData, "a request that is too short");
        let (id, rest) = body.split_first_chunk::<8>().ok_or_else(short)?;
        let (spare, spec) = rest.split_first_chunk::<8>().ok_or_else(short)?;
        let spare = Some(i64::from_le_bytes(*spare)).filter(|spare| *spare != 0);
        Ok(Request { id: i64::from_le_bytes(*id), spare, spec })
    }
}

/// A message as it travels: length, then body.
fn request(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + body.len());
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// Reads one request. `None` at the end of the stream.
fn read_request(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > REQUEST_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a request of {length} bytes")));
    }
    let mut body = vec![0; length];
    match stream.read_exact(&mut body) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        other => other.map(|()| Some(body)),
    }
}
