//! The time of day on this machine, for people: what `tomorrow` means, and the local form of an instant.
//!
//! The one place of the commands that reads the system's clock. No decision about a job hangs on it: the controller has its own.

use crate::fail::Fail;
use chrono::{DateTime, Local, SecondsFormat, Utc};
use proto::datetime::{self, Moment};

/// Now, in the local zone.
#[expect(clippy::disallowed_methods, reason = "\"tomorrow\" is a word about the clock on the user's wall")]
pub fn now() -> DateTime<Local> {
    Local::now()
}

/// An instant as people read it, in the local zone, which is named: `2026-12-01T08:00:00+01:00`.
pub fn show(at: DateTime<Utc>) -> String {
    at.with_timezone(&Local).to_rfc3339_opts(SecondsFormat::Secs, false)
}

/// An instant in Slurm's form, local and without a zone: `2026-12-01T08:00:00`.
pub fn show_slurm(at: DateTime<Utc>) -> String {
    at.with_timezone(&Local).format("%Y-%m-%dT%H:%M:%S").to_string()
}

/// Reads the value of an option that names an instant or a delay, and warns of what is ambiguous.
pub fn read(option: &str, text: &str, warnings: &mut Vec<String>) -> Result<Moment, Fail> {
    let moment = datetime::parse(text, &now()).map_err(|e| Fail::usage(format!("{option}: {e}")))?;
    if let Moment::At { at, ambiguous: true } = moment {
        let taken = show(at);
        warnings
            .push(format!("{option}={text} is twice that day, since the clocks go back: taken is {taken}"));
    }
    Ok(moment)
}
