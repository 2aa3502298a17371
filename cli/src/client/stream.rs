//! The controller's events as they come: `GET /v1/events`, picked up again from the last place when the connection is lost.
//!
//! The connection is the stream's own. What cannot be read any more ends it with the last place known, so that whoever asks again
//! misses nothing. A controller that is silent for longer than a few heartbeats counts as gone.

use super::{Answer, Client, DEADLINE, Trouble, cause_of, retry};
use crate::fail::Fail;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use proto::ErrorCode;
use std::time::{Duration, Instant};

/// The controller says every 15 s that it lives.
const SILENT_MAX: Duration = Duration::from_secs(50);
/// How long controllers may be away before following is given up.
const AWAY_MAX: Duration = Duration::from_secs(600);
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// An event larger than this is none of ours.
const BLOCK_BYTES_MAX: usize = 4 << 20;

/// One thing that the stream said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The place behind it.
    pub id: String,
    /// The event's type; `expired` where places before this are no longer kept. Empty: the place only.
    pub kind: String,
    /// The event, as JSON.
    pub data: String,
}

/// Events under way, on one connection.
pub struct Stream {
    body: Incoming,
    text: Vec<u8>,
}

impl Client {
    /// Opens a stream of this path and query, behind this place.
    pub async fn stream(&mut self, path: &str, after: Option<&str>) -> Result<Stream, Fail> {
        let mut sender = self.connect().await?;
        let mut request = Request::builder().uri(path).header("host", "ctld");
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let request = request
            .body(Full::<Bytes>::default())
            .map_err(|e| Fail::usage(format!("the place {after:?} cannot be sent: {e}")))?;
        let (socket, source_name) = (self.socket().clone(), self.servers.source.clone());
        let lost = |cause| Fail::from(Trouble::Lost { socket, source_name, cause });
        let answer = match tokio::time::timeout(DEADLINE, sender.send_request(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(lost(cause_of(&error))),
            Err(_) => return Err(lost(format!("nothing came within {} s", DEADLINE.as_secs()))),
        };
        let status = answer.status();
        if status.is_success() {
            return Ok(Stream { body: answer.into_body(), text: Vec::new() });
        }
        let body = answer.into_body().collect().await.map_err(|error| lost(cause_of(&error)))?.to_bytes();
        Err(Answer { status, retry_after: None, body }.error().into())
    }
}

impl Stream {
    /// The next thing said; `None` once the stream has ended or was lost.
    pub async fn next(&mut self) -> Option<Told> {
        loop {
            if let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
                let told = told(&self.text[..end]);
                self.text.drain(..end + 2);
                if told != Told::default() {
                    return Some(told);
                }
                continue;
            }
            if self.text.len() > BLOCK_BYTES_MAX {
                return None;
            }
            let frame = tokio::time::timeout(SILENT_MAX, self.body.frame()).await.ok()??.ok()?;
            if let Some(data) = frame.data_ref() {
                self.text.extend_from_slice(data);
            }
        }
    }
}

fn told(block: &[u8]) -> Told {
    let mut told = Told::default();
    for line in String::from_utf8_lossy(block).lines() {
        match line.split_once(": ") {
            Some(("id", id)) => id.clone_into(&mut told.id),
            Some(("event", kind)) => kind.clone_into(&mut told.kind),
            Some(("data", data)) => told.data.push_str(data),
            // Comments, and what a later controller may say.
            _ => {}
        }
    }
    told
}

/// Follows events for as long as it takes, over lost connections and restarts.
pub struct Follow {
    client: Client,
    path: String,
    stream: Option<Stream>,
    /// The last place.
    pub at: Option<String>,
    away: Option<Instant>,
    pause: Duration,
}

impl Follow {
    /// Will follow this path and query, from behind this place; from now on without one.
    pub fn new(client: Client, path: String, at: Option<String>) -> Follow {
        Follow { client, path, stream: None, at, away: None, pause: PAUSE_FIRST }
    }

    /// The next thing said. The first is the place to begin with, where there is nothing else to say. An error: the request is
    /// refused, or controllers have been away for too long.
    pub async fn next(&mut self) -> Result<Told, Fail> {
        loop {
            if let Some(stream) = &mut self.stream {
                if let Some(told) = stream.next().await {
                    (self.away, self.pause) = (None, PAUSE_FIRST);
                    if !told.id.is_empty() {
                        self.at = Some(told.id.clone());
                    }
                    return Ok(told);
                }
                self.stream = None;
                self.rest().await;
            }
            match self.client.stream(&self.path, self.at.as_deref()).await {
                Ok(stream) => self.stream = Some(stream),
                Err(fail) if !fail.error.retryable => return Err(fail),
                Err(fail) => {
                    let since = *self.away.get_or_insert_with(Instant::now);
                    if since.elapsed() > AWAY_MAX {
                        let message = format!("following is given up: {}", fail.error.message);
                        return Err(Fail::new(ErrorCode::Unavailable, message));
                    }
                    self.client.turn_to_another();
                    self.rest().await;
                }
            }
        }
    }

    async fn rest(&mut self) {
        tokio::time::sleep(retry::jittered(self.pause)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_read_by_its_fields() {
        let said = |text: &str| told(text.as_bytes());
        let event = Told { id: "3-4".into(), kind: "job.ended".into(), data: r#"{"a": 1}"#.into() };
        assert_eq!(said("id: 3-4\nevent: job.ended\ndata: {\"a\": 1}"), event);
        assert_eq!(said(": alive\nid: 3-4"), Told { id: "3-4".into(), ..Told::default() });
        assert_eq!(said("retry: 1000\nid: 3-4\nnew: x"), Told { id: "3-4".into(), ..Told::default() });
        assert_eq!(said(": alive"), Told::default());
    }
}
