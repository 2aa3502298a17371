//! What each GPU model can be divided in: MIG profiles, their sizes and their legal places.
//!
//! Owns the one table (`table`), finding models and profiles by name, what a profile is worth, and the refusals. Layouts
//! are in [`layout`], the choice of a place in [`room`]. Nothing here asks a driver: profile ids are the driver's own and
//! are never used, since the same id is one profile on an A30 and another on an A100. A node acts on the profile's name
//! and the start; where its driver offers something else than this table, the node's refusal counts.
//!
//! Sources: NVIDIA's MIG user guide for names, counts and placements; what `nvidia-smi mig -lgip` and `-lgipp` printed on
//! A100-40, H100-80, H100-94 and A30 for memory, multiprocessors and placements. Placements on H200, B200 and H100-96 were
//! not seen and are taken to be those of the H100.

use crate::gpu_share::GpuShare;
use crate::span::Span;
use proto::mig_profile::{ProfileAttribute, ProfileName};

pub mod layout;
mod model_name;
pub mod room;
mod table;

pub use layout::{Instance, LayoutError};
pub use model_name::{ModelError, model};
pub use room::Room;

/// A model of GPU that can be divided.
#[derive(Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name, as the project writes it: `a100-80gb`, `h200`.
    pub name: &'static str,
    /// Its memory as advertised, GB.
    pub memory_gb: u16,
    /// Compute slices: 7, on an A30 4.
    pub compute_slices: u8,
    /// Memory slices: 8, on an A30 4. At most 8.
    pub memory_slices: u8,
    /// Its memory as `nvidia-smi` shows it with MIG off, MiB.
    pub mem_mib: u32,
    /// What it offers, from the smallest.
    pub profiles: &'static [Profile],
}

/// A profile on one model.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: ProfileName,
    /// Memory slices an instance takes.
    pub memory_slices: u8,
    /// The first memory slice of each legal place, ascending.
    pub starts: &'static [u8],
    /// The most instances of it on one GPU.
    pub count_max: u8,
    /// Memory of an instance, MiB: never more than it has.
    pub mem_mib: u32,
    /// Whether that memory was seen in real output. Otherwise it is nine tenths of its slices' part of the GPU's memory:
    /// of what was seen, the least is 91 % (H200's 1g).
    pub mem_seen: bool,
    /// Streaming multiprocessors, where known.
    pub sms: Option<u16>,
}

/// The most instances with media engines of their own on one GPU, of all profiles together: there is one optical-flow
/// engine, and each of them has it.
pub const MEDIA_MAX: u8 = 1;
/// Where the media engines of a GPU are booked: no memory slice has this number, a GPU having 8 at most.
pub const MEDIA_SPAN: Span = Span::new(Some(8), Some(9)).expect("not empty");

/// Every model, in the table's order.
pub fn models() -> impl Iterator<Item = &'static Model> {
    table::MODELS.iter()
}

/// The most that an instance of this name counts on any of these models, for a charge before the model is known:
/// `1g.10gb` is a quarter of an A100-40 and a seventh of an H100-80. `None` if none of them offers it.
pub fn share_max(models: impl IntoIterator<Item = &'static Model>, name: ProfileName) -> Option<GpuShare> {
    let offering = models.into_iter().filter_map(|model| Some(model.share(model.profile(name).ok()?)));
    offering.max()
}

/// A model that does not offer what was asked.
#[derive(Debug, PartialEq, Eq)]
pub enum ProfileError {
    /// No profile of that name.
    Unknown {
        /// The model.
        model: &'static Model,
        /// What was asked.
        asked: ProfileName,
    },
    /// No profile with so much memory.
    Memory {
        /// The model.
        model: &'static Model,
        /// What was asked, MiB.
        asked_mib: u64,
        /// The profile with the most.
        largest: &'static Profile,
    },
}

impl Model {
    /// The profile of this name.
    pub fn profile(&'static self, name: ProfileName) -> Result<&'static Profile, ProfileError> {
        let found = self.profiles.iter().find(|profile| profile.name == name);
        found.ok_or(ProfileError::Unknown { model: self, asked: name })
    }

    /// The profile that takes least of the GPU and holds so much memory: least memory slices first, then least compute
    /// slices. Profiles with media engines are only given by name, since there is one of them on a GPU.
    pub fn smallest_holding(&'static self, mem_mib: u64) -> Result<&'static Profile, ProfileError> {
        let plain = || self.profiles.iter().filter(|p| p.name.attribute == ProfileAttribute::Plain);
        let holding = plain().filter(|profile| u64::from(profile.mem_mib) >= mem_mib);
        holding.min_by_key(|profile| (profile.memory_slices, profile.name.compute_slices)).ok_or_else(|| {
            let largest = plain().max_by_key(|profile| profile.mem_mib).expect("every model offers profiles");
            ProfileError::Memory { model: self, asked_mib: mem_mib, largest }
        })
    }

    /// What an instance counts against a quota in GPUs: the larger of its part of the compute slices and its part of the
    /// memory slices.
    ///
    /// Either part alone would count too little. By compute, four `1g.20gb` would fill an A100-80 for 4/7 of a GPU; by
    /// memory, seven `1g.10gb` would for 7/8. With the larger, what is counted on a GPU is never less than the part of
    /// its compute or of its memory that is in use, and the profile with all of it counts as one. A full GPU may count
    /// as a little more or less than one: three `2g` and a `1g` of double memory as 1 3/28; a `3g`, a `1g` of double
    /// memory and a `1g` at slice 6, beside which slice 7 can be reached by nothing, as 25/28.
    pub fn share(&self, profile: &Profile) -> GpuShare {
        let compute = GpuShare::fraction(profile.name.compute_slices.into(), self.compute_slices.into());
        let memory = GpuShare::fraction(profile.memory_slices.into(), self.memory_slices.into());
        compute.max(memory)
    }

    /// The names of what it offers, for refusals.
    pub fn offers(&self) -> String {
        self.profiles.iter().map(|profile| profile.name.to_string()).collect::<Vec<_>>().join(", ")
    }
}

impl Profile {
    /// The memory slices of an instance that starts at this one.
    pub fn span_at(&self, start: u8) -> Span {
        Span::sized(start.into(), self.memory_slices.into()).expect("every profile takes memory slices")
    }

    /// Whether an instance has media engines of its own that no second one can have.
    pub fn media(&self) -> bool {
        matches!(self.name.attribute, ProfileAttribute::Media | ProfileAttribute::MediaAll)
    }

    /// The memory slices of an instance at `start` as bits.
    fn bits_at(&self, start: u8) -> u8 {
        (((1u16 << self.memory_slices) - 1) << start) as u8
    }
}

impl std::fmt::Display for ProfileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProfileError::Unknown { model, asked } => {
                write!(f, "{} has no MIG profile {asked}: it offers {}", model.name, model.offers())
            }
            ProfileError::Memory { model, asked_mib, largest } => write!(
                f,
                "no MIG profile of {} holds {asked_mib} MiB: the largest, {}, holds {} MiB",
                model.name, largest.name, largest.mem_mib
            ),
        }
    }
}

impl std::error::Error for ProfileError {}

#[cfg(test)]
mod tests;
