//! Names of MIG profiles: `1g.10gb`, `1g.10gb+me`.
//!
//! A name is NVIDIA's: compute slices, memory in GB as it is advertised, and an attribute. Which model offers which
//! profile is `ctld-core`'s table. Reading is exact (no capitals, no leading zeros), so that two names are the same
//! profile exactly if they are the same text. Profile ids are never used: a driver's id 14 is one profile on an A30
//! and another on an A100.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The name of a GPU-instance profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProfileName {
    /// Compute slices: the number before `g`.
    pub compute_slices: u8,
    /// Memory as advertised: the number before `gb`.
    pub memory_gb: u16,
    /// What it has beside slices.
    pub attribute: ProfileAttribute,
}

/// What a profile has beside its slices, or lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProfileAttribute {
    /// Nothing said.
    Plain,
    /// `+me`: the media extension (JPEG and optical-flow engines).
    Media,
    /// `+me.all`: every media engine.
    MediaAll,
    /// `-me`: no media engine.
    NoMedia,
    /// `+gfx`: graphics.
    Graphics,
}

/// The attributes as they are written.
const ATTRIBUTES: [(ProfileAttribute, &str); 5] = [
    (ProfileAttribute::Plain, ""),
    (ProfileAttribute::Media, "+me"),
    (ProfileAttribute::MediaAll, "+me.all"),
    (ProfileAttribute::NoMedia, "-me"),
    (ProfileAttribute::Graphics, "+gfx"),
];

impl ProfileName {
    /// The name with these numbers and no attribute.
    pub const fn plain(compute_slices: u8, memory_gb: u16) -> ProfileName {
        ProfileName { compute_slices, memory_gb, attribute: ProfileAttribute::Plain }
    }

    /// The name with these numbers and `+me`.
    pub const fn media(compute_slices: u8, memory_gb: u16) -> ProfileName {
        ProfileName { compute_slices, memory_gb, attribute: ProfileAttribute::Media }
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, attribute) = ATTRIBUTES.iter().find(|a| a.0 == self.attribute).expect("each has its row");
        write!(f, "{}g.{}gb{attribute}", self.compute_slices, self.memory_gb)
    }
}

/// Text that is no name of a profile.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileNameError {
    /// A part of a GPU instance.
    #[error(
        "{0:?} is a compute instance, a part of a MIG instance: only whole instances are given, such as {1}"
    )]
    ComputeInstance(String, String),
    /// Anything else.
    #[error("{0:?} is no MIG profile: expected a name such as 1g.10gb or 1g.10gb+me")]
    Form(String),
}

impl FromStr for ProfileName {
    type Err = ProfileNameError;

    fn from_str(text: &str) -> Result<ProfileName, ProfileNameError> {
        let form = || ProfileNameError::Form(text.to_owned());
        if let Some((part, rest)) = text.split_once("c.")
            && number::<u8>(part).is_some()
            && rest.parse::<ProfileName>().is_ok()
        {
            return Err(ProfileNameError::ComputeInstance(text.to_owned(), rest.to_owned()));
        }
        let (compute, rest) = text.split_once("g.").ok_or_else(form)?;
        let (memory, attribute) = rest.split_once("gb").ok_or_else(form)?;
        let attribute = ATTRIBUTES.iter().find(|a| a.1 == attribute).ok_or_else(form)?.0;
        let compute_slices = number(compute).ok_or_else(form)?;
        let memory_gb = number(memory).ok_or_else(form)?;
        Ok(ProfileName { compute_slices, memory_gb, attribute })
    }
}

/// A number of 1 or more, written without sign or leading zero.
pub(crate) fn number<N: FromStr>(text: &str) -> Option<N> {
    let digits = !text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

impl TryFrom<String> for ProfileName {
    type Error = ProfileNameError;

    fn try_from(text: String) -> Result<ProfileName, ProfileNameError> {
        text.parse()
    }
}

impl From<ProfileName> for String {
    fn from(name: ProfileName) -> String {
        name.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_read_back_as_they_are_written() {
        for text in ["1g.5gb", "1g.10gb+me", "7g.141gb", "1g.24gb+me.all", "1g.24gb-me", "4g.96gb+gfx"] {
            assert_eq!(text.parse::<ProfileName>().unwrap().to_string(), text);
        }
        assert_eq!("3g.40gb".parse(), Ok(ProfileName::plain(3, 40)));
        assert_eq!("1g.10gb+me".parse(), Ok(ProfileName::media(1, 10)));
    }

    #[test]
    fn a_part_of_an_instance_is_refused_with_the_instance() {
        let error = "1c.3g.20gb".parse::<ProfileName>().unwrap_err();
        assert_eq!(error, ProfileNameError::ComputeInstance("1c.3g.20gb".into(), "3g.20gb".into()));
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_text() {
        for text in [
            "",
            "1g",
            "10gb",
            "0g.10gb",
            "1g.0gb",
            "01g.10gb",
            "1g.010gb",
            "1G.10gb",
            "1g.10GB",
            "1g.10gb+",
            "1g.10gb+xx",
            "1g.10gb ",
            " 1g.10gb",
            "+1g.10gb",
            "1g.+10gb",
            "256g.10gb",
            "1g.65536gb",
            "MIG 1g.10gb",
            "1g..10gb",
            "xc.1g.10gb",
        ] {
            let error = text.parse::<ProfileName>().unwrap_err();
            assert_eq!(error, ProfileNameError::Form(text.to_owned()));
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_back_the_same(text in "[0-9]{0,4}[gc]?\\.?[0-9]{0,3}g?\\.?[0-9]{0,6}(gb)?(\\+me|-me|\\+gfx|\\PC{0,3})") {
            if let Ok(name) = text.parse::<ProfileName>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
