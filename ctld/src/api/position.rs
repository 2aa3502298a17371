//! Positions: each success says up to which commit it shows, and a request may ask for at least one.

use super::error::Failure;
use crate::app::App;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use proto::position::{AT_LEAST, HEADER, Position, PositionError};
use proto::{ApiError, ErrorCode};
use std::time::{Duration, Instant};

/// How long a request waits for the database to get where it asks for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Lets a request in once the database is where it asks for, and puts the position on its answer.
pub(super) async fn carry(State(app): State<App>, request: Request, next: Next) -> Response {
    match at_least(request.headers()) {
        Ok(None) => {}
        Ok(Some(wanted)) => {
            if let Err(error) = wait(&app, wanted, PATIENCE).await {
                return Failure::from(error).into_response();
            }
        }
        Err(error) => {
            let error = ApiError::new(ErrorCode::InvalidArgument, format!("{AT_LEAST}: {error}"));
            return Failure::from(error).into_response();
        }
    }
    // Answers from memory show no commits; a node session is no answer.
    let shows_commits =
        request.uri().path().starts_with("/v1/") && request.uri().path() != "/v1/openapi.json";
    let mut response = next.run(request).await;
    if shows_commits
        && response.status().is_success()
        && let Some(position) = app.positions.now().await
        && let Ok(value) = HeaderValue::from_str(&position.to_string())
    {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

fn at_least(headers: &HeaderMap) -> Result<Option<Position>, PositionError> {
    let Some(value) = headers.get(AT_LEAST) else { return Ok(None) };
    String::from_utf8_lossy(value.as_bytes()).parse().map(Some)
}

/// Waits until the database is there, at most so long.
pub(super) async fn wait(app: &App, wanted: Position, patience: Duration) -> Result<(), ApiError> {
    let begun = Instant::now();
    loop {
        let here = app.positions.now().await;
        if here.is_some_and(|here| here >= wanted) {
            return Ok(());
        }
        if begun.elapsed() >= patience {
            let here = here.map_or("does not answer".to_owned(), |here| format!("is at {here}"));
            let message = format!("position {wanted} is asked for, and the database {here}");
            return Err(ApiError::new(ErrorCode::Unavailable, message).hint(
                "ask again in a moment; a position of another cluster, or of one restored to before it, is never reached",
            ));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
