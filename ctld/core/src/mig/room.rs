//! What a divided GPU still has room for, and where a new instance spoils least.
//!
//! The rule of [`Room::choose`]: of the legal starts take the one that makes the fewest places impossible, where a place
//! is a profile at one of its starts and weighs its memory slices times the demand for its profile. Equal starts: the
//! lowest. With even demand this puts 1g at 6, 4, 5, 0, 1, 2, 3, as NVIDIA's driver does, and 2g, 3g at 4, which keeps
//! the only place of 4g for as long as possible. The start is always named to the driver: the book holds it, and what a
//! driver would choose is known for 1g alone.
//!
//! A choice looks at one instance. Where several are known at once [`Room::pack`] finds places for all if there are any:
//! 1g, 1g, 2g, 3g fit together and not when placed in that order.

use super::layout::{self, Instance, LayoutError};
use super::{MEDIA_MAX, MEDIA_SPAN, Model, Profile};
use crate::span::Span;

/// What is left of a GPU in MIG mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    model: &'static Model,
    /// Free memory slices: bit k is slice k.
    free: u8,
    /// Instances that may still have media engines.
    media_left: u8,
}

impl Room {
    /// A GPU without instances.
    pub fn empty(model: &'static Model) -> Room {
        let free = ((1u16 << model.memory_slices) - 1) as u8;
        Room { model, free, media_left: MEDIA_MAX }
    }

    /// What is left beside these instances, which must be a legal layout.
    pub fn beside(model: &'static Model, instances: &[Instance]) -> Result<Room, LayoutError> {
        layout::check(model, instances)?;
        let place = |room: Room, instance: &Instance| {
            layout::legal(model, *instance).map(|profile| room.with(profile, instance.start))
        };
        instances.iter().try_fold(Room::empty(model), place)
    }

    /// The same room without what these spans cover, whatever they are: what the book holds of the GPU, those of media
    /// engines ([`MEDIA_SPAN`]) among them, or what a hold keeps.
    pub fn without(self, spans: &[Span]) -> Room {
        let taken = |slice: u8| spans.iter().any(|span| span.contains_integer(slice.into()));
        let bits: u8 = (0..self.model.memory_slices).filter(|slice| taken(*slice)).map(|s| 1u8 << s).sum();
        let media = spans.iter().any(|span| span.overlaps(MEDIA_SPAN));
        Room { free: self.free & !bits, media_left: if media { 0 } else { self.media_left }, ..self }
    }

    /// The model.
    pub fn model(&self) -> &'static Model {
        self.model
    }

    /// How many memory slices are free.
    pub fn slices_free(&self) -> u32 {
        self.free.count_ones()
    }

    /// The room that is left after an instance at `start`, which must be one of [`Room::starts`].
    pub fn with(self, profile: &Profile, start: u8) -> Room {
        debug_assert!(
            self.starts(profile).any(|free| free == start),
            "{} at {start} in {self:?}",
            profile.name
        );
        let media_left = if profile.media() { self.media_left.saturating_sub(1) } else { self.media_left };
        Room { free: self.free & !profile.bits_at(start), media_left, ..self }
    }

    /// Where an instance of this profile can start now, ascending.
    pub fn starts(self, profile: &Profile) -> impl Iterator<Item = u8> {
        let media = !profile.media() || self.media_left > 0;
        let fits = move |start: &u8| media && self.free & profile.bits_at(*start) == profile.bits_at(*start);
        profile.starts.iter().copied().filter(fits)
    }

    /// How many more instances of this profile fit, if nothing else comes.
    pub fn fits_more(self, profile: &Profile) -> u8 {
        // Instances of one size: always taking the lowest start never costs a place.
        let mut room = self;
        let mut count = 0;
        while count < profile.count_max
            && let Some(start) = room.starts(profile).next()
        {
            room = room.with(profile, start);
            count += 1;
        }
        count
    }

    /// The start that spoils least for an instance of this profile, or `None` if it does not fit. `demand` is how much
    /// each profile is asked for, in any unit; `|_| 1` is even demand.
    pub fn choose(self, profile: &Profile, demand: impl Fn(&Profile) -> u32) -> Option<u8> {
        self.starts(profile).min_by_key(|start| (self.spoiled_by(profile, *start, &demand), *start))
    }

    /// The weight of the places that an instance at `start` makes impossible, its own among them.
    fn spoiled_by(self, profile: &Profile, start: u8, demand: &impl Fn(&Profile) -> u32) -> u64 {
        let after = self.with(profile, start);
        let lost = |other: &Profile| self.starts(other).count() - after.starts(other).count();
        let weight = |other: &Profile| u64::from(demand(other)) * u64::from(other.memory_slices);
        self.model.profiles.iter().map(|other| weight(other) * lost(other) as u64).sum()
    }

    /// Places for all of these at once, in their order, or `None` if they do not fit together.
    pub fn pack(self, profiles: &[&'static Profile]) -> Option<Vec<Instance>> {
        let slices: u32 = profiles.iter().map(|profile| u32::from(profile.memory_slices)).sum();
        if slices > self.slices_free() {
            return None;
        }
        // The largest first, equal ones side by side: few places are tried that cannot work out.
        let mut order: Vec<usize> = (0..profiles.len()).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(profiles[*i].memory_slices), profiles[*i].name));
        let sorted: Vec<&'static Profile> = order.iter().map(|i| profiles[*i]).collect();
        let starts = pack_sorted(self, &sorted, 0)?;
        let mut placed: Vec<(usize, Instance)> = (order.into_iter().zip(starts))
            .map(|(i, start)| (i, Instance { start, profile: profiles[i].name }))
            .collect();
        placed.sort_by_key(|(i, _)| *i);
        Some(placed.into_iter().map(|(_, instance)| instance).collect())
    }
}

/// Starts for the profiles in turn, the first at `lowest` or above: equal ones ascend, so that no order is tried twice.
fn pack_sorted(room: Room, profiles: &[&'static Profile], lowest: u8) -> Option<Vec<u8>> {
    let Some((first, rest)) = profiles.split_first() else {
        return Some(Vec::new());
    };
    room.starts(first).filter(|start| *start >= lowest).find_map(|start| {
        let next_lowest = if rest.first().is_some_and(|next| next.name == first.name) { start } else { 0 };
        let mut starts = pack_sorted(room.with(first, start), rest, next_lowest)?;
        starts.insert(0, start);
        Some(starts)
    })
}
