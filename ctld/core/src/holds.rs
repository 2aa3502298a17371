//! What a hold means for work, by its kind: the one rule that planner, placement, reservation and extension ask.
//!
//! Every kind refuses what would begin while it holds. A maintenance also refuses what would begin before it and not be over
//! when it begins, since nothing is to run then. No kind ends what runs. A hold on a node covers all of it, a hold on a GPU
//! or a part of one only work that takes what overlaps that part; so a GPU is given whole only while no part of it is held.

use crate::span::Span;
use crate::timeline::During;
use proto::HoldKind;

/// A hold that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its kind.
    pub kind: HoldKind,
    /// When it holds.
    pub during: During,
    /// The GPU that is held and the part of it; `None` is the whole node.
    pub part: Option<(i64, Span)>,
}

/// The open holds of one node: on itself, on its GPUs and on parts of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds(Vec<Hold>);

impl Hold {
    /// Whether work over this range may not be put on what is held.
    pub fn refuses(&self, work: During) -> bool {
        match self.kind {
            HoldKind::Maintenance => overlap(self.during, work),
            HoldKind::Drain
            | HoldKind::Cordon
            | HoldKind::Taint
            | HoldKind::Unreachable
            | HoldKind::Quarantine => contains(self.during, work.start()),
        }
    }

    /// Whether work that is there already may not be made to last over this range.
    pub fn refuses_longer(&self, work: During) -> bool {
        self.kind == HoldKind::Maintenance && overlap(self.during, work)
    }

    fn covers(&self, gpu_id: i64, span: Span) -> bool {
        self.part.is_some_and(|(held, part)| held == gpu_id && part.overlaps(span))
    }
}

impl FromIterator<Hold> for Holds {
    fn from_iter<I: IntoIterator<Item = Hold>>(holds: I) -> Holds {
        Holds(holds.into_iter().collect())
    }
}

impl Extend<Hold> for Holds {
    fn extend<I: IntoIterator<Item = Hold>>(&mut self, holds: I) {
        self.0.extend(holds);
    }
}

impl Holds {
    /// The hold on the node itself that refuses work over this range, if there is one.
    pub fn on_node(&self, work: During) -> Option<&Hold> {
        self.0.iter().find(|hold| hold.part.is_none() && hold.refuses(work))
    }

    /// The hold on this part of a GPU that refuses work over this range, if there is one. Holds on the node are not looked at.
    pub fn on_part(&self, gpu_id: i64, span: Span, work: During) -> Option<&Hold> {
        self.0.iter().find(|hold| hold.covers(gpu_id, span) && hold.refuses(work))
    }

    /// The hold that keeps work which is on these parts of GPUs already from lasting over this range, if there is one.
    pub fn against_longer(
        &self,
        parts: impl IntoIterator<Item = (i64, Span)>,
        work: During,
    ) -> Option<&Hold> {
        let parts: Vec<(i64, Span)> = parts.into_iter().collect();
        let there =
            |hold: &Hold| hold.part.is_none() || parts.iter().any(|(id, span)| hold.covers(*id, *span));
        self.0.iter().find(|hold| hold.refuses_longer(work) && there(hold))
    }

    /// When work on the node that begins now must be over: an instant behind `now`, or `None` if nothing is planned.
    pub fn node_until(&self, now: i64) -> Option<i64> {
        first(self.0.iter().filter(|hold| hold.part.is_none()), now)
    }

    /// The same for work on this part of a GPU, holds on the node not looked at.
    pub fn part_until(&self, gpu_id: i64, span: Span, now: i64) -> Option<i64> {
        first(self.0.iter().filter(|hold| hold.covers(gpu_id, span)), now)
    }

    /// Instants at which something that holds ends.
    pub fn ends(&self) -> impl Iterator<Item = i64> {
        self.0.iter().filter_map(|hold| hold.during.end())
    }
}

fn first<'a>(holds: impl Iterator<Item = &'a Hold>, now: i64) -> Option<i64> {
    let maintenances = holds.filter(|hold| hold.kind == HoldKind::Maintenance);
    maintenances.map(|hold| hold.during.start()).filter(|start| *start > now).min()
}

fn overlap(a: During, b: During) -> bool {
    a.end().is_none_or(|end| b.start() < end) && b.end().is_none_or(|end| a.start() < end)
}

fn contains(range: During, instant: i64) -> bool {
    range.start() <= instant && range.end().is_none_or(|end| instant < end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn during(start: i64, end: impl Into<Option<i64>>) -> During {
        During::new(start, end.into()).unwrap()
    }

    fn node(kind: HoldKind, during: During) -> Hold {
        Hold { kind, during, part: None }
    }

    #[test]
    fn a_drain_refuses_what_begins_in_it_and_nothing_else() {
        let drain = node(HoldKind::Drain, during(10, 20));
        for (work, refused) in [
            (during(9, 100), false),
            (during(10, 11), true),
            (during(19, None), true),
            (during(20, 30), false),
            (during(0, 10), false),
        ] {
            assert_eq!(drain.refuses(work), refused, "{work:?}");
            assert!(!drain.refuses_longer(work), "what runs goes on");
        }
    }

    #[test]
    fn a_maintenance_refuses_what_would_not_be_over_when_it_begins() {
        let maintenance = node(HoldKind::Maintenance, during(10, 20));
        for (work, refused) in [
            (during(0, 10), false),
            (during(0, 11), true),
            (during(0, None), true),
            (during(15, 16), true),
            (during(20, None), false),
        ] {
            assert_eq!((maintenance.refuses(work), maintenance.refuses_longer(work)), (refused, refused));
        }
    }

    #[test]
    fn a_part_is_held_for_what_overlaps_it() {
        let part = Span::sized(2, 2).unwrap();
        let holds: Holds =
            [Hold { kind: HoldKind::Quarantine, during: during(0, None), part: Some((7, part)) }]
                .into_iter()
                .collect();
        let now = during(5, 6);
        assert!(holds.on_node(now).is_none(), "the rest of the node takes work");
        assert!(holds.on_part(7, Span::ALL, now).is_some(), "a GPU is whole only with all its parts");
        assert!(holds.on_part(7, Span::sized(3, 1).unwrap(), now).is_some());
        assert!(holds.on_part(7, Span::sized(4, 4).unwrap(), now).is_none());
        assert!(holds.on_part(8, Span::ALL, now).is_none());
    }

    prop_compose! {
        fn ranges()(start in -20i64..20, length in proptest::option::of(1i64..20)) -> During {
            during(start, length.map(|length| start + length))
        }
    }

    fn kinds() -> impl Strategy<Value = HoldKind> {
        proptest::sample::select(HoldKind::all().collect::<Vec<_>>())
    }

    proptest! {
        /// Work that begins now fits exactly if it is over by the time that the planner is told.
        #[test]
        fn what_is_over_in_time_is_not_refused(
            holds in proptest::collection::vec((kinds(), ranges()), 0..6),
            length in proptest::option::of(1i64..30),
        ) {
            let holds: Holds = holds.into_iter().map(|(kind, during)| node(kind, during)).collect();
            let begins = during(0, 1);
            let work = during(0, length);
            prop_assume!(holds.on_node(begins).is_none());
            let in_time = holds.node_until(0).is_none_or(|until| length.is_some_and(|length| length <= until));
            prop_assert_eq!(holds.on_node(work).is_none(), in_time);
        }

        /// However long: no kind refuses less of what lasts longer.
        #[test]
        fn longer_work_is_refused_where_shorter_is(kind in kinds(), held in ranges(), start in -20i64..20, length in 1i64..20) {
            let hold = node(kind, held);
            let shorter = during(start, start + length);
            prop_assert!(!hold.refuses(shorter) || hold.refuses(during(start, None)));
        }
    }
}
