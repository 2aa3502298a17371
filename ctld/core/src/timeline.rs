//! Amounts over time: how much of something is booked when, and from when on an amount is free for long enough.
//!
//! Instants are microseconds on any one scale, as PostgreSQL's `timestamptz` holds them; ranges are half-open, an absent
//! end is open. Amounts are summed in 128 bits, so that no set of bookings can wrap. A timeline is built once, in
//! O(n log n), and answers any number of questions, each in a binary search and a walk over the changes it covers.

use std::num::NonZeroU64;

/// A half-open range of time, never empty; an absent end is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct During {
    start: i64,
    end: Option<i64>,
}

impl During {
    /// The range `[start, end)`, or `None` if that is empty.
    pub fn new(start: i64, end: Option<i64>) -> Option<During> {
        end.is_none_or(|end| start < end).then_some(During { start, end })
    }

    /// The range of this length from `start`; without a length, or with an end later than can be told, it is open.
    pub fn lasting(start: i64, duration: Option<NonZeroU64>) -> During {
        During { start, end: duration.and_then(|d| start.checked_add_unsigned(d.get())) }
    }

    /// The first instant in it.
    pub fn start(self) -> i64 {
        self.start
    }

    /// The first instant after it.
    pub fn end(self) -> Option<i64> {
        self.end
    }
}

/// An amount held over a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// How much.
    pub amount: u64,
    /// When.
    pub during: During,
}

/// How much is held at each instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The instants at which the level changes, ascending, with the level from then on. Before the first it is 0.
    steps: Vec<(i64, u128)>,
}

impl Timeline {
    /// The sum of these bookings.
    pub fn new(bookings: impl IntoIterator<Item = Held>) -> Timeline {
        let mut changes: Vec<(i64, bool, u64)> = Vec::new();
        for Held { amount, during } in bookings {
            changes.push((during.start, true, amount));
            changes.extend(during.end.map(|end| (end, false, amount)));
        }
        changes.sort_unstable_by_key(|change| change.0);
        let mut steps: Vec<(i64, u128)> = Vec::new();
        let mut level = 0u128;
        for (at, begins, amount) in changes {
            // What ends here began strictly earlier, so the level covers it whatever the order within an instant.
            if begins {
                level += u128::from(amount);
            } else {
                level -= u128::from(amount);
            }
            match steps.last_mut() {
                Some(last) if last.0 == at => last.1 = level,
                _ => steps.push((at, level)),
            }
        }
        Timeline { steps }
    }

    /// How much is held at this instant.
    pub fn at(&self, instant: i64) -> u128 {
        self.begun_by(instant).checked_sub(1).map_or(0, |last| self.steps[last].1)
    }

    /// The most that is held at any instant of the range.
    pub fn peak(&self, during: During) -> u128 {
        let within = self.steps[self.begun_by(during.start)..].iter();
        let within = within.take_while(|step| during.end.is_none_or(|end| step.0 < end));
        within.map(|step| step.1).fold(self.at(during.start), u128::max)
    }

    /// The earliest start, not before `from`, at which `amount` more is free of `capacity` for the whole of `duration`
    /// (absent: for ever). `None` if there is none: the amount is over the capacity, or something is held without end.
    pub fn earliest(
        &self,
        from: i64,
        amount: u64,
        capacity: u64,
        duration: Option<NonZeroU64>,
    ) -> Option<i64> {
        let room = u128::from(capacity.checked_sub(amount)?);
        // The earliest start lies at `from` or where the level falls to what leaves room.
        let mut start = (self.at(from) <= room).then_some(from);
        for (at, level) in &self.steps[self.begun_by(from)..] {
            if start.is_some_and(|start| During::lasting(start, duration).end.is_some_and(|end| end <= *at)) {
                return start;
            }
            start = if *level <= room { start.or(Some(*at)) } else { None };
        }
        start
    }

    /// How many steps begin at this instant or before it.
    fn begun_by(&self, instant: i64) -> usize {
        self.steps.partition_point(|step| step.0 <= instant)
    }
}

#[cfg(test)]
mod tests;
