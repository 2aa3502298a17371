//! Every way a command ends badly: one type, one wording, one exit code table.
//!
//! A failure is an [`ApiError`] (the controller's own, or one made here with the same codes), so that `--json` shows the same
//! document whoever refused. Warnings are here too, since they share the form. Never prints to stdout but for `--json`.

use crate::colour;
use crate::out;
use proto::{ApiError, ErrorCode};
use serde::Serialize;
use std::io::Write;

/// Why a command could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Fail {
    /// What went wrong.
    pub error: ApiError,
    /// The key under which to ask again, where the outcome is not known.
    pub idempotency_key: Option<String>,
}

impl Fail {
    /// A failure with one of the stable codes.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Fail {
        Fail { error: ApiError::new(code, message), idempotency_key: None }
    }

    /// The command line cannot be understood (exit code 2).
    pub fn usage(message: impl Into<String>) -> Fail {
        Fail::new(ErrorCode::InvalidArgument, message)
    }

    /// Something on this machine failed (exit code 1).
    pub fn here(message: impl Into<String>) -> Fail {
        Fail::new(ErrorCode::Internal, message)
    }

    /// The same with what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> Fail {
        self.error.hint = Some(hint.into());
        self
    }

    /// The same message, put behind where it arose (`job.sh: line 3`).
    pub fn at(mut self, place: impl std::fmt::Display) -> Fail {
        self.error.message = format!("{place}: {}", self.error.message);
        self
    }

    /// The same message, followed by what was tried before (`; /a.sock: gave no answer`).
    pub fn after(mut self, before: &str) -> Fail {
        if !before.is_empty() {
            self.error.message =
                format!("{} (before that{})", self.error.message, before.replacen(';', "", 1));
        }
        self
    }

    /// The exit code, the same for every command.
    pub fn exit_code(&self) -> u8 {
        self.error.code.exit_code()
    }

    /// Says it: two lines on stderr, or with `json` one document on stdout.
    pub fn report(&self, program: &str, json: bool) {
        if json {
            let document = Document { error: &self.error, idempotency_key: self.idempotency_key.as_deref() };
            let text = serde_json::to_string(&document).expect("strings and booleans become JSON");
            if out::write(format!("{text}\n").as_bytes()).is_ok() {
                return;
            }
            // A document that cannot be written is no reason to be silent: the lines for people follow.
        }
        let name = label(&format!("{program}:"), colour::ERROR);
        let _ = writeln!(std::io::stderr(), "{name} {}", crate::text::visible_lines(&self.error.message));
        if let Some(hint) = &self.error.hint {
            let label = label("hint:", colour::HINT);
            let _ = writeln!(std::io::stderr(), "{label} {}", crate::text::visible_lines(hint));
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    error: &'a ApiError,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
}

impl From<ApiError> for Fail {
    fn from(error: ApiError) -> Fail {
        Fail { error, idempotency_key: None }
    }
}

/// A remark on stderr that changes nothing: `bsub: warning: …`.
pub fn warn(program: &str, message: &str) {
    say(program, "warning: ", message);
}

/// A line on stderr: `bsub: …`. A stderr that cannot be written is no error of the command.
pub fn say(program: &str, kind: &str, message: &str) {
    let _ = writeln!(std::io::stderr(), "{program}: {kind}{}", crate::text::visible_lines(message));
}

fn label(text: &str, style: anstyle::Style) -> String {
    let mut label = String::new();
    colour::push(&mut label, if colour::wanted_on_stderr() { style } else { anstyle::Style::new() }, text);
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_form_has_the_stable_code_and_says_whether_a_retry_helps() {
        let mut fail = Fail::new(ErrorCode::OutcomeUnknown, "no answer").hint("ask again");
        fail.idempotency_key = Some("k".to_owned());
        let document = Document { error: &fail.error, idempotency_key: fail.idempotency_key.as_deref() };
        insta::assert_snapshot!(serde_json::to_string(&document).unwrap(), @r#"{"error":{"code":"OUTCOME_UNKNOWN","message":"no answer","hint":"ask again","retryable":true},"idempotency_key":"k"}"#);
    }

    #[test]
    fn exit_codes_are_those_of_the_table() {
        assert_eq!(Fail::usage("x").exit_code(), 2);
        assert_eq!(Fail::here("x").exit_code(), 1);
        assert_eq!(Fail::new(ErrorCode::Unavailable, "x").exit_code(), 3);
        assert_eq!(Fail::new(ErrorCode::OutcomeUnknown, "x").exit_code(), 7);
    }
}
