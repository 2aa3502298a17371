//! When a recurring reservation takes place: at the same time of day, UTC, every day, every weekday or every week.
//!
//! A day is 24 hours: UTC has no summer time, so what is booked at 08:00 UTC stays there all year.

use chrono::{DateTime, Datelike, TimeDelta, Utc, Weekday};
use proto::api::RepeatEvery;

/// The beginnings of so many occurrences, the first of them `begin` itself, or on weekdays the first weekday from it on.
/// `None` if one of them is later than can be told.
pub fn beginnings(begin: DateTime<Utc>, every: RepeatEvery, times: u32) -> Option<Vec<DateTime<Utc>>> {
    let step = match every {
        RepeatEvery::Day | RepeatEvery::Weekday => TimeDelta::days(1),
        RepeatEvery::Week => TimeDelta::weeks(1),
    };
    let counts = |at: &DateTime<Utc>| {
        every != RepeatEvery::Weekday || !matches!(at.weekday(), Weekday::Sat | Weekday::Sun)
    };
    let mut found = Vec::new();
    let mut at = begin;
    while found.len() < times as usize {
        if counts(&at) {
            found.push(at);
        }
        at = at.checked_add_signed(step)?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weekdays_leave_out_saturday_and_sunday() {
        // A Thursday.
        let begin: DateTime<Utc> = "2026-12-03T08:00:00Z".parse().unwrap();
        let days = |every, times| -> Vec<u32> {
            beginnings(begin, every, times).unwrap().iter().map(|at| at.day()).collect()
        };
        assert_eq!(days(RepeatEvery::Weekday, 4), [3, 4, 7, 8]);
        assert_eq!(days(RepeatEvery::Day, 4), [3, 4, 5, 6]);
        assert_eq!(days(RepeatEvery::Week, 3), [3, 10, 17]);
        let saturday = begin + TimeDelta::days(2);
        assert_eq!(beginnings(saturday, RepeatEvery::Weekday, 1).unwrap()[0].day(), 7);
        assert_eq!(beginnings(DateTime::<Utc>::MAX_UTC, RepeatEvery::Week, 2), None);
    }
}
