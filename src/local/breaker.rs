//! The circuit breaker: while Redis does not answer, checks are not sent to it. It is probed until it
//! answers.
//!
//! There is one circuit for each hash tag of a cluster, so that a lost primary does not affect the keys of
//! the others; a single Redis has one circuit. Error replies (OOM, NOPERM, a corrupt key) do not open a
//! circuit: they arrive at once and cost a round trip each, as other replies do.

mod availability;
mod circuit;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use self::availability::Availability;
use self::circuit::{Circuit, Circuits};
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::HashTag;
use crate::local::on_failure::OnFailure;
use crate::observe::observer::{Event, EventSink};
use crate::observe::warning::WarningSink;
use crate::runtime::background::{Background, Job, JobSlot};
use crate::runtime::sync::{Mutex, lock};
use crate::store::{Group, Store};

/// The pause between two probes, at first and at most. Up to 50 % jitter desynchronizes a fleet's probes.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Breaker(Arc<BreakerInner>);

struct BreakerInner {
    store: Arc<Store>,
    deadline: Duration,
    events: EventSink,
    background: Arc<Background>,
    circuits: Circuits,
    availability: Availability,
    /// By circuit.
    probes: Box<[Probe]>,
    /// By circuit: the error that all calls share which the last lost connection failed.
    lost_calls: Box<[Mutex<Option<Error>>]>,
    is_enabled: bool,
    is_shut_down: AtomicBool,
}

struct Probe {
    /// A peek at a key of the circuit's hash tag: any Redis that works can answer it.
    group: Group,
    probing: JobSlot,
}

/// The settings of a breaker.
pub(crate) struct BreakerSettings {
    pub(crate) store: Arc<Store>,
    /// One for each circuit, in the order of the hash tags.
    pub(crate) probes: Vec<Group>,
    pub(crate) deadline: Duration,
    pub(crate) events: EventSink,
    pub(crate) warnings: WarningSink,
    /// For the warnings, which say what decides, and which share this process has.
    pub(crate) policy: OnFailure,
    /// The processes that share the limits; 0 if they are counted.
    pub(crate) instances: u64,
    pub(crate) background: Arc<Background>,
    /// If false, no circuit ever opens.
    pub(crate) is_enabled: bool,
}

impl Breaker {
    pub(crate) fn new(settings: BreakerSettings) -> Self {
        let BreakerSettings { store, probes, deadline, events, warnings, background, .. } = settings;
        let circuits = Circuits::new(probes.len());
        let availability =
            Availability::new(store.clone(), warnings, settings.policy, settings.instances, probes.len());
        let lost_calls = probes.iter().map(|_| Mutex::default()).collect();
        let probes = probes.into_iter().map(|group| Probe { group, probing: JobSlot::default() }).collect();
        Self(Arc::new(BreakerInner {
            store,
            deadline,
            events,
            background,
            circuits,
            availability,
            probes,
            lost_calls,
            is_enabled: settings.is_enabled,
            is_shut_down: AtomicBool::new(false),
        }))
    }

    /// Returns an error if checks of this hash tag must not be sent.
    #[inline]
    pub(crate) fn check(&self, hash_tag: HashTag) -> Result<(), Error> {
        if !self.is_open(hash_tag) {
            return Ok(());
        }
        // Only needed where the job's runtime ended.
        self.ensure_probing(hash_tag);
        Err(Error::breaker_open())
    }

    /// Returns whether the circuit of this hash tag is open.
    #[inline]
    pub(crate) fn is_open(&self, hash_tag: HashTag) -> bool {
        self.0.circuit(hash_tag).is_open()
    }

    /// Counts the result of a check, and reports whether Redis decides at all. A timeout before the limiter's
    /// own deadline does not count as a failure of Redis.
    #[inline]
    pub(crate) fn record<T>(&self, hash_tag: HashTag, result: &Result<T, Error>, deadline: Duration) {
        match result {
            Ok(_) => {
                self.0.circuit(hash_tag).count_answer();
                self.0.availability.count_answer(hash_tag);
            }
            Err(error) => self.record_error(hash_tag, error, deadline),
        }
    }

    #[cold]
    fn record_error(&self, hash_tag: HashTag, error: &Error, deadline: Duration) {
        let availability = &self.0.availability;
        if error.is_rejected() {
            availability.count_rejection(hash_tag, error);
        } else if error.is_corrupt_state() {
            availability.count_answer(hash_tag);
        }
        if !error.is_unanswered() {
            if !error.is_of_this_process() {
                self.0.circuit(hash_tag).count_answer();
            }
            return;
        }
        if error.is_timeout() && deadline < self.0.deadline {
            return;
        }
        if !error.is_rejected() {
            availability.count_silence(hash_tag, error);
        }
        if self.0.is_enabled && !self.0.is_counted(hash_tag, error) {
            self.count_failure(hash_tag);
        }
    }

    /// Returns whether Redis answers checks of this hash tag, as far as this process knows. If it does not, a warning was
    /// reported, or no check has been made yet.
    pub(crate) fn answers_checks(&self, hash_tag: HashTag) -> bool {
        self.0.availability.is_answering(hash_tag)
    }

    /// Notes the number of processes, for the warnings of an outage.
    pub(crate) fn note_instances(&self, instances: u64) {
        self.0.availability.instances.store(instances, Ordering::Relaxed);
    }

    /// Returns whether all circuits are open, so that no check may be sent.
    pub(crate) fn are_all_open(&self) -> bool {
        self.0.circuits.iter().all(Circuit::is_open)
    }

    /// Returns for how long a circuit has been open; if several are, the one that opened first.
    pub(crate) fn open_for(&self) -> Option<Duration> {
        let opened_at = self.0.circuits.iter().filter_map(Circuit::opened_at);
        opened_at.min().map(|opened_at| opened_at.elapsed())
    }

    /// Sends a probe, regardless of the circuit's state. Returns whether Redis answered.
    pub(crate) async fn is_answered(&self, hash_tag: HashTag) -> bool {
        self.0.is_answered(hash_tag).await
    }

    /// Ends probing, and all jobs that check [`is_shut_down`](Self::is_shut_down).
    pub(crate) fn shut_down(&self) {
        self.0.is_shut_down.store(true, Ordering::Release);
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.0.is_shut_down.load(Ordering::Acquire)
    }

    fn count_failure(&self, hash_tag: HashTag) {
        let circuit = self.0.circuit(hash_tag);
        if circuit.count_failure() {
            self.0.circuits.open(circuit, || self.0.events.notify(&Event::BreakerOpened));
            self.ensure_probing(hash_tag);
        }
    }

    fn ensure_probing(&self, hash_tag: HashTag) {
        let probing = || Probing { shared: Arc::downgrade(&self.0), hash_tag };
        self.0.probe(hash_tag).probing.ensure_running(&self.0.background, probing);
    }
}

impl BreakerInner {
    fn circuit(&self, hash_tag: HashTag) -> &Circuit {
        &self.circuits[hash_tag.index() % self.circuits.len()]
    }

    /// Returns whether the failure was counted already: all checks that one lost connection fails count as one, since
    /// Redis may answer on the next one.
    fn is_counted(&self, hash_tag: HashTag, error: &Error) -> bool {
        if !error.is_lost_call() {
            return false;
        }
        let mut last = lock(&self.lost_calls[hash_tag.index() % self.lost_calls.len()]);
        let last = last.replace(error.clone());
        last.is_some_and(|last| last.is_same(error))
    }

    fn probe(&self, hash_tag: HashTag) -> &Probe {
        &self.probes[hash_tag.index() % self.probes.len()]
    }

    async fn is_answered(&self, hash_tag: HashTag) -> bool {
        let deadline = Deadline::new(self.deadline);
        let answers = self.store.take(std::slice::from_ref(&self.probe(hash_tag).group), deadline).await;
        answers.iter().all(|answer| !matches!(answer, Err(error) if error.is_unanswered()))
    }
}

/// Probes until the circuit closes. Does not keep the limiter alive.
struct Probing {
    shared: Weak<BreakerInner>,
    hash_tag: HashTag,
}

impl Probing {
    fn shared(&self) -> Option<Arc<BreakerInner>> {
        self.shared.upgrade().filter(|shared| !shared.is_shut_down.load(Ordering::Acquire))
    }
}

impl Job for Probing {
    async fn run(&self) {
        let mut pause = MIN_PAUSE;
        loop {
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            let Some(shared) = self.shared() else { return };
            if shared.is_answered(self.hash_tag).await {
                return shared
                    .circuits
                    .close(shared.circuit(self.hash_tag), || shared.events.notify(&Event::BreakerClosed));
            }
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    fn is_needed(&self) -> bool {
        self.shared().is_some_and(|shared| shared.circuit(self.hash_tag).is_still_open())
    }
}

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Breaker").field("open_for", &self.open_for()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::quota::Quota;
    use crate::runtime::clock::Clock;
    use crate::store::{GateInfo, GroupItem, Target};

    #[tokio::test]
    async fn error_that_this_process_made_is_not_an_answer_of_redis() {
        let quota = Quota::fixed_window(1, Duration::from_secs(60));
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let gate = Arc::new(GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", quota).unwrap());
        let breaker = Breaker::new(BreakerSettings {
            store: Arc::new(Store::memory(Clock::System, 16)),
            probes: vec![Group::of_one(GroupItem::new(Target::new(&gate, b"key", None), 1))],
            deadline: Duration::from_secs(1),
            events: EventSink::new(None),
            warnings: WarningSink::new(EventSink::new(None), false, Clock::System),
            policy: OnFailure::Closed,
            instances: 0,
            background: Arc::default(),
            is_enabled: true,
        });
        let tag = HashTag::default();
        let record = |error| breaker.record::<()>(tag, &Err(error), Duration::from_secs(1));
        for _ in 0..5 {
            assert!(!breaker.is_open(tag));
            record(Error::unavailable("refused"));
            for error in [Error::breaker_open(), Error::runtime_ended(), Error::shut_down()] {
                record(error);
            }
        }
        assert!(breaker.is_open(tag));
    }
}
