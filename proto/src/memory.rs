//! Amounts of memory: `512`, `1.5G`, `0.25T`.
//!
//! A bare number is MiB; `K`, `M`, `G` and `T` (either case, a `B` or `iB` after them changes nothing) are powers of 1024.
//! Fractions are exact, and what is not a whole MiB is rounded up, so that a small request never becomes none. `0` written
//! exactly so asks for all of the node's memory, as in Slurm; any other spelling of nothing is refused.

/// The most memory one request may name, in MiB: a PiB.
pub const MIB_MAX: u64 = 1 << 30;

/// An amount as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// `0`: all that the node has.
    All,
    /// So many MiB, 1 to [`MIB_MAX`].
    Mib(u64),
}

/// Text that is no amount of memory.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Not a number with a unit.
    #[error(
        "{0:?} is not an amount of memory: expected a number of MiB, or one with K, M, G or T, such as 512M or 1.5G"
    )]
    Form(String),
    /// A spelling of nothing.
    #[error("{0:?} is no memory at all: write 0 for all of the node's, or an amount such as 512M")]
    Zero(String),
    /// Over the most there is.
    #[error("{0:?} is more than a PiB")]
    TooMuch(String),
}

/// Reads an amount of memory.
pub fn parse(text: &str) -> Result<Memory, MemoryError> {
    if text == "0" {
        return Ok(Memory::All);
    }
    let form = || MemoryError::Form(text.to_owned());
    let number_end = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = text.split_at(number_end);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "K" | "KB" | "KIB" => 10,
        "" | "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(form()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || (fraction.is_empty() && number.contains('.')) {
        return Err(form());
    }
    let whole: u128 = whole.parse().map_err(|_| MemoryError::TooMuch(text.to_owned()))?;
    if whole > 1 << 60 {
        return Err(MemoryError::TooMuch(text.to_owned()));
    }
    // Twelve digits are exact in 128 bits with room; more of them can only round up.
    let digits = fraction.len().min(12);
    let dropped = fraction[digits..].bytes().any(|b| b != b'0');
    let part: u128 = if digits == 0 { 0 } else { fraction[..digits].parse().map_err(|_| form())? };
    let scale = 10u128.pow(digits as u32);
    let bytes_scaled = ((whole * scale + part) << shift) + u128::from(dropped);
    if bytes_scaled == 0 {
        return Err(MemoryError::Zero(text.to_owned()));
    }
    match u64::try_from(bytes_scaled.div_ceil(scale << 20)) {
        Ok(mib) if mib <= MIB_MAX => Ok(Memory::Mib(mib)),
        _ => Err(MemoryError::TooMuch(text.to_owned())),
    }
}

/// An amount in MiB as Slurm shows it: the largest unit that keeps it whole (`1536M`, `2G`).
pub fn show(mib: u64) -> String {
    match mib {
        0 => "0".to_owned(),
        mib if mib.is_multiple_of(1 << 20) => format!("{}T", mib >> 20),
        mib if mib.is_multiple_of(1 << 10) => format!("{}G", mib >> 10),
        mib => format!("{mib}M"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fractions_are_exact_and_never_fall_to_zero() {
        for (text, mib) in [
            ("0.5G", 512),
            ("1.5G", 1536),
            ("512M", 512),
            ("512m", 512),
            ("512", 512),
            ("204800K", 200),
            ("1K", 1),
            ("0.0001M", 1),
            ("0.00000000000000000001M", 1),
            ("1025K", 2),
            ("0.1G", 103),
            ("2T", 2 << 20),
            ("4GB", 4096),
            ("4GiB", 4096),
            ("0.25t", 256 << 10),
        ] {
            assert_eq!(parse(text), Ok(Memory::Mib(mib)), "{text}");
        }
    }

    #[test]
    fn all_of_the_memory_must_be_said_exactly() {
        assert_eq!(parse("0"), Ok(Memory::All));
        for text in ["0M", "0.0", "00", "0.0G", "0K"] {
            assert_eq!(parse(text), Err(MemoryError::Zero(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_value() {
        for text in
            ["", "-1G", "1,5G", "1e3M", "1 G", "G", ".5G", "1.G", "1.2.3G", "1X", "1GG", " 1G", "0x10", "1P"]
        {
            assert_eq!(parse(text), Err(MemoryError::Form(text.to_owned())), "{text}");
        }
        for text in ["99999999999999999999999999999999999999999999G", "99999999T", "1152921504606846977"] {
            assert_eq!(parse(text), Err(MemoryError::TooMuch(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_amount_shown_reads_back(mib in 1..=MIB_MAX) {
            prop_assert_eq!(parse(&show(mib)), Ok(Memory::Mib(mib)));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[0-9]{0,45}\\.?[0-9]{0,45}\\PC{0,3}") {
            let _ = parse(&text);
        }
    }
}
