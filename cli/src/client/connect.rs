//! Finding a controller that takes a connection.
//!
//! Each is tried in turn, beginning with the one used last. A controller that is just being restarted refuses connections for a
//! moment, so if none can be reached they are tried again for a short while, unless nothing says that one will come.

use super::{Client, Trouble, cause_of, retry};
use crate::text::os_error;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;

/// How long refused connections are tried again: a controller that is restarted is back within it.
pub(super) const CONNECT_RETRY: Duration = Duration::from_secs(3);
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(300);

type Sender = SendRequest<Full<Bytes>>;

/// Why one controller could not be reached.
struct Refused {
    cause: String,
    /// Whether it may be there in a moment.
    passing: bool,
}

impl Client {
    /// The kept connection, or a new one to the first controller that takes one.
    pub(super) async fn connect(&mut self) -> Result<Sender, Trouble> {
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let started = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            let refused = match self.try_each().await {
                Ok(sender) => return Ok(sender),
                Err(refused) => refused,
            };
            if !refused.passing || started.elapsed() >= CONNECT_RETRY {
                return Err(Trouble::Unreachable { servers: self.servers.clone(), cause: refused.cause });
            }
            tokio::time::sleep(retry::jittered(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Tries every controller once.
    async fn try_each(&mut self) -> Result<Sender, Refused> {
        let count = self.controllers();
        let (mut causes, mut passing) = (Vec::new(), false);
        for turn in 0..count {
            let at = (self.at + turn) % count;
            let socket = &self.servers.sockets[at];
            match dial(socket).await {
                Ok(sender) => {
                    self.at = at;
                    return Ok(sender);
                }
                Err(refused) if count == 1 => return Err(refused),
                Err(refused) => {
                    passing |= refused.passing;
                    causes.push(format!("{}: {}", socket.display(), refused.cause));
                }
            }
        }
        Err(Refused { cause: causes.join("; "), passing })
    }
}

async fn dial(socket: &Path) -> Result<Sender, Refused> {
    let stream = UnixStream::connect(socket).await.map_err(|error| Refused {
        cause: os_error(&error),
        // Refused: nobody listens just now. Would block: more clients than the socket's queue holds.
        passing: matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock),
    })?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Refused { cause: cause_of(&error), passing: false })?;
    // It ends with the connection; an error of it also comes out of the request.
    tokio::spawn(connection);
    Ok(sender)
}
