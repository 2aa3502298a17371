//! Spans: the part of a GPU an atom covers, as a half-open, never empty range of integers.
//!
//! The same values as PostgreSQL's `int4range` in the book, whose exclusion constraint is what counts: the whole GPU is
//! unbounded, a MIG instance its memory slices `[start, start + size)`, slot k `[k, k + 1)`. An unbounded span overlaps
//! every other, which is how a claim on the whole GPU and a change of its mode exclude all parts of it.

use std::fmt;

/// A half-open range of integers; an absent bound is unbounded. Never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    lower: Option<i32>,
    upper: Option<i32>,
}

impl Span {
    /// Everything.
    pub const ALL: Span = Span { lower: None, upper: None };

    /// The span `[lower, upper)`, or `None` if that is empty.
    pub const fn new(lower: Option<i32>, upper: Option<i32>) -> Option<Span> {
        match (lower, upper) {
            (Some(lower), Some(upper)) if lower >= upper => None,
            _ => Some(Span { lower, upper }),
        }
    }

    /// The span of `size` integers from `start`; `None` if `size` is 0.
    pub fn sized(start: u16, size: u16) -> Option<Span> {
        Span::new(Some(i32::from(start)), Some(i32::from(start) + i32::from(size)))
    }

    /// The first integer, if there is a first.
    pub fn lower(self) -> Option<i32> {
        self.lower
    }

    /// The integer after the last, if there is a last.
    pub fn upper(self) -> Option<i32> {
        self.upper
    }

    /// Whether some integer is in both.
    pub fn overlaps(self, other: Span) -> bool {
        self.intersection(other).is_some()
    }

    /// Whether every integer of `other` is in this.
    pub fn contains(self, other: Span) -> bool {
        self.intersection(other) == Some(other)
    }

    /// Whether this integer is in the span.
    pub fn contains_integer(self, n: i32) -> bool {
        self.lower.is_none_or(|lower| lower <= n) && self.upper.is_none_or(|upper| n < upper)
    }

    /// What is in both.
    pub fn intersection(self, other: Span) -> Option<Span> {
        // `None` sorts before every `Some`, which is right for a lower bound and wrong for an upper one.
        let lower = self.lower.max(other.lower);
        let upper = match (self.upper, other.upper) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Span::new(lower, upper)
    }

    /// What is in this and not in `other`: the part below it and the part above it.
    pub fn subtract(self, other: Span) -> (Option<Span>, Option<Span>) {
        let Some(shared) = self.intersection(other) else {
            return (Some(self), None);
        };
        let below = shared.lower.and_then(|upper| Span::new(self.lower, Some(upper)));
        let above = shared.upper.and_then(|lower| Span::new(Some(lower), self.upper));
        (below, above)
    }
}

/// What of `whole` is in none of `taken`, ascending, as few spans as possible. `taken` may overlap and be in any order.
pub fn free(whole: Span, taken: &[Span]) -> Vec<Span> {
    let mut taken: Vec<Span> = taken.iter().filter_map(|span| span.intersection(whole)).collect();
    taken.sort_by_key(|span| span.lower);
    let mut free = Vec::new();
    let mut rest = Some(whole);
    for span in taken {
        let Some(left) = rest else { break };
        if !left.overlaps(span) {
            // Ascending lower bounds: what does not touch the rest lies wholly below it.
            continue;
        }
        let (below, above) = left.subtract(span);
        free.extend(below);
        rest = above;
    }
    free.extend(rest);
    free
}

impl fmt::Display for Span {
    /// As PostgreSQL writes it: `[3,5)`, `(,)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lower {
            Some(lower) => write!(f, "[{lower},")?,
            None => f.write_str("(,")?,
        }
        match self.upper {
            Some(upper) => write!(f, "{upper})"),
            None => f.write_str(")"),
        }
    }
}

#[cfg(test)]
mod tests;
