//! Events: what happened, in one table of types, and where a reader is in their order.
//!
//! An event is told at least once to everybody who asks, those of one subject in the order in which they happened; whoever must
//! not act twice drops what has an id seen before. A [`Cursor`] is the place behind an event: opaque outside the controller.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Event {
    /// Its own id: the same however often it is told.
    #[schema(value_type = String)]
    pub id: String,
    /// Its type, one of [`TYPES`].
    #[serde(rename = "type")]
    pub kind: String,
    /// Whose it is; absent where it is the fleet's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it is about: `job/12`, `node/n1`, `gpu/UUID`, `reservation/3`, `quota/TENANT/RESOURCE`.
    pub subject: String,
    /// What there is to say, by type.
    pub data: serde_json::Value,
    /// When it happened.
    pub time: DateTime<Utc>,
}

/// What can happen: the type, and when it is told.
#[rustfmt::skip]
pub const TYPES: [(&str, &str); 22] = [
    ("job.submitted",         "a job was accepted; an array is one, whatever its size"),
    ("job.started",           "an attempt of a job, or of a task of it, began to run"),
    ("job.task_ended",        "a task of an array ended, or an attempt of it that goes back to the queue"),
    ("job.requeued",          "a job, or tasks of it, went back to the queue"),
    ("job.ended",             "a job ended, of an array the last task"),
    ("job.held",              "a job was held"),
    ("job.released",          "a job's hold was lifted"),
    ("job.updated",           "a job's limits or its place in the queue were changed"),
    ("node.connected",        "a node opened a session"),
    ("node.disconnected",     "a node's session ended; nothing is released"),
    ("node.unreachable",      "a node has been away for long and takes no new work; nothing is released"),
    ("node.reachable",        "a node that was unreachable is back"),
    ("node.lost",             "a node was given up, and its jobs with it"),
    ("hold.placed",           "a node, a GPU or a part of it is to take no new work"),
    ("hold.lifted",           "a hold was lifted, or its time is over"),
    ("gpu.mode_changed",      "a GPU works in another mode or layout"),
    ("reservation.created",   "capacity was reserved"),
    ("reservation.changed",   "a reservation's time was changed"),
    ("reservation.started",   "a reservation began"),
    ("reservation.ended",     "a reservation's time is over"),
    ("reservation.cancelled", "a reservation was given up before its time"),
    ("quota.changed",         "a tenant's limit was set or taken away"),
];

/// Whether a filter, a type or the beginning of one up to a dot (`job`, `job.ended`), names this type.
pub fn matches(filter: &str, kind: &str) -> bool {
    kind.strip_prefix(filter).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Checks a filter by type.
pub fn check_filter(filter: &str) -> Result<(), FilterError> {
    let known = TYPES.iter().any(|(kind, _)| matches(filter, kind));
    if known { Ok(()) } else { Err(FilterError(filter.to_owned())) }
}

/// A filter that no event can pass.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no event is of type {0:?}: expected a type such as job.ended, or what stands before its dot, such as job"
)]
pub struct FilterError(pub String);

/// The place behind an event: (transaction, sequence), as `TRANSACTION-SEQUENCE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    /// The transaction, as the order sees it.
    pub txid: u64,
    /// The event's number.
    pub seq: i64,
}

/// Text that is no cursor.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no place among events: expected an id that /v1/events gave, such as 1234-56")]
pub struct CursorError(pub String);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.txid, self.seq)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Cursor, CursorError> {
        let wrong = || CursorError(text.to_owned());
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| digits.parse::<i64>().ok()).flatten().ok_or_else(wrong)
        };
        let (txid, seq) = text.split_once('-').ok_or_else(wrong)?;
        Ok(Cursor { txid: number(txid)?.unsigned_abs(), seq: number(seq)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_orders_by_transaction_first() {
        let at = |text: &str| text.parse::<Cursor>().unwrap();
        assert_eq!(at("12-34").to_string(), "12-34");
        assert!(at("9-100") < at("10-1") && at("10-1") < at("10-2"));
        for text in ["", "-", "1-", "-1", "1", "+1-1", "1-+1", "1-1-1", "99999999999999999999-1", " 1-1"] {
            assert_eq!(text.parse::<Cursor>(), Err(CursorError(text.to_owned())));
        }
    }

    #[test]
    fn a_filter_names_a_type_or_all_before_its_dot() {
        assert!(matches("job", "job.ended") && matches("job.ended", "job.ended"));
        assert!(
            !matches("jo", "job.ended") && !matches("job.end", "job.ended") && !matches("job.", "job.ended")
        );
        assert!(check_filter("node").is_ok());
        assert_eq!(check_filter("jobs"), Err(FilterError("jobs".into())));
        assert_eq!(check_filter(""), Err(FilterError(String::new())));
    }
}
