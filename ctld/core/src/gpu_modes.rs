//! The mode timeline of a GPU: whether it is set one way over the whole of a booking.
//!
//! A booking is for atoms of one mode, so the GPU must be in that mode from the booking's first instant to its last.
//! The book keeps when a GPU is set how, without overlap (`gpu_modes`); what is not kept is not promised, so a gap is
//! a refusal. Two entries one after the other that say the same are one.

use crate::timeline::During;

/// A setting and when it holds. Settings are compared whole: mode and number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetDuring<S> {
    /// The setting.
    pub setting: S,
    /// When.
    pub during: During,
}

/// Why a GPU is not set one way over a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOne<S> {
    /// Nothing is said from this instant on.
    Unset {
        /// The first instant of the range without a setting.
        from: i64,
    },
    /// It changes within the range.
    Changes {
        /// When.
        at: i64,
        /// From this.
        before: S,
        /// To this.
        after: S,
    },
}

/// The one setting of a GPU over the whole range. `entries` may come in any order and must not overlap.
pub fn one_over<S: Copy + PartialEq>(entries: &[SetDuring<S>], range: During) -> Result<S, NotOne<S>> {
    let mut entries: Vec<&SetDuring<S>> = entries.iter().collect();
    entries.sort_unstable_by_key(|entry| entry.during.start());
    let mut one: Option<S> = None;
    let mut covered_to = range.start();
    for entry in entries {
        if entry.during.end().is_some_and(|end| end <= covered_to) {
            continue;
        }
        if entry.during.start() > covered_to {
            break;
        }
        match one {
            Some(before) if before != entry.setting => {
                return Err(NotOne::Changes { at: covered_to, before, after: entry.setting });
            }
            _ => one = Some(entry.setting),
        }
        match (entry.during.end(), range.end()) {
            (None, _) => return Ok(entry.setting),
            (Some(end), Some(needed)) if end >= needed => return Ok(entry.setting),
            (Some(end), _) => covered_to = end,
        }
    }
    Err(NotOne::Unset { from: covered_to })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn during(start: i64, end: impl Into<Option<i64>>) -> During {
        During::new(start, end.into()).unwrap()
    }

    fn set(setting: char, start: i64, end: impl Into<Option<i64>>) -> SetDuring<char> {
        SetDuring { setting, during: during(start, end) }
    }

    #[test]
    fn one_mode_over_the_whole_range_is_found() {
        let entries = [set('m', 10, 20), set('w', 0, 10), set('m', 20, None)];
        assert_eq!(one_over(&entries, during(3, 10)), Ok('w'));
        assert_eq!(one_over(&entries, during(10, None)), Ok('m'), "two entries that say the same are one");
        assert_eq!(one_over(&entries, during(19, 21)), Ok('m'));
    }

    #[test]
    fn a_change_and_a_gap_are_named() {
        let entries = [set('w', 0, 10), set('m', 10, 20), set('m', 22, None)];
        assert_eq!(
            one_over(&entries, during(9, 11)),
            Err(NotOne::Changes { at: 10, before: 'w', after: 'm' })
        );
        assert_eq!(one_over(&entries, during(12, 25)), Err(NotOne::Unset { from: 20 }));
        assert_eq!(one_over(&entries, during(-1, 5)), Err(NotOne::Unset { from: -1 }));
        assert_eq!(one_over(&[set('w', 0, 10)], during(0, None)), Err(NotOne::Unset { from: 10 }));
        assert_eq!(one_over::<char>(&[], during(0, 1)), Err(NotOne::Unset { from: 0 }));
    }

    proptest! {
        /// Entries are laid end to end with gaps; the model asks each instant of the range in turn.
        #[test]
        fn the_answer_is_that_of_each_instant(
            pieces in prop::collection::vec((0i64..3, 1i64..6, prop::char::range('a', 'b')), 0..8),
            open: bool, start in 0i64..30, length in prop::option::of(1i64..15),
        ) {
            let mut entries = Vec::new();
            let mut at = 0;
            for (gap, length, setting) in pieces {
                entries.push(set(setting, at + gap, at + gap + length));
                at += gap + length;
            }
            if open {
                entries.push(set('a', at, None));
            }
            entries.reverse();
            let range = during(start, length.map(|length| start + length));
            let said = |instant: i64| {
                let holds = |d: During| d.start() <= instant && d.end().is_none_or(|end| instant < end);
                entries.iter().find(|e| holds(e.during)).map(|e| e.setting)
            };
            // The entries end before 100; what holds there holds for ever.
            let mut want = said(start).ok_or(NotOne::Unset { from: start });
            for instant in start..range.end().unwrap_or(100) {
                want = match (want, said(instant)) {
                    (Ok(_), None) => Err(NotOne::Unset { from: instant }),
                    (Ok(before), Some(after)) if before != after => {
                        Err(NotOne::Changes { at: instant, before, after })
                    }
                    (so_far, _) => so_far,
                };
            }
            prop_assert_eq!(one_over(&entries, range), want);
        }
    }
}
