//! Positions in the database's history of commits.
//!
//! Every successful answer of the API carries one in the header [`HEADER`]: what the answer shows was committed at or before
//! it. A request with the header [`AT_LEAST`] is answered only from a database that has everything up to there, so what
//! one answer showed no later one lacks, whichever controller gives it.

use std::fmt;
use std::str::FromStr;

/// The header of an answer.
pub const HEADER: &str = "bc-position";
/// The header of a request.
pub const AT_LEAST: &str = "bc-at-least";

/// A position: PostgreSQL's place in its write-ahead log, spelled as it does, `0/16B3748`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// Text that is no position.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no position: expected what an answer's {HEADER} said, such as 0/16B3748")]
pub struct PositionError(pub String);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Position, PositionError> {
        let wrong = || PositionError(text.to_owned());
        let half = |digits: &str| {
            let hex = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten().ok_or_else(wrong)
        };
        let (high, low) = text.split_once('/').ok_or_else(wrong)?;
        Ok(Position(half(high)? << 32 | half(low)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_and_orders_as_a_number() {
        for text in ["0/16B3748", "0/0", "1F/A0", "FFFFFFFF/FFFFFFFF"] {
            assert_eq!(text.parse::<Position>().unwrap().to_string(), text);
        }
        let at = |text: &str| text.parse::<Position>().unwrap();
        assert!(at("0/FFFFFFFF") < at("1/0") && at("0/9") < at("0/10"));
        for text in ["", "0", "/", "0/", "/0", "0/+1", "0/-1", "0/0/0", "0/123456789", "x/1", " 0/1"] {
            assert_eq!(text.parse::<Position>(), Err(PositionError(text.to_owned())));
        }
    }
}
