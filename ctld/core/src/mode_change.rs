//! Changes of a GPU's mode or layout: what one books, and what stands in its way.
//!
//! A change of mode, of the number of slots, or between a fixed layout and instances on demand books the whole GPU for its
//! window. A change from one fixed layout to another books only the memory slices of the instances that go or come; the
//! others stay as they are, in use or not. Behind its window nothing may be booked that the new setting does not have.

use crate::mig::layout::check;
use crate::mig::{Instance, Model, Room};
use crate::span::Span;
use crate::timeline::During;
use proto::mig_profile::ProfileName;
use proto::{Atom, GpuMode};
use std::fmt;

/// What a GPU is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The mode.
    pub mode: GpuMode,
    /// In how many slots it is divided; 1 where the mode has none.
    pub slots: u16,
    /// The instances that a MIG GPU has; `None`: they are made on demand.
    pub layout: Option<Vec<Atom>>,
}

impl Target {
    /// Whether a GPU that is set so has this atom.
    pub fn has(&self, atom: Atom) -> bool {
        atom.mode() == self.mode
            && match atom {
                Atom::Whole => true,
                Atom::Mig { .. } => self.layout.as_ref().is_none_or(|layout| layout.contains(&atom)),
                Atom::TimeSlice(slot) | Atom::Mps(slot) => slot.of == self.slots,
            }
    }
}

/// A part that a change books: the atom it is booked as, and what of the GPU that is.
pub type Part = (Atom, Span);

/// What a change from one setting to another books. `model` is of a GPU that can have instances.
pub fn books(before: &Target, after: &Target, model: Option<&'static Model>) -> Vec<Part> {
    let whole = vec![(Atom::Whole, Span::ALL)];
    let (Some(from), Some(to), Some(model)) = (&before.layout, &after.layout, model) else { return whole };
    let goes = from.iter().filter(|atom| !to.contains(atom));
    let comes = to.iter().filter(|atom| !from.contains(atom));
    let mut parts: Vec<(Atom, i32, i32)> = Vec::new();
    for atom in goes.chain(comes) {
        let Some((start, end)) = ends(*atom, model) else { return whole };
        parts.push((*atom, start, end));
    }
    parts.sort_unstable_by_key(|(_, start, end)| (*start, *end));
    // Where one that goes and one that comes overlap, the slices of both are one part.
    let mut merged: Vec<(Atom, i32, i32)> = Vec::new();
    for (atom, start, end) in parts {
        match merged.last_mut() {
            Some(last) if start < last.2 => last.2 = last.2.max(end),
            _ => merged.push((atom, start, end)),
        }
    }
    let part = |(atom, start, end): &(Atom, i32, i32)| {
        let (start, size) = (u16::try_from(*start).ok()?, u16::try_from(end - start).ok()?);
        Some((*atom, Span::sized(start, size)?))
    };
    merged.iter().map(part).collect::<Option<Vec<Part>>>().filter(|parts| !parts.is_empty()).unwrap_or(whole)
}

fn ends(atom: Atom, model: &'static Model) -> Option<(i32, i32)> {
    let Atom::Mig { profile, start } = atom else { return None };
    let span = model.profile(profile).ok()?.span_at(start);
    span.lower().zip(span.upper())
}

/// Whether what is booked stands in the way of a change that books these parts for its window, and after which the GPU is set
/// to `after` until `until`, when a later change begins.
pub fn in_the_way(
    booked: (Option<Atom>, Span, During),
    parts: &[Part],
    window: During,
    after: &Target,
    until: Option<i64>,
) -> bool {
    let (atom, span, during) = booked;
    let begins_in_window = window.end().is_none_or(|end| during.start() < end);
    let lasts_beyond_start = during.end().is_none_or(|end| end > window.start());
    if !lasts_beyond_start {
        return false;
    }
    let overlaps = begins_in_window && parts.iter().any(|(_, part)| part.overlaps(span));
    let in_its_time = until.is_none_or(|until| during.start() < until);
    overlaps || in_its_time && !atom.is_some_and(|atom| after.has(atom))
}

/// Words that make no layout.
#[derive(Debug, PartialEq, Eq)]
pub enum LayoutWords {
    /// Not `PROFILE` or `PROFILE@START`.
    Form(String),
    /// Some with a start and some without.
    Mixed,
    /// The model does not have it.
    Illegal(String),
    /// No room for all.
    Room {
        /// The model.
        model: &'static str,
        /// What was asked for.
        words: String,
    },
}

impl fmt::Display for LayoutWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutWords::Form(word) => write!(
                f,
                "{word:?} is no instance: expected a profile, such as 1g.10gb, or one with its first slice, 1g.10gb@3"
            ),
            LayoutWords::Mixed => f.write_str("either every instance is given its first slice or none is"),
            LayoutWords::Illegal(why) => f.write_str(why),
            LayoutWords::Room { model, words } => {
                write!(f, "a {model} has no room for all of {words} at once")
            }
        }
    }
}

/// The instances that words stand for: profiles with their first slices, or without, where places are found for them.
pub fn layout(model: &'static Model, words: &[String]) -> Result<Vec<Atom>, LayoutWords> {
    let mut named: Vec<(ProfileName, Option<u8>)> = Vec::with_capacity(words.len());
    for word in words {
        let form = || LayoutWords::Form(word.clone());
        let (profile, start) = match word.rsplit_once('@') {
            Some((profile, start)) => (profile, Some(start.parse().map_err(|_| form())?)),
            None => (word.as_str(), None),
        };
        named.push((profile.parse().map_err(|_| form())?, start));
    }
    let starts = named.iter().filter(|(_, start)| start.is_some()).count();
    let instances: Vec<Instance> = if starts == named.len() {
        named
            .iter()
            .filter_map(|(profile, start)| Some(Instance { profile: *profile, start: (*start)? }))
            .collect()
    } else if starts > 0 {
        return Err(LayoutWords::Mixed);
    } else {
        let profiles = named.iter().map(|(name, _)| model.profile(*name)).collect::<Result<Vec<_>, _>>();
        let profiles = profiles.map_err(|e| LayoutWords::Illegal(e.to_string()))?;
        let room = || LayoutWords::Room { model: model.name, words: words.join(",") };
        Room::empty(model).pack(&profiles).ok_or_else(room)?
    };
    check(model, &instances).map_err(|e| LayoutWords::Illegal(e.to_string()))?;
    let mut atoms: Vec<Atom> =
        instances.iter().map(|i| Atom::Mig { profile: i.profile, start: i.start }).collect();
    atoms.sort_unstable();
    Ok(atoms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::model;

    fn a100() -> &'static Model {
        model("a100-80gb", None).unwrap()
    }

    fn fixed(words: &str) -> Target {
        let words: Vec<String> = words.split(',').map(str::to_owned).collect();
        Target { mode: GpuMode::Mig, slots: 1, layout: Some(layout(a100(), &words).unwrap()) }
    }

    fn setting(mode: GpuMode, slots: u16) -> Target {
        Target { mode, slots, layout: None }
    }

    #[test]
    fn a_change_of_mode_books_the_whole_gpu_and_one_of_instances_their_slices() {
        let whole = vec![(Atom::Whole, Span::ALL)];
        let (mig, slots) = (setting(GpuMode::Mig, 1), setting(GpuMode::Timeslice, 4));
        assert_eq!(books(&mig, &slots, Some(a100())), whole);
        assert_eq!(books(&mig, &fixed("1g.10gb@0"), Some(a100())), whole, "from on demand to fixed");
        let parts = books(
            &fixed("3g.40gb@4,2g.20gb@0"),
            &fixed("3g.40gb@4,1g.10gb@0,1g.10gb@1,1g.10gb@2"),
            Some(a100()),
        );
        let spans: Vec<_> = parts.iter().map(|(_, span)| (span.lower(), span.upper())).collect();
        assert_eq!(spans, [(Some(0), Some(2)), (Some(2), Some(3))], "what stays is not booked");
        for (atom, span) in parts {
            let Atom::Mig { start, .. } = atom else { panic!("{atom}") };
            assert_eq!(span.lower(), Some(i32::from(start)), "a part is booked as an atom that begins there");
        }
    }

    #[test]
    fn what_the_new_setting_lacks_stands_in_the_way_behind_the_window_until_the_next_change() {
        let during = |start, end| During::new(start, Some(end)).unwrap();
        let window = during(100, 110);
        let parts = [(Atom::Whole, Span::ALL)];
        let slots = setting(GpuMode::Timeslice, 4);
        let slot: Atom = "slot:1/4".parse().unwrap();
        let span = Span::sized(1, 1).unwrap();
        let way = |atom, during| in_the_way((Some(atom), span, during), &parts, window, &slots, Some(500));
        assert!(!way(Atom::Whole, during(0, 100)), "it is over before");
        assert!(way(Atom::Whole, during(0, 101)) && way(slot, during(105, 200)), "they overlap the window");
        assert!(way(Atom::Whole, during(110, 120)) && !way(slot, during(110, 120)));
        assert!(!way(Atom::Whole, during(500, 600)), "another change comes before");
        let near = in_the_way((Some(slot), span, during(105, 106)), &parts, window, &slots, Some(105));
        assert!(near, "the later change comes within the window");
        assert!(way("slot:1/8".parse().unwrap(), during(110, 120)), "of another number of slots");
        assert!(
            in_the_way((None, Span::ALL, during(105, 106)), &parts, window, &slots, None),
            "another change"
        );
    }

    #[test]
    fn a_layout_is_named_with_places_or_finds_them() {
        let says = |words: &str| layout(a100(), &words.split(',').map(str::to_owned).collect::<Vec<_>>());
        let shown = |atoms: Vec<Atom>| atoms.iter().map(Atom::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(shown(says("1g.10gb,3g.40gb").unwrap()), "mig:1g.10gb@4 mig:3g.40gb@0");
        assert!(says("1g.10gb,3g.40gb,3g.40gb").is_err(), "two of 3g take all memory slices");
        assert_eq!(shown(says("2g.20gb@2,1g.10gb@0").unwrap()), "mig:1g.10gb@0 mig:2g.20gb@2");
        assert_eq!(says("1g.10gb@0,1g.10gb"), Err(LayoutWords::Mixed));
        assert_eq!(says("half"), Err(LayoutWords::Form("half".into())));
        assert!(
            says("7g.80gb,1g.10gb")
                .unwrap_err()
                .to_string()
                .contains("has no room for all of 7g.80gb,1g.10gb")
        );
        assert!(matches!(says("3g.40gb@1"), Err(LayoutWords::Illegal(_))));
    }
}
