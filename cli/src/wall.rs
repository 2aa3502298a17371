//! The time of day on this machine, for people: what `tomorrow` means, and the local form of an instant.
//!
//! The one place of the commands that reads the system's clock. No decision about a job hangs on it: the controller has its own.

use chrono::{DateTime, Local, SecondsFormat, Utc};

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
