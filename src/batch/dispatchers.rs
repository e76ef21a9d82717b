//! Counts the dispatchers of one destination, so that enqueued checks always have one.

use std::time::Duration;

use crate::runtime::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::runtime::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many checks, callers and dispatchers one destination has at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Threads that check at the same time each find a shard of their own.
    pub(super) shards: usize,
    /// Callers that send their own check at a time.
    pub(super) direct_sends: usize,
    pub(super) dispatchers: usize,
    /// The number of checks in a shard that is worth a second call while one is in flight. Fewer wait
    /// for that call to return, and travel with the checks that come until then.
    pub(super) second_call: usize,
    /// Callers that one shard holds. Beyond that callers wait for room, which keeps nothing but the
    /// caller.
    pub(super) capacity: usize,
}

/// `F` is the batch that a dispatcher has in flight.
#[derive(Debug)]
pub(super) struct Dispatchers<F> {
    limits: Limits,
    /// Callers that send their own check.
    direct_sends: AtomicUsize,
    /// How many dispatchers count, and when the last of their calls began. Callers read these after
    /// enqueuing, without a lock that all threads would share.
    counted: AtomicUsize,
    began_us: AtomicU64,
    running: Mutex<RunningDispatcher<F>>,
}

#[derive(Debug)]
struct RunningDispatcher<F> {
    /// The ids of the dispatchers that count, and when each began its last call.
    counted: Vec<(DispatcherId, u64)>,
    so_far: u64,
    /// Batches in flight, also of dispatchers that no longer count.
    in_flight: Vec<Arc<F>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DispatcherId(u64);

impl<F: Default> Dispatchers<F> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            direct_sends: AtomicUsize::default(),
            counted: AtomicUsize::default(),
            began_us: AtomicU64::default(),
            running: Mutex::new(RunningDispatcher { counted: Vec::new(), so_far: 0, in_flight: Vec::new() }),
        }
    }

    /// Permits a caller to send its own check, if no dispatcher counts.
    pub(super) fn direct_send(&self) -> Option<DirectSend<'_>> {
        let one_more = |sends| (sends < self.limits.direct_sends).then_some(sends + 1);
        let is_free = self.counted.load(Ordering::Relaxed) == 0
            && self.direct_sends.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        is_free.then(|| DirectSend(&self.direct_sends))
    }

    /// Called after enqueuing, with the number of checks in the shard. Counts another dispatcher if fewer
    /// than the limit are running, or if all are late because their runtimes may be blocked. Overdue
    /// dispatchers no longer count. The caller starts the returned dispatcher.
    pub(super) fn start(&self, waiting: usize, lateness: Lateness) -> Option<(DispatcherId, Arc<F>)> {
        let is_enough =
            |counted: usize| counted >= self.limits.dispatchers || waiting < self.limits.second_call;
        let counted = self.counted.load(Ordering::Relaxed);
        if counted > 0 && lateness.is_in_time(self.began_us.load(Ordering::Relaxed)) && is_enough(counted) {
            return None;
        }
        let mut running = self.lock();
        if let Some(overdue_us) = lateness.overdue_us {
            running.counted.retain(|(_, began_us)| *began_us > overdue_us);
        }
        let is_in_time = running.counted.iter().any(|(_, began_us)| lateness.is_in_time(*began_us));
        if is_in_time && is_enough(running.counted.len()) {
            self.publish(&running);
            return None;
        }
        running.so_far += 1;
        let id = DispatcherId(running.so_far);
        running.counted.push((id, lateness.now_us));
        self.publish(&running);
        let in_flight = Arc::new(F::default());
        running.in_flight.push(in_flight.clone());
        Some((id, in_flight))
    }

    /// Takes a dispatcher's next batch from the queues. Returns `None` if nothing is enqueued: the dispatcher
    /// has ended then.
    pub(super) fn next_batch<B>(
        &self,
        id: DispatcherId,
        in_flight: &Arc<F>,
        now_us: impl Fn() -> u64,
        take: impl Fn() -> Option<B>,
    ) -> Option<B> {
        if let Some(batch) = take() {
            self.begins_a_call(id, now_us());
            return Some(batch);
        }
        // Race: a caller enqueues under its shard's lock, then reads the number of dispatchers in `start`. An
        // exiting dispatcher decrements that number, then locks each shard to take from it again. The lock
        // orders the two. Therefore either the dispatcher finds the check, or the caller reads the
        // decremented number and starts another dispatcher. Modelled in `models/src/dispatchers.rs`.
        self.forget(id);
        if let Some(batch) = take() {
            self.remember(id, now_us());
            return Some(batch);
        }
        self.has_landed(in_flight);
        None
    }

    /// Records the start of a call. A dispatcher counts while its calls are in time.
    pub(super) fn begins_a_call(&self, id: DispatcherId, now_us: u64) {
        let mut running = self.lock();
        if let Some((_, began_us)) = running.counted.iter_mut().find(|(counted, _)| *counted == id) {
            *began_us = now_us;
        }
        self.publish(&running);
    }

    /// Stops counting a dispatcher.
    pub(super) fn forget(&self, id: DispatcherId) {
        let mut running = self.lock();
        running.counted.retain(|(counted, _)| *counted != id);
        self.publish(&running);
    }

    /// Counts a dispatcher again.
    fn remember(&self, id: DispatcherId, now_us: u64) {
        let mut running = self.lock();
        running.counted.push((id, now_us));
        self.publish(&running);
    }

    pub(super) fn in_flight(&self) -> Vec<Arc<F>> {
        self.lock().in_flight.clone()
    }

    pub(super) fn has_landed(&self, in_flight: &Arc<F>) {
        self.lock().in_flight.retain(|other| !Arc::ptr_eq(other, in_flight));
    }

    fn publish(&self, running: &RunningDispatcher<F>) {
        let last = running.counted.iter().map(|(_, began_us)| *began_us).max();
        self.began_us.store(last.unwrap_or_default(), Ordering::Relaxed);
        self.counted.store(running.counted.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, RunningDispatcher<F>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permits a caller to send its own check.
pub(super) struct DirectSend<'a>(&'a AtomicUsize);

impl Drop for DirectSend<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// From when on a call is late.

/// The times from which on a call counts as late or overdue. `None` if such a time is before the first call.
#[derive(Clone, Copy)]
pub(super) struct Lateness {
    pub(super) now_us: u64,
    late_us: Option<u64>,
    /// Two deadlines of the limiter ago.
    pub(super) overdue_us: Option<u64>,
}

impl Lateness {
    /// Returns the thresholds for a caller that enqueues now and times out after `after`, at `due_us`. A call
    /// is late after a tenth of the limiter's deadline.
    pub(super) fn at(due_us: u64, after: Duration, longest: Duration) -> Self {
        Self::new(due_us.saturating_sub(micros(after)), micros(longest) / 10, longest)
    }

    /// Returns the thresholds for the reaper.
    pub(super) fn stalled(now_us: u64, stall: Duration, longest: Duration) -> Self {
        Self::new(now_us, micros(stall), longest)
    }

    fn new(now_us: u64, late_after_us: u64, longest: Duration) -> Self {
        Self {
            now_us,
            late_us: now_us.checked_sub(late_after_us),
            overdue_us: now_us.checked_sub(micros(longest).saturating_mul(2)),
        }
    }

    pub(super) fn is_in_time(self, began_us: u64) -> bool {
        self.late_us.is_none_or(|late_us| began_us > late_us)
    }
}

/// Saturates: a deadline can be longer than any clock shows.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIMITS: Limits =
        Limits { shards: 1, direct_sends: 1, dispatchers: 2, second_call: 16, capacity: 100 };

    /// A caller at this time, to which 10 us are late and 200 overdue.
    fn at(now_us: u64) -> Lateness {
        Lateness::at(now_us, Duration::ZERO, Duration::from_micros(100))
    }

    fn dispatchers() -> Dispatchers<()> {
        Dispatchers::new(LIMITS)
    }

    #[test]
    fn one_dispatcher_is_enough_for_few_checks_and_two_for_many() {
        let dispatchers = dispatchers();
        assert!(dispatchers.start(1, at(0)).is_some());
        assert!(dispatchers.direct_send().is_none());
        assert!(dispatchers.start(15, at(1)).is_none());
        assert!(dispatchers.start(16, at(1)).is_some());
        assert!(dispatchers.start(16, at(1)).is_none());
    }

    #[test]
    fn late_dispatcher_is_not_waited_for_and_overdue_dispatcher_does_not_count() {
        let dispatchers = dispatchers();
        let (first, _) = dispatchers.start(1, at(100)).unwrap();
        assert!(dispatchers.start(1, at(109)).is_none());
        let (second, _) = dispatchers.start(1, at(110)).unwrap();
        assert!(dispatchers.start(1, at(111)).is_none());
        // The first is late and alone again, however lately the second began.
        dispatchers.forget(second);
        let (third, _) = dispatchers.start(1, at(112)).unwrap();
        dispatchers.begins_a_call(third, 300);
        assert!(dispatchers.start(1, at(305)).is_none());
        dispatchers.forget(first);
        assert!(dispatchers.direct_send().is_none());
        dispatchers.forget(third);
        assert!(dispatchers.direct_send().is_some());
        dispatchers.start(1, at(400)).unwrap();
        dispatchers.start(1, at(600)).unwrap();
        assert_eq!(dispatchers.counted.load(Ordering::Relaxed), 1);
    }
}

#[cfg(test)]
mod lateness_tests {
    use super::*;

    #[test]
    fn no_dispatcher_is_late_under_a_deadline_beyond_all_clocks() {
        for seconds in [1 << 60, u64::MAX] {
            let endless = Duration::from_secs(seconds);
            assert!(Lateness::at(1_000, endless, endless).is_in_time(0), "{seconds}");
        }
    }
}
