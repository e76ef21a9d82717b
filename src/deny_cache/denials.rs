//! Denials by target, and the counters that keep out the ones that are out of date.

use crate::store::{Target, TargetCache};
use crate::sync::atomic::{AtomicU64, Ordering};

/// The number of slots in the arrays below. A target's slot follows from its keyed_hash. Targets that share
/// a slot evict each other's denials, but never cause a wrong one.
const SLOTS: usize = 4_096;

pub(super) struct Denials<D> {
    target_cache: TargetCache<Denied<D>>,
    /// By slot, until when any denial is cached. Read before `target_cache`, so that checks of keys that were
    /// never denied take no lock.
    until_us: Box<[AtomicU64]>,
    /// By slot, how often keys were forgotten. A denial is not cached if its check began before a key
    /// was forgotten.
    forgotten: Box<[AtomicU64]>,
    /// By slot, the server's time of the latest take that was charged. A denial by an earlier take is
    /// not cached. 0 until a check is sent for which that matters: until then, admitted checks write
    /// nothing here.
    charged_us: Box<[AtomicU64]>,
}

#[derive(Clone)]
struct Denied<D> {
    denial: D,
    server_now_us: u64,
    /// The check that was denied.
    charges: Charges,
    /// Whether the counters were read after the insertion. Not found before.
    is_confirmed: bool,
}

/// A check that is sent: its slot, and the slot's counters by then.
#[derive(Clone, Copy)]
pub(crate) struct Charges {
    slot: usize,
    forgotten: u64,
    charged_us: u64,
}

impl<D: Clone> Denials<D> {
    pub(super) fn new(max_keys: usize) -> Self {
        let slots = || (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let target_cache = TargetCache::new(max_keys);
        Self { target_cache, until_us: slots(), forgotten: slots(), charged_us: slots() }
    }

    /// Called before a check is sent. `can_others_pass`: whether another check of the key can be admitted
    /// while this one is denied.
    pub(super) fn charges(&self, target: &Target, can_others_pass: bool) -> Charges {
        let slot = slot(target);
        let mut charged_us = self.charged_us[slot].load(Ordering::Acquire);
        if charged_us == 0 && can_others_pass {
            // From here on charges are recorded, which may be younger than this check's denial.
            charged_us = self.charged_us[slot].fetch_max(1, Ordering::SeqCst).max(1);
        }
        Charges { slot, forgotten: self.forgotten[slot].load(Ordering::Acquire), charged_us }
    }

    /// Returns the time until which any denial is cached in this slot. 0 in the common case: nothing was
    /// ever denied there.
    #[inline]
    pub(super) fn until_us(&self, target: &Target) -> u64 {
        self.until_us[slot(target)].load(Ordering::Relaxed)
    }

    pub(super) fn find(&self, target: &Target) -> Option<D> {
        self.target_cache.get(target).filter(|denied| denied.is_confirmed).map(|denied| denied.denial)
    }

    /// Caches a denial at the server's time `server_now_us`, unless it is out of date.
    pub(super) fn remember(
        &self,
        charges: Charges,
        target: &Target,
        denial: D,
        server_now_us: u64,
        until_us: u64,
    ) {
        self.until_us[charges.slot].fetch_max(until_us, Ordering::SeqCst);
        self.target_cache.insert(target, Denied { denial, server_now_us, charges, is_confirmed: false });
        // Race: `forget` and `charged` write the counters and then remove the denial; this inserts the denial
        // and then reads the counters, while the denial is locked. So a denial that is out of date is removed
        // by one of the two. The other checks do not find it in between, since it is not confirmed.
        self.target_cache.retain(target, |denied| {
            denied.is_confirmed = self.is_up_to_date(denied.charges, denied.server_now_us);
            denied.is_confirmed
        });
    }

    fn is_up_to_date(&self, charges: Charges, server_now_us: u64) -> bool {
        let charged_us = self.charged_us[charges.slot].load(Ordering::SeqCst);
        // Takes of one call have one time, so at the same time the charge may be the later one.
        let is_charged = charged_us != charges.charged_us && charged_us >= server_now_us;
        !is_charged && self.forgotten[charges.slot].load(Ordering::SeqCst) == charges.forgotten
    }

    /// Called after this process has given units back, or written the key otherwise. A check that starts after
    /// this has returned does not find a denial of a check that was sent before.
    pub(super) fn forget(&self, target: &Target) {
        self.forgotten[slot(target)].fetch_add(1, Ordering::SeqCst);
        self.target_cache.remove(target);
    }

    /// Returns whether [`charged`](Self::charged) has anything to do for an admitted check.
    #[inline]
    pub(super) fn records_charges(&self, charges: Charges) -> bool {
        self.charged_us[charges.slot].load(Ordering::Relaxed) > 0
    }

    /// Called after this process was charged units of a key at the server's time `now_us`. A check that starts
    /// after this has returned does not find an earlier denial.
    pub(super) fn charged(&self, target: &Target, now_us: u64) {
        let slot = slot(target);
        if self.charged_us[slot].load(Ordering::Relaxed) == 0 {
            return;
        }
        self.charged_us[slot].fetch_max(now_us, Ordering::SeqCst);
        if self.until_us[slot].load(Ordering::SeqCst) > 0 {
            self.target_cache.remove_if(target, |denied| denied.server_now_us <= now_us);
        }
    }
}

fn slot(target: &Target) -> usize {
    target.keyed_hash.0 as usize % SLOTS
}
