//! The kinds of hold, in one table: word, sentence. The database repeats the words in a CHECK constraint.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Why a node, a GPU or a part of a GPU takes no new work, and what that means for work.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum HoldKind {
    /// To be emptied.
    #[default]
    Drain,
    /// Set aside.
    Cordon,
    /// Unfit for work in general.
    Taint,
    /// The controller hears nothing of it.
    Unreachable,
    /// Suspected of being broken.
    Quarantine,
    /// Worked on.
    Maintenance,
}

/// The one table.
#[rustfmt::skip]
const TABLE: [(HoldKind, &str, &str); 6] = [
    (HoldKind::Drain,       "drain",       "nothing begins on it; what runs goes on until it ends, after which it is drained"),
    (HoldKind::Cordon,      "cordon",      "nothing begins on it; what runs goes on"),
    (HoldKind::Taint,       "taint",       "nothing begins on it, since it is unfit for work in general; what runs goes on"),
    (HoldKind::Unreachable, "unreachable", "nothing begins on it, since the controller hears nothing of it; what runs keeps its place"),
    (HoldKind::Quarantine,  "quarantine",  "nothing begins on it, since it may be broken; what runs goes on"),
    (HoldKind::Maintenance, "maintenance", "nothing begins on it that would not be over when the maintenance begins; what runs goes on"),
];

impl HoldKind {
    /// Every kind, in the table's order.
    pub fn all() -> impl Iterator<Item = HoldKind> {
        TABLE.iter().map(|row| row.0)
    }

    fn row(self) -> &'static (HoldKind, &'static str, &'static str) {
        TABLE.iter().find(|row| row.0 == self).expect("every kind has its row in TABLE")
    }

    /// The word, as stored, as in JSON and as on command lines.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// What the kind means, as a sentence without a full stop.
    pub fn sentence(self) -> &'static str {
        self.row().2
    }

    /// Whether people may put it; the others are the controller's own findings.
    pub fn is_for_people(self) -> bool {
        self != HoldKind::Unreachable
    }
}

impl fmt::Display for HoldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no kind.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown kind of hold {0:?}: expected one of drain, cordon, taint, unreachable, quarantine, maintenance"
)]
pub struct UnknownHoldKind(pub String);

impl FromStr for HoldKind {
    type Err = UnknownHoldKind;

    fn from_str(word: &str) -> Result<HoldKind, UnknownHoldKind> {
        TABLE
            .iter()
            .find(|row| row.1 == word)
            .map(|row| row.0)
            .ok_or_else(|| UnknownHoldKind(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_reads_back_by_its_word_and_serde_agrees() {
        for kind in HoldKind::all() {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn an_unknown_kind_is_named_with_those_there_are() {
        let error = "drained".parse::<HoldKind>().unwrap_err().to_string();
        assert!(error.contains("\"drained\""), "{error}");
        assert!(HoldKind::all().all(|kind| error.contains(kind.name())), "{error}");
    }
}
