//! Time limits: Slurm's seven forms read to the second, and the two forms in which durations are shown.
//!
//! A bare number is minutes and `10:30` is ten minutes and thirty seconds, as in Slurm; unlike Slurm seconds are kept, not
//! rounded up to a minute. `0` written exactly so is "no limit", as `UNLIMITED`, `INFINITE` and `-1` are; any other spelling
//! of nothing (`0:00`) is refused, and what cannot be read is an error, never "no limit".

use std::fmt;

/// The longest time limit, in seconds: a hundred years.
pub const LIMIT_SECONDS_MAX: u64 = 100 * 365 * 86_400;

const FORMS: &str = "expected MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, DAYS-HOURS:MINUTES, \
                     DAYS-HOURS:MINUTES:SECONDS or UNLIMITED";

/// A time limit as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No limit (which the pool may refuse).
    Unlimited,
    /// So many seconds, 1 to [`LIMIT_SECONDS_MAX`].
    Seconds(u64),
}

impl Limit {
    /// The seconds, `None` where there is no limit.
    pub fn seconds(self) -> Option<u64> {
        match self {
            Limit::Unlimited => None,
            Limit::Seconds(seconds) => Some(seconds),
        }
    }
}

/// Text that is no time limit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not one of the forms.
    #[error("{0:?} is not a time limit: {FORMS}")]
    Form(String),
    /// A spelling of nothing.
    #[error("{0:?} is no time at all: {FORMS}")]
    Zero(String),
    /// Over the longest there is.
    #[error("{0:?} is longer than a hundred years: say UNLIMITED for no limit")]
    TooLong(String),
    /// A unit's letter.
    #[error("{0:?} is not a time limit: units are not written; a bare number is minutes; {FORMS}")]
    Unit(String),
}

/// Reads a time limit.
pub fn parse_limit(text: &str) -> Result<Limit, DurationError> {
    if text == "0" || text == "-1" || ["UNLIMITED", "INFINITE"].iter().any(|w| w.eq_ignore_ascii_case(text)) {
        return Ok(Limit::Unlimited);
    }
    let form = || match text.as_bytes() {
        [digits @ .., b's' | b'm' | b'h' | b'd']
            if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) =>
        {
            DurationError::Unit(text.to_owned())
        }
        _ => DurationError::Form(text.to_owned()),
    };
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days), clock),
        None => (None, text),
    };
    let fields: Vec<&str> = clock.split(':').collect();
    let units: &[u64] = match (days, fields.len()) {
        (None, 1) => &[60],
        (None, 2) => &[60, 1],
        (_, 3) => &[3600, 60, 1],
        (Some(_), 1) => &[3600],
        (Some(_), 2) => &[3600, 60],
        _ => return Err(form()),
    };
    let mut total: u128 = 0;
    for (field, unit) in days.iter().zip(&[86_400]).chain(fields.iter().zip(units)) {
        if field.is_empty() || !field.bytes().all(|b| b.is_ascii_digit()) {
            return Err(form());
        }
        let count: u64 = field.parse().map_err(|_| DurationError::TooLong(text.to_owned()))?;
        total += u128::from(count) * u128::from(*unit);
    }
    match u64::try_from(total) {
        Ok(0) => Err(DurationError::Zero(text.to_owned())),
        Ok(seconds) if seconds <= LIMIT_SECONDS_MAX => Ok(Limit::Seconds(seconds)),
        _ => Err(DurationError::TooLong(text.to_owned())),
    }
}

/// A time limit as people see it: `[D-]HH:MM:SS` or `UNLIMITED`. [`parse_limit`] reads it back.
pub fn show_limit(seconds: Option<u64>) -> String {
    match seconds {
        None => "UNLIMITED".to_owned(),
        Some(seconds) => Full(seconds).to_string(),
    }
}

/// Shows seconds as `[D-]HH:MM:SS`.
#[derive(Clone, Copy, Debug)]
pub struct Full(pub u64);

/// Shows seconds in `squeue`'s shortest form: `M:SS`, `H:MM:SS`, `D-HH:MM:SS`.
#[derive(Clone, Copy, Debug)]
pub struct Short(pub u64);

fn split(seconds: u64) -> (u64, u64, u64, u64) {
    (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, hours, minutes, seconds) = split(self.0);
        if days > 0 {
            write!(f, "{days}-")?;
        }
        write!(f, "{hours:02}:{minutes:02}:{seconds:02}")
    }
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match split(self.0) {
            (0, 0, minutes, seconds) => write!(f, "{minutes}:{seconds:02}"),
            (0, hours, minutes, seconds) => write!(f, "{hours}:{minutes:02}:{seconds:02}"),
            (days, hours, minutes, seconds) => write!(f, "{days}-{hours:02}:{minutes:02}:{seconds:02}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_seven_forms_are_read_to_the_second() {
        for (text, seconds) in [
            ("10", 600),
            ("4:00", 240),
            ("0:30", 30),
            ("1:00:00", 3600),
            ("2-12", 216_000),
            ("2-12:30", 217_800),
            ("2-12:30:45", 217_845),
            ("0:5:0", 300),
            ("0:7200", 7200),
            ("00:10:00", 600),
        ] {
            assert_eq!(parse_limit(text), Ok(Limit::Seconds(seconds)), "{text}");
        }
    }

    #[test]
    fn no_limit_must_be_said() {
        for text in ["0", "-1", "UNLIMITED", "unlimited", "INFINITE"] {
            assert_eq!(parse_limit(text), Ok(Limit::Unlimited), "{text}");
        }
        for text in ["0:00", "00", "0-0", "00:00:00"] {
            assert_eq!(parse_limit(text), Err(DurationError::Zero(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_value_and_the_forms() {
        for text in [
            "",
            " ",
            "abc",
            "1:2:3:4",
            "-5",
            "1-",
            "1-:30",
            "1-2:3:4:5",
            "1:",
            ":1",
            "+5",
            "1.5",
            " 10",
            "10 ",
        ] {
            let message = parse_limit(text).unwrap_err().to_string();
            assert!(message.contains(&format!("{text:?}")) && message.contains("DAYS-HOURS"), "{message}");
        }
        assert!(parse_limit("5m").unwrap_err().to_string().contains("a bare number is minutes"));
        assert!(parse_limit("99999999999999999999").unwrap_err().to_string().contains("a hundred years"));
        assert!(parse_limit("9999999999-0").unwrap_err().to_string().contains("a hundred years"));
    }

    #[test]
    fn durations_are_shown_as_slurm_shows_them() {
        assert_eq!(Full(59).to_string(), "00:00:59");
        assert_eq!(Full(90_061).to_string(), "1-01:01:01");
        assert_eq!(show_limit(None), "UNLIMITED");
        assert_eq!(Short(0).to_string(), "0:00");
        assert_eq!(Short(605).to_string(), "10:05");
        assert_eq!(Short(3605).to_string(), "1:00:05");
        assert_eq!(Short(90_061).to_string(), "1-01:01:01");
    }

    proptest! {
        #[test]
        fn a_limit_shown_reads_back(seconds in 1..=LIMIT_SECONDS_MAX) {
            prop_assert_eq!(parse_limit(&show_limit(Some(seconds))), Ok(Limit::Seconds(seconds)));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC*") {
            let _ = parse_limit(&text);
        }
    }
}
