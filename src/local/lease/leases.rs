//! The leases of a gate as its clones use them: spending, and requests to the worker.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::demand::Demand;
use super::lease_options::{Lease, LeaseStats};
use super::leased_gate::LeasedGate;
use super::ledger::Ledger;
use super::packed_key::PackedKey;
use super::queue::LeaseRequest;
use super::slot::{Spend, Spent};
use super::table::LeaseTable;
use super::worker::{self, Upstream};
use crate::decision::{Decision, Source};
use crate::observe::observer::{Event, EventSink};
use crate::runtime::background::Background;
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Mutex, lock};
use crate::store::GateInfo;

/// How often a caller that takes what is left tries to spend it.
const SPEND_ATTEMPTS: usize = 4;

/// The leases of one gate, shared by its clones. Dropping the last clone gives all units back.
#[derive(Debug)]
pub(crate) struct Leases(Arc<LeasedGate>);

impl Leases {
    /// Returns `None` if these settings lease nothing.
    pub(crate) fn new(
        lease: Lease,
        info: &Arc<GateInfo>,
        clock: &Clock,
        events: &EventSink,
        background: &Arc<Background>,
    ) -> Option<Self> {
        let terms = lease.terms(&info.quota)?;
        Some(Self(Arc::new(LeasedGate::new(terms, info, clock, events, background))))
    }

    /// Spends `cost` units of the key's lease. Returns `None` if there are not enough.
    #[inline]
    pub(crate) fn spend(&self, key: &[u8], cost: u64) -> Option<Decision> {
        let shared = &*self.0;
        let table = shared.table.get().filter(|_| !shared.has_ended())?;
        let cost = u32::try_from(cost).ok().filter(|cost| *cost > 0)?;
        let key = PackedKey::of(key);
        let hash = shared.hash(&key);
        let now_us = shared.clock.local_us();
        for (number, slot) in table.candidates(hash) {
            match slot.spend(&key, cost, now_us) {
                Spend::Another => {}
                Spend::Nothing => return None,
                Spend::Units(spent) => {
                    if spent.is_low {
                        self.refill(number, 0);
                    }
                    return Some(self.decision(spent, now_us));
                }
            }
        }
        None
    }

    /// Spends the units of up to `n` checks of `cost` units each. Returns for how many, at least one, and the decision.
    pub(crate) fn spend_up_to(&self, key: &[u8], n: u64, cost: u64) -> Option<(u64, Decision)> {
        let table = self.0.table.get()?;
        let packed = PackedKey::of(key);
        // Race: this reads the units left; another caller spends some of them; then spending them fails.
        (0..SPEND_ATTEMPTS).find_map(|_| {
            let (_, slot) = table.find(self.0.hash(&packed), &packed)?;
            let n = n.min(u64::from(slot.left()).checked_div(cost)?);
            self.spend(key, n * cost).map(|decision| (n, decision))
        })
    }

    /// Records that the store was called for this key and admitted the check.
    pub(crate) fn note<U: Upstream>(&self, upstream: &Arc<U>, key: &[u8], cost: u64) {
        let shared = &self.0;
        let Ok(cost) = u32::try_from(cost) else { return };
        if cost == 0 || cost > shared.terms.max_units || shared.has_ended() {
            return;
        }
        let packed = PackedKey::of(key);
        let hash = shared.hash(&packed);
        match shared.table.get().and_then(|table| table.find(hash, &packed)) {
            Some((number, slot)) => {
                // If there are enough units, they arrived after this check was sent. A refill of a full block
                // would keep the blocks from growing.
                if slot.has(cost, shared.clock.local_us()) || !slot.want() {
                    return;
                }
                self.refill(number, cost);
            }
            None => {
                let period = shared.clock.local_us() / shared.terms.hold_us;
                let demand = shared.demand.get_or_init(|| Demand::new(shared.terms.max_keys));
                let begin = || LeaseRequest::Begin { key: shared.encoded(key), packed, cost };
                if !demand.record(hash, period) || !shared.queue.push(begin()) {
                    return;
                }
            }
        }
        self.ensure_worker(upstream);
    }

    /// Discards the units of a key that was reset: they must not be given back.
    pub(crate) fn forget(&self, key: &[u8]) {
        let Some(table) = self.0.table.get() else { return };
        let key = PackedKey::of(key);
        if let Some((_, slot)) = table.find(self.0.hash(&key), &key) {
            let units = slot.forget(&key);
            self.0.counters.returned.fetch_add(units, Ordering::Relaxed);
            self.0.counters.spent.fetch_sub(units, Ordering::Relaxed);
            if units > 0 {
                self.0.events.notify(&Event::Returned { gate: &self.0.info.name, units });
            }
        }
    }

    /// Reads every lease.
    pub(crate) fn stats(&self) -> LeaseStats {
        let slots = self.0.table.get().map_or(&[][..], LeaseTable::slots);
        self.0.counters.stats(slots.iter().map(|slot| u64::from(slot.left())).sum())
    }

    pub(super) fn shared(&self) -> &Arc<LeasedGate> {
        &self.0
    }

    fn refill(&self, number: u32, cost: u32) {
        if !self.0.queue.push(LeaseRequest::Refill { slot: number, cost }) {
            // Lets a later check request the refill again.
            self.0.table().slot(number).no_longer_wanted();
        }
    }

    /// Starts the worker unless it is running.
    fn ensure_worker<U: Upstream>(&self, upstream: &Arc<U>) {
        let shared = &self.0;
        let mut worker = lock(&shared.worker);
        if worker.as_ref().is_some_and(|worker| !worker.is_finished()) {
            return;
        }
        if !shared.has_ended() {
            *worker = shared.background.spawn(worker::run(upstream.clone(), Ledger::new(shared.clone())));
        }
    }

    #[inline]
    fn decision(&self, spent: Spent, now_us: u64) -> Decision {
        let info = &self.0.info;
        let reset_after_us = spent.reset_us.saturating_sub(now_us);
        // A stamp that is the reset lies as far ahead.
        let until_stamp_us = if self.0.is_stamp_the_end { reset_after_us } else { 0 };
        Decision {
            gate: info.name,
            allowed: true,
            limit: info.quota.limit(),
            remaining: spent.left.into(),
            retry_after_us: 0,
            reset_after_us,
            delay_us: 0,
            source: Source::Lease,
            shadow: false,
            now_us: spent.stamp_us.saturating_sub(until_stamp_us),
            stamp_us: spent.stamp_us,
            is_within_limit: false,
            is_blocked: false,
        }
    }
}

impl Drop for Leases {
    /// The worker outlives this and gives all units back.
    fn drop(&mut self) {
        self.0.begin_shutdown();
    }
}

// The leased gates of one limiter, which end with it.

/// Weak references: gates end when they are dropped. A gate whose worker still gives units back stays listed
/// until the worker has finished.
#[derive(Debug, Default)]
pub(crate) struct LeaseRegistry(Mutex<Vec<Weak<LeasedGate>>>);

impl LeaseRegistry {
    pub(crate) fn add(&self, leases: &Leases) {
        let mut gates = lock(&self.0);
        gates.retain(|gate| gate.strong_count() > 0);
        gates.push(Arc::downgrade(leases.shared()));
    }

    /// Gives all leases back, at most until `ends`.
    pub(crate) async fn end(&self, ends: Instant) {
        let gates = std::mem::take(&mut *lock(&self.0));
        let gates: Vec<_> = gates.iter().filter_map(Weak::upgrade).collect();
        gates.iter().for_each(|gate| gate.begin_shutdown());
        for gate in gates {
            gate.end(ends).await;
        }
    }
}
