//! How long a caller still waits, as it says itself: `bc-deadline-ms`, milliseconds left when it sent the request.
//!
//! A question is not worked on any longer than that. What changes something is not begun later: it stands in a queue with its
//! deadline ([`crate::gather`]), but once it is begun it is carried to its end, so that its outcome is known.

use super::error::{Failure, invalid};
use crate::app::App;
use axum::extract::{FromRequestParts, Request};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use proto::{ApiError, ErrorCode};
use std::convert::Infallible;
use std::time::{Duration, Instant};

/// The header.
const HEADER: &str = "bc-deadline-ms";
/// More than this is not kept in mind: nothing is worked on for so long.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Until when the caller waits, if it says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(pub Option<Instant>);

impl FromRequestParts<App> for Deadline {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Deadline, Infallible> {
        Ok(parts.extensions.get::<Deadline>().copied().unwrap_or(Deadline(None)))
    }
}

/// Reads the header, and ends what nobody waits for any more.
pub(super) async fn heed(mut request: Request, next: Next) -> Response {
    let left = match request.headers().get(HEADER).map(|value| (value, value.to_str().map(str::parse::<u64>)))
    {
        None => return next.run(request).await,
        Some((_, Ok(Ok(ms)))) => Duration::from_millis(ms).min(DEADLINE_MAX),
        Some((value, _)) => {
            let message = format!("{HEADER} {value:?} is no deadline: expected milliseconds, such as 20000");
            return Failure(invalid(message)).into_response();
        }
    };
    if left.is_zero() {
        return late().into_response();
    }
    request.extensions_mut().insert(Deadline(Some(Instant::now() + left)));
    if request.method() != Method::GET {
        return next.run(request).await;
    }
    match tokio::time::timeout(left, next.run(request)).await {
        Ok(response) => response,
        Err(_) => late().into_response(),
    }
}

fn late() -> Failure {
    Failure(
        ApiError::new(ErrorCode::Unavailable, "the time that the request allows is over")
            .hint("nothing was changed; try again, with more time"),
    )
}
