//! How the API says no: every answer that is not a success carries [`ErrorBody`], whoever refused.

use crate::store::StoreError;
use axum::Json;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use proto::error::ErrorBody;
use proto::{ApiError, ErrorCode};
use std::any::Any;

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
        // The conversion logs what the caller is not told.
        Failure(error.into())
    }
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
