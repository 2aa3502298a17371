//! Finding a model by what people and drivers call it.
//!
//! `a100-80gb`, `A100_80G`, `NVIDIA A100-SXM4-80GB` and `NVIDIA A100 80GB PCIe` are one model. A name is taken apart in
//! words, each of which must be known: `GRID A100-10C` or a name with a MIG profile in it is no GPU that could be divided.
//! Where the name leaves the memory open (`a100`), the GPU's memory decides, which a node reports with it.

use super::Model;
use super::table::MODELS;

/// A name of no model that can be divided.
#[derive(Debug, PartialEq, Eq)]
pub enum ModelError {
    /// None that is known to have MIG.
    Unknown(String),
    /// The name fits several models, and the memory none or no memory is known.
    Ambiguous {
        /// The name.
        name: String,
        /// The models it may be.
        models: Vec<&'static Model>,
    },
}

/// Chips with 96 GB whose profiles are in the table as this model's.
const NAMED_OTHERWISE: [&str; 2] = ["gh200", "h20"];
const H100_96: &str = "h100-96gb";
/// Words that say nothing about slices.
const IGNORED: [&str; 11] =
    ["nvidia", "tesla", "gpu", "pcie", "sxm", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e"];
/// How far a GPU's memory may be from a model's, in parts of a hundred: names in GB, drivers in MiB less what is reserved.
const MEMORY_TOLERANCE_PERCENT: u64 = 8;

/// The model that a GPU of this name and memory (as NVML shows it) is. `mem_mib` is used only where the name says too
/// little; `None` is not known.
pub fn model(name: &str, mem_mib: Option<u64>) -> Result<&'static Model, ModelError> {
    let unknown = || ModelError::Unknown(name.to_owned());
    let lower = name.to_ascii_lowercase();
    let mut family = None;
    let mut memory = None;
    let mut nvl = false;
    for word in lower.split([' ', '-', '_', '/']).filter(|word| !word.is_empty()) {
        if IGNORED.contains(&word) {
            continue;
        }
        if word == "nvl" {
            nvl = true;
        } else if let Some(gb) = gigabytes(word) {
            memory = Some(gb);
        } else if family.replace(word).is_some() {
            return Err(unknown());
        }
    }
    let family = family.ok_or_else(unknown)?;
    if NAMED_OTHERWISE.contains(&family) {
        return named_otherwise(family, memory, mem_mib).ok_or_else(unknown);
    }
    let of_family: Vec<&'static Model> =
        MODELS.iter().filter(|model| model.name.split('-').next() == Some(family)).collect();
    let said = |gb: u16| of_family.iter().find(|model| model.memory_gb == gb).copied();
    match (memory, of_family.as_slice()) {
        (Some(gb), _) => said(gb).ok_or_else(unknown),
        (None, []) => Err(unknown()),
        (None, [only]) => Ok(only),
        // Its driver's name gives no memory: "NVIDIA H100 NVL".
        (None, _) if nvl && family == "h100" => said(94).ok_or_else(unknown),
        (None, several) => mem_mib
            .and_then(|mib| nearest(several, mib))
            .ok_or_else(|| ModelError::Ambiguous { name: name.to_owned(), models: several.to_vec() }),
    }
}

/// `80gb`, `80g` or `80gib`: 80.
fn gigabytes(word: &str) -> Option<u16> {
    let number =
        word.strip_suffix("gib").or_else(|| word.strip_suffix("gb")).or_else(|| word.strip_suffix('g'))?;
    number.parse().ok()
}

/// A GH200's name gives the memory of its CPU ("GH200 480GB"), an H20's none; both also exist with 141 GB and more,
/// which has other profiles. So only their GPU's memory can contradict.
fn named_otherwise(family: &str, said: Option<u16>, mem_mib: Option<u64>) -> Option<&'static Model> {
    let model = MODELS.iter().find(|model| model.name == H100_96)?;
    let of_cpu = family == "gh200" && matches!(said, Some(120 | 480));
    let name_agrees = matches!(said, None | Some(96)) || of_cpu;
    let memory_agrees = mem_mib.is_none_or(|mib| nearest(&[model], mib).is_some());
    (name_agrees && memory_agrees).then_some(model)
}

fn nearest(models: &[&'static Model], mem_mib: u64) -> Option<&'static Model> {
    let off = |model: &Model| u64::from(model.mem_mib).abs_diff(mem_mib);
    let nearest = models.iter().copied().min_by_key(|model| off(model))?;
    (off(nearest) <= u64::from(nearest.mem_mib) * MEMORY_TOLERANCE_PERCENT / 100).then_some(nearest)
}

impl std::fmt::Display for ModelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = |models: &mut dyn Iterator<Item = &'static Model>| {
            models.map(|model| model.name).collect::<Vec<_>>().join(", ")
        };
        match self {
            ModelError::Unknown(name) => {
                write!(
                    f,
                    "no GPU model {name:?} is known to have MIG: known are {}",
                    names(&mut MODELS.iter())
                )
            }
            ModelError::Ambiguous { name, models } => write!(
                f,
                "GPU model {name:?} may be any of {}: name one of them",
                names(&mut models.iter().copied())
            ),
        }
    }
}

impl std::error::Error for ModelError {}
