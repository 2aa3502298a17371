//! Parts of a GPU as exact amounts, for quotas: "GPU-equivalents".
//!
//! The unit is 1/5040 of a GPU. 5040 is divisible by 7 and 8, which every MIG share needs (4 on an A30), and by 2 to
//! 10, 12, 15, 16, 20, 24, 30, 40 and 48, which are the slot counts people choose; so all of these are exact, and an
//! integer column can be guarded and summed. What is still not whole, such as one slot of 11, is rounded up: a quota
//! counts too much by less than 1/5040 of a GPU a slot, and never too little.

use std::fmt;

/// An amount of GPU, in 5040ths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GpuShare(u64);

/// Units in a whole GPU.
pub const GPU_UNITS: u64 = 5040;

impl GpuShare {
    /// None of a GPU.
    pub const ZERO: GpuShare = GpuShare(0);
    /// One whole GPU.
    pub const ONE: GpuShare = GpuShare(GPU_UNITS);

    /// So many 5040ths, as a table holds them.
    pub const fn from_units(units: u64) -> GpuShare {
        GpuShare(units)
    }

    /// The amount in 5040ths.
    pub const fn units(self) -> u64 {
        self.0
    }

    /// So many whole GPUs; `None` if that is more than can be counted.
    pub fn whole(gpus: u64) -> Option<GpuShare> {
        GpuShare::ONE.times(gpus)
    }

    /// `part` of `of` equal parts, rounded up to a unit. `of` must be at least 1.
    pub fn fraction(part: u16, of: u16) -> GpuShare {
        assert!(of >= 1, "a GPU cannot be divided in {of} parts");
        GpuShare((u64::from(part) * GPU_UNITS).div_ceil(u64::from(of)))
    }

    /// Reads `3`, `2.5`, `2/7` or `1 2/7`; `None` for what is no such number, or not exact in 5040ths.
    pub fn parse(text: &str) -> Option<GpuShare> {
        let number = |text: &str| -> Option<u64> {
            text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
        };
        let part = |text: &str| -> Option<GpuShare> {
            let (part, of) = text.split_once('/')?;
            let (part, of) = (number(part)?.checked_mul(GPU_UNITS)?, number(of)?);
            (of > 0 && part.is_multiple_of(of)).then(|| GpuShare(part / of))
        };
        if let Some((whole, rest)) = text.split_once(' ') {
            return GpuShare::whole(number(whole)?)?.plus(part(rest)?);
        }
        if text.contains('/') {
            return part(text);
        }
        let (whole, digits) = text.split_once('.').unwrap_or((text, "0"));
        let scale = 10u64.checked_pow(u32::try_from(digits.len()).ok()?)?;
        let units = number(digits)?.checked_mul(GPU_UNITS)?;
        let exact = units.is_multiple_of(scale) && !digits.is_empty();
        exact.then(|| GpuShare::whole(number(whole)?)?.plus(GpuShare(units / scale)))?
    }

    /// So many of these; `None` if that is more than can be counted.
    pub fn times(self, n: u64) -> Option<GpuShare> {
        self.0.checked_mul(n).map(GpuShare)
    }

    /// Both together; `None` if that is more than can be counted.
    pub fn plus(self, other: GpuShare) -> Option<GpuShare> {
        self.0.checked_add(other.0).map(GpuShare)
    }
}

impl fmt::Display for GpuShare {
    /// Exactly, as people write fractions: `3`, `2/7`, `1 1/4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / GPU_UNITS, self.0 % GPU_UNITS);
        if part == 0 {
            return write!(f, "{whole}");
        }
        let divisor = greatest_common_divisor(part, GPU_UNITS);
        if whole > 0 {
            write!(f, "{whole} ")?;
        }
        write!(f, "{}/{}", part / divisor, GPU_UNITS / divisor)
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_people_use_are_exact() {
        for of in (1..=10).chain([12, 14, 15, 16, 20, 24, 28, 30, 36, 40, 42, 48]) {
            assert_eq!(GpuShare::fraction(1, of).times(u64::from(of)), Some(GpuShare::ONE), "{of}");
        }
    }

    #[test]
    fn other_parts_never_count_too_little() {
        for of in 1..=128u16 {
            let all = GpuShare::fraction(1, of).times(u64::from(of)).unwrap();
            assert!(all >= GpuShare::ONE && all.units() < GPU_UNITS + u64::from(of), "{of}: {all}");
        }
    }

    #[test]
    fn amounts_are_shown_as_fractions() {
        let shown = |units| GpuShare::from_units(units).to_string();
        assert_eq!(shown(0), "0");
        assert_eq!(shown(3 * GPU_UNITS), "3");
        assert_eq!(GpuShare::fraction(2, 7).to_string(), "2/7");
        assert_eq!(shown(GPU_UNITS + GPU_UNITS / 4), "1 1/4");
        assert_eq!(shown(1), "1/5040");
    }

    #[test]
    fn numbers_and_fractions_are_read_exactly_or_not_at_all() {
        let read = |text| GpuShare::parse(text).map(GpuShare::units);
        for (text, units) in
            [("3", 15120), ("0.5", 2520), ("1.125", 5670), ("2/7", 1440), ("1 1/4", 6300), ("0", 0)]
        {
            assert_eq!(read(text), Some(units), "{text}");
        }
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "0.0001",
            "1/11",
            "1/0",
            "1 2",
            "a",
            "-1",
            "+1",
            "1 2/7 3",
            "99999999999999999999",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_counted_is_none() {
        assert_eq!(GpuShare::whole(u64::MAX), None);
        assert_eq!(GpuShare::from_units(u64::MAX).plus(GpuShare::from_units(1)), None);
        assert_eq!(GpuShare::whole(2), GpuShare::ONE.plus(GpuShare::ONE));
    }
}
