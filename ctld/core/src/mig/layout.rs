//! Layouts: sets of MIG instances that one GPU can have at once.
//!
//! Legal is what the table says: each instance at a start of its profile, no two over the same memory slice, no more of
//! a profile than its most, one with media engines of its own, and no more compute slices than there are. With the
//! table's starts compute slices never run out first; the rule is kept for the day a table says otherwise.

use super::{MEDIA_MAX, Model, Profile, ProfileError, Room};
use proto::mig_profile::ProfileName;
use std::fmt;

/// An instance of a profile at a memory slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Instance {
    /// Its first memory slice.
    pub start: u8,
    /// Its profile.
    pub profile: ProfileName,
}

/// The rule that a layout breaks, with both sides.
#[derive(Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The model lacks a profile.
    Profile(ProfileError),
    /// An instance where its profile may not start.
    Start {
        /// The instance.
        instance: Instance,
        /// Where it may.
        starts: &'static [u8],
    },
    /// Two instances over one memory slice.
    Overlap(Instance, Instance),
    /// More of a profile than a GPU can have.
    Count {
        /// The profile.
        profile: ProfileName,
        /// How many.
        asked: usize,
        /// The most.
        max: u8,
    },
    /// Two instances that each want the GPU's media engines.
    Media(Instance, Instance),
    /// More compute slices than there are.
    Compute {
        /// How many.
        asked: u32,
        /// The most.
        max: u8,
    },
}

/// Checks that a GPU can have all of these at once.
pub fn check(model: &'static Model, instances: &[Instance]) -> Result<(), LayoutError> {
    let mut profiles: Vec<&'static Profile> = Vec::with_capacity(instances.len());
    for (i, instance) in instances.iter().enumerate() {
        let profile = legal(model, *instance)?;
        for (other, taken) in instances.iter().zip(&profiles) {
            if profile.span_at(instance.start).overlaps(taken.span_at(other.start)) {
                return Err(LayoutError::Overlap(*other, *instance));
            }
        }
        if profile.media()
            && let Some(other) = (0..i).find(|other| profiles[*other].media())
        {
            const { assert!(MEDIA_MAX == 1, "the refusal names two instances") };
            return Err(LayoutError::Media(instances[other], *instance));
        }
        profiles.push(profile);
        let asked = profiles.iter().filter(|other| other.name == profile.name).count();
        if asked > usize::from(profile.count_max) {
            return Err(LayoutError::Count { profile: profile.name, asked, max: profile.count_max });
        }
    }
    let asked = profiles.iter().map(|profile| u32::from(profile.name.compute_slices)).sum();
    if asked > u32::from(model.compute_slices) {
        return Err(LayoutError::Compute { asked, max: model.compute_slices });
    }
    Ok(())
}

/// The profile of an instance, if the model has it and lets it start there.
pub fn legal(model: &'static Model, instance: Instance) -> Result<&'static Profile, LayoutError> {
    let profile = model.profile(instance.profile).map_err(LayoutError::Profile)?;
    if !profile.starts.contains(&instance.start) {
        return Err(LayoutError::Start { instance, starts: profile.starts });
    }
    Ok(profile)
}

/// Every layout to which nothing can be added, each in the order of its starts. A seven-slice model has 239.
pub fn maximal(model: &'static Model) -> Vec<Vec<Instance>> {
    let mut found = Vec::new();
    extend(Room::empty(model), 0, &mut Vec::new(), &mut found);
    found
}

/// Goes on from memory slice `slice`: either an instance begins there or none does.
fn extend(room: Room, slice: u8, layout: &mut Vec<Instance>, found: &mut Vec<Vec<Instance>>) {
    if slice == room.model().memory_slices {
        if room.model().profiles.iter().all(|profile| room.starts(profile).next().is_none()) {
            found.push(layout.clone());
        }
        return;
    }
    extend(room, slice + 1, layout, found);
    for profile in room.model().profiles {
        if room.starts(profile).any(|start| start == slice) {
            layout.push(Instance { start: slice, profile: profile.name });
            extend(room.with(profile, slice), slice + 1, layout, found);
            layout.pop();
        }
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.profile, self.start)
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::Profile(error) => error.fmt(f),
            LayoutError::Start { instance, starts } => {
                let starts: Vec<String> = starts.iter().map(u8::to_string).collect();
                write!(
                    f,
                    "a {} cannot start at memory slice {}: it starts at {}",
                    instance.profile,
                    instance.start,
                    starts.join(", ")
                )
            }
            LayoutError::Overlap(a, b) => write!(f, "{a} and {b} cover the same memory slice"),
            LayoutError::Count { profile, asked, max } => {
                write!(f, "a GPU can have at most {max} of {profile}, {asked} asked")
            }
            LayoutError::Media(a, b) => {
                write!(f, "{a} and {b} both have media engines, which a GPU has once")
            }
            LayoutError::Compute { asked, max } => {
                write!(f, "a GPU has {max} compute slices, {asked} asked")
            }
        }
    }
}

impl std::error::Error for LayoutError {}
