//! The GPUs of a node: those that its configuration declares, else those that are found.
//!
//! A declared GPU has no device behind it; it lets any machine take part in a cluster as if it had any GPUs. Its UUID follows from the node's name and
//! its index, so that it is the same after every restart and differs between nodes.

use proto::session::GpuFacts;
use sha2::{Digest, Sha256};

/// The most GPUs a node may declare.
pub const DECLARED_MAX: u32 = 1024;

/// A declaration that names no GPUs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclarationError {
    /// Not `MODEL` or `MODEL:COUNT`.
    #[error("\"{0}\" declares no GPUs: expected MODEL:COUNT, as in \"a100-80gb:8\"")]
    Form(String),
    /// Too many.
    #[error("more than {DECLARED_MAX} GPUs are declared")]
    TooMany,
}

/// The GPUs that `declarations` (`a100-80gb:8`, `t4`) give to the node of this name.
pub fn declared(node: &str, declarations: &[String]) -> Result<Vec<GpuFacts>, DeclarationError> {
    let mut gpus: Vec<GpuFacts> = Vec::new();
    for text in declarations {
        let (model, count) = match text.rsplit_once(':') {
            Some((model, count)) => (model, count.parse::<u32>().ok().filter(|_| !count.starts_with('+'))),
            None => (text.as_str(), Some(1)),
        };
        let is_model = !model.is_empty()
            && model.len() <= 64
            && model.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        let Some(count) = count.filter(|count| is_model && *count > 0) else {
            return Err(DeclarationError::Form(text.clone()));
        };
        if count > DECLARED_MAX || gpus.len() as u32 + count > DECLARED_MAX {
            return Err(DeclarationError::TooMany);
        }
        let model = model.to_ascii_lowercase();
        for _ in 0..count {
            let index = gpus.len() as u32;
            let uuid = declared_uuid(node, index);
            gpus.push(GpuFacts {
                uuid,
                index,
                mem_mib: memory_of(&model),
                model: model.clone(),
                declared: true,
            });
        }
    }
    Ok(gpus)
}

/// The GPUs that the machine has. None are looked for yet: NVML comes with the issue that enforces devices.
pub fn discover() -> Vec<GpuFacts> {
    Vec::new()
}

/// A UUID in the form of NVML's, from a hash, marked as one by its version (8).
fn declared_uuid(node: &str, index: u32) -> String {
    let hash = Sha256::digest(format!("better-compute declared gpu\0{node}\0{index}"));
    let bytes: [u8; 16] = std::array::from_fn(|i| hash[i]);
    format!("GPU-{}", uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// The memory that a model's name says (`a100-80gb`), in MiB, else what the common ones have, else 16 GiB.
fn memory_of(model: &str) -> u64 {
    const GIB: u64 = 1024;
    let said = model.split(['-', '_', '.']).find_map(|part| {
        let number = part
            .strip_suffix("gib")
            .or_else(|| part.strip_suffix("gb"))
            .or_else(|| part.strip_suffix('g'))?;
        number.parse::<u64>().ok().filter(|n| (1..=4096).contains(n))
    });
    let known = [
        ("b200", 192),
        ("h200", 141),
        ("h100", 80),
        ("a100", 40),
        ("l40", 48),
        ("a40", 48),
        ("l4", 24),
        ("a30", 24),
        ("v100", 16),
    ];
    let known = || {
        known.iter().find(|(name, _)| model.split(['-', '_']).any(|part| part == *name)).map(|(_, gib)| *gib)
    };
    said.or_else(known).unwrap_or(16) * GIB
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declare(node: &str, texts: &[&str]) -> Result<Vec<GpuFacts>, DeclarationError> {
        declared(node, &texts.iter().map(|t| t.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn several_models_are_numbered_on_and_their_memory_read_from_the_name() {
        let gpus = declare("n1", &["A100-80gb:2", "h200", "t4:1"]).unwrap();
        let shown: Vec<_> = gpus.iter().map(|g| (g.index, g.model.as_str(), g.mem_mib)).collect();
        assert_eq!(
            shown,
            [(0, "a100-80gb", 81920), (1, "a100-80gb", 81920), (2, "h200", 141 * 1024), (3, "t4", 16384)]
        );
        assert!(gpus.iter().all(|g| g.declared));
    }

    #[test]
    fn uuids_are_the_same_each_time_and_differ_between_nodes_and_indices() {
        let one = declare("n1", &["a100:4"]).unwrap();
        assert_eq!(one, declare("n1", &["a100:4"]).unwrap());
        let mut all: Vec<String> =
            one.into_iter().chain(declare("n2", &["a100:4"]).unwrap()).map(|g| g.uuid).collect();
        assert!(all.iter().all(|u| u.len() == 40 && u.starts_with("GPU-")), "{all:?}");
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 8);
        // Written down: a change of the recipe would give every declared GPU of every cluster another name.
        assert_eq!(declared_uuid("n1", 0), "GPU-7656e978-67a6-813f-9e4a-6c608dcf3932");
    }

    #[test]
    fn what_declares_nothing_is_refused_by_name() {
        for text in ["", ":", "a100:", "a100:0", "a100:-1", "a100:+1", "a 100:1", ":3", "a100:x"] {
            let error = declare("n1", &[text]).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        assert_eq!(declare("n1", &["a:1000", "b:25"]), Err(DeclarationError::TooMany));
    }
}
