use super::*;
use proptest::prelude::*;

fn during(start: i64, end: impl Into<Option<i64>>) -> During {
    During::new(start, end.into()).unwrap()
}

fn held(amount: u64, start: i64, end: impl Into<Option<i64>>) -> Held {
    Held { amount, during: during(start, end) }
}

fn lasting(duration: u64) -> Option<NonZeroU64> {
    Some(NonZeroU64::new(duration).unwrap())
}

#[test]
fn nothing_is_no_time() {
    assert_eq!(During::new(5, Some(5)), None);
    assert_eq!(During::new(5, Some(4)), None);
    assert_eq!(During::lasting(i64::MAX - 1, lasting(1)).end(), Some(i64::MAX));
    assert_eq!(During::lasting(i64::MAX, lasting(1)).end(), None, "an end later than can be told is open");
    assert_eq!(During::lasting(i64::MIN, lasting(u64::MAX)).end(), Some(i64::MAX));
}

#[test]
fn the_peak_is_over_the_range_alone() {
    let timeline = Timeline::new([held(3, 0, 10), held(2, 5, 8), held(7, 8, 9), held(1, 20, None)]);
    assert_eq!(timeline.peak(during(0, 5)), 3, "an end is not in the range");
    assert_eq!(timeline.peak(during(0, 6)), 5);
    assert_eq!(timeline.peak(during(7, 9)), 10, "one ends as another begins: never both");
    assert_eq!(timeline.peak(during(10, 20)), 0);
    assert_eq!(timeline.peak(during(10, None)), 1);
    assert_eq!(timeline.peak(during(-5, 0)), 0);
}

#[test]
fn the_earliest_start_is_where_room_lasts_long_enough() {
    let timeline = Timeline::new([held(3, 0, 10), held(3, 15, 20), held(1, 30, None)]);
    let earliest = |from, amount, duration| timeline.earliest(from, amount, 4, duration);
    assert_eq!(earliest(0, 1, lasting(100)), Some(0));
    assert_eq!(earliest(0, 2, lasting(5)), Some(10), "just the gap");
    assert_eq!(earliest(0, 2, lasting(6)), Some(20), "longer than the gap");
    assert_eq!(earliest(12, 2, lasting(3)), Some(12));
    assert_eq!(earliest(12, 2, lasting(4)), Some(20));
    assert_eq!(earliest(0, 4, lasting(10)), Some(20));
    assert_eq!(earliest(0, 4, lasting(11)), None, "something is held without end");
    assert_eq!(earliest(0, 3, None), Some(20));
    assert_eq!(earliest(0, 5, lasting(1)), None, "over the capacity");
    assert_eq!(earliest(1000, 3, None), Some(1000));
    assert_eq!(Timeline::default().earliest(-7, 4, 4, None), Some(-7));
}

#[test]
fn amounts_never_wrap() {
    let timeline = Timeline::new([held(u64::MAX, 0, None); 3]);
    assert_eq!(timeline.at(i64::MAX), 3 * u128::from(u64::MAX));
    assert_eq!(timeline.earliest(0, 1, u64::MAX, None), None);
    assert_eq!(timeline.earliest(-9, 1, u64::MAX, lasting(9)), Some(-9));
}

/// Times lie in 0 to 20, so a model that looks at each instant to 45 sees all that ever changes.
const LAST: i64 = 45;

fn any_during() -> impl Strategy<Value = During> {
    (0i64..20, prop::option::weighted(0.85, 1i64..12))
        .prop_map(|(start, length)| during(start, length.map(|l| start + l)))
}

fn any_bookings() -> impl Strategy<Value = Vec<Held>> {
    prop::collection::vec((0u64..5, any_during()).prop_map(|(amount, during)| Held { amount, during }), 0..10)
}

fn level(bookings: &[Held], instant: i64) -> u128 {
    let holds = |d: During| d.start() <= instant && d.end().is_none_or(|end| instant < end);
    bookings.iter().filter(|b| holds(b.during)).map(|b| u128::from(b.amount)).sum()
}

fn instants(during: During) -> std::ops::Range<i64> {
    during.start()..during.end().unwrap_or(LAST)
}

proptest! {
    #[test]
    fn peak_and_level_are_those_of_each_instant(bookings in any_bookings(), range in any_during()) {
        let timeline = Timeline::new(bookings.iter().copied());
        for instant in -2..LAST {
            prop_assert_eq!(timeline.at(instant), level(&bookings, instant));
        }
        let most = instants(range).map(|instant| level(&bookings, instant)).max().unwrap();
        prop_assert_eq!(timeline.peak(range), most);
    }

    #[test]
    fn no_earlier_start_has_room(
        bookings in any_bookings(), from in -2i64..25, amount in 0u64..6, capacity in 0u64..10,
        duration in prop::option::of(1u64..12),
    ) {
        let fits = |start: i64| {
            instants(During::lasting(start, duration.and_then(NonZeroU64::new)))
                .all(|instant| level(&bookings, instant) + u128::from(amount) <= u128::from(capacity))
        };
        // After instant 32 nothing changes.
        let want = (from..33).find(|start| fits(*start));
        let timeline = Timeline::new(bookings.iter().copied());
        prop_assert_eq!(timeline.earliest(from, amount, capacity, duration.and_then(NonZeroU64::new)), want);
    }
}
