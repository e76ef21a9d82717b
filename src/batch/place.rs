//! The shards of one destination, and the dispatchers that send their checks.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::Limits;
use super::dispatcher::InFlight;
use super::queue::Queue;

#[derive(Debug)]
pub(super) struct Place {
    limits: Limits,
    pub(super) shards: Vec<Shard>,
    /// Callers that send their own check.
    direct_sends: AtomicUsize,
    /// How many dispatchers count, and when the last of their calls began. Callers read these after
    /// enqueuing, without a lock that all threads would share.
    counted: AtomicUsize,
    began_us: AtomicU64,
    dispatchers: Mutex<Dispatchers>,
    turn: AtomicUsize,
}

/// One of the queues in which callers enqueue. Aligned, so that threads with shards of their own
/// share no cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    queue: Mutex<Queue>,
    /// A permit for each caller that may still enqueue. It is fair: callers that wait for a permit get
    /// it in their order, before newcomers do.
    pub(super) room: Semaphore,
}

#[derive(Debug, Default)]
struct Dispatchers {
    /// Their ids, and when each began its last call.
    counted: Vec<(DispatcherId, u64)>,
    so_far: u64,
    /// Batches in flight, also of dispatchers that no longer count.
    in_flight: Vec<Arc<InFlight>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DispatcherId(u64);

impl Place {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            shards: (0..limits.shards).map(|_| Shard::new(limits.capacity)).collect(),
            direct_sends: AtomicUsize::default(),
            counted: AtomicUsize::default(),
            began_us: AtomicU64::default(),
            dispatchers: Mutex::default(),
            turn: AtomicUsize::default(),
        }
    }

    /// Permits a caller to send its own check, if no dispatcher counts.
    pub(super) fn direct_send(&self) -> Option<DirectSend<'_>> {
        let one_more = |sends| (sends < self.limits.direct_sends).then_some(sends + 1);
        let is_free = self.counted.load(Ordering::Relaxed) == 0
            && self.direct_sends.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        is_free.then(|| DirectSend(self))
    }

    /// Called after enqueuing, with the number of checks in the shard. Counts another dispatcher if fewer
    /// than the limit are running, or if all are late because their runtimes may be blocked. Overdue
    /// dispatchers no longer count.
    ///
    /// Race: a caller enqueues, then reads the number of dispatchers. An exiting dispatcher decrements that
    /// number, then reads all queues. One of them always observes the other, since both lock the queue.
    pub(super) fn new_dispatcher(
        &self,
        waiting: usize,
        lateness: Lateness,
    ) -> Option<(DispatcherId, Arc<InFlight>)> {
        let is_enough =
            |counted: usize| counted >= self.limits.dispatchers || waiting < self.limits.second_call;
        let counted = self.counted.load(Ordering::Relaxed);
        if counted > 0 && lateness.is_in_time(self.began_us.load(Ordering::Relaxed)) && is_enough(counted) {
            return None;
        }
        let mut dispatchers = self.lock();
        if let Some(overdue_us) = lateness.overdue_us {
            dispatchers.counted.retain(|(_, began_us)| *began_us > overdue_us);
        }
        let is_in_time = dispatchers.counted.iter().any(|(_, began_us)| lateness.is_in_time(*began_us));
        if is_in_time && is_enough(dispatchers.counted.len()) {
            self.publish(&dispatchers);
            return None;
        }
        dispatchers.so_far += 1;
        let id = DispatcherId(dispatchers.so_far);
        dispatchers.counted.push((id, lateness.now_us));
        self.publish(&dispatchers);
        let in_flight = Arc::new(InFlight::default());
        dispatchers.in_flight.push(in_flight.clone());
        Some((id, in_flight))
    }

    /// Records the start of a call. A dispatcher counts while its calls are in time.
    pub(super) fn begins_a_call(&self, id: DispatcherId, now_us: u64) {
        let mut dispatchers = self.lock();
        if let Some((_, began_us)) = dispatchers.counted.iter_mut().find(|(counted, _)| *counted == id) {
            *began_us = now_us;
        }
        self.publish(&dispatchers);
    }

    /// Stops counting a dispatcher.
    pub(super) fn forget(&self, id: DispatcherId) {
        let mut dispatchers = self.lock();
        dispatchers.counted.retain(|(counted, _)| *counted != id);
        self.publish(&dispatchers);
    }

    /// Counts a dispatcher again.
    pub(super) fn remember(&self, id: DispatcherId, now_us: u64) {
        let mut dispatchers = self.lock();
        dispatchers.counted.push((id, now_us));
        self.publish(&dispatchers);
    }

    pub(super) fn in_flight(&self) -> Vec<Arc<InFlight>> {
        self.lock().in_flight.clone()
    }

    pub(super) fn has_landed(&self, in_flight: &Arc<InFlight>) {
        self.lock().in_flight.retain(|other| !Arc::ptr_eq(other, in_flight));
    }

    /// Returns all shards, beginning with another one each time, so that none is always last.
    pub(super) fn shards_in_turn(&self) -> impl Iterator<Item = &Shard> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        self.shards[first..].iter().chain(&self.shards[..first])
    }

    /// Returns the number of checks in the queues, and of rows that they are for the store.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let waiting = self.shards.iter().map(|shard| shard.lock().waiting());
        waiting.fold((0, 0), |(checks, rows), shard| (checks + shard.0, rows + shard.1))
    }

    fn publish(&self, dispatchers: &Dispatchers) {
        let last = dispatchers.counted.iter().map(|(_, began_us)| *began_us).max();
        self.began_us.store(last.unwrap_or_default(), Ordering::Relaxed);
        self.counted.store(dispatchers.counted.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Dispatchers> {
        self.dispatchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn new(capacity: usize) -> Self {
        Self { queue: Mutex::default(), room: Semaphore::new(capacity) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes checks from the queue, and gives their room to waiting callers.
    pub(super) fn free<T>(&self, remove: impl FnOnce(&mut Queue) -> T) -> T {
        let mut queue = self.lock();
        let before = queue.occupied();
        let removed = remove(&mut queue);
        let freed = before - queue.occupied();
        drop(queue);
        // Wakes callers, so not under the lock.
        self.room.add_permits(freed);
        removed
    }
}

/// Permits a caller to send its own check.
pub(super) struct DirectSend<'a>(&'a Place);

impl Drop for DirectSend<'_> {
    fn drop(&mut self) {
        self.0.direct_sends.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The times from which on a call counts as late or overdue. `None` if such a time is before the first call.
#[derive(Clone, Copy)]
pub(super) struct Lateness {
    now_us: u64,
    late_us: Option<u64>,
    /// Two deadlines of the limiter ago.
    overdue_us: Option<u64>,
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
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const LIMITS: Limits =
        Limits { shards: 1, direct_sends: 1, dispatchers: 2, second_call: 16, capacity: 100 };

    /// A caller at this time, to which 10 us are late and 200 overdue.
    fn at(now_us: u64) -> Lateness {
        Lateness { now_us, late_us: now_us.checked_sub(10), overdue_us: now_us.checked_sub(200) }
    }

    #[test]
    fn one_dispatcher_is_enough_for_few_checks_and_two_for_many() {
        let place = Place::new(LIMITS);
        assert!(place.new_dispatcher(1, at(0)).is_some());
        assert!(place.direct_send().is_none());
        assert!(place.new_dispatcher(15, at(1)).is_none());
        assert!(place.new_dispatcher(16, at(1)).is_some());
        assert!(place.new_dispatcher(16, at(1)).is_none());
    }

    #[test]
    fn no_dispatcher_is_late_under_a_deadline_beyond_all_clocks() {
        for seconds in [1 << 60, u64::MAX] {
            let endless = Duration::from_secs(seconds);
            assert!(Lateness::at(1_000, endless, endless).is_in_time(0), "{seconds}");
        }
    }

    #[test]
    fn late_dispatcher_is_not_waited_for_and_overdue_dispatcher_does_not_count() {
        let place = Place::new(LIMITS);
        let (first, _) = place.new_dispatcher(1, at(100)).unwrap();
        assert!(place.new_dispatcher(1, at(109)).is_none());
        let (second, _) = place.new_dispatcher(1, at(110)).unwrap();
        assert!(place.new_dispatcher(1, at(111)).is_none());
        // The first is late and alone again, however lately the second began.
        place.forget(second);
        let (third, _) = place.new_dispatcher(1, at(112)).unwrap();
        place.begins_a_call(third, 300);
        assert!(place.new_dispatcher(1, at(305)).is_none());
        place.forget(first);
        assert!(place.direct_send().is_none());
        place.forget(third);
        assert!(place.direct_send().is_some());
        place.new_dispatcher(1, at(400)).unwrap();
        place.new_dispatcher(1, at(600)).unwrap();
        assert_eq!(place.counted.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn freed_room_goes_to_waiting_callers_before_newcomers() {
        let shard = Shard::new(1);
        shard.room.try_acquire().unwrap().forget();
        let mut context = Context::from_waker(Waker::noop());
        let mut second = pin!(shard.room.acquire());
        {
            let mut first = pin!(shard.room.acquire());
            assert!(first.as_mut().poll(&mut context).is_pending());
            assert!(second.as_mut().poll(&mut context).is_pending());
            shard.room.add_permits(1);
            assert!(shard.room.try_acquire().is_err());
            // The first is cancelled after it was woken.
        }
        assert!(shard.room.try_acquire().is_err());
        assert!(second.as_mut().poll(&mut context).is_ready());
    }
}
