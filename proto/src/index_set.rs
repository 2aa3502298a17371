//! Sets of array indices as sorted, disjoint, closed ranges; an array of a million tasks is one range.
//!
//! The text form is Slurm's: `0-9`, `1,3,5`, `0-9:3`. The throttle (`%4`) is not part of a set: see
//! [`parse_array`]. PostgreSQL keeps a set as `int4multirange`, whose text form is half-open.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The largest index an array may have.
pub const INDEX_MAX: u32 = 99_999_999;
/// The most tasks an array may have.
pub const TASKS_MAX: u64 = 10_000_000;
/// The most separate ranges a set may fall into; keeps strides like `0-9999999:2` from using memory.
pub const RANGES_MAX: usize = 100_000;

/// A set of array indices. Ranges are sorted, disjoint, not adjacent, and never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSet {
    ranges: Vec<(u32, u32)>,
}

/// Why a text is no set of indices.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexSetError {
    /// Nothing there.
    #[error("no index given: expected N, A-B, A-B:STEP, or several with commas")]
    Empty,
    /// A piece that is neither an index nor a range.
    #[error("\"{0}\" is not an index or a range: expected N, A-B or A-B:STEP")]
    Item(String),
    /// The end of a range lies before its start.
    #[error("range \"{0}\" ends before it starts")]
    Backwards(String),
    /// A step of zero.
    #[error("range \"{0}\" has step 0: the step must be 1 or more")]
    StepZero(String),
    /// An index too large.
    #[error("index {0} is over the largest index allowed, {INDEX_MAX}")]
    IndexTooLarge(String),
    /// Too many tasks.
    #[error("{0} tasks are over the most allowed in one array, {TASKS_MAX}")]
    TooManyTasks(u64),
    /// Too many separate ranges.
    #[error("the indices fall into more than {RANGES_MAX} separate ranges")]
    TooManyRanges,
    /// A throttle that is no positive number.
    #[error("throttle \"%{0}\" is not a number of tasks, 1 or more")]
    Throttle(String),
}

impl IndexSet {
    /// The set with nothing in it.
    pub fn empty() -> IndexSet {
        IndexSet::default()
    }

    /// The set of one index.
    pub fn one(index: u32) -> IndexSet {
        IndexSet { ranges: vec![(index, index)] }
    }

    /// The set of the given closed ranges, in any order, overlapping or not. A range that ends before it starts is empty.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u32, u32)>) -> IndexSet {
        let mut all: Vec<(u32, u32)> = ranges.into_iter().filter(|(a, b)| a <= b).collect();
        all.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(all.len());
        for (start, end) in all {
            match merged.last_mut() {
                Some(last) if start <= last.1.saturating_add(1) => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        IndexSet { ranges: merged }
    }

    /// The closed ranges, ascending.
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    /// How many indices.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|&(a, b)| u64::from(b - a) + 1).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether the index is in the set.
    pub fn contains(&self, index: u32) -> bool {
        self.ranges.iter().any(|&(a, b)| a <= index && index <= b)
    }

    /// The indices, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(|&(a, b)| a..=b)
    }

    /// The smallest index.
    pub fn first(&self) -> Option<u32> {
        self.ranges.first().map(|r| r.0)
    }

    /// The largest index.
    pub fn last(&self) -> Option<u32> {
        self.ranges.last().map(|r| r.1)
    }

    /// What is in both.
    pub fn intersection(&self, other: &IndexSet) -> IndexSet {
        let mut out = Vec::new();
        let (mut i, mut j) = (0, 0);
        while i < self.ranges.len() && j < other.ranges.len() {
            let (a, b) = (self.ranges[i], other.ranges[j]);
            if a.0.max(b.0) <= a.1.min(b.1) {
                out.push((a.0.max(b.0), a.1.min(b.1)));
            }
            if a.1 < b.1 { i += 1 } else { j += 1 }
        }
        IndexSet { ranges: out }
    }

    /// What is in this set and not in the other.
    pub fn difference(&self, other: &IndexSet) -> IndexSet {
        let mut out = Vec::new();
        let mut holes = other.ranges.iter().copied().peekable();
        for &(start, end) in &self.ranges {
            let mut from = start;
            while let Some(&(hole_start, hole_end)) = holes.peek() {
                if hole_start > end {
                    break;
                }
                if hole_start > from {
                    out.push((from, hole_start - 1));
                }
                from = from.max(hole_end + 1);
                if hole_end > end {
                    break;
                }
                holes.next();
            }
            if from <= end {
                out.push((from, end));
            }
        }
        IndexSet { ranges: out }
    }

    /// PostgreSQL's text form of the set as `int4multirange`: `{[0,10),[12,13)}`.
    pub fn to_multirange(&self) -> String {
        let ranges: Vec<String> =
            self.ranges.iter().map(|&(a, b)| format!("[{a},{})", u64::from(b) + 1)).collect();
        format!("{{{}}}", ranges.join(","))
    }

    /// Reads PostgreSQL's canonical text form of an `int4multirange`. `None` if it is not one.
    pub fn from_multirange(text: &str) -> Option<IndexSet> {
        let inner = text.strip_prefix('{')?.strip_suffix('}')?;
        if inner.is_empty() {
            return Some(IndexSet::empty());
        }
        let mut ranges = Vec::new();
        for part in inner.split("),") {
            let (start, end) = part.strip_prefix('[')?.trim_end_matches(')').split_once(',')?;
            ranges.push((start.parse().ok()?, end.parse::<u32>().ok()?.checked_sub(1)?));
        }
        Some(IndexSet::from_ranges(ranges))
    }
}

fn parse_index(text: &str, item: &str) -> Result<u32, IndexSetError> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(IndexSetError::Item(item.to_owned()));
    }
    match text.parse::<u32>() {
        Ok(index) if index <= INDEX_MAX => Ok(index),
        _ => Err(IndexSetError::IndexTooLarge(text.to_owned())),
    }
}

impl FromStr for IndexSet {
    type Err = IndexSetError;

    fn from_str(text: &str) -> Result<IndexSet, IndexSetError> {
        if text.is_empty() {
            return Err(IndexSetError::Empty);
        }
        let mut ranges = Vec::new();
        for item in text.split(',') {
            let (range, step) = match item.split_once(':') {
                Some((range, step)) => (range, parse_index(step, item)?),
                None => (item, 1),
            };
            let (start, end) = match range.split_once('-') {
                Some((start, end)) => (parse_index(start, item)?, parse_index(end, item)?),
                None if item.contains(':') => return Err(IndexSetError::Item(item.to_owned())),
                None => {
                    let index = parse_index(range, item)?;
                    (index, index)
                }
            };
            if step == 0 {
                return Err(IndexSetError::StepZero(item.to_owned()));
            }
            if end < start {
                return Err(IndexSetError::Backwards(item.to_owned()));
            }
            if step == 1 {
                ranges.push((start, end));
            } else {
                if ranges.len() + ((end - start) / step) as usize > RANGES_MAX {
                    return Err(IndexSetError::TooManyRanges);
                }
                ranges.extend((start..=end).step_by(step as usize).map(|i| (i, i)));
            }
            if ranges.len() > RANGES_MAX {
                return Err(IndexSetError::TooManyRanges);
            }
        }
        let set = IndexSet::from_ranges(ranges);
        if set.len() > TASKS_MAX {
            return Err(IndexSetError::TooManyTasks(set.len()));
        }
        Ok(set)
    }
}

/// Reads an array specification: a set, optionally in brackets, optionally followed by `%THROTTLE`.
pub fn parse_array(text: &str) -> Result<(IndexSet, Option<u32>), IndexSetError> {
    let (set, throttle) = match text.split_once('%') {
        Some((set, throttle)) => (set, Some(throttle)),
        None => (text, None),
    };
    let set = set.strip_prefix('[').and_then(|s| s.strip_suffix(']')).unwrap_or(set).parse()?;
    let throttle = throttle
        .map(|text| match text.parse::<u32>() {
            Ok(n) if n > 0 && n <= INDEX_MAX && text.bytes().all(|b| b.is_ascii_digit()) => Ok(n),
            _ => Err(IndexSetError::Throttle(text.to_owned())),
        })
        .transpose()?;
    Ok((set, throttle))
}

impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (start, end)) in self.ranges.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            if start == end {
                write!(f, "{start}")?;
            } else {
                write!(f, "{start}-{end}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for IndexSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IndexSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<IndexSet, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(IndexSet::empty());
        }
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn valid_specifications_are_read_as_documented() {
        for (text, shown, tasks, throttle) in [
            ("0-9", "0-9", 10, None),
            ("0-9:3", "0,3,6,9", 4, None),
            ("5,1,3", "1,3,5", 3, None),
            ("1-3,2-5", "1-5", 5, None),
            ("0-99999,0-99999", "0-99999", 100_000, None),
            ("7", "7", 1, None),
            ("[1-4]%2", "1-4", 4, Some(2)),
            ("0-999999", "0-999999", 1_000_000, None),
        ] {
            let (set, limit) = parse_array(text).unwrap();
            assert_eq!((set.to_string().as_str(), set.len(), limit), (shown, tasks, throttle), "{text}");
        }
    }

    #[test]
    fn malformed_or_oversized_specifications_are_refused() {
        for text in [
            "7-3",
            "0-9:0",
            "0-9%0",
            "0-9%-1",
            "1-2%3%",
            " 1-2",
            "1--2",
            "0-4294967295",
            "18446744073709551615",
            "1-1000000000",
            "",
            ",",
            "0x10",
            "-5",
            "1,",
            "1:2",
            "0-9999999:2",
            "1-2%+3",
        ] {
            assert!(parse_array(text).is_err(), "{text:?} was read as {:?}", parse_array(text));
        }
    }

    proptest! {
        #[test]
        fn text_and_multirange_forms_read_back(ranges in prop::collection::vec((0u32..500, 0u32..20), 1..20)) {
            let set = IndexSet::from_ranges(ranges.iter().map(|&(a, n)| (a, a + n)));
            prop_assert_eq!(&set.to_string().parse::<IndexSet>().unwrap(), &set);
            prop_assert_eq!(IndexSet::from_multirange(&set.to_multirange()), Some(set.clone()));
            let plain: std::collections::BTreeSet<u32> = ranges.iter().flat_map(|&(a, n)| a..=a + n).collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), plain.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn intersection_and_difference_are_what_they_say(
            a in prop::collection::vec((0u32..100, 0u32..9), 0..9),
            b in prop::collection::vec((0u32..100, 0u32..9), 0..9),
        ) {
            let set = |ranges: &[(u32, u32)]| IndexSet::from_ranges(ranges.iter().map(|&(a, n)| (a, a + n)));
            let (a, b) = (set(&a), set(&b));
            let both = a.intersection(&b);
            for index in 0..120 {
                prop_assert_eq!(both.contains(index), a.contains(index) && b.contains(index));
                prop_assert_eq!(a.difference(&b).contains(index), a.contains(index) && !b.contains(index));
            }
        }
    }
}
