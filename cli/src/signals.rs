//! Signal names and numbers: `TERM`, `SIGTERM` and `15` are the same.
//!
//! Also what `--signal` asks for before a time limit. The numbers are this system's; controller and nodes are Linux too.

use proto::api::WarnSignal;

/// The default of `--signal`'s `@SECONDS`, as in Slurm.
pub const BEFORE_SECONDS_DEFAULT: u32 = 60;
/// The most, as in Slurm.
pub const BEFORE_SECONDS_MAX: u32 = 65_535;

/// Text that names no signal.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignalError {
    /// No such name or number.
    #[error("{0:?} is not a signal: expected a name such as TERM, USR1 or SIGINT, or a number from 1 to 64")]
    Unknown(String),
    /// Seconds that are none.
    #[error("{0:?} is not a number of seconds from 0 to {BEFORE_SECONDS_MAX}")]
    Before(String),
    /// Slurm's mark for reservations.
    #[error("R: in {0:?} is not supported yet: write [B:]SIGNAL[@SECONDS]")]
    Reservation(String),
}

/// Reads a signal's name or number.
pub fn parse(text: &str) -> Result<i32, SignalError> {
    let unknown = || SignalError::Unknown(text.to_owned());
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok().filter(|n| (1..=64).contains(n)).ok_or_else(unknown);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Ok(signal) = format!("SIG{name}").parse::<nix::sys::signal::Signal>() {
        return Ok(signal as i32);
    }
    let real_time = match name.split_once('+') {
        Some(("RTMIN", n)) => n.parse::<i32>().ok(),
        None if name == "RTMIN" => Some(0),
        _ => None,
    };
    real_time
        .map(|n| libc::SIGRTMIN() + n)
        .filter(|n| (libc::SIGRTMIN()..=64).contains(n))
        .ok_or_else(unknown)
}

/// A signal's name without `SIG`, or its number.
pub fn name(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(signal) => signal.as_str().trim_start_matches("SIG").to_owned(),
        Err(_) => signal.to_string(),
    }
}

/// Reads `[B:]SIGNAL[@SECONDS]`.
pub fn parse_warn(text: &str) -> Result<WarnSignal, SignalError> {
    let (script_only, rest) = match text.split_once(':') {
        Some(("B" | "b", rest)) => (true, rest),
        Some(("R" | "r" | "RB" | "BR", _)) => return Err(SignalError::Reservation(text.to_owned())),
        Some(_) => return Err(SignalError::Unknown(text.to_owned())),
        None => (false, text),
    };
    let (signal, before) = match rest.split_once('@') {
        Some((signal, before)) => (signal, Some(before)),
        None => (rest, None),
    };
    let before_s = match before {
        None => BEFORE_SECONDS_DEFAULT,
        Some(before) if !before.is_empty() && before.bytes().all(|b| b.is_ascii_digit()) => before
            .parse()
            .ok()
            .filter(|s| *s <= BEFORE_SECONDS_MAX)
            .ok_or_else(|| SignalError::Before(before.to_owned()))?,
        Some(before) => return Err(SignalError::Before(before.to_owned())),
    };
    Ok(WarnSignal { signal: parse(signal)?, before_s, script_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_the_same() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse(text), Ok(15), "{text}");
        }
        assert_eq!(parse("RTMIN+2"), Ok(libc::SIGRTMIN() + 2));
        assert_eq!(name(9), "KILL");
        for text in ["", "0", "65", "-9", "NOPE", "SIG", "RTMIN+99"] {
            assert_eq!(parse(text), Err(SignalError::Unknown(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_warning_has_slurms_form() {
        let usr2 = |before_s, script_only| Ok(WarnSignal { signal: libc::SIGUSR2, before_s, script_only });
        assert_eq!(parse_warn("USR2@90"), usr2(90, false));
        assert_eq!(parse_warn("B:USR2@30"), usr2(30, true));
        assert_eq!(parse_warn("SIGUSR2"), usr2(60, false));
        for text in ["USR2@", "USR2@-1", "USR2@65536", "R:USR2", "X:USR2", "@30", "B:"] {
            assert!(parse_warn(text).is_err(), "{text}");
        }
    }
}
