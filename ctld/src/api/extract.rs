//! How requests are read: bodies, queries and paths, each refused in the same form with the place that is wrong.

use super::error::{Failure, act_begins, invalid};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::{HeaderMap, StatusCode, header, request::Parts};
use proto::{ApiError, ErrorCode, JobRef};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The largest body read, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;

/// How long a body may take to arrive, so that a stalled client does not hold a connection for ever; each request carries it.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyWithin(pub Duration);

/// A JSON body. An empty one is read as `{}`.
pub(super) struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Body<T>, Failure> {
        refuse_other_types(request.headers())?;
        let BodyWithin(within) = *request.extensions().get().expect("every door sets it");
        let bytes = tokio::time::timeout(within, Bytes::from_request(request, state))
            .await
            .map_err(|_| invalid(format!("the body did not arrive within {} s", within.as_secs())))?
            .map_err(unread)?;
        let body = parse(if bytes.is_empty() { b"{}" } else { &bytes })?;
        // An act that has a body reads it last; one that has none says so itself.
        act_begins();
        Ok(Body(body))
    }
}

/// Forms that a browser may send anywhere unasked are no requests of ours.
fn refuse_other_types(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = String::from_utf8_lossy(kind.as_bytes());
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(invalid(format!("content type \"{essence}\" is not accepted: expected application/json")))
}

fn unread(rejection: BytesRejection) -> ApiError {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        let message = format!("the body is over {} MiB", BODY_BYTES_MAX >> 20);
        return ApiError::new(ErrorCode::TooLarge, message).hint("send it in several requests");
    }
    invalid("the body could not be read to its end")
}

/// Reads JSON; what is wrong is named with its path. The path is looked for only when something is, since that costs.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Ok(value);
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." { String::new() } else { format!(", at \"{path}\"") };
        invalid(format!("the body cannot be read{place}: {}", error.inner()))
    })?;
    reader.end().map_err(|error| invalid(format!("the body goes on after its JSON value: {error}")))?;
    Ok(parsed)
}

/// The query of a path; keys it does not know are refused.
pub(super) struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Params<T>, Failure> {
        let Query(params) =
            Query::try_from_uri(&parts.uri).map_err(|rejection| invalid(rejection.body_text()))?;
        Ok(Params(params))
    }
}

/// No query at all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParams {}

/// The one variable part of a path.
pub(super) struct Named(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Named, Failure> {
        let Path(text) = Path::from_request_parts(parts, state)
            .await
            .map_err(|rejection| invalid(format!("the path cannot be read: {}", rejection.body_text())))?;
        Ok(Named(text))
    }
}

/// The job that a path names.
pub(super) struct Job(pub JobRef);

impl<S: Send + Sync> FromRequestParts<S> for Job {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Job, Failure> {
        let Named(text) = Named::from_request_parts(parts, state).await?;
        let job = text.parse().map_err(|error: proto::id::JobRefError| invalid(error.to_string()))?;
        Ok(Job(job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::api::{HoldRequest, SubmissionBatch};

    #[test]
    fn what_is_wrong_in_a_body_is_named_with_its_place() {
        let body = br#"{"jobs": [{"idempotency_key": "a", "name": "n", "cpuz": 1}]}"#;
        let error = parse::<SubmissionBatch>(body).err().unwrap();
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.message.contains("jobs[0].cpuz") && error.message.contains("unknown field"), "{error}");
        let error = parse::<HoldRequest>(br#"{"idempotency_key": "k", "target": "n1"}"#).err().unwrap();
        assert!(error.message.contains("missing field `reason`"), "{error}");
        let error = parse::<HoldRequest>(br#"{"idempotency_key": "k", "target": "n1", "reason": "a"} {"#)
            .err()
            .unwrap();
        assert!(error.message.contains("goes on after"), "{error}");
        assert!(parse::<HoldRequest>(b"{\"reason\": \"a").is_err());
    }
}
