//! The destinations of a batch: the shards of each, and the dispatchers that send their checks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::dispatchers::{Dispatchers, Limits};
use super::queue::ShardQueue;
use super::sent::SentBatch;
use crate::key::HASH_TAGS;
use crate::runtime::sharded_arc;
use crate::store::Group;

/// Redis runs one call after the other. A second call in flight is there when Redis has finished the
/// first; more calls would only be smaller. More shards than cores that contend would gain nothing
/// either.
const OF_ONE_REDIS: Limits =
    Limits { shards: 4, direct_sends: 4, dispatchers: 2, second_call: 16, capacity: 65_536 / 4 };
/// The same for threads that each drive a runtime. Such a runtime is not polled while its owner does other
/// work, which delays its dispatcher's checks. So these should be only the checks of its own thread.
const OF_A_THREAD: Limits = Limits { shards: 1, ..OF_ONE_REDIS };
const THREADS: usize = 4;
/// The same for each hash tag of a cluster, which has separate calls.
const OF_A_HASH_TAG: Limits =
    Limits { shards: 1, direct_sends: 1, dispatchers: 1, second_call: 0, capacity: 65_536 / HASH_TAGS };

/// Which checks travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    Nothing,
    All,
    /// Those of one hash tag of a cluster.
    EachHashTag,
}

impl Together {
    /// Returns the destinations: in a cluster one for each hash tag, so that a lost node delays its own
    /// checks alone. Otherwise one for threads that share a runtime, and the rest for threads that each drive
    /// one.
    pub(super) fn destinations(self) -> Vec<Destination> {
        match self {
            Self::Nothing => Vec::new(),
            Self::All => {
                let of_threads = (0..THREADS).map(|_| Destination::new(OF_A_THREAD));
                std::iter::once(Destination::new(OF_ONE_REDIS)).chain(of_threads).collect()
            }
            Self::EachHashTag => (0..HASH_TAGS).map(|_| Destination::new(OF_A_HASH_TAG)).collect(),
        }
    }

    /// Returns the index of the destination for a check of this thread.
    pub(super) fn destination_of(self, group: &Group, thread: usize) -> usize {
        match self {
            Self::EachHashTag => group.hash_tag().index(),
            _ if sharded_arc::drives_a_runtime() => 1 + thread % THREADS,
            _ => 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Destination {
    pub(super) shards: Vec<Shard>,
    pub(super) dispatchers: Dispatchers<SentBatch>,
    turn: AtomicUsize,
}

/// One of the queues in which callers enqueue. Aligned, so that threads with shards of their own
/// share no cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    queue: Mutex<ShardQueue>,
    /// A permit for each caller that may still enqueue. It is fair: callers that wait for a permit get
    /// it in their order, before newcomers do.
    pub(super) room: Semaphore,
}

impl Destination {
    fn new(limits: Limits) -> Self {
        Self {
            shards: (0..limits.shards).map(|_| Shard::new(limits.capacity)).collect(),
            dispatchers: Dispatchers::new(limits),
            turn: AtomicUsize::default(),
        }
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
}

impl Shard {
    fn new(capacity: usize) -> Self {
        Self { queue: Mutex::default(), room: Semaphore::new(capacity) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ShardQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn is_locked(&self) -> bool {
        self.queue.try_lock().is_err()
    }

    /// Removes checks from the queue, and gives their room to waiting callers.
    pub(super) fn free<T>(&self, remove: impl FnOnce(&mut ShardQueue) -> T) -> T {
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

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
