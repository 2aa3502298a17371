//! Advance reservations: capacity booked for a time of its owner's choosing, in which the jobs it admits run.

pub(super) mod carve;
