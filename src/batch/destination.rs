//! The shards of one destination, and the dispatchers that send their checks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;

use super::dispatcher::InFlight;
use super::dispatchers::Dispatchers;
use super::limits::Limits;
use super::queue::ShardQueue;

#[derive(Debug)]
pub(super) struct Destination {
    pub(super) shards: Vec<Shard>,
    pub(super) dispatchers: Dispatchers<InFlight>,
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
    pub(super) fn new(limits: Limits) -> Self {
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
