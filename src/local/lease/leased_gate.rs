//! The state that the spenders and the worker of a leased gate share.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::demand::Demand;
use super::lease_options::{Counters, LeaseTerms, add};
use super::leased_key::EncodedKey;
use super::packed_key::PackedKey;
use super::queue::RequestQueue;
use super::table::LeaseTable;
use crate::observe::observer::{Event, EventSink};
use crate::runtime::background::Background;
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Mutex, lock};
use crate::store::{GateInfo, Target};

pub(super) struct LeasedGate {
    pub(super) info: Arc<GateInfo>,
    pub(super) terms: LeaseTerms,
    /// See [`Algorithm::is_stamp_the_end`](crate::quota::algorithm::Algorithm::is_stamp_the_end).
    pub(super) is_stamp_the_end: bool,
    pub(super) clock: Clock,
    pub(super) events: EventSink,
    /// A random seed, so that clients cannot choose keys that collide.
    seed: [u64; 2],
    /// Created at the first demand.
    pub(super) demand: OnceLock<Demand>,
    /// Created at the first lease, since it is large.
    pub(super) table: OnceLock<LeaseTable>,
    ended: AtomicBool,
    pub(super) queue: RequestQueue,
    pub(super) counters: Counters,
    pub(super) background: Arc<Background>,
    pub(super) worker: Mutex<Option<JoinHandle<()>>>,
}

impl LeasedGate {
    pub(super) fn new(
        terms: LeaseTerms,
        info: &Arc<GateInfo>,
        clock: &Clock,
        events: &EventSink,
        background: &Arc<Background>,
    ) -> Self {
        let random = RandomState::new();
        Self {
            terms,
            is_stamp_the_end: info.quota.kind().algorithm().is_stamp_the_end(),
            info: info.clone(),
            clock: clock.clone(),
            events: events.clone(),
            seed: [random.hash_one(0), random.hash_one(1) | 1],
            demand: OnceLock::new(),
            table: OnceLock::new(),
            ended: AtomicBool::new(false),
            queue: RequestQueue::default(),
            counters: Counters::default(),
            background: background.clone(),
            worker: Mutex::new(None),
        }
    }

    pub(super) fn table(&self) -> &LeaseTable {
        self.table.get_or_init(|| LeaseTable::new(self.terms.max_keys))
    }

    pub(super) fn encoded(&self, key: &[u8]) -> EncodedKey {
        let prefix = &self.info.prefix;
        EncodedKey { text: prefix.encoded(key).into(), hash_tag: prefix.hash_tag(key) }
    }

    pub(super) fn target(&self, key: &EncodedKey) -> Target {
        Target::of_encoded(&self.info, &key.text, key.hash_tag)
    }

    #[inline]
    pub(super) fn hash(&self, key: &PackedKey) -> u64 {
        key.hash(self.seed)
    }

    #[inline]
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
        let worker = lock(&self.worker).take();
        if let Some(mut worker) = worker
            && tokio::time::timeout_at(ends, &mut worker).await.is_err()
        {
            // The worker counts its remaining units as stranded.
            worker.abort();
        }
    }

    /// Adds the units spent since the last report to the figures of the gate, and reports them to the observer. Only the
    /// worker calls it.
    pub(super) fn report_spent(&self) {
        let spent = self.counters.spent.load(Ordering::Relaxed);
        let units = spent.wrapping_sub(self.counters.reported_spent.load(Ordering::Relaxed));
        // Below 0 if discarded units are still to be counted as spent.
        if units.cast_signed() > 0 {
            self.counters.reported_spent.store(spent, Ordering::Relaxed);
            if let Some(counters) = &self.info.counters {
                counters.add_leased(units);
            }
            self.events.notify(&Event::Spent { gate: &self.info.name, units });
        }
    }

    pub(super) fn strand(&self, units: u64) {
        add(&self.counters.stranded, units);
        self.events.notify(&Event::Stranded { gate: &self.info.name, units });
    }
}

/// Keys may be personal data.
impl std::fmt::Debug for LeasedGate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases")
            .field("gate", &self.info.name)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::local::lease::Lease;
    use crate::quota::Quota;

    #[test]
    fn leased_key_is_kept_in_at_most_200_bytes_and_names_the_same_state() {
        let quota = Quota::fixed_window(10, Duration::from_secs(1));
        let secret = KeyMode::Hmac([7; 32].into());
        for mode in [KeyMode::Clear, secret] {
            let keyspace = Keyspace::new("test", mode).unwrap().spread_over_a_cluster(true);
            let info = Arc::new(GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", quota).unwrap());
            let terms = Lease::new().terms(&quota).unwrap();
            let (events, background) = (EventSink::new(None), Arc::default());
            let gate = LeasedGate::new(terms, &info, &Clock::System, &events, &background);
            for key in [&b"user:42"[..], "Grüße {}".as_bytes(), &[b'x'; 8_000], &[0xff; 8_000]] {
                let encoded = gate.encoded(key);
                assert!(encoded.text.len() <= 200, "{} bytes", encoded.text.len());
                let (leased, checked) = (gate.target(&encoded), Target::new(&info, key, None));
                assert_eq!((leased.hash_tag, &leased.redis_key), (checked.hash_tag, &checked.redis_key));
            }
        }
    }
}
