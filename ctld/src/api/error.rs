//! How the API says no: every answer that is not a success carries [`ErrorBody`], whoever refused.

use crate::store::StoreError;
use axum::Json;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use proto::error::ErrorBody;
use proto::{ApiError, ErrorCode};
use std::any::Any;
use std::cell::Cell;

/// Seconds after which it makes sense to ask again, when the controller or its database cannot answer now.
const RETRY_AFTER_S: &str = "1";

/// An error on its way out.
#[derive(Debug)]
pub struct Failure(pub ApiError);

/// What a handler answers.
pub(super) type Answer<T> = Result<Json<T>, Failure>;

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Failure {
        Failure(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let maybe_done = error.maybe_done() && ACT_BEGUN.try_with(Cell::get).unwrap_or(false);
        // The conversion logs what the caller is not told.
        let said = ApiError::from(error);
        if maybe_done {
            return Failure(
                ApiError::new(ErrorCode::OutcomeUnknown, "the database went away while the request was carried out")
                    .hint("look whether it was done before you ask again; a request with an idempotency key does nothing twice"),
            );
        }
        Failure(said)
    }
}

tokio::task_local! {
    /// Whether the request in hand changes something and has got as far as doing so.
    static ACT_BEGUN: Cell<bool>;
}

/// Remembers of each request whether its act has begun.
pub(super) async fn remember_act(request: Request, next: Next) -> Response {
    ACT_BEGUN.scope(Cell::new(false), next.run(request)).await
}

/// The request is understood and its caller may make it: from here on it may have been carried out.
pub(super) fn act_begins() {
    // Outside of a request there is nothing to remember.
    let _ = ACT_BEGUN.try_with(|begun| begun.set(true));
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = self.0.code;
        let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(ErrorBody { error: self.0 })).into_response();
        if matches!(code, ErrorCode::Overloaded | ErrorCode::Unavailable) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        response
    }
}

/// A request that cannot be understood.
pub(super) fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidArgument, message)
}

/// The answer to a path that does not exist.
pub(super) async fn no_such_path(request: Request) -> Failure {
    let message = format!("there is no {}", request.uri().path());
    Failure(ApiError::new(ErrorCode::NotFound, message).hint("the paths are listed in /v1/openapi.json"))
}

/// The answer to a method that a path does not take: 405, with our code for a request that makes no sense.
pub(super) async fn no_such_method(method: Method, path: Option<MatchedPath>, request: Request) -> Response {
    let path = path.as_ref().map_or(request.uri().path(), MatchedPath::as_str);
    let error = invalid(format!("{path} does not take {method}"));
    let mut response = Failure(error.hint("the methods are listed in /v1/openapi.json")).into_response();
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}

/// The answer to a request whose handler panicked: a bug, logged with what the panic said.
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let said = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    tracing::error!(panic = said, "an API handler panicked");
    let error = ApiError::new(ErrorCode::Internal, "the controller met a fault of its own");
    Failure(error.hint("the controller's log says which")).into_response()
}
