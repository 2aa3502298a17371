//! The modes of a GPU, in one table: word, sentence. The database repeats the words in CHECK constraints.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a GPU is given out at an instant: one mode for the whole GPU.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum GpuMode {
    /// Whole, to one job at a time.
    Whole,
    /// As MIG instances.
    Mig,
    /// As time slices.
    Timeslice,
    /// As shares of an MPS server.
    Mps,
}

/// The one table.
#[rustfmt::skip]
const TABLE: [(GpuMode, &str, &str); 4] = [
    (GpuMode::Whole,     "whole",     "given whole, to one job at a time"),
    (GpuMode::Mig,       "mig",       "given as MIG instances, fenced from one another in the hardware"),
    (GpuMode::Timeslice, "timeslice", "given in turns; the GPU's memory is not fenced"),
    (GpuMode::Mps,       "mps",       "shared at once by processes of one user"),
];

impl GpuMode {
    /// Every mode, in the table's order.
    pub fn all() -> impl Iterator<Item = GpuMode> {
        TABLE.iter().map(|row| row.0)
    }

    fn row(self) -> &'static (GpuMode, &'static str, &'static str) {
        TABLE.iter().find(|row| row.0 == self).expect("every mode has its row in TABLE")
    }

    /// The word, as stored, as in JSON and as on command lines.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// What the mode means, as a sentence without a full stop.
    pub fn sentence(self) -> &'static str {
        self.row().2
    }
}

impl fmt::Display for GpuMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no mode.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown GPU mode {0:?}: expected one of whole, mig, timeslice, mps")]
pub struct UnknownGpuMode(pub String);

impl FromStr for GpuMode {
    type Err = UnknownGpuMode;

    fn from_str(word: &str) -> Result<GpuMode, UnknownGpuMode> {
        TABLE.iter().find(|row| row.1 == word).map(|row| row.0).ok_or_else(|| UnknownGpuMode(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_reads_back_by_its_word_and_serde_agrees() {
        for mode in GpuMode::all() {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
        }
    }

    #[test]
    fn an_unknown_mode_is_named_with_those_there_are() {
        let error = "shared".parse::<GpuMode>().unwrap_err().to_string();
        assert!(error.contains("\"shared\""), "{error}");
        assert!(GpuMode::all().all(|mode| error.contains(mode.name())), "{error}");
    }
}
