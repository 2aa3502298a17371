//! Atoms: what a claim takes of a GPU, and their one spelling in tables, flags and logs.
//!
//! | text | atom |
//! |---|---|
//! | `gpu` | the whole GPU |
//! | `mig:1g.10gb@3` | the MIG instance of that profile at memory slice 3 |
//! | `slot:2/8` | time slice 2 of 8, counted from 0 |
//! | `mps:2/8` | MPS share 2 of 8, counted from 0 |
//!
//! With its GPU an atom reads `GPU-…/mig:1g.10gb@3`; the whole GPU reads as the GPU alone. Reading is exact: two atoms
//! are the same exactly if their texts are, so a database may compare texts. Whether a GPU has such an atom, and which
//! span it covers, is `ctld-core`'s `atom`.

use crate::gpu_mode::GpuMode;
use crate::mig_profile::{ProfileName, ProfileNameError, number};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The most slots a time-sliced GPU may have. The driver knows no limit; with more than this a turn of the shortest
/// slice comes so seldom that nobody is served.
pub const TIMESLICE_SLOTS_MAX: u16 = 128;
/// The most slots an MPS GPU may have: the most clients of one server in NVIDIA's guide.
pub const MPS_SLOTS_MAX: u16 = 48;
/// The longest UUID of a GPU, bytes. NVML's have 40.
const GPU_BYTES_MAX: usize = 128;

/// What a claim takes of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Atom {
    /// All of it.
    Whole,
    /// One MIG instance.
    Mig {
        /// Its profile.
        profile: ProfileName,
        /// Its first memory slice.
        start: u8,
    },
    /// One time slice.
    TimeSlice(Slot),
    /// One share of an MPS server.
    Mps(Slot),
}

/// One of some equal slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Which: 0 to `of` − 1.
    pub slot: u16,
    /// Of how many.
    pub of: u16,
}

impl Atom {
    /// The mode a GPU is in while somebody has this of it.
    pub fn mode(&self) -> GpuMode {
        match self {
            Atom::Whole => GpuMode::Whole,
            Atom::Mig { .. } => GpuMode::Mig,
            Atom::TimeSlice(_) => GpuMode::Timeslice,
            Atom::Mps(_) => GpuMode::Mps,
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Whole => f.write_str("gpu"),
            Atom::Mig { profile, start } => write!(f, "mig:{profile}@{start}"),
            Atom::TimeSlice(Slot { slot, of }) => write!(f, "slot:{slot}/{of}"),
            Atom::Mps(Slot { slot, of }) => write!(f, "mps:{slot}/{of}"),
        }
    }
}

/// Text that names no atom.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomError {
    /// Not of any of the forms.
    #[error("{0:?} is no part of a GPU: expected gpu, mig:1g.10gb@3, slot:2/8 or mps:2/8")]
    Form(String),
    /// The profile is none.
    #[error("{text:?} is no part of a GPU: {cause}")]
    Profile {
        /// The whole text.
        text: String,
        /// What is wrong with the profile.
        cause: ProfileNameError,
    },
    /// No such slot.
    #[error("{text:?} names slot {slot} of {of}, which are numbered 0 to {}", of - 1)]
    Slot {
        /// The whole text.
        text: String,
        /// The slot named.
        slot: u16,
        /// How many there are.
        of: u16,
    },
    /// More slots than a GPU may have.
    #[error("{text:?} divides a GPU in {of} slots, at most {max} accepted")]
    Slots {
        /// The whole text.
        text: String,
        /// How many it says.
        of: u16,
        /// The most.
        max: u16,
    },
    /// Not a GPU's UUID in front.
    #[error("{0:?} names no GPU: expected its UUID, alone or with a part of it, such as GPU-…/mig:1g.10gb@3")]
    Gpu(String),
}

impl FromStr for Atom {
    type Err = AtomError;

    fn from_str(text: &str) -> Result<Atom, AtomError> {
        let form = || AtomError::Form(text.to_owned());
        if text == "gpu" {
            return Ok(Atom::Whole);
        }
        match text.split_once(':').ok_or_else(form)? {
            ("mig", place) => {
                let (profile, start) = place.rsplit_once('@').ok_or_else(form)?;
                let start = number_or_zero(start).ok_or_else(form)?;
                let profile =
                    profile.parse().map_err(|cause| AtomError::Profile { text: text.to_owned(), cause })?;
                Ok(Atom::Mig { profile, start })
            }
            ("slot", slot) => Ok(Atom::TimeSlice(read_slot(slot, TIMESLICE_SLOTS_MAX, text)?)),
            ("mps", slot) => Ok(Atom::Mps(read_slot(slot, MPS_SLOTS_MAX, text)?)),
            _ => Err(form()),
        }
    }
}

fn read_slot(numbers: &str, max: u16, text: &str) -> Result<Slot, AtomError> {
    let form = || AtomError::Form(text.to_owned());
    let (slot, of) = numbers.split_once('/').ok_or_else(form)?;
    let slot = number_or_zero(slot).ok_or_else(form)?;
    let of = number(of).ok_or_else(form)?;
    if of > max {
        return Err(AtomError::Slots { text: text.to_owned(), of, max });
    }
    if slot >= of {
        return Err(AtomError::Slot { text: text.to_owned(), slot, of });
    }
    Ok(Slot { slot, of })
}

fn number_or_zero<N: FromStr + Default>(text: &str) -> Option<N> {
    if text == "0" { Some(N::default()) } else { number(text) }
}

impl TryFrom<String> for Atom {
    type Error = AtomError;

    fn try_from(text: String) -> Result<Atom, AtomError> {
        text.parse()
    }
}

impl From<Atom> for String {
    fn from(atom: Atom) -> String {
        atom.to_string()
    }
}

/// An atom with its GPU, as people name it: `GPU-…`, `GPU-…/slot:2/8`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuAtom {
    /// The GPU's UUID.
    pub gpu: String,
    /// The atom.
    pub atom: Atom,
}

impl TryFrom<String> for GpuAtom {
    type Error = AtomError;

    fn try_from(text: String) -> Result<GpuAtom, AtomError> {
        text.parse()
    }
}

impl From<GpuAtom> for String {
    fn from(atom: GpuAtom) -> String {
        atom.to_string()
    }
}

impl fmt::Display for GpuAtom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.atom {
            Atom::Whole => f.write_str(&self.gpu),
            atom => write!(f, "{}/{atom}", self.gpu),
        }
    }
}

impl FromStr for GpuAtom {
    type Err = AtomError;

    fn from_str(text: &str) -> Result<GpuAtom, AtomError> {
        let (gpu, atom) = match text.split_once('/') {
            // The whole GPU has one spelling, too.
            Some((_, "gpu")) => return Err(AtomError::Gpu(text.to_owned())),
            Some((gpu, atom)) => (gpu, atom.parse()?),
            None => (text, Atom::Whole),
        };
        let uuid = !gpu.is_empty()
            && gpu.len() <= GPU_BYTES_MAX
            && gpu.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if !uuid {
            return Err(AtomError::Gpu(text.to_owned()));
        }
        Ok(GpuAtom { gpu: gpu.to_owned(), atom })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Texts are in tables and logs: a change of the spelling is a migration.
    #[test]
    fn each_kind_has_its_one_spelling() {
        for (text, atom, mode) in [
            ("gpu", Atom::Whole, GpuMode::Whole),
            ("mig:1g.10gb@3", Atom::Mig { profile: ProfileName::plain(1, 10), start: 3 }, GpuMode::Mig),
            ("mig:1g.10gb+me@0", Atom::Mig { profile: ProfileName::media(1, 10), start: 0 }, GpuMode::Mig),
            ("slot:2/8", Atom::TimeSlice(Slot { slot: 2, of: 8 }), GpuMode::Timeslice),
            ("mps:0/48", Atom::Mps(Slot { slot: 0, of: 48 }), GpuMode::Mps),
        ] {
            assert_eq!(text.parse(), Ok(atom), "{text}");
            assert_eq!((atom.to_string().as_str(), atom.mode()), (text, mode));
            assert_eq!(serde_json::to_value(atom).unwrap(), text);
            assert_eq!(serde_json::from_value::<Atom>(text.into()).unwrap(), atom);
        }
    }

    #[test]
    fn with_its_gpu_an_atom_reads_back() {
        for text in ["GPU-7656e978-67a6", "GPU-7656e978-67a6/mig:1g.10gb@3", "GPU-1/slot:2/8"] {
            assert_eq!(text.parse::<GpuAtom>().unwrap().to_string(), text);
        }
        for text in ["", "/mig:1g.10gb@3", "GPU 1", "GPU-1/gpu", "GPU-\u{e9}"] {
            assert_eq!(text.parse::<GpuAtom>(), Err(AtomError::Gpu(text.to_owned())));
        }
        assert!(matches!("GPU-1/half".parse::<GpuAtom>(), Err(AtomError::Form(_))));
        assert!("x".repeat(GPU_BYTES_MAX).parse::<GpuAtom>().is_ok());
        assert!("x".repeat(GPU_BYTES_MAX + 1).parse::<GpuAtom>().is_err());
    }

    #[test]
    fn what_is_no_atom_is_refused_by_the_rule_it_breaks() {
        for text in [
            "",
            "GPU",
            "gpu:",
            "whole",
            "mig",
            "mig:",
            "mig:1g.10gb",
            "mig:1g.10gb@",
            "mig:1g.10gb@-1",
            "mig:1g.10gb@03",
            "mig:1g.10gb@256",
            "slot:",
            "slot:1",
            "slot:1/",
            "slot:/8",
            "slot:01/8",
            "slot:0/0",
            "slot:1/08",
            "mps:1/2/3",
            "slot:65536/65537",
            "slot:2/8 ",
            "timeslice:2/8",
        ] {
            let error = text.parse::<Atom>().unwrap_err();
            assert_eq!(error, AtomError::Form(text.to_owned()));
        }
        let message = |text: &str| text.parse::<Atom>().unwrap_err().to_string();
        assert_eq!(message("slot:8/8"), "\"slot:8/8\" names slot 8 of 8, which are numbered 0 to 7");
        assert_eq!(message("mps:0/49"), "\"mps:0/49\" divides a GPU in 49 slots, at most 48 accepted");
        assert!(message("slot:0/129").contains("at most 128"));
        assert!(message("mig:1g@0").contains("\"1g\" is no MIG profile"));
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_back_the_same(
            text in "(gpu|(mig|slot|mps):([0-9]g\\.[0-9]{1,3}gb(\\+me)?@[0-9]{1,3}|[0-9]{1,3}/[0-9]{1,3}))"
        ) {
            if let Ok(atom) = text.parse::<Atom>() {
                prop_assert_eq!(atom.to_string(), text);
            }
        }

        #[test]
        fn no_text_makes_the_readers_panic(text in "(mig:|slot:|mps:)?\\PC*") {
            let _ = (text.parse::<Atom>(), text.parse::<GpuAtom>());
        }
    }
}
