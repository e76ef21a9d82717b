//! Denials by target, and the counters that keep out the ones that are out of date.

use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::store::{Target, TargetCache};

/// The number of slots in the arrays below. A target's slot follows from its keyed_hash. Targets that share
/// a slot evict each other's denials, but never cause a wrong one.
pub(crate) const SLOTS: usize = 4_096;

pub(super) struct Denials<D> {
    target_cache: TargetCache<Denied<D>>,
    /// By slot, until when any denial is cached. Read before `target_cache`, so that checks of keys that were
    /// never denied take no lock.
    until_us: Box<[AtomicU64]>,
    /// By slot, how often keys were forgotten. A denial is not cached if its check began before a key
    /// was forgotten.
    forgotten: Box<[AtomicU64]>,
    /// By slot, the latest server's time of denials that are older than an admission, or than a charge without a
    /// check. They are not cached.
    latest_admission_us: Box<[AtomicU64]>,
    /// By slot, 1 if a check was sent that can be denied before another take of the same call is admitted. 0: a
    /// denial at the time of an admission is one of the same take, which counts what the take admitted.
    has_unlike_checks: Box<[AtomicU64]>,
}

#[derive(Clone)]
struct Denied<D> {
    denial: D,
    server_now_us: u64,
    /// Of the check that was denied.
    snapshot: SlotSnapshot,
    /// Whether the counters were read after the insertion. Not found before.
    is_confirmed: bool,
}

/// The counters of a key's slot when its check was sent.
#[derive(Clone, Copy)]
pub(crate) struct SlotSnapshot {
    pub(crate) slot: usize,
    forgotten: u64,
    latest_admission_us: u64,
}

impl<D: Clone> Denials<D> {
    pub(super) fn new(max_keys: usize) -> Self {
        let slots = || (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let target_cache = TargetCache::new(max_keys);
        Self {
            target_cache,
            until_us: slots(),
            forgotten: slots(),
            latest_admission_us: slots(),
            has_unlike_checks: slots(),
        }
    }

    /// Called before a check is sent. `can_others_pass`: whether another check of the key can be admitted
    /// while this one is denied.
    pub(super) fn snapshot(&self, target: &Target, can_others_pass: bool) -> SlotSnapshot {
        let slot = slot(target);
        if can_others_pass && self.has_unlike_checks[slot].load(Ordering::Relaxed) == 0 {
            self.has_unlike_checks[slot].store(1, Ordering::SeqCst);
        }
        SlotSnapshot {
            slot,
            forgotten: self.forgotten[slot].load(Ordering::Acquire),
            latest_admission_us: self.latest_admission_us[slot].load(Ordering::Acquire),
        }
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
        snapshot: SlotSnapshot,
        target: &Target,
        denial: D,
        server_now_us: u64,
        until_us: u64,
    ) {
        self.until_us[snapshot.slot].fetch_max(until_us, Ordering::SeqCst);
        self.target_cache.insert(target, Denied { denial, server_now_us, snapshot, is_confirmed: false });
        // Race: `forget` and `record_admission` write the counters and then remove the denial; this inserts
        // the denial and then reads the counters, while the denial is locked. So a denial that is out of date
        // is removed by one of the two. Other checks do not find it in between, since it is not confirmed.
        self.target_cache.retain(target, |denied| {
            denied.is_confirmed = self.is_up_to_date(denied.snapshot, denied.server_now_us);
            denied.is_confirmed
        });
    }

    fn is_up_to_date(&self, snapshot: SlotSnapshot, server_now_us: u64) -> bool {
        let latest_us = self.latest_admission_us[snapshot.slot].load(Ordering::SeqCst);
        // Takes of one call have one time, so at the same time the admission may be the later one.
        let is_admitted_since = latest_us != snapshot.latest_admission_us && latest_us >= server_now_us;
        !is_admitted_since && self.forgotten[snapshot.slot].load(Ordering::SeqCst) == snapshot.forgotten
    }

    /// Called after this process has given units back, or written the key otherwise. A check that starts after
    /// this has returned does not find a denial of a check that was sent before.
    pub(super) fn forget(&self, target: &Target) {
        self.forgotten[slot(target)].fetch_add(1, Ordering::SeqCst);
        self.target_cache.remove(target);
    }

    /// Called after the store admitted a check of this process at the server's time `now_us`. Returns whether
    /// an earlier denial may be cached in the slot at the local time `since_us` or later:
    /// [`record_admission`](Self::record_admission) then removes it.
    #[inline]
    pub(super) fn raise_latest_admission(&self, snapshot: SlotSnapshot, now_us: u64, since_us: u64) -> bool {
        self.raise(snapshot.slot, self.latest_older_us(snapshot.slot, now_us)) > since_us
    }

    /// Called after the store admitted a check of this process at the server's time `now_us`. A check that
    /// starts after this has returned does not find an earlier denial.
    pub(super) fn record_admission(&self, target: &Target, now_us: u64) {
        let latest_older_us = self.latest_older_us(slot(target), now_us);
        if self.raise(slot(target), latest_older_us) > 0 {
            self.target_cache.remove_if(target, |denied| denied.server_now_us <= latest_older_us);
        }
    }

    /// Called after this process charged the key without a check at the server's time `now_us`. A check that starts
    /// after this has returned finds an earlier denial only as `change` leaves it, and none if `change` returns false.
    pub(super) fn record_charge(&self, target: &Target, now_us: u64, change: impl FnOnce(&mut D) -> bool) {
        if self.raise(slot(target), now_us) > 0 {
            self.target_cache.retain(target, |denied| {
                // A younger denial counts the charge. At the same time, either can be the earlier one.
                let is_earlier = denied.server_now_us < now_us;
                denied.server_now_us > now_us || (is_earlier && change(&mut denied.denial))
            });
        }
    }

    /// Returns the latest time of denials that are older than an admission at `now_us`.
    #[inline]
    fn latest_older_us(&self, slot: usize, now_us: u64) -> u64 {
        match self.has_unlike_checks[slot].load(Ordering::SeqCst) {
            0 => now_us.saturating_sub(1),
            _ => now_us,
        }
    }

    /// Raises the time of the latest admission. Returns until when any denial is cached in the slot.
    #[inline]
    fn raise(&self, slot: usize, now_us: u64) -> u64 {
        // Takes of one call have one time: only one of them writes.
        if self.latest_admission_us[slot].load(Ordering::SeqCst) < now_us {
            self.latest_admission_us[slot].fetch_max(now_us, Ordering::SeqCst);
        }
        self.until_us[slot].load(Ordering::SeqCst)
    }
}

pub(crate) fn slot(target: &Target) -> usize {
    target.keyed_hash.0 as usize % SLOTS
}
