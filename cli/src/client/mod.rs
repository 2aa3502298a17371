//! Speaks to the controller: HTTP/1.1 over its unix socket, one connection kept for several requests.
//!
//! A request either never left ([`Trouble::Unreachable`]), or may have been carried out though no answer came
//! ([`Trouble::Lost`]): whoever sends something that must not happen twice has to tell these apart. A controller that is just
//! being restarted refuses connections for a moment, so connecting is tried again for a short while; anything more is for
//! the caller ([`retry`]). No reqwest: building it costs more than a whole request.

pub mod retry;
pub mod server;

use crate::fail::Fail;
use crate::text::os_error;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use proto::error::ErrorBody;
use proto::{ApiError, ErrorCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;

pub use server::Server;

/// How long one request may take from connecting to its whole answer.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// How long a refused connection is tried again: a controller that is restarted is back within it.
const CONNECT_RETRY: Duration = Duration::from_secs(3);

/// A connection to the controller, opened when first used.
pub struct Client {
    server: Server,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// The controller's answer, whatever its status.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// What `Retry-After` asks for.
    pub retry_after: Option<Duration>,
    /// The body.
    pub body: Bytes,
}

/// No answer came.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// Nothing was sent.
    #[error("cannot reach the controller at {server}: {cause}")]
    Unreachable {
        /// Where it was looked for.
        server: Server,
        /// The system's error.
        cause: String,
    },
    /// The request may have been sent, and no whole answer came.
    #[error("the controller at {server} gave no answer: {cause}")]
    Lost {
        /// Where it is.
        server: Server,
        /// What happened.
        cause: String,
    },
}

impl From<Trouble> for Fail {
    fn from(trouble: Trouble) -> Fail {
        let hint = match &trouble {
            Trouble::Unreachable { .. } => {
                "is it running? BC_SERVER names the controller's socket; `bctl up` starts a cluster on this machine"
            }
            Trouble::Lost { .. } => "ask again; `bctl check` tells how the controller is",
        };
        Fail::new(ErrorCode::Unavailable, trouble.to_string()).hint(hint)
    }
}

impl Client {
    /// A client of the controller that environment and configuration name.
    pub fn find() -> Result<Client, Fail> {
        Ok(Client::new(server::find()?))
    }

    /// A client of this controller.
    pub fn new(server: Server) -> Client {
        Client { server, sender: None }
    }

    /// Asks for something, and gives its body as it came.
    pub async fn get(&mut self, path: &str) -> Result<Bytes, Fail> {
        self.send(Method::GET, path, None, DEADLINE).await?.success()
    }

    /// Asks for something, and reads it.
    pub async fn get_as<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Fail> {
        decode(&self.get(path).await?)
    }

    /// Posts a body, and gives the answer's as it came.
    pub async fn post(&mut self, path: &str, body: &impl Serialize) -> Result<Bytes, Fail> {
        self.send(Method::POST, path, Some(encode(body)?), DEADLINE).await?.success()
    }

    /// Sends one request and takes its whole answer, within the deadline.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        deadline: Duration,
    ) -> Result<Answer, Trouble> {
        let mut sender = self.connect().await?;
        let mut request = Request::builder().method(method).uri(path).header("host", "ctld");
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let lost = |cause: String| Trouble::Lost { server: self.server.clone(), cause };
        let request = request.body(Full::new(body.unwrap_or_default())).map_err(|e| lost(e.to_string()))?;
        let answer = async {
            let answer = sender.send_request(request).await?;
            let retry_after = answer
                .headers()
                .get("retry-after")
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs);
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            Ok::<_, hyper::Error>(Answer { status, retry_after, body })
        };
        let answer = match tokio::time::timeout(deadline, answer).await {
            Ok(answer) => answer.map_err(|e| lost(cause_of(&e)))?,
            Err(_) => return Err(lost(format!("nothing came within {} s", deadline.as_secs()))),
        };
        self.sender = Some(sender);
        Ok(answer)
    }

    /// The kept connection, or a new one.
    async fn connect(&mut self) -> Result<SendRequest<Full<Bytes>>, Trouble> {
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            return Ok(sender);
        }
        let started = Instant::now();
        let mut pause = Duration::from_millis(10);
        let stream = loop {
            match UnixStream::connect(&self.server.socket).await {
                Ok(stream) => break stream,
                // Refused: nobody listens just now. Would block: more clients than the socket's queue holds.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock)
                        && started.elapsed() < CONNECT_RETRY =>
                {
                    tokio::time::sleep(retry::jittered(pause)).await;
                    pause = (pause * 2).min(Duration::from_millis(300));
                }
                Err(error) => {
                    let cause = os_error(&error);
                    return Err(Trouble::Unreachable { server: self.server.clone(), cause });
                }
            }
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| Trouble::Unreachable { server: self.server.clone(), cause: cause_of(&e) })?;
        // It ends with the connection; an error of it also comes out of the request.
        tokio::spawn(connection);
        Ok(sender)
    }
}

impl Answer {
    /// The body of a success; the controller's error otherwise.
    pub fn success(self) -> Result<Bytes, Fail> {
        if self.status.is_success() { Ok(self.body) } else { Err(self.error().into()) }
    }

    /// The error of an answer that is none.
    pub fn error(&self) -> ApiError {
        match serde_json::from_slice::<ErrorBody>(&self.body) {
            Ok(body) => body.error,
            Err(_) => {
                let code = match self.status.as_u16() {
                    429 => ErrorCode::Overloaded,
                    502 | 503 => ErrorCode::Unavailable,
                    504 => ErrorCode::OutcomeUnknown,
                    _ => ErrorCode::Internal,
                };
                ApiError::new(code, format!("the controller answered {} without saying why", self.status))
                    .hint("do the commands and the controller have the same version? compare `--version`")
            }
        }
    }
}

/// A request's body.
pub fn encode(body: &impl Serialize) -> Result<Bytes, Fail> {
    serde_json::to_vec(body)
        .map(Bytes::from)
        .map_err(|e| Fail::here(format!("cannot write the request as JSON: {e}")))
}

/// Reads an answer's body.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fail> {
    decode_borrowed(body)
}

/// Reads an answer's body into something that may borrow from it.
pub fn decode_borrowed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Fail> {
    serde_json::from_slice(body).map_err(|error| {
        Fail::here(format!("cannot read the controller's answer: {error}"))
            .hint("do the commands and the controller have the same version? compare `--version`")
    })
}

/// One part of a query string or path: everything but letters, digits and `-_.~` as `%XX`.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => escaped.push(byte.into()),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

fn cause_of(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = match cause.downcast_ref::<std::io::Error>() {
            Some(io) => os_error(io),
            None => cause.to_string(),
        };
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
