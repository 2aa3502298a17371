//! What a node has of what can be divided, now and over the bookings that begin later.
//!
//! While nothing is booked for later, what is free now is free for ever, and one number says it. Where something is, the
//! node's whole book decides: an amount is free for a time if the peak of what is booked in that time leaves it.
//! Instants are microseconds from now.

use super::Share;
use crate::timeline::{During, Held, Timeline};
use std::num::NonZeroU64;

/// A divisible amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Not in use now.
    pub free: i64,
    /// In use or not.
    pub total: i64,
}

/// A booking of a node's amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Booked {
    /// When, microseconds from now.
    pub during: During,
    /// CPUs.
    pub cpus: i64,
    /// Memory, MiB.
    pub mem_mib: i64,
    /// Disk, MiB.
    pub disk_mib: i64,
}

/// What a node has.
#[derive(Clone, Debug, Default)]
pub struct Amounts {
    /// CPUs.
    pub cpus: Amount,
    /// Memory, MiB.
    pub mem_mib: Amount,
    /// Disk, MiB.
    pub disk_mib: Amount,
    book: Vec<Booked>,
    timelines: [Timeline; 3],
}

impl Amounts {
    /// What a node has of which nothing is booked for later.
    pub fn new(cpus: Amount, mem_mib: Amount, disk_mib: Amount) -> Amounts {
        Amounts { cpus, mem_mib, disk_mib, ..Amounts::default() }
    }

    /// The same with its whole book, where some of it begins later.
    pub fn with_book(self, book: Vec<Booked>) -> Amounts {
        let mut amounts = Amounts { book, ..self };
        amounts.sum();
        amounts
    }

    /// What is free of CPUs, memory and disk from now on for so long; `None` is for ever. May be below zero where the
    /// book is over a total that has shrunk.
    pub fn free_over(&self, lasts_us: Option<u64>) -> [i64; 3] {
        let amounts = [self.cpus, self.mem_mib, self.disk_mib];
        if self.book.is_empty() {
            return amounts.map(|amount| amount.free);
        }
        let during = from_now(lasts_us);
        let left = |at: usize| {
            let peak = i64::try_from(self.timelines[at].peak(during)).unwrap_or(i64::MAX);
            amounts[at].free.min(amounts[at].total.saturating_sub(peak))
        };
        [left(0), left(1), left(2)]
    }

    /// Whether a share fits for so long.
    pub fn fits(&self, share: &Share, lasts_us: Option<u64>) -> bool {
        let [cpus, mem_mib, disk_mib] = self.free_over(lasts_us);
        share.cpus <= cpus && share.mem_mib <= mem_mib && share.disk_mib <= disk_mib
    }

    /// Takes a share from now on for so long.
    pub fn take(&mut self, share: &Share, lasts_us: Option<u64>) {
        self.cpus.free -= share.cpus;
        self.mem_mib.free -= share.mem_mib;
        self.disk_mib.free -= share.disk_mib;
        if !self.book.is_empty() {
            let Share { cpus, mem_mib, disk_mib, .. } = *share;
            self.book.push(Booked { during: from_now(lasts_us), cpus, mem_mib, disk_mib });
            self.sum();
        }
    }

    fn sum(&mut self) {
        let of =
            |amount: fn(&Booked) -> i64| {
                Timeline::new(self.book.iter().map(|booked| Held {
                    amount: amount(booked).max(0).unsigned_abs(),
                    during: booked.during,
                }))
            };
        self.timelines = [of(|b| b.cpus), of(|b| b.mem_mib), of(|b| b.disk_mib)];
    }
}

fn from_now(lasts_us: Option<u64>) -> During {
    During::lasting(0, lasts_us.and_then(NonZeroU64::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    fn booked(start: i64, end: Option<i64>, cpus: i64) -> Booked {
        Booked { during: During::new(start, end).unwrap(), cpus, mem_mib: 0, disk_mib: 0 }
    }

    fn share(cpus: i64) -> Share {
        Share { node_id: 1, cpus, mem_mib: 0, disk_mib: 0, gpu_ids: vec![] }
    }

    #[test]
    fn what_is_booked_for_later_is_free_until_then_and_not_beyond() {
        let hour = HOUR as i64;
        // 8 CPUs, 2 in use for half an hour, 6 booked from an hour on for an hour.
        let cpus = Amount { free: 6, total: 8 };
        let mut amounts = Amounts::new(cpus, Amount::default(), Amount::default())
            .with_book(vec![booked(-5, Some(hour / 2), 2), booked(hour, Some(2 * hour), 6)]);
        assert_eq!(amounts.free_over(Some(HOUR))[0], 6);
        assert_eq!(amounts.free_over(Some(HOUR + 1))[0], 2, "until the later booking begins, and not beyond");
        assert_eq!(amounts.free_over(None)[0], 2);
        assert!(amounts.fits(&share(2), None) && !amounts.fits(&share(3), None));
        amounts.take(&share(2), None);
        assert_eq!(amounts.free_over(None)[0], 0);
        assert_eq!(amounts.free_over(Some(HOUR))[0], 4);
    }
}
