//! Instants as people write them: `now+1hour`, `tomorrow18:00`, `16:00`, `2026-12-01T08:00:00`, RFC 3339.
//!
//! Owns the words, clocks and dates that Slurm reads, in the local time zone, and RFC 3339 with its own. Reads no clock and
//! knows no zone: `now` comes in with the zone it is in. A local time that does not exist (the clock was put forward over it)
//! is refused; of one that exists twice the earlier is taken, and the answer says so.

use chrono::{DateTime, Datelike, Days, MappedLocalTime, NaiveDate, NaiveDateTime, NaiveTime, TimeZone, Utc};

/// The longest delay, in seconds: a hundred years.
pub const DELAY_SECONDS_MAX: u64 = 100 * 365 * 86_400;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// An instant.
    At {
        /// When.
        at: DateTime<Utc>,
        /// The local time written exists twice; this is the earlier one.
        ambiguous: bool,
    },
    /// So many seconds from now (`now` is 0).
    After(u64),
}

/// Text that names no instant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatetimeError {
    /// Not one of the forms.
    #[error(
        "{0:?} is not a time: expected now+COUNT[seconds|minutes|hours|days|weeks], HH:MM[:SS], today, tomorrow, midnight, noon, YYYY-MM-DD[THH:MM[:SS]] or such with a zone (2026-12-01T08:00:00Z)"
    )]
    Form(String),
    /// No such day or time of day.
    #[error("{0:?} names a day or an hour that does not exist")]
    NoSuchDay(String),
    /// Left out by a change of the clocks.
    #[error("{0:?} does not exist here: the clocks are put forward over it")]
    Skipped(String),
    /// Farther than a hundred years.
    #[error("{0:?} is more than a hundred years away")]
    TooFar(String),
}

/// Reads an instant or a delay. `now` decides what is today, and which zone a time without one is in.
pub fn parse<Tz: TimeZone>(text: &str, now: &DateTime<Tz>) -> Result<Moment, DatetimeError> {
    let form = || DatetimeError::Form(text.to_owned());
    let lower = text.to_ascii_lowercase();
    if lower == "now" {
        return Ok(Moment::After(0));
    }
    if let Some(delay) = lower.strip_prefix("now+") {
        return parse_delay(delay).ok_or_else(form)?.map_err(|TooFar| DatetimeError::TooFar(text.to_owned()));
    }
    if let Some(seconds) = lower.strip_prefix("uts") {
        if seconds.is_empty() || !seconds.bytes().all(|b| b.is_ascii_digit()) {
            return Err(form());
        }
        let at = seconds.parse().ok().and_then(|s| DateTime::from_timestamp(s, 0));
        return near(at.ok_or_else(|| DatetimeError::TooFar(text.to_owned()))?, false, text, now);
    }
    if let Ok(at) = DateTime::parse_from_rfc3339(text) {
        return near(at.to_utc(), false, text, now);
    }
    let today = now.naive_local();
    let local = Words::read(&lower, today).ok_or_else(form)?.resolve(today, text)?;
    match now.timezone().from_local_datetime(&local) {
        MappedLocalTime::Single(at) => near(at.to_utc(), false, text, now),
        MappedLocalTime::Ambiguous(earlier, _) => near(earlier.to_utc(), true, text, now),
        MappedLocalTime::None => Err(DatetimeError::Skipped(text.to_owned())),
    }
}

fn near<Tz: TimeZone>(
    at: DateTime<Utc>,
    ambiguous: bool,
    text: &str,
    now: &DateTime<Tz>,
) -> Result<Moment, DatetimeError> {
    let away = (at - now.to_utc()).num_seconds().unsigned_abs();
    if away > DELAY_SECONDS_MAX {
        return Err(DatetimeError::TooFar(text.to_owned()));
    }
    Ok(Moment::At { at, ambiguous })
}

struct TooFar;

/// Reads what follows `now+`. `None` is not of the form.
fn parse_delay(text: &str) -> Option<Result<Moment, TooFar>> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    if count.is_empty() {
        return None;
    }
    let unit = match unit {
        "" | "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 7 * 86_400,
        _ => return None,
    };
    let seconds = count.parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
    Some(seconds.filter(|s| *s <= DELAY_SECONDS_MAX).map(Moment::After).ok_or(TooFar))
}

/// A day and a clock as written; either may be missing, a later word wins.
#[derive(Default)]
struct Words {
    day: Option<Day>,
    clock: Option<Option<NaiveTime>>,
}

enum Day {
    /// A day of the calendar; `None` does not exist.
    On(Option<NaiveDate>),
    /// A month and a day of this year, or the next if it is past.
    Yearly(u32, u32),
}

impl Words {
    /// Cuts the text into words, clocks and dates. `None` where something is none of them.
    fn read(text: &str, now: NaiveDateTime) -> Option<Words> {
        let mut words = Words::default();
        let mut rest = text;
        if rest.is_empty() {
            return None;
        }
        while !rest.is_empty() {
            if let Some((taken, day, clock)) = named(rest, now) {
                words.day = day.or(words.day);
                words.clock = clock.or(words.clock);
                rest = &rest[taken..];
            } else {
                let end = rest.bytes().take_while(|b| b.is_ascii_digit() || b":/.-t".contains(b)).count();
                // "12:00pm": the letters after a clock belong to it. A "t" that begins a word does not.
                let token = rest[..end].trim_end_matches('t');
                let after = &rest[token.len()..];
                let half = ["am", "pm"].iter().find(|half| after.starts_with(**half));
                words.number(token, half.copied())?;
                rest = &after[half.map_or(0, |half| half.len())..];
            }
            rest = match rest.as_bytes() {
                // What joins two words: "tomorrow 18:00", "tomorrow-18:00", "tomorrowT18:00".
                [b' ' | b'-', _, ..] | [b't', b'0'..=b'9', ..] => &rest[1..],
                _ => rest,
            };
        }
        Some(words)
    }

    /// Reads a clock, a date, or both joined by `T` or `-`.
    fn number(&mut self, token: &str, half: Option<&str>) -> Option<()> {
        let joined = token
            .split_once('t')
            .or_else(|| token.rsplit_once('-').filter(|(day, clock)| clock.contains(':') && !day.is_empty()));
        if let Some((day, clock)) = joined {
            self.day = Some(date(day)?);
            self.clock = Some(time(clock, half)?);
        } else if token.contains(':') || half.is_some() {
            self.clock = Some(time(token, half)?);
        } else {
            self.day = Some(date(token)?);
        }
        Some(())
    }

    fn resolve(self, now: NaiveDateTime, text: &str) -> Result<NaiveDateTime, DatetimeError> {
        let no_such = || DatetimeError::NoSuchDay(text.to_owned());
        let clock = match self.clock {
            None => None,
            Some(clock) => Some(clock.ok_or_else(no_such)?),
        };
        let day = match self.day {
            Some(Day::On(day)) => day.ok_or_else(no_such)?,
            Some(Day::Yearly(month, day)) => {
                let this_year = NaiveDate::from_ymd_opt(now.year(), month, day);
                // A date without a year is this year's unless it is past; the 29th of February may have to wait.
                let years =
                    (now.year()..now.year() + 9).filter_map(|y| NaiveDate::from_ymd_opt(y, month, day));
                let at = clock.unwrap_or(NaiveTime::MIN);
                let soonest = if clock.is_none() { this_year.filter(|d| *d == now.date()) } else { None };
                soonest.or_else(|| years.into_iter().find(|d| d.and_time(at) >= now)).ok_or_else(no_such)?
            }
            None => match clock {
                Some(clock) if clock <= now.time() => {
                    now.date().checked_add_days(Days::new(1)).ok_or_else(no_such)?
                }
                _ => now.date(),
            },
        };
        Ok(day.and_time(clock.unwrap_or(NaiveTime::MIN)))
    }
}

const NAMED: [&str; 7] = ["today", "tomorrow", "midnight", "noon", "elevenses", "fika", "teatime"];

/// A named day or clock at the start of the text, and how long its name is.
fn named(text: &str, now: NaiveDateTime) -> Option<(usize, Option<Day>, Option<Option<NaiveTime>>)> {
    let word = NAMED.iter().find(|word| text.starts_with(**word))?;
    let clock = |hour| Some(NaiveTime::from_hms_opt(hour, 0, 0));
    let (day, clock) = match *word {
        "today" => (Some(Day::On(Some(now.date()))), None),
        "tomorrow" => (Some(Day::On(now.date().checked_add_days(Days::new(1)))), None),
        "midnight" => (None, clock(0)),
        "noon" => (None, clock(12)),
        "elevenses" => (None, clock(11)),
        "fika" => (None, clock(15)),
        _ => (None, clock(16)),
    };
    Some((word.len(), day, clock))
}

/// `HH:MM[:SS]`, or `HH` before am or pm. The outer `None` is not of the form, the inner one does not exist.
fn time(text: &str, half: Option<&str>) -> Option<Option<NaiveTime>> {
    let fields: Vec<u32> = text.split(':').map(|f| number(f, 1..=2)).collect::<Option<_>>()?;
    let (mut hour, minute, second) = match (fields.as_slice(), half) {
        (&[h], Some(_)) => (h, 0, 0),
        (&[h, m], _) => (h, m, 0),
        (&[h, m, s], _) => (h, m, s),
        _ => return None,
    };
    if let Some(half) = half {
        if !(1..=12).contains(&hour) {
            return Some(None);
        }
        hour = hour % 12 + if half == "pm" { 12 } else { 0 };
    }
    Some(NaiveTime::from_hms_opt(hour, minute, second))
}

/// `YYYY-MM-DD`, `MM/DD[/YY]`, `MM.DD[.YY]`, `MMDD[YY]`; years may have four digits.
fn date(text: &str) -> Option<Day> {
    let ymd = |y, m, d| Day::On(NaiveDate::from_ymd_opt(y, m, d));
    let year = |text: &str| match text.len() {
        2 => number(text, 2..=2).map(|y| 2000 + y as i32),
        _ => number(text, 4..=4).map(|y| y as i32),
    };
    if text.contains('-') {
        let [y, m, d] = text.split('-').collect::<Vec<_>>()[..] else { return None };
        return Some(ymd(number(y, 4..=4)? as i32, number(m, 1..=2)?, number(d, 1..=2)?));
    }
    if text.contains(['/', '.']) {
        let separator = if text.contains('/') { '/' } else { '.' };
        return match text.split(separator).collect::<Vec<_>>()[..] {
            [m, d] => Some(yearly(number(m, 1..=2)?, number(d, 1..=2)?)),
            [m, d, y] => Some(ymd(year(y)?, number(m, 1..=2)?, number(d, 1..=2)?)),
            _ => None,
        };
    }
    if !text.is_ascii() {
        return None;
    }
    match text.len() {
        4 => Some(yearly(number(&text[..2], 2..=2)?, number(&text[2..], 2..=2)?)),
        6 => Some(ymd(year(&text[4..])?, number(&text[..2], 2..=2)?, number(&text[2..4], 2..=2)?)),
        _ => None,
    }
}

fn yearly(month: u32, day: u32) -> Day {
    // 2000 was a leap year: every day that some year has.
    match NaiveDate::from_ymd_opt(2000, month, day) {
        Some(_) => Day::Yearly(month, day),
        None => Day::On(None),
    }
}

fn number(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    if !digits.contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::{FixedOffset, Offset};
    use proptest::prelude::*;

    /// Monday 30 November 2026, 14:30:00, two hours east.
    fn now() -> DateTime<FixedOffset> {
        DateTime::parse_from_rfc3339("2026-11-30T14:30:00+02:00").unwrap()
    }

    fn at(text: &str) -> String {
        match parse(text, &now()) {
            Ok(Moment::At { at, ambiguous: false }) => at.with_timezone(&now().timezone()).to_rfc3339(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn delays_are_counted_from_now() {
        for (text, seconds) in [
            ("now", 0),
            ("now+90", 90),
            ("now+1hour", 3600),
            ("NOW+2Days", 172_800),
            ("now+1week", 604_800),
            ("now+5minutes", 300),
        ] {
            assert_eq!(parse(text, &now()), Ok(Moment::After(seconds)), "{text}");
        }
    }

    #[test]
    fn clocks_and_dates_are_local_and_in_the_future() {
        for (text, want) in [
            ("16:00", "2026-11-30T16:00:00+02:00"),
            ("14:30", "2026-12-01T14:30:00+02:00"),
            ("08:15:30", "2026-12-01T08:15:30+02:00"),
            ("4:00PM", "2026-11-30T16:00:00+02:00"),
            ("12am", "2026-12-01T00:00:00+02:00"),
            ("teatime", "2026-11-30T16:00:00+02:00"),
            ("noon", "2026-12-01T12:00:00+02:00"),
            ("midnight", "2026-12-01T00:00:00+02:00"),
            ("tomorrow", "2026-12-01T00:00:00+02:00"),
            ("today", "2026-11-30T00:00:00+02:00"),
            ("tomorrow18:00", "2026-12-01T18:00:00+02:00"),
            ("tomorrowteatime", "2026-12-01T16:00:00+02:00"),
            ("18:00tomorrow", "2026-12-01T18:00:00+02:00"),
            ("2027-01-20", "2027-01-20T00:00:00+02:00"),
            ("2027-01-20T12:34:00", "2027-01-20T12:34:00+02:00"),
            ("2027-01-20T12:34", "2027-01-20T12:34:00+02:00"),
            ("01/20/27-12:34", "2027-01-20T12:34:00+02:00"),
            ("1220", "2026-12-20T00:00:00+02:00"),
            ("012027", "2027-01-20T00:00:00+02:00"),
            ("01/20", "2027-01-20T00:00:00+02:00"),
            ("11/30", "2026-11-30T00:00:00+02:00"),
            ("11/30-08:00", "2027-11-30T08:00:00+02:00"),
            ("12.24.26", "2026-12-24T00:00:00+02:00"),
            ("02/29", "2028-02-29T00:00:00+02:00"),
            ("uts1800000000", "2027-01-15T10:00:00+02:00"),
        ] {
            assert_eq!(at(text), want, "{text}");
        }
    }

    #[test]
    fn a_written_zone_is_kept() {
        assert_eq!(at("2026-12-01T08:00:00Z"), "2026-12-01T10:00:00+02:00");
        assert_eq!(at("2026-12-01T08:00:00-05:00"), "2026-12-01T15:00:00+02:00");
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_value() {
        for text in [
            "",
            " ",
            "soon",
            "now-1hour",
            "now+",
            "now+x",
            "now+1fortnight",
            "25",
            "1:2:3:4",
            "uts",
            "uts-1",
            "tomorrow+1",
            "--",
            "1//2",
            "ä",
        ] {
            let error = parse(text, &now()).unwrap_err();
            assert!(matches!(&error, DatetimeError::Form(t) if t == text), "{text}: {error:?}");
        }
        for text in ["25:00", "2026-02-30", "13/01", "13:00pm", "2026-13-01T00:00"] {
            assert_eq!(parse(text, &now()), Err(DatetimeError::NoSuchDay(text.to_owned())), "{text}");
        }
        for text in ["now+99999999999999999999", "now+5300weeks", "9999-01-01", "uts999999999999999"] {
            assert_eq!(parse(text, &now()), Err(DatetimeError::TooFar(text.to_owned())), "{text}");
        }
    }

    /// A zone whose clocks go from 02:00 to 03:00 on 2027-03-28, and from 03:00 to 02:00 on 2027-10-31.
    #[derive(Clone)]
    struct Summer;

    #[derive(Clone, Debug)]
    struct Hours(i32);

    impl Offset for Hours {
        fn fix(&self) -> FixedOffset {
            FixedOffset::east_opt(self.0 * 3600).unwrap()
        }
    }

    impl TimeZone for Summer {
        type Offset = Hours;
        fn from_offset(_: &Hours) -> Summer {
            Summer
        }
        fn offset_from_local_date(&self, _: &NaiveDate) -> MappedLocalTime<Hours> {
            unreachable!("only instants are asked for")
        }
        fn offset_from_local_datetime(&self, local: &NaiveDateTime) -> MappedLocalTime<Hours> {
            let local = local.format("%Y-%m-%dT%H:%M").to_string();
            match local.as_str() {
                l if l < "2027-03-28T02:00" => MappedLocalTime::Single(Hours(1)),
                l if l < "2027-03-28T03:00" => MappedLocalTime::None,
                l if l < "2027-10-31T02:00" => MappedLocalTime::Single(Hours(2)),
                l if l < "2027-10-31T03:00" => MappedLocalTime::Ambiguous(Hours(2), Hours(1)),
                _ => MappedLocalTime::Single(Hours(1)),
            }
        }
        fn offset_from_utc_date(&self, _: &NaiveDate) -> Hours {
            Hours(1)
        }
        fn offset_from_utc_datetime(&self, _: &NaiveDateTime) -> Hours {
            Hours(1)
        }
    }

    #[test]
    fn a_time_the_clocks_skip_is_refused_and_one_they_repeat_is_the_earlier() {
        let now = now().with_timezone(&Summer);
        assert_eq!(
            parse("2027-03-28T02:30", &now),
            Err(DatetimeError::Skipped("2027-03-28T02:30".to_owned()))
        );
        let at = "2027-10-31T00:30:00Z".parse().unwrap();
        assert_eq!(parse("2027-10-31T02:30", &now), Ok(Moment::At { at, ambiguous: true }));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC*") {
            let _ = parse(&text, &now());
        }

        #[test]
        fn nothing_like_a_time_makes_the_reader_panic(text in "(now|today|t|noon|[0-9:/.+-]|am|pm){0,6}") {
            let _ = parse(&text, &now());
        }
    }
}
