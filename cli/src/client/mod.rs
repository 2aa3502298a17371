//! Speaks to the controller: HTTP/1.1 over its unix socket, one connection kept for several requests.
//!
//! A request either never left ([`Trouble::Unreachable`]), or may have been carried out though no answer came
//! ([`Trouble::Lost`]): whoever sends something that must not happen twice has to tell these apart. Of several controllers the
//! next is tried where one cannot be reached ([`connect`]), and for a question, which changes nothing, also where one gives no
//! answer or cannot now; what changes something goes to another only under its key ([`retry`]). No reqwest: building it costs
//! more than a whole request.

mod connect;
pub mod retry;
pub mod server;
pub mod stream;

use crate::fail::Fail;
use crate::text::os_error;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, StatusCode};
use proto::error::ErrorBody;
use proto::{ApiError, ErrorCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

pub use server::Servers;

/// How long one request may take from connecting to its whole answer.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// How long a controller may take to answer a question when there is another to ask: one that is stopped still takes connections.
const ANOTHER_WITHIN: Duration = Duration::from_secs(10);

/// A connection to a controller, opened when first used.
pub struct Client {
    servers: Servers,
    /// Which of the controllers is asked: the first that could be reached, until it fails.
    at: usize,
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
    #[error("cannot reach {} at {servers}: {cause}", if servers.sockets.len() == 1 { "the controller" } else { "any controller" })]
    Unreachable {
        /// Where it was looked for.
        servers: Servers,
        /// The system's error; of several controllers each one's.
        cause: String,
    },
    /// The request may have been sent, and no whole answer came.
    #[error("the controller at {} (from {source_name}) gave no answer: {cause}", socket.display())]
    Lost {
        /// Where it is.
        socket: PathBuf,
        /// Where that was found.
        source_name: String,
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
    pub fn new(servers: Servers) -> Client {
        Client { servers, at: 0, sender: None }
    }

    /// Asks for something, and gives its body as it came. A question changes nothing: each controller is asked it once, until
    /// one answers.
    pub async fn get(&mut self, path: &str) -> Result<Bytes, Fail> {
        let mut others = self.servers.sockets.len() - 1;
        let mut before = String::new();
        loop {
            let within = if others == 0 { DEADLINE } else { ANOTHER_WITHIN };
            let fail = match self.send(Method::GET, path, None, within).await {
                Ok(answer) if answer.status == StatusCode::SERVICE_UNAVAILABLE => Fail::from(answer.error()),
                Ok(answer) => return answer.success(),
                // Every controller has been tried.
                Err(trouble @ Trouble::Unreachable { .. }) => return Err(trouble.into()),
                Err(trouble) => Fail::from(trouble),
            };
            if others == 0 {
                return Err(fail.after(&before));
            }
            before += &format!("; {}: {}", self.socket().display(), fail.error.message);
            others -= 1;
            self.turn_to_another();
        }
    }

    /// Asks the next controller from now on, where there is another.
    pub fn turn_to_another(&mut self) {
        if self.servers.sockets.len() > 1 {
            self.at = (self.at + 1) % self.servers.sockets.len();
            self.sender = None;
        }
    }

    /// How many controllers there are.
    pub fn controllers(&self) -> usize {
        self.servers.sockets.len()
    }

    /// The socket of the one that is asked.
    fn socket(&self) -> &PathBuf {
        &self.servers.sockets[self.at]
    }

    /// Asks for something, and reads it.
    pub async fn get_as<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, Fail> {
        decode(&self.get(path).await?)
    }

    /// Posts a body without a key, once, and gives the answer's as it came. With no answer nobody knows whether it was done.
    pub async fn post(&mut self, path: &str, body: &impl Serialize) -> Result<Bytes, Fail> {
        match self.send(Method::POST, path, Some(encode(body)?), DEADLINE).await {
            Ok(answer) => answer.success(),
            Err(trouble @ Trouble::Unreachable { .. }) => Err(trouble.into()),
            Err(trouble) => Err(Fail::new(ErrorCode::OutcomeUnknown, format!("outcome unknown: {trouble}"))
                .hint("it may have been carried out: look before you ask again")),
        }
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
        // Nobody works for us longer than we wait.
        request = request.header("bc-deadline-ms", deadline.as_millis().to_string());
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let (socket, source_name) = (self.socket().clone(), self.servers.source.clone());
        let lost = move |cause| Trouble::Lost { socket, source_name, cause };
        let request = match request.body(Full::new(body.unwrap_or_default())) {
            Ok(request) => request,
            Err(error) => return Err(lost(error.to_string())),
        };
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
