//! The error code table: name, HTTP status, the commands' exit code, and whether a retry can help.
//!
//! A code is stable; messages and hints are for people and may change.

use serde::{Deserialize, Serialize};

/// What went wrong, as programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    /// The request cannot be understood or asks for something impossible.
    InvalidArgument,
    /// A request or a part of it is over a size limit.
    TooLarge,
    /// No such job, node, pool…
    NotFound,
    /// The caller may not do this.
    PermissionDenied,
    /// The thing is in another state or version than the request needs, or the key names another body.
    Conflict,
    /// Over a quota or limit; final for this request.
    QuotaExceeded,
    /// The controller is too busy for this request now.
    Overloaded,
    /// The controller or its database cannot answer now.
    Unavailable,
    /// The request may or may not have been carried out: ask again with the same key.
    OutcomeUnknown,
    /// A fault of the controller.
    Internal,
}

struct Row {
    code: ErrorCode,
    name: &'static str,
    http: u16,
    exit: u8,
    retryable: bool,
}

const fn row(code: ErrorCode, name: &'static str, http: u16, exit: u8, retryable: bool) -> Row {
    Row { code, name, http, exit, retryable }
}

#[rustfmt::skip]
const TABLE: [Row; 10] = [
    row(ErrorCode::InvalidArgument,  "INVALID_ARGUMENT",  400, 2, false),
    row(ErrorCode::TooLarge,         "TOO_LARGE",         413, 2, false),
    row(ErrorCode::NotFound,         "NOT_FOUND",         404, 4, false),
    row(ErrorCode::PermissionDenied, "PERMISSION_DENIED", 403, 5, false),
    row(ErrorCode::Conflict,         "CONFLICT",          409, 6, false),
    row(ErrorCode::QuotaExceeded,    "QUOTA_EXCEEDED",    409, 6, false),
    row(ErrorCode::Overloaded,       "OVERLOADED",        429, 3, true),
    row(ErrorCode::Unavailable,      "UNAVAILABLE",       503, 3, true),
    row(ErrorCode::OutcomeUnknown,   "OUTCOME_UNKNOWN",   504, 7, true),
    row(ErrorCode::Internal,         "INTERNAL",          500, 1, false),
];

impl ErrorCode {
    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.code == self).expect("every code has its row in TABLE")
    }

    /// The stable name, as in JSON.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The HTTP status it travels under.
    pub fn http_status(self) -> u16 {
        self.row().http
    }

    /// The exit code of a command that ends with it.
    pub fn exit_code(self) -> u8 {
        self.row().exit
    }

    /// Whether the same request may succeed later.
    pub fn retryable(self) -> bool {
        self.row().retryable
    }
}

/// An error as it travels: a stable code, a message for people, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, utoipa::ToSchema)]
#[error("{message}")]
pub struct ApiError {
    /// The stable code.
    pub code: ErrorCode,
    /// What was attempted and with what value; lower case, no full stop.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

impl ApiError {
    /// An error without a hint.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError { code, message: message.into(), hint: None, retryable: code.retryable() }
    }

    /// The same with a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = Some(hint.into());
        self
    }
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ApiError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serde_and_the_table_agree() {
        for row in &TABLE {
            assert_eq!(serde_json::to_value(row.code).unwrap(), row.name);
        }
    }
}
