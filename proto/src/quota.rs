//! What quotas are set on, and amounts of it as people write and read them.
//!
//! Amounts are integers: numbers, MiB, and 5040ths of a GPU ([`crate::gpu_share`]), so that they can be guarded and summed
//! exactly. A limit on a model is named as a request names one: `a100` counts every A100, `a100-80gb` those of 80 GB.

use crate::gpu_share::GpuShare;
use crate::memory::{self, Memory};
use std::fmt;
use std::str::FromStr;

/// The longest name of a model, bytes.
const MODEL_BYTES_MAX: usize = 63;

/// What limits are set on, in the order in which they refuse.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// Tasks that have not ended; a job that is no array is one.
    Jobs,
    /// CPUs.
    Cpus,
    /// Memory, MiB.
    MemMib,
    /// Local disk, MiB.
    DiskMib,
    /// GPUs of any model, in 5040ths.
    Gpus,
    /// GPUs of the models that this name matches, in 5040ths.
    GpusOf(String),
    /// Parts of GPUs, whole ones included, by number.
    Atoms,
}

/// Those with one name each.
const PLAIN: [(Resource, &str, &str); 6] = [
    (Resource::Jobs, "jobs", "jobs"),
    (Resource::Cpus, "cpus", "cpus"),
    (Resource::MemMib, "mem", "mem_mib"),
    (Resource::DiskMib, "disk", "disk_mib"),
    (Resource::Gpus, "gpus", "gpu_units"),
    (Resource::Atoms, "atoms", "atoms"),
];

/// Text that names no resource or amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// No such resource.
    #[error("{0:?} is nothing that a quota is set on: jobs, cpus, mem, disk, gpus, gpus:MODEL and atoms are")]
    Resource(String),
    /// No amount of it.
    #[error("{text:?} is no amount of {resource}: expected {expected}")]
    Amount {
        /// Of what.
        resource: Resource,
        /// What was written.
        text: String,
        /// What is accepted.
        expected: &'static str,
    },
}

impl Resource {
    /// The GPUs that a request for this model counts as, one for each name that it satisfies: `a100-80gb` counts as `a100`
    /// and as `a100-80gb`. None for what cannot be a model's name.
    pub fn of_model(model: &str) -> Vec<Resource> {
        let model = model.to_ascii_lowercase();
        if !is_model(&model) {
            return Vec::new();
        }
        let leading = model.match_indices('-').map(|(at, _)| model[..at].to_owned());
        leading.chain([model.clone()]).map(Resource::GpusOf).collect()
    }

    /// Its name in the database.
    pub fn column(&self) -> String {
        match PLAIN.iter().find(|(resource, ..)| resource == self) {
            Some((_, _, column)) => (*column).to_owned(),
            None => self.to_string(),
        }
    }

    /// What has this name in the database.
    pub fn from_column(column: &str) -> Option<Resource> {
        match PLAIN.iter().find(|(_, _, name)| *name == column) {
            Some((resource, ..)) => Some(resource.clone()),
            None => of_gpus(column),
        }
    }

    /// What an amount counts.
    pub fn unit(&self) -> &'static str {
        match self {
            Resource::Jobs | Resource::Cpus | Resource::Atoms => "1",
            Resource::MemMib | Resource::DiskMib => "MiB",
            Resource::Gpus | Resource::GpusOf(_) => "1/5040 GPU",
        }
    }

    /// An amount as people read it.
    pub fn show(&self, amount: u64) -> String {
        match self {
            Resource::Jobs | Resource::Cpus | Resource::Atoms => amount.to_string(),
            Resource::MemMib | Resource::DiskMib => memory::show(amount),
            Resource::Gpus | Resource::GpusOf(_) => GpuShare::from_units(amount).to_string(),
        }
    }

    /// Reads an amount.
    pub fn parse_amount(&self, text: &str) -> Result<u64, QuotaError> {
        let (amount, expected) = match self {
            Resource::Jobs | Resource::Cpus | Resource::Atoms => (text.parse().ok(), "a whole number"),
            Resource::MemMib | Resource::DiskMib => {
                let mib = match memory::parse(text) {
                    // Of a quota nothing is nothing.
                    Ok(Memory::All) => Some(0),
                    Ok(Memory::Mib(mib)) => Some(mib),
                    Err(_) => None,
                };
                (mib, "a number of MiB, or one with K, M, G or T, such as 64G")
            }
            Resource::Gpus | Resource::GpusOf(_) => (
                GpuShare::parse(text).map(GpuShare::units),
                "a number of GPUs such as 8, 2.5, 2/7 or \"1 2/7\", exact in 5040ths",
            ),
        };
        // What a bigint holds.
        amount.filter(|amount| *amount <= i64::MAX as u64).ok_or_else(|| QuotaError::Amount {
            resource: self.clone(),
            text: text.to_owned(),
            expected,
        })
    }
}

fn is_model(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= MODEL_BYTES_MAX
        && name.starts_with(plain)
        && name.chars().all(|c| plain(c) || ".+_-".contains(c))
}

fn of_gpus(name: &str) -> Option<Resource> {
    let model = name.strip_prefix("gpus:")?.to_ascii_lowercase();
    is_model(&model).then_some(Resource::GpusOf(model))
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, PLAIN.iter().find(|(resource, ..)| resource == self)) {
            (Resource::GpusOf(model), _) => write!(f, "gpus:{model}"),
            (_, Some((_, name, _))) => f.write_str(name),
            (_, None) => unreachable!("every resource but GPUs of a model is in PLAIN"),
        }
    }
}

impl FromStr for Resource {
    type Err = QuotaError;

    fn from_str(name: &str) -> Result<Resource, QuotaError> {
        let plain = PLAIN.iter().find(|(_, known, _)| *known == name).map(|(resource, ..)| resource.clone());
        plain.or_else(|| of_gpus(name)).ok_or_else(|| QuotaError::Resource(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let all = PLAIN.iter().map(|(resource, ..)| resource.clone());
        for resource in all.chain([Resource::GpusOf("a100-80gb".into())]) {
            assert_eq!(resource.to_string().parse(), Ok(resource.clone()));
            assert_eq!(Resource::from_column(&resource.column()), Some(resource));
        }
        for text in ["", "gpu", "mem_mib", "gpus:", "gpus:-x", "gpus:a b", "Jobs"] {
            assert_eq!(text.parse::<Resource>(), Err(QuotaError::Resource(text.into())));
        }
    }

    #[test]
    fn a_model_counts_under_every_name_it_satisfies() {
        let names = |model| Resource::of_model(model).iter().map(Resource::to_string).collect::<Vec<_>>();
        assert_eq!(names("A100-80GB"), ["gpus:a100", "gpus:a100-80gb"]);
        assert_eq!(names("h200"), ["gpus:h200"]);
        assert!(names("no model").is_empty());
    }

    #[test]
    fn amounts_are_read_as_they_are_written() {
        let (mem, gpus) = (Resource::MemMib, Resource::Gpus);
        for (resource, text, amount, shown) in [
            (&Resource::Jobs, "12", 12, "12"),
            (&mem, "64G", 65_536, "64G"),
            (&mem, "0", 0, "0"),
            (&gpus, "8", 40_320, "8"),
            (&gpus, "2.5", 12_600, "2 1/2"),
            (&gpus, "1 2/7", 6_480, "1 2/7"),
        ] {
            assert_eq!(resource.parse_amount(text), Ok(amount), "{text}");
            assert_eq!(resource.show(amount), shown);
        }
        for (resource, text) in [(&Resource::Cpus, "1.5"), (&mem, "lots"), (&gpus, "1/11"), (&gpus, "-1")] {
            let error = resource.parse_amount(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("expected"), "{error}");
        }
    }
}
