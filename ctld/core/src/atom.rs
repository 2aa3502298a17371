//! Which atoms a GPU has, which part of it each covers, and what each counts against a quota.
//!
//! The words are `proto::atom`'s. A GPU has atoms of one mode at a time: in mode `mig` the instances its model offers,
//! in `timeslice` and `mps` as many slots as it is set to, in `whole` itself. A change of the mode books [`Span::ALL`]
//! and so waits for every atom. Within one GPU, two atoms of one mode exclude each other exactly if their spans overlap,
//! those of the media engines among them.

use crate::gpu_share::GpuShare;
use crate::mig::layout::legal;
use crate::mig::{Instance, LayoutError, MEDIA_SPAN, Model};
use crate::span::Span;
use proto::{Atom, GpuMode, Slot};
use std::fmt;

/// How a GPU is set, at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Given whole.
    Whole,
    /// Given as MIG instances of this model's profiles.
    Mig(&'static Model),
    /// Given as so many time slices.
    TimeSlice {
        /// How many.
        slots: u16,
    },
    /// Given as so many shares of an MPS server.
    Mps {
        /// How many.
        slots: u16,
    },
}

/// What an atom takes of a GPU that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The part of the GPU.
    pub span: Span,
    /// The GPU's media engines, for an instance that has them. They lie beyond every memory slice; booked as a row of
    /// their own they let the exclusion constraint refuse a second instance that wants them, which its slices do not.
    pub media: Option<Span>,
    /// What it counts against a quota.
    pub share: GpuShare,
}

/// The rule by which a GPU lacks an atom, with both sides.
#[derive(Debug, PartialEq, Eq)]
pub enum Illegal {
    /// The atom belongs to another mode.
    Mode {
        /// The atom.
        atom: Atom,
        /// The mode the GPU is in.
        mode: GpuMode,
    },
    /// The GPU is divided in another number of slots.
    Slots {
        /// The atom.
        atom: Atom,
        /// The GPU's slots.
        slots: u16,
    },
    /// There is no such slot, whatever the GPU.
    Slot(Slot),
    /// The model has no such instance.
    Instance(LayoutError),
}

impl Setting {
    /// The mode.
    pub fn mode(&self) -> GpuMode {
        match self {
            Setting::Whole => GpuMode::Whole,
            Setting::Mig(_) => GpuMode::Mig,
            Setting::TimeSlice { .. } => GpuMode::Timeslice,
            Setting::Mps { .. } => GpuMode::Mps,
        }
    }
}

/// What this atom takes of a GPU that is set so, or why such a GPU does not have it.
pub fn taken(atom: Atom, setting: Setting) -> Result<Taken, Illegal> {
    match (atom, setting) {
        (Atom::Whole, Setting::Whole) => Ok(Taken { span: Span::ALL, media: None, share: GpuShare::ONE }),
        (Atom::Mig { profile, start }, Setting::Mig(model)) => {
            let profile = legal(model, Instance { start, profile }).map_err(Illegal::Instance)?;
            let media = profile.media().then_some(MEDIA_SPAN);
            Ok(Taken { span: profile.span_at(start), media, share: model.share(profile) })
        }
        (Atom::TimeSlice(slot), Setting::TimeSlice { slots }) | (Atom::Mps(slot), Setting::Mps { slots }) => {
            if slot.of != slots {
                return Err(Illegal::Slots { atom, slots });
            }
            let span = Span::sized(slot.slot, 1).filter(|_| slot.slot < slot.of);
            let span = span.ok_or(Illegal::Slot(slot))?;
            Ok(Taken { span, media: None, share: GpuShare::fraction(1, slots) })
        }
        _ => Err(Illegal::Mode { atom, mode: setting.mode() }),
    }
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Illegal::Mode { atom, mode } => {
                write!(f, "{atom} is of a GPU in mode {}, and the GPU is in mode {mode}", atom.mode())
            }
            Illegal::Slots { atom, slots } => write!(f, "{atom}, and the GPU has {slots} slots"),
            Illegal::Slot(Slot { slot, of }) => write!(f, "slot {slot} of {of}, which count from 0"),
            Illegal::Instance(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Illegal {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::{layout, models};

    fn atom(text: &str) -> Atom {
        text.parse().unwrap()
    }

    fn mig(name: &str) -> Setting {
        Setting::Mig(crate::mig::model(name, None).unwrap())
    }

    #[test]
    fn each_atom_covers_its_span_and_counts_its_share() {
        for (text, setting, span, share) in [
            ("gpu", Setting::Whole, "(,)", "1"),
            ("mig:1g.10gb@3", mig("a100-80gb"), "[3,4)", "1/7"),
            ("mig:1g.10gb@6", mig("a100-40gb"), "[6,8)", "1/4"),
            ("mig:3g.40gb@4", mig("h100-80gb"), "[4,8)", "1/2"),
            ("mig:7g.80gb@0", mig("h100-80gb"), "[0,8)", "1"),
            ("mig:2g.12gb@2", mig("a30"), "[2,4)", "1/2"),
            ("slot:2/8", Setting::TimeSlice { slots: 8 }, "[2,3)", "1/8"),
            ("mps:47/48", Setting::Mps { slots: 48 }, "[47,48)", "1/48"),
        ] {
            let taken = taken(atom(text), setting).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(
                (taken.span.to_string().as_str(), taken.share.to_string().as_str()),
                (span, share),
                "{text}"
            );
            assert_eq!(atom(text).mode(), setting.mode());
        }
    }

    #[test]
    fn an_atom_of_another_mode_is_refused_in_every_pair() {
        let settings =
            [Setting::Whole, mig("a100-80gb"), Setting::TimeSlice { slots: 8 }, Setting::Mps { slots: 8 }];
        let atoms = ["gpu", "mig:1g.10gb@3", "slot:2/8", "mps:2/8"].map(atom);
        for (i, setting) in settings.into_iter().enumerate() {
            for (j, atom) in atoms.into_iter().enumerate() {
                let want = if i == j { None } else { Some(Illegal::Mode { atom, mode: setting.mode() }) };
                assert_eq!(taken(atom, setting).err(), want);
            }
        }
    }

    #[test]
    fn an_atom_the_gpu_lacks_is_refused_by_its_rule() {
        let refused = |text: &str, setting| taken(atom(text), setting).unwrap_err().to_string();
        assert_eq!(refused("slot:2/8", Setting::TimeSlice { slots: 4 }), "slot:2/8, and the GPU has 4 slots");
        assert_eq!(
            refused("mig:3g.40gb@2", mig("a100-80gb")),
            "a 3g.40gb cannot start at memory slice 2: it starts at 0, 4"
        );
        assert!(refused("mig:1g.20gb@0", mig("a100-40gb")).contains("a100-40gb has no MIG profile 1g.20gb"));
        let none = Slot { slot: 8, of: 8 };
        assert_eq!(taken(Atom::Mps(none), Setting::Mps { slots: 8 }), Err(Illegal::Slot(none)));
        let text = refused("gpu", mig("a30"));
        assert_eq!(text, "gpu is of a GPU in mode whole, and the GPU is in mode mig");
    }

    /// The exclusion constraint sees spans only: two instances may be together exactly if no span of one overlaps one of
    /// the other.
    #[test]
    fn spans_overlap_exactly_where_instances_exclude_each_other() {
        for model in models() {
            let places: Vec<Instance> = (model.profiles.iter())
                .flat_map(|p| p.starts.iter().map(|start| Instance { start: *start, profile: p.name }))
                .collect();
            let spans = |i: &Instance| {
                let atom = Atom::Mig { profile: i.profile, start: i.start };
                let taken = taken(atom, Setting::Mig(model)).unwrap();
                std::iter::once(taken.span).chain(taken.media).collect::<Vec<Span>>()
            };
            assert!(places.iter().all(|i| !spans(i)[0].overlaps(MEDIA_SPAN)), "{}", model.name);
            for (a, b) in places.iter().flat_map(|a| places.iter().map(move |b| (a, b))) {
                let overlap = spans(a).iter().any(|a| spans(b).iter().any(|b| a.overlaps(*b)));
                assert_eq!(overlap, layout::check(model, &[*a, *b]).is_err(), "{a} {b}");
            }
        }
    }
}
