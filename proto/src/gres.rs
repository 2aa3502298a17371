//! What GPUs a job asks for: `--gres=gpu:a100:2`, `--gpus=2`, `--gpus-per-node=a100:2`.
//!
//! Only whole GPUs can be asked for so far. A MIG profile, `shard` or `mps` is refused by name: it must never turn into
//! a whole GPU, which costs many times as much. Any other kind is refused too, since nothing would hold it.

/// The most GPUs one request may name.
pub const COUNT_MAX: u32 = 100_000;

/// Whole GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// The model wanted; absent is any.
    pub model: Option<String>,
    /// How many.
    pub count: u32,
}

/// Text that asks for no GPUs we could give.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GresError {
    /// Not of the form.
    #[error(
        "{0:?} asks for no GPUs: expected gpu, gpu:COUNT, gpu:MODEL or gpu:MODEL:COUNT, such as gpu:a100-80gb:2"
    )]
    Gres(String),
    /// Not of the form of `--gpus`.
    #[error("{0:?} is not a number of GPUs: expected COUNT, MODEL or MODEL:COUNT, such as 2 or a100-80gb:2")]
    Gpus(String),
    /// A part of a GPU.
    #[error(
        "{text:?} asks for a part of a GPU ({part}), which comes with MIG support: ask for whole GPUs, such as gpu:1"
    )]
    Part {
        /// The whole text.
        text: String,
        /// The profile or kind.
        part: String,
    },
    /// Another kind.
    #[error("{text:?} asks for {kind:?}, which is not supported: the only kind there is, is gpu")]
    Kind {
        /// The whole text.
        text: String,
        /// The kind.
        kind: String,
    },
    /// Two entries.
    #[error("{0:?} asks for GPUs twice: one job takes GPUs of one model, named once")]
    Twice(String),
    /// Over the most.
    #[error("{0:?} asks for more than {COUNT_MAX} GPUs")]
    TooMany(String),
}

/// Reads the value of `--gres`: GPUs on each node. `none` is none.
pub fn parse_gres(text: &str) -> Result<Gpus, GresError> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(Gpus::default());
    }
    let mut found = None;
    for entry in text.split(',') {
        // "gres/gpu:1" is how Slurm writes it in its TRES strings.
        let entry = entry.strip_prefix("gres/").unwrap_or(entry);
        let (kind, rest) = match entry.split_once([':', '=']) {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (entry, None),
        };
        match kind {
            "gpu" => {}
            "" => return Err(GresError::Gres(text.to_owned())),
            "shard" | "mps" => {
                return Err(GresError::Part { text: text.to_owned(), part: kind.to_owned() });
            }
            _ => return Err(GresError::Kind { text: text.to_owned(), kind: kind.to_owned() }),
        }
        let gpus = match rest {
            None => Gpus { model: None, count: 1 },
            Some(rest) => models(rest, text, || GresError::Gres(text.to_owned()))?,
        };
        if found.replace(gpus).is_some() {
            return Err(GresError::Twice(text.to_owned()));
        }
    }
    found.ok_or_else(|| GresError::Gres(text.to_owned()))
}

/// Reads the value of `--gpus` (in all) or `--gpus-per-node`.
pub fn parse_gpus(text: &str) -> Result<Gpus, GresError> {
    if text.contains(',') {
        return Err(GresError::Twice(text.to_owned()));
    }
    if text.split([':', '=']).next() == Some("gpu") {
        return Err(GresError::Gpus(text.to_owned()));
    }
    models(text, text, || GresError::Gpus(text.to_owned()))
}

/// Reads `COUNT`, `MODEL` or `MODEL:COUNT`.
fn models(text: &str, whole: &str, form: impl Fn() -> GresError) -> Result<Gpus, GresError> {
    let (model, count) = match text.rsplit_once([':', '=']) {
        Some((model, count)) => (Some(model), Some(count)),
        None if text.bytes().all(|b| b.is_ascii_digit()) => (None, Some(text)),
        None => (Some(text), None),
    };
    if let Some(model) = model {
        if is_mig_profile(model) {
            return Err(GresError::Part { text: whole.to_owned(), part: model.to_owned() });
        }
        let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        // "2k" is a count in Slurm, not a model such as "2080ti".
        let digits = model.bytes().take_while(u8::is_ascii_digit).count();
        let count = digits > 0 && model.len() <= digits + 1;
        let begins = model.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if !begins || !model.bytes().all(word) || count {
            return Err(form());
        }
    }
    let count = match count {
        None => 1,
        Some(count) if !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit()) => {
            match count.parse() {
                Ok(count) if count <= COUNT_MAX => count,
                _ => return Err(GresError::TooMany(whole.to_owned())),
            }
        }
        Some(_) => return Err(form()),
    };
    Ok(Gpus { model: model.map(str::to_owned), count })
}

/// Whether a word is the name of a MIG profile (`1g.10gb`, `1g.10gb+me`, `1c.2g.20gb`, `mig-1g.10gb`) or of MIG itself.
fn is_mig_profile(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let slices = |part: &str| {
        let number = part.trim_end_matches(['g', 'c']);
        number.len() + 1 == part.len() && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    let profile =
        word.strip_prefix("mig").map_or(word.as_str(), |rest| rest.trim_start_matches(['-', '_', ':', '.']));
    word == "mig" || word.starts_with("mig-") || profile.split(['.', '_', '-']).next().is_some_and(slices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gpus(model: Option<&str>, count: u32) -> Gpus {
        Gpus { model: model.map(str::to_owned), count }
    }

    #[test]
    fn gres_is_read_in_all_its_forms() {
        for (text, want) in [
            ("gpu", gpus(None, 1)),
            ("gpu:2", gpus(None, 2)),
            ("gpu:0", gpus(None, 0)),
            ("none", gpus(None, 0)),
            ("gpu:a100", gpus(Some("a100"), 1)),
            ("gpu:a100:2", gpus(Some("a100"), 2)),
            ("gpu:a100=2", gpus(Some("a100"), 2)),
            ("gres/gpu:2", gpus(None, 2)),
            ("gpu:a100-80gb:8", gpus(Some("a100-80gb"), 8)),
        ] {
            assert_eq!(parse_gres(text), Ok(want), "{text}");
        }
        assert_eq!(parse_gpus("2"), Ok(gpus(None, 2)));
        assert_eq!(parse_gpus("h100"), Ok(gpus(Some("h100"), 1)));
        assert_eq!(parse_gpus("h100:4"), Ok(gpus(Some("h100"), 4)));
    }

    #[test]
    fn a_part_of_a_gpu_is_never_a_whole_one() {
        for text in [
            "gpu:1g.10gb:1",
            "gpu:1g.10gb",
            "gpu:1c.2g.20gb:1",
            "gpu:1g.10gb+me:1",
            "gpu:mig-1g.10gb:2",
            "gpu:mig:1",
        ] {
            assert!(
                matches!(parse_gres(text), Err(GresError::Part { .. })),
                "{text}: {:?}",
                parse_gres(text)
            );
        }
        assert!(matches!(parse_gpus("3g.40gb:1"), Err(GresError::Part { .. })));
        for text in ["shard:4", "mps:50", "gpu:1,shard:2"] {
            let message = parse_gres(text).unwrap_err().to_string();
            assert!(message.contains("comes with MIG support"), "{message}");
        }
    }

    #[test]
    fn other_kinds_and_malformed_ones_are_refused_by_name() {
        assert!(parse_gres("fpga:1").unwrap_err().to_string().contains("\"fpga\""));
        for text in [
            "",
            "gpu:",
            "gpu::2",
            "gpu:a100:",
            "gpu:a100:x",
            "gpu:2:2",
            "gpu:-1",
            "gpu:2k",
            "gpu:2(S:0)",
            "gpu:a b:1",
        ] {
            let message = parse_gres(text).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{text:?}")), "{message}");
        }
        assert!(matches!(parse_gres("gpu:1,gpu:2"), Err(GresError::Twice(_))));
        assert!(matches!(parse_gpus("a100:1,v100:1"), Err(GresError::Twice(_))));
        assert!(matches!(parse_gpus("gpu:2"), Err(GresError::Gpus(_))));
        assert!(matches!(parse_gpus(""), Err(GresError::Gpus(_))));
        assert!(matches!(parse_gpus("99999999999"), Err(GresError::TooMany(_))));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_readers_panic(text in "\\PC*") {
            let _ = (parse_gres(&text), parse_gpus(&text));
        }
    }
}
