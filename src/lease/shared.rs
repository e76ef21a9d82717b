//! The state that a gate's clones share: spending, and requests to the worker.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::demand::Demand;
use super::ledger::Ledger;
use super::packed_key::PackedKey;
use super::queue::{LeaseRequest, RequestQueue};
use super::slot::{Spend, Spent};
use super::table::LeaseTable;
use super::worker::{self, Upstream};
use super::{Lease, LeaseStats, Terms};
use crate::background::Background;
use crate::clock::Clock;
use crate::decision::{Decision, Source};
use crate::observer::Observer;
use crate::quota::Kind;
use crate::store::GateInfo;

/// The leases of one gate, shared by its clones. Dropping the last clone gives all units back.
#[derive(Debug)]
pub(crate) struct Leases(Arc<LeasesInner>);

pub(super) struct LeasesInner {
    pub(super) info: Arc<GateInfo>,
    pub(super) terms: Terms,
    pub(super) clock: Clock,
    observer: Option<Arc<dyn Observer>>,
    /// A random seed, so that clients cannot choose keys that collide.
    seed: [u64; 2],
    /// Created at the first demand.
    demand: OnceLock<Demand>,
    /// Created at the first lease, since it is large.
    table: OnceLock<LeaseTable>,
    ended: AtomicBool,
    pub(super) queue: RequestQueue,
    pub(super) counters: Counters,
    background: Arc<Background>,
    worker: Mutex<Option<JoinHandle<()>>>,
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

/// # Spending
impl Leases {
    /// Returns `None` if these settings lease nothing.
    pub(crate) fn new(
        lease: Lease,
        info: &Arc<GateInfo>,
        clock: &Clock,
        observer: Option<&Arc<dyn Observer>>,
        background: &Arc<Background>,
    ) -> Option<Self> {
        let terms = lease.terms(&info.quota)?;
        let random = RandomState::new();
        let shared = LeasesInner {
            terms,
            info: info.clone(),
            clock: clock.clone(),
            observer: observer.cloned(),
            seed: [random.hash_one(0), random.hash_one(1) | 1],
            demand: OnceLock::new(),
            table: OnceLock::new(),
            ended: AtomicBool::new(false),
            queue: RequestQueue::default(),
            counters: Counters::default(),
            background: background.clone(),
            worker: Mutex::new(None),
        };
        Some(Self(Arc::new(shared)))
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
                        shared.refill(number, 0);
                    }
                    return Some(shared.decision(spent, now_us));
                }
            }
        }
        None
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
                shared.refill(number, cost);
            }
            None => {
                let period = shared.clock.local_us() / shared.terms.hold_us;
                let demand = shared.demand.get_or_init(|| Demand::new(shared.terms.max_keys));
                if !demand.record(hash, period)
                    || !shared.queue.push(LeaseRequest::Begin { key: key.into(), cost })
                {
                    return;
                }
            }
        }
        shared.ensure_worker(upstream);
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
                self.0.notify(|observer, gate| observer.returned(gate, units));
            }
        }
    }

    /// Reads every lease.
    pub(crate) fn stats(&self) -> LeaseStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.0.counters;
        let slots = self.0.table.get().map_or(&[][..], LeaseTable::slots);
        let left: u64 = slots.iter().map(|slot| u64::from(slot.left())).sum();
        // Units that are missing from open slots were spent, too.
        let spent = read(&counters.spent).wrapping_add(read(&counters.opened)).wrapping_sub(left);
        LeaseStats {
            keys: read(&counters.keys) as usize,
            taken: read(&counters.taken),
            spent,
            held: left + read(&counters.returning),
            returned: read(&counters.returned),
            stranded: read(&counters.stranded),
        }
    }

    pub(super) fn shared(&self) -> &Arc<LeasesInner> {
        &self.0
    }
}

impl Drop for Leases {
    /// The worker outlives this and gives all units back.
    fn drop(&mut self) {
        self.0.begin_shutdown();
    }
}

impl LeasesInner {
    pub(super) fn table(&self) -> &LeaseTable {
        self.table.get_or_init(|| LeaseTable::new(self.terms.max_keys))
    }

    #[inline]
    pub(super) fn hash(&self, key: &PackedKey) -> u64 {
        key.hash(self.seed)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends leasing: the worker gives the held units back.
    pub(super) fn begin_shutdown(&self) {
        self.ended.store(true, Ordering::Release);
        self.queue.wake();
    }

    /// Waits until all units are given back, at most until `ends`.
    pub(super) async fn end(&self, ends: Instant) {
        self.begin_shutdown();
        let worker = self.worker().take();
        if let Some(mut worker) = worker
            && tokio::time::timeout_at(ends, &mut worker).await.is_err()
        {
            // The worker counts its remaining units as stranded.
            worker.abort();
        }
    }

    pub(super) fn notify(&self, event: impl FnOnce(&dyn Observer, &str)) {
        if let Some(observer) = &self.observer {
            event(&**observer, &self.info.name);
        }
    }

    /// Reports the units spent since the last report. Only the worker calls it.
    pub(super) fn report_spent(&self) {
        let spent = self.counters.spent.load(Ordering::Relaxed);
        let units = spent.wrapping_sub(self.counters.reported_spent.load(Ordering::Relaxed));
        // Below 0 if discarded units are still to be counted as spent.
        if units.cast_signed() > 0 {
            self.counters.reported_spent.store(spent, Ordering::Relaxed);
            self.notify(|observer, gate| observer.spent(gate, units));
        }
    }

    pub(super) fn strand(&self, units: u64) {
        self.counters.stranded.fetch_add(units, Ordering::Relaxed);
        self.notify(|observer, gate| observer.stranded(gate, units));
    }

    fn refill(&self, number: u32, cost: u32) {
        if !self.queue.push(LeaseRequest::Refill { slot: number, cost }) {
            // Lets a later check request the refill again.
            self.table().slot(number).no_longer_wanted();
        }
    }

    /// Starts the worker unless it is running.
    fn ensure_worker<U: Upstream>(self: &Arc<Self>, upstream: &Arc<U>) {
        let mut worker = self.worker();
        if worker.as_ref().is_some_and(|worker| !worker.is_finished()) {
            return;
        }
        if !self.has_ended() {
            *worker = self.background.spawn(worker::run(upstream.clone(), Ledger::new(self.clone())));
        }
    }

    fn worker(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn decision(&self, spent: Spent, now_us: u64) -> Decision {
        let reset_after_us = spent.reset_us.saturating_sub(now_us);
        // A fixed window's stamp is its end, at which the key resets.
        let server_now_us = match self.info.quota.kind() {
            Kind::FixedWindow(_) => spent.stamp_us.saturating_sub(reset_after_us),
            _ => spent.stamp_us,
        };
        Decision {
            gate: self.info.name,
            allowed: true,
            limit: self.info.quota.limit(),
            remaining: spent.left.into(),
            retry_after_us: 0,
            reset_after_us,
            delay_us: 0,
            source: Source::Lease,
            shadow: false,
            now_us: server_now_us,
            stamp_us: spent.stamp_us,
        }
    }
}

/// Keys may be personal data.
impl std::fmt::Debug for LeasesInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases")
            .field("gate", &self.info.name)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
