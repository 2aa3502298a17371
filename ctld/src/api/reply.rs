//! Answers that may be long.

use super::error::Failure;
use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use proto::api::{BriefList, JobList};
use proto::{ApiError, ErrorCode};
use serde::Serialize;

/// A list longer than this is written on a thread of its own: ten thousand entries take some ten milliseconds, in which the
/// async threads would answer nobody else.
const LONG: usize = 500;

/// Answers with a list of jobs.
pub(super) async fn job_list(list: JobList) -> Result<Response, Failure> {
    let long = list.jobs.len() > LONG;
    written(list, long).await
}

/// The same, a line's worth of each.
pub(super) async fn brief_list(list: BriefList) -> Result<Response, Failure> {
    let long = list.jobs.len() > LONG;
    written(list, long).await
}

async fn written(list: impl Serialize + Send + 'static, long: bool) -> Result<Response, Failure> {
    if !long {
        return Ok(Json(list).into_response());
    }
    let written = tokio::task::spawn_blocking(move || serde_json::to_vec(&list)).await;
    let failed = |error: &(dyn std::error::Error + 'static)| {
        tracing::error!(error, "a list could not be written");
        Failure(ApiError::new(ErrorCode::Internal, "the list could not be written"))
    };
    match written {
        Ok(Ok(body)) => Ok(([(CONTENT_TYPE, "application/json")], body).into_response()),
        Ok(Err(error)) => Err(failed(&error)),
        Err(error) => Err(failed(&error)),
    }
}
