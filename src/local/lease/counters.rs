//! Counts the fate of the units of a leased gate.

use std::sync::atomic::{AtomicU64, Ordering};

/// The units that a leased gate has taken, by their fate, from
/// [`Gate::lease_stats`](crate::Gate::lease_stats).
///
/// While no check is in progress, `taken = spent + held + returned + stranded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStats {
    /// The number of keys that have a lease, or had one recently.
    pub keys: usize,
    /// Units taken from the store.
    pub taken: u64,
    /// Units spent by admitted checks.
    pub spent: u64,
    /// Units that can be spent, or are being given back.
    pub held: u64,
    /// Units given back, or discarded by a reset.
    pub returned: u64,
    /// Units that could not be given back: they stay charged and cannot be spent.
    pub stranded: u64,
}

/// Written by the worker, except `returned` and `spent`, which a reset writes too. Aligned to cache lines of
/// its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Counters {
    pub(super) keys: AtomicU64,
    pub(super) taken: AtomicU64,
    /// Units with which the open slots were opened.
    pub(super) opened: AtomicU64,
    /// Units spent from closed slots. Wraps below 0 if units of an open slot were discarded, since closing
    /// that slot counts them as spent.
    pub(super) spent: AtomicU64,
    /// The part of `spent` reported to the observer.
    pub(super) reported_spent: AtomicU64,
    /// Units of refunds in flight.
    pub(super) returning: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) stranded: AtomicU64,
}

impl Counters {
    /// Returns the counts, given the units left in all slots.
    pub(super) fn stats(&self, left: u64) -> LeaseStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Units that are missing from open slots were spent, too.
        let spent = read(&self.spent).wrapping_add(read(&self.opened)).wrapping_sub(left);
        LeaseStats {
            keys: read(&self.keys) as usize,
            taken: read(&self.taken),
            spent,
            held: left + read(&self.returning),
            returned: read(&self.returned),
            stranded: read(&self.stranded),
        }
    }
}

pub(super) fn add(counter: &AtomicU64, units: u64) {
    counter.fetch_add(units, Ordering::Relaxed);
}
