//! `GET /v1/events`: events as they happen, as server-sent events.
//!
//! A stream first reads from the database what is behind the place it was asked for, then goes on with what the controller's
//! one reader tells everybody. Each event carries its place as `id`; a client that was cut off asks again with the last one and
//! misses nothing. A line without an event says every [`HEARTBEAT`] that the stream lives, and moves the place on where the filter
//! lets nothing through. A client that reads too slowly is cut off, since the others' ring goes on without it.

use super::error::{Failure, invalid};
use super::extract::Params;
use crate::app::{App, Caller};
use crate::metrics::Open;
use crate::store::events::{Filter, Placed, head, pruned_to, read};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use proto::error::ErrorBody;
use proto::{ApiError, Cursor, ErrorCode};
use serde::Deserialize;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

/// How often a quiet stream says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How many events are read at once from the database.
const PAGE: i64 = 500;
/// How many events one piece of the answer holds at most.
const PIECE: usize = 200;
/// Milliseconds after which a browser asks again.
const RETRY_MS: u32 = 1000;

/// What to tell.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct EventParams {
    /// The `id` behind which to begin; the header `Last-Event-ID` says the same and wins. Without either: from now on, or
    /// without `follow` from the oldest event that is kept.
    after: Option<String>,
    /// Only these types, with commas between: `job.ended`, or `job` for all of a family.
    #[serde(rename = "type")]
    kinds: Option<String>,
    /// Only what is about this job.
    job: Option<i64>,
    /// Whether to go on with what happens from now on; true when absent.
    follow: Option<bool>,
}

/// Events as they happen
///
/// A stream of server-sent events, `id`, `event` (the type) and `data` (the event as JSON): at least once each, those of one
/// subject in the order in which they happened. Operators are told everything, others what is theirs. An event `expired` says
/// that the place asked for is no longer kept; its `id` is where to go on.
#[utoipa::path(get, path = "/v1/events", tag = "events", params(EventParams), responses(
    (status = 200, description = "server-sent events; `data` is an Event", body = proto::Event, content_type = "text/event-stream"),
    (status = "default", description = "refused", body = ErrorBody)))]
pub(super) async fn stream(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    Params(params): Params<EventParams>,
) -> Result<Response, Failure> {
    let kinds: Vec<String> =
        params.kinds.iter().flat_map(|kinds| kinds.split(',')).map(str::to_owned).collect();
    for kind in &kinds {
        proto::event::check_filter(kind).map_err(|error| invalid(error.to_string()))?;
    }
    let filter = Filter {
        owner: (!caller.operator).then(|| caller.user.clone()),
        kinds,
        subject: params.job.map(|job| format!("job/{job}")),
        ..Filter::default()
    };
    let follow = params.follow.unwrap_or(true);
    let after = asked_for(&headers, params.after.as_deref())?;
    let (kept, here) = (pruned_to(&app.db).await?, head(&app.db).await?);
    let after = match after {
        Some(after) if after.txid > here.txid => {
            let message = format!("place {after} is ahead of this database, which is at {here}");
            return Err(ApiError::new(ErrorCode::Conflict, message)
                .hint("it is of another cluster, or of one restored to before it: begin without a place")
                .into());
        }
        Some(after) => after,
        None if follow => here,
        None => kept,
    };
    let expired = (after < kept).then(|| expired(after, kept));
    let live = if follow && expired.is_none() { Some(app.events.listen().await.events) } else { None };
    let open = app.metrics.stream_open();
    let telling = Telling {
        app,
        filter,
        at: after,
        live,
        behind: expired.is_none(),
        over: false,
        first: expired,
        _open: open,
    };
    let body = Body::from_stream(futures_util::stream::unfold(telling, async |mut telling| {
        let piece = telling.next().await?;
        Some((Ok::<Bytes, Infallible>(piece), telling))
    }));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}

fn asked_for(headers: &HeaderMap, after: Option<&str>) -> Result<Option<Cursor>, ApiError> {
    let header = headers.get("last-event-id").map(|value| String::from_utf8_lossy(value.as_bytes()));
    let text = header.as_deref().filter(|text| !text.is_empty()).or(after);
    text.map(|text| text.parse().map_err(|error: proto::event::CursorError| invalid(error.to_string())))
        .transpose()
}

/// What is said instead of events that are no longer kept.
fn expired(after: Cursor, kept: Cursor) -> String {
    let error = ApiError::new(
        ErrorCode::NotFound,
        format!("events behind {after} are no longer kept: the oldest are behind {kept}"),
    )
    .hint("look at what is so now, then go on from the id of this message");
    let data = serde_json::to_string(&ErrorBody { error }).expect("an error is plain data");
    format!("id: {kept}\nevent: expired\ndata: {data}\n\n")
}

/// A stream under way.
struct Telling {
    app: App,
    filter: Filter,
    at: Cursor,
    /// `None`: ends when there is no more.
    live: Option<Receiver<Arc<Placed>>>,
    /// Whether there may be more in the database.
    behind: bool,
    /// Whether the next piece is the end.
    over: bool,
    /// What to say instead of anything else.
    first: Option<String>,
    _open: Open,
}

impl Telling {
    /// The next piece; `None` is the end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        if let Some(only) = self.first.take() {
            self.over = true;
            return Some(only.into());
        }
        if self.behind
            && let Some(page) = self.page().await?
        {
            return Some(page);
        }
        let stopping = self.app.stopping.clone();
        tokio::select! {
            biased;
            () = stopping.cancelled() => None,
            piece = self.listen() => piece,
            () = tokio::time::sleep(HEARTBEAT) => Some(self.heartbeat()),
        }
    }

    /// What the database has behind the place; `Some(None)` if nothing.
    async fn page(&mut self) -> Option<Option<Bytes>> {
        let page = match read(&self.app.db, self.at, &self.filter, PAGE).await {
            Ok(page) => page,
            Err(error) => {
                // The client asks again from where it was.
                tracing::debug!(error = &error as &dyn std::error::Error, "a stream of events ends");
                return None;
            }
        };
        self.behind = page.len() as i64 == PAGE;
        let mut text = String::new();
        for placed in &page {
            self.at = placed.cursor;
            line(&mut text, placed);
        }
        if self.live.is_none() && !self.behind {
            self.over = true;
        } else if text.is_empty() {
            // The place, so that a client that is cut off now has one to go on from.
            write!(text, "retry: {RETRY_MS}\nid: {}\n\n", self.at).expect("a String takes all");
        }
        Some(Some(text.into()))
    }

    /// The next events that are told to everybody and pass the filter. Nothing is lost when this is dropped while it waits: it
    /// waits only while it has nothing.
    async fn listen(&mut self) -> Option<Bytes> {
        let live = self.live.as_mut()?;
        let (mut text, mut count) = (String::new(), 0);
        while count < PIECE {
            let placed = match count {
                0 => live.recv().await.ok()?,
                _ => match live.try_recv() {
                    Ok(placed) => placed,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Lagged(_) | TryRecvError::Closed) => {
                        self.over = true;
                        break;
                    }
                },
            };
            if placed.cursor > self.at {
                self.at = placed.cursor;
                if self.filter.passes(&placed) {
                    line(&mut text, &placed);
                    count += 1;
                }
            }
        }
        Some(text.into())
    }

    fn heartbeat(&self) -> Bytes {
        format!(": alive\nid: {}\n\n", self.at).into()
    }
}

fn line(text: &mut String, placed: &Placed) {
    let data = serde_json::to_string(&placed.event).expect("an event is plain data");
    write!(text, "id: {}\nevent: {}\ndata: {data}\n\n", placed.cursor, placed.event.kind)
        .expect("a String takes all");
}
