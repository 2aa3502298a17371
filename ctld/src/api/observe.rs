//! Looking at the controller itself: what it counted, and the document of its API.

use super::error::Failure;
use super::extract::{NoParams, Params};
use crate::app::App;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::time::Instant;

/// What `/metrics` is, by its own name.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What was counted
///
/// OpenMetrics text, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "controller",
    responses((status = 200, description = "every metric", body = String, content_type = "application/openmetrics-text")))]
pub(super) async fn metrics(State(app): State<App>, _: Params<NoParams>) -> Result<Response, Failure> {
    let text = app.metrics.scrape(&app.db).await;
    Ok(([(CONTENT_TYPE, OPEN_METRICS)], text).into_response())
}

/// The document of the API, made once.
#[derive(Clone)]
pub(super) struct Document(pub Bytes);

/// This document
///
/// OpenAPI 3.1, made from the handlers.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "controller",
    responses((status = 200, description = "the document", body = serde_json::Value)))]
pub(super) async fn document(
    Extension(Document(json)): Extension<Document>,
    _: Params<NoParams>,
) -> Response {
    ([(CONTENT_TYPE, "application/json")], json).into_response()
}

/// Counts each request by its route and status, and how long its answer took.
pub(super) async fn count(
    State(app): State<App>,
    path: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let response = next.run(request).await;
    let path = path.as_ref().map_or("unknown", MatchedPath::as_str);
    app.metrics.request(path, response.status().as_u16(), begun.elapsed());
    response
}
