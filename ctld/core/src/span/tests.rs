use super::*;
use proptest::prelude::*;

/// Bounds lie in 0 to 16; the model looks at −1 to 16, so that what is unbounded differs from what ends at the edge.
const MODEL: std::ops::RangeInclusive<i32> = -1..=16;

/// The span as a set of bits, straight from what a half-open range means.
fn bits(span: Span) -> u32 {
    let inside = |n: i32| span.lower().is_none_or(|l| l <= n) && span.upper().is_none_or(|u| n < u);
    MODEL.enumerate().map(|(i, n)| u32::from(inside(n)) << i).sum()
}

fn any_span() -> impl Strategy<Value = Span> {
    (prop::option::of(0i32..=16), prop::option::of(0i32..=16))
        .prop_filter_map("empty", |(lower, upper)| Span::new(lower, upper))
}

#[test]
fn nothing_is_no_span() {
    assert_eq!(Span::new(Some(3), Some(3)), None);
    assert_eq!(Span::new(Some(4), Some(3)), None);
    assert_eq!(Span::sized(3, 0), None);
    assert_eq!(Span::sized(3, 2), Span::new(Some(3), Some(5)));
}

#[test]
fn the_whole_gpu_overlaps_every_part_and_neighbours_do_not() {
    let slot = |k| Span::sized(k, 1).unwrap();
    assert!((0..8).all(|k| Span::ALL.overlaps(slot(k)) && slot(k).overlaps(Span::ALL)));
    assert!(!slot(3).overlaps(slot(4)));
    assert!(Span::sized(0, u16::MAX).unwrap().overlaps(slot(u16::MAX - 1)));
}

#[test]
fn a_span_is_written_as_postgresql_writes_it() {
    let written = |lower, upper| Span::new(lower, upper).unwrap().to_string();
    assert_eq!(written(Some(3), Some(5)), "[3,5)");
    assert_eq!(written(None, None), "(,)");
    assert_eq!(written(Some(-3), None), "[-3,)");
    assert_eq!(written(None, Some(4)), "(,4)");
}

#[test]
fn the_free_spans_of_a_gpu_lie_between_the_taken_ones() {
    let s = |start, size| Span::sized(start, size).unwrap();
    assert_eq!(free(s(0, 8), &[s(6, 2), s(0, 1), s(3, 1)]), [s(1, 2), s(4, 2)]);
    assert_eq!(free(s(0, 8), &[]), [s(0, 8)]);
    assert_eq!(free(s(0, 8), &[Span::ALL]), []);
    assert_eq!(
        free(Span::ALL, &[s(2, 3)]),
        [Span::new(None, Some(2)).unwrap(), Span::new(Some(5), None).unwrap()]
    );
}

proptest! {
    #[test]
    fn two_spans_relate_as_their_sets_do(a in any_span(), b in any_span()) {
        prop_assert_eq!(a.overlaps(b), bits(a) & bits(b) != 0);
        prop_assert_eq!(a.contains(b), bits(a) & bits(b) == bits(b));
        prop_assert_eq!(a.intersection(b).map_or(0, bits), bits(a) & bits(b));
        let (below, above) = a.subtract(b);
        let left: Vec<Span> = below.into_iter().chain(above).collect();
        prop_assert_eq!(left.iter().map(|s| bits(*s)).sum::<u32>(), bits(a) & !bits(b));
        for n in MODEL {
            prop_assert_eq!(a.contains_integer(n), bits(a) >> (n + 1) & 1 == 1);
        }
    }

    #[test]
    fn what_is_free_is_exactly_what_nobody_took(whole in any_span(), taken in prop::collection::vec(any_span(), 0..6)) {
        let free = free(whole, &taken);
        let covered = taken.iter().fold(0, |all, span| all | bits(*span));
        prop_assert_eq!(free.iter().fold(0, |all, span| all | bits(*span)), bits(whole) & !covered);
        for pair in free.windows(2) {
            let (end, start) = (pair[0].upper(), pair[1].lower());
            prop_assert!(end.is_some() && start.is_some() && end < start, "ascending and apart: {:?}", free);
        }
    }
}
