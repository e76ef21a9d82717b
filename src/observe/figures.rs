//! The figures of the fleet: the counters of each instance's gates, which it adds to hashes in Redis with its
//! heartbeats.
//!
//! There is one hash for each 5 s of the server's clock, kept for an hour. A field is the name of a gate, its text
//! the sum of all instances. See [`format`](self::format).

mod counters;
pub(crate) mod format;
#[cfg(feature = "admin")]
mod recorded;

use std::collections::HashMap;
use std::sync::Arc;
#[cfg(feature = "admin")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use self::counters::GateCounters;
#[cfg(feature = "admin")]
pub(crate) use self::counters::Histogram;
use self::counters::{BUCKETS, GateCounts, Sharded, bound_us, bucket_of};
use self::format::{LATENCY, NumberText, OTHER};
#[cfg(feature = "admin")]
use self::recorded::Recorded;
use crate::runtime::sync::{Mutex, lock};

/// The time of one hash of figures.
pub(crate) const BUCKET: Duration = Duration::from_secs(5);
/// How long a hash of figures is kept after its time.
pub(crate) const KEPT: Duration = Duration::from_secs(3_600);
/// The time of one hash of instance records, which is kept for twice this time.
pub(crate) const RECORDS_BUCKET: Duration = Duration::from_secs(15);
/// The maximum number of gates in one hash. Further gates are summed under [`OTHER`](self::format::OTHER).
pub(crate) const MAX_GATES: usize = 256;
/// The maximum number of instances in one hash of records. Further instances are left out.
pub(crate) const MAX_INSTANCES: usize = 1_024;
/// The maximum number of gates of this process with counters of their own. Further gates share those of [`OTHER`].
const MAX_COUNTED: usize = 1_024;
/// The maximum number of gates in one publication: those with most decisions. The others are summed under
/// [`OTHER`].
pub(crate) const MAX_PUBLISHED: usize = 128;

/// Counts what this process decides, until it is published.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    gates: Mutex<HashMap<Box<str>, Arc<GateCounters>>>,
    /// Whether all gates were in use, or had numbers that were not taken, when one more was needed.
    is_full: AtomicBool,
    other: Arc<GateCounters>,
    latencies: Sharded<[AtomicU64; BUCKETS]>,
    /// The latencies that were taken.
    taken: Mutex<[u64; BUCKETS]>,
    /// Since the start.
    errors: AtomicU64,
    /// Of a limiter in memory, once an inspector reads it.
    #[cfg(feature = "admin")]
    recorded: OnceLock<Mutex<Recorded>>,
}

impl Figures {
    /// Returns the counters of a gate. Takes a lock: a gate keeps its counters.
    pub(crate) fn gate(&self, name: &str) -> Arc<GateCounters> {
        let mut gates = lock(&self.gates);
        if let Some(counters) = gates.get(name) {
            return counters.clone();
        }
        if gates.len() >= MAX_COUNTED {
            // Once per publication: with all gates in use, each new name would search them again.
            if self.is_full.swap(true, Ordering::Relaxed) {
                return self.other.clone();
            }
            // Rules from files may have other gates after each reload.
            gates.retain(|_, counters| Arc::strong_count(counters) > 1 || !counters.is_taken());
            if gates.len() >= MAX_COUNTED {
                return self.other.clone();
            }
            self.is_full.store(false, Ordering::Relaxed);
        }
        gates.entry(name.into()).or_default().clone()
    }

    /// Counts the latency of a decision that waited for the store.
    #[inline]
    pub(crate) fn count_latency(&self, latency_us: u64) {
        self.latencies.increment(|counts| &counts[bucket_of(latency_us)]);
    }

    /// Counts a check that the store did not decide.
    pub(crate) fn count_error(&self, gate: Option<&GateCounters>) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        gate.unwrap_or(&self.other).count_error();
    }

    /// Returns the errors since the start.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Returns the fields and texts of what was counted since the last call, to publish them once.
    pub(crate) fn take(&self) -> Vec<(String, String)> {
        self.is_full.store(false, Ordering::Relaxed);
        let gates: Vec<_> =
            lock(&self.gates).iter().map(|(name, counters)| (name.clone(), counters.clone())).collect();
        let counts = gates.into_iter().map(|(name, counters)| (name, counters.take()));
        let mut counts: Vec<_> = counts.filter(|(_, counts)| counts.total() > 0).collect();
        counts.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.total()));
        let mut other = self.other.take();
        let further = counts.split_off(counts.len().min(MAX_PUBLISHED));
        further.into_iter().for_each(|(_, counts)| other.add(counts));
        let mut fields: Vec<_> =
            counts.into_iter().map(|(name, counts)| (name.into_string(), counts.text())).collect();
        if other != GateCounts::default() {
            fields.push((OTHER.to_owned(), other.text()));
        }
        let latencies = self.take_latencies();
        if !latencies.is_empty() {
            fields.push((LATENCY.to_owned(), latencies));
        }
        fields
    }

    fn take_latencies(&self) -> String {
        let mut text = NumberText::default();
        let mut taken = lock(&self.taken);
        for (bucket, before) in taken.iter_mut().enumerate() {
            let counts = self.latencies.all().map(|counts| counts[bucket].load(Ordering::Relaxed));
            let count = counts.fold(0, u64::wrapping_add);
            text.add(format_args!("{}", bound_us(bucket)), count.wrapping_sub(*before));
            *before = count;
        }
        text.into_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Decision, Source};
    use crate::error::gate_name::GateName;

    fn decision() -> Decision {
        Decision::fixed(GateName::new("login").unwrap(), 10, true, Source::Redis)
    }

    #[test]
    fn gates_of_one_name_share_their_counters() {
        let figures = Figures::default();
        figures.gate("login").count(&decision());
        figures.gate("login").count(&decision());
        figures.count_latency(100);
        assert_eq!(figures.take(), [("login", "a/redis=2"), ("(latency)", "128=1")].map(owned));
        assert_eq!(figures.take(), []);
    }

    #[test]
    fn errors_without_a_gate_are_those_of_other() {
        let figures = Figures::default();
        figures.count_error(Some(&figures.gate("login")));
        figures.count_error(None);
        assert_eq!(figures.errors(), 2);
        assert_eq!(figures.take(), [("login", "e=1"), ("(other)", "e=1")].map(owned));
        assert_eq!(figures.errors(), 2);
    }

    #[test]
    fn gates_with_most_decisions_are_published_and_the_rest_summed() {
        let figures = Figures::default();
        for number in 0..MAX_PUBLISHED {
            let gate = figures.gate(&format!("gate-{number}"));
            gate.count(&decision());
            gate.count(&decision());
        }
        for number in 0..5 {
            figures.gate(&format!("rare-{number}")).count(&decision());
        }
        let fields = figures.take();
        assert_eq!(fields.len(), MAX_PUBLISHED + 1);
        assert_eq!(fields[MAX_PUBLISHED], owned(("(other)", "a/redis=5")));
    }

    #[test]
    fn only_as_many_gates_as_can_be_are_counted_apart_and_unused_ones_make_room() {
        let figures = Figures::default();
        let kept: Vec<_> = (0..MAX_COUNTED).map(|number| figures.gate(&format!("gate-{number}"))).collect();
        figures.gate("further").count(&decision());
        assert_eq!(figures.take(), [owned(("(other)", "a/redis=1"))]);
        kept[0].count(&decision());
        drop(kept);
        figures.gate("further").count(&decision());
        assert_eq!(lock(&figures.gates).len(), 2, "a gate with counts stays");
        let mut fields = figures.take();
        fields.sort();
        assert_eq!(fields, [("further", "a/redis=1"), ("gate-0", "a/redis=1")].map(owned));
    }

    fn owned((field, text): (&str, &str)) -> (String, String) {
        (field.to_owned(), text.to_owned())
    }
}
