//! The caller's soft resource limits, as the job is to have them (`--propagate`).

use crate::fail::Fail;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::collections::BTreeMap;

/// The limits there are, by Slurm's names; on the wire in small letters.
const LIMITS: [(&str, Resource); 10] = [
    ("AS", Resource::RLIMIT_AS),
    ("CORE", Resource::RLIMIT_CORE),
    ("CPU", Resource::RLIMIT_CPU),
    ("DATA", Resource::RLIMIT_DATA),
    ("FSIZE", Resource::RLIMIT_FSIZE),
    ("MEMLOCK", Resource::RLIMIT_MEMLOCK),
    ("NOFILE", Resource::RLIMIT_NOFILE),
    ("NPROC", Resource::RLIMIT_NPROC),
    ("RSS", Resource::RLIMIT_RSS),
    ("STACK", Resource::RLIMIT_STACK),
];

/// The soft limits that `ALL`, `NONE` or a list of names asks for; `None` as a value is unlimited.
pub fn limits(asked: &str) -> Result<BTreeMap<String, Option<u64>>, Fail> {
    let chosen: Vec<&(&str, Resource)> = match asked.to_ascii_uppercase().as_str() {
        "ALL" | "" => LIMITS.iter().collect(),
        "NONE" => Vec::new(),
        list => list.split(',').map(|name| find(name, asked)).collect::<Result<_, _>>()?,
    };
    let mut limits = BTreeMap::new();
    for (name, resource) in chosen {
        let (soft, _) = getrlimit(*resource)
            .map_err(|e| Fail::here(format!("cannot read the limit {name}: {}", e.desc().to_lowercase())))?;
        limits.insert(name.to_ascii_lowercase(), (soft != RLIM_INFINITY).then_some(soft));
    }
    Ok(limits)
}

fn find(name: &str, asked: &str) -> Result<&'static (&'static str, Resource), Fail> {
    let name = name.trim().trim_start_matches("RLIMIT_");
    LIMITS.iter().find(|(known, _)| *known == name).ok_or_else(|| {
        let names: Vec<&str> = LIMITS.iter().map(|(name, _)| *name).collect();
        Fail::usage(format!("--propagate={asked}: {name:?} is no limit"))
            .hint(format!("expected ALL, NONE or some of {}", names.join(",")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limits_are_taken_by_name() {
        assert_eq!(limits("ALL").unwrap().len(), LIMITS.len());
        assert!(limits("NONE").unwrap().is_empty());
        let some = limits("nofile,RLIMIT_CORE").unwrap();
        assert_eq!(some.keys().collect::<Vec<_>>(), ["core", "nofile"]);
        assert!(limits("NOFILE,NICE").unwrap_err().error.message.contains("\"NICE\" is no limit"));
    }
}
