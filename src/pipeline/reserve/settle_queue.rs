//! Settles that Redis did not answer: repeated in the background until it does, as long as they can find the hold.
//!
//! A hold that is not settled ends after its ttl, so this queue may lose calls: with the process, or if it is full.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::connection::Deadline;
use crate::error::Error;
use crate::key::HashTag;
use crate::local::breaker::Breaker;
use crate::observe::observer::{Event, EventSink};
use crate::quota::reference::holds::NewHold;
use crate::runtime::background::{Background, Job, JobSlot};
use crate::runtime::sync::atomic::{AtomicBool, Ordering};
use crate::runtime::sync::{Mutex, lock};
use crate::store::{SettleItem, Store};

/// The maximum number of calls that wait: those of a minute's outage at 130 settles per second.
const MAX_CALLS: usize = 8_192;
/// The maximum number of calls in flight.
const MAX_IN_FLIGHT: usize = 64;
/// The pause before a round, doubled while Redis answers no call.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// For how long a shutdown retries while Redis answers no call.
const MAX_STALL: Duration = Duration::from_secs(1);

/// A settle of the items of one hold. All of them are in one slot.
#[derive(Clone, Debug)]
pub(crate) struct SettleCall {
    pub(crate) hold: NewHold,
    pub(crate) items: Vec<SettleItem>,
}

impl SettleCall {
    pub(crate) fn hash_tag(&self) -> HashTag {
        self.items.first().map(|item| item.target.hash_tag).unwrap_or_default()
    }

    fn settles(&self, other: &Self) -> bool {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        let has = |item: &SettleItem| self.items.iter().any(|mine| mine.target == item.target);
        self.hold.id == other.hold.id && other.items.iter().all(has)
    }

    /// Returns for how long a settle can find the hold: after its end, its late commit counts for another ttl.
    fn findable(&self) -> Duration {
        Duration::from_micros(self.hold.ttl_us) * 2
    }
}

pub(crate) struct SettleQueue(Arc<SettleQueueInner>);

/// The settings of a queue.
pub(crate) struct SettleQueueSettings {
    pub(crate) store: Arc<Store>,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) deadline: Duration,
    pub(crate) events: EventSink,
    pub(crate) background: Arc<Background>,
}

struct SettleQueueInner {
    settings: SettleQueueSettings,
    /// Set before the last calls are sent. Later ones are rejected.
    is_ended: AtomicBool,
    waiting: Mutex<QueuedSettles>,
    settling: JobSlot,
}

/// The calls in order of arrival. A call stays until it is answered, so that none is lost with a round.
#[derive(Default)]
struct QueuedSettles {
    next: u64,
    calls: BTreeMap<u64, Arc<QueuedSettle>>,
    /// By the id of a hold, the numbers of its calls. These are few: about one for each hash slot of its items.
    of_hold: HashMap<Arc<str>, Vec<u64>>,
}

impl QueuedSettles {
    /// Returns whether a call waits that settles all items of this one. It came first, so it is the one that counts.
    fn settles(&self, call: &SettleCall) -> bool {
        let numbers = self.of_hold.get(&call.hold.id).into_iter().flatten();
        numbers.filter_map(|number| self.calls.get(number)).any(|entry| entry.call.settles(call))
    }

    fn push(&mut self, entry: QueuedSettle) {
        self.of_hold.entry(entry.call.hold.id.clone()).or_default().push(self.next);
        self.calls.insert(self.next, Arc::new(entry));
        self.next += 1;
    }

    fn remove(&mut self, number: u64) -> Option<Arc<QueuedSettle>> {
        let entry = self.calls.remove(&number)?;
        let id = &entry.call.hold.id;
        if let Some(numbers) = self.of_hold.get_mut(id) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.of_hold.remove(id);
            }
        }
        Some(entry)
    }

    /// Removes a call that was sent. Enqueues the items that have to be sent again at the end, so that those
    /// which Redis keeps rejecting do not hold up the others.
    fn requeue(&mut self, number: u64, items: Vec<SettleItem>) {
        if let Some(entry) = self.remove(number)
            && !items.is_empty()
        {
            let call = SettleCall { hold: entry.call.hold.clone(), items };
            self.push(QueuedSettle { call, until: entry.until });
        }
    }
}

struct QueuedSettle {
    call: SettleCall,
    until: Instant,
}

impl SettleQueue {
    pub(crate) fn new(settings: SettleQueueSettings) -> Self {
        let (waiting, settling) = (Mutex::default(), JobSlot::default());
        Self(Arc::new(SettleQueueInner { settings, is_ended: AtomicBool::new(false), waiting, settling }))
    }

    /// Enqueues a call. Returns an error if the queue is full, or has ended.
    pub(crate) fn push(&self, call: SettleCall) -> Result<(), Error> {
        let shared = &self.0;
        let entry = QueuedSettle { until: Instant::now() + call.findable(), call };
        let mut waiting = lock(&shared.waiting);
        if waiting.settles(&entry.call) {
            return Ok(());
        }
        // Read under the lock: the last round reads the calls after it has set the flag.
        let error = match (shared.is_ended.load(Ordering::SeqCst), waiting.calls.len() < MAX_CALLS) {
            (true, _) => Some(Error::shut_down()),
            (false, false) => Some(Error::settle_queue_full(MAX_CALLS)),
            (false, true) => None,
        };
        if let Some(error) = error {
            return Err(error);
        }
        waiting.push(entry);
        drop(waiting);
        shared.settling.ensure_running(&shared.settings.background, || Settling(Arc::downgrade(shared)));
        Ok(())
    }

    /// Returns the number of calls that wait.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0.waiting).calls.len()
    }

    /// Sends all calls until `ends`, and not for longer than a second while Redis does not answer. Reports those
    /// that are left.
    pub(crate) async fn end(&self, ends: Instant) {
        let shared = &self.0;
        shared.is_ended.store(true, Ordering::SeqCst);
        let mut progress = Instant::now();
        while self.len() > 0 {
            let stalls = ends.min(progress + MAX_STALL);
            match tokio::time::timeout_at(stalls, shared.round(|_| true)).await {
                Ok(true) => progress = Instant::now(),
                Ok(false) => tokio::time::sleep(MIN_PAUSE).await,
                Err(_) => break,
            }
            if Instant::now() >= stalls {
                break;
            }
        }
        let left = std::mem::take(&mut *lock(&shared.waiting));
        left.calls.values().for_each(|entry| shared.notify_failed(&entry.call, &Error::unsettled()));
    }
}

/// Runs rounds until no call waits. Does not keep the limiter alive.
struct Settling(Weak<SettleQueueInner>);

impl Settling {
    fn shared(&self) -> Option<Arc<SettleQueueInner>> {
        self.0.upgrade().filter(|shared| !shared.is_ended.load(Ordering::SeqCst))
    }
}

impl Job for Settling {
    async fn run(&self) {
        let mut pause = MIN_PAUSE;
        loop {
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            let Some(shared) = self.shared() else { return };
            // An open circuit is probed by the breaker, not by settles.
            let may_send = |tag| !shared.settings.breaker.is_open(tag);
            pause = (pause * 2).min(MAX_PAUSE);
            while shared.round(may_send).await {
                pause = MIN_PAUSE;
            }
            if lock(&shared.waiting).calls.is_empty() {
                return;
            }
        }
    }

    fn is_needed(&self) -> bool {
        self.shared().is_some_and(|shared| !lock(&shared.waiting).calls.is_empty())
    }
}

impl SettleQueueInner {
    /// Sends the calls that have waited longest. Returns whether Redis answered any of them.
    async fn round(&self, may_send: impl Fn(HashTag) -> bool) -> bool {
        self.abandon_ended();
        let first: Vec<_> = {
            let waiting = lock(&self.waiting);
            let sendable = waiting.calls.iter().filter(|(_, entry)| may_send(entry.call.hash_tag()));
            sendable.take(MAX_IN_FLIGHT).map(|(&number, entry)| (number, entry.clone())).collect()
        };
        let sent = first.iter().map(|(number, entry)| self.settle(*number, &entry.call));
        join_all(sent).await.contains(&true)
    }

    /// Sends a call. Returns whether Redis settled any of its items.
    async fn settle(&self, number: u64, call: &SettleCall) -> bool {
        let deadline = Deadline::new(self.settings.deadline);
        let settled = self.settings.store.settle(&call.hold, &call.items, deadline).await;
        self.settings.breaker.record(call.hash_tag(), &settled, deadline.after);
        let results = settled.unwrap_or_else(|error| vec![Err(error); call.items.len()]);
        let mut again = Vec::new();
        for (item, result) in call.items.iter().zip(results) {
            let (gate, events) = (&item.target.gate.name, &self.settings.events);
            match result {
                Ok(settlement) => events.notify(&Event::Settled { gate, settlement }),
                Err(error) if error.is_unavailable() => again.push(item.clone()),
                Err(error) => events.notify(&Event::Failed { gate, error: &error }),
            }
        }
        let is_progress = again.len() < call.items.len();
        lock(&self.waiting).requeue(number, again);
        is_progress
    }

    /// Removes the calls whose hold has ended by now.
    fn abandon_ended(&self) {
        let now = Instant::now();
        let mut waiting = lock(&self.waiting);
        let ended = waiting.calls.iter().filter(|(_, entry)| entry.until <= now);
        let ended: Vec<u64> = ended.map(|(&number, _)| number).collect();
        let ended: Vec<_> = ended.into_iter().filter_map(|number| waiting.remove(number)).collect();
        drop(waiting);
        ended.iter().for_each(|entry| self.notify_failed(&entry.call, &Error::unsettled()));
    }

    fn notify_failed(&self, call: &SettleCall, error: &Error) {
        for item in &call.items {
            self.settings.events.notify(&Event::Failed { gate: &item.target.gate.name, error });
        }
    }
}

impl std::fmt::Debug for SettleQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SettleQueue").field("waiting", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::key::keyed_hash::KeyedHasher;
    use crate::key::{KeyMode, Keyspace};
    use crate::quota::Quota;
    use crate::store::{GateInfo, Target};

    thread_local! {
        /// How many calls were compared.
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    fn target(key: &str) -> Target {
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let quota = Quota::fixed_window(10, Duration::from_secs(60));
        let gate = GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", quota).unwrap();
        Target::new(&Arc::new(gate), key.as_bytes(), None)
    }

    fn queued(hold: &str, keys: &[&str]) -> QueuedSettle {
        let item = |key: &&str| SettleItem { target: target(key), units: 1, actual: 0 };
        let hold = NewHold { id: hold.into(), ttl_us: 60_000_000, is_refunded: false };
        let call = SettleCall { hold, items: keys.iter().map(item).collect() };
        QueuedSettle { call, until: Instant::now() + Duration::from_secs(60) }
    }

    #[test]
    fn call_is_compared_only_with_those_of_its_hold() {
        let mut waiting = QueuedSettles::default();
        for number in 0..1_000 {
            let entry = queued(&number.to_string(), &["one"]);
            assert!(!waiting.settles(&entry.call));
            waiting.push(entry);
        }
        assert_eq!(COMPARED.get(), 0);
        assert!(waiting.settles(&queued("7", &["one"]).call));
        assert!(!waiting.settles(&queued("7", &["one", "two"]).call));
        assert_eq!(COMPARED.get(), 2);
    }

    #[test]
    fn call_that_was_answered_is_forgotten() {
        let mut waiting = QueuedSettles::default();
        waiting.push(queued("a", &["one", "two"]));
        waiting.push(queued("a", &["three"]));
        let (&number, entry) = waiting.calls.first_key_value().unwrap();
        let rest = entry.call.items[1..].to_vec();
        waiting.requeue(number, rest);
        for (key, is_settled) in [("one", false), ("two", true), ("three", true)] {
            assert_eq!(waiting.settles(&queued("a", &[key]).call), is_settled, "{key}");
        }
        for number in waiting.calls.keys().copied().collect::<Vec<_>>() {
            waiting.requeue(number, Vec::new());
        }
        assert!(!waiting.settles(&queued("a", &["two"]).call));
    }
}
