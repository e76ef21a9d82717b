//! Models of the hand-over between callers that enqueue and dispatchers that exit. A dispatcher runs on the
//! thread of the caller that starts it.

use std::time::Duration;

use loom::thread;

use super::dispatchers::{DispatcherId, Dispatchers, Lateness, Limits};
use crate::check::{Model, Preemptions};
use crate::runtime::sync::{Arc, Mutex, lock};

const BOUNDED: Preemptions = Preemptions { quick: Some(2), full: Some(3) };
const ONE: Limits = Limits { shards: 1, direct_sends: 0, dispatchers: 1, second_call: 0, capacity: 8 };

/// The shards with their queued checks, and the checks that were sent.
struct Destination {
    dispatchers: Dispatchers<()>,
    shards: Vec<Mutex<Vec<u8>>>,
    sent: Mutex<Vec<u8>>,
}

impl Destination {
    fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            dispatchers: Dispatchers::new(limits),
            shards: (0..limits.shards).map(|_| Mutex::default()).collect(),
            sent: Mutex::default(),
        })
    }

    /// Does the same as `Batch::join` in `src/batch.rs`.
    fn join(&self, shard: usize, check: u8, lateness: Lateness) {
        let mut queue = lock(&self.shards[shard]);
        if queue.is_empty()
            && let Some(_permit) = self.dispatchers.direct_send()
        {
            drop(queue);
            lock(&self.sent).push(check);
            return;
        }
        queue.push(check);
        let waiting = queue.len();
        drop(queue);
        let started = self.dispatchers.start(waiting, lateness);
        if let Some((id, in_flight)) = started {
            self.run(id, &in_flight, lateness);
        }
    }

    /// Does the same as a dispatcher.
    fn run(&self, id: DispatcherId, in_flight: &Arc<()>, lateness: Lateness) {
        while let Some(batch) = self.next_batch(id, in_flight, lateness) {
            lock(&self.sent).extend(batch);
        }
    }

    fn next_batch(&self, id: DispatcherId, in_flight: &Arc<()>, lateness: Lateness) -> Option<Vec<u8>> {
        let take = || {
            let batch = self.shards.iter().flat_map(|shard| std::mem::take(&mut *lock(shard)));
            Some(batch.collect::<Vec<_>>()).filter(|batch| !batch.is_empty())
        };
        self.dispatchers.next_batch(id, in_flight, || lateness.now_us, take)
    }

    /// Asserts that all checks were sent. Called after all callers and dispatchers have returned.
    fn assert_all_sent(&self, checks: u8, lateness: Lateness) {
        for checks in [checks, checks + 1] {
            let mut sent = lock(&self.sent).clone();
            sent.sort_unstable();
            assert!(sent.iter().copied().eq(0..checks), "violated: of {checks} checks {sent:?} were sent");
            // A dispatcher that is still counted would prevent this check from being sent.
            self.join(0, checks, lateness);
        }
        assert!(
            self.dispatchers.in_flight().is_empty(),
            "violated: a dispatcher that has ended is in flight"
        );
    }
}

/// Returns the lateness of a caller at this time: calls are late after 10 µs and overdue after 200 µs.
fn at(now_us: u64) -> Lateness {
    Lateness::at(now_us, Duration::ZERO, Duration::from_micros(100))
}

fn caller(
    destination: &Arc<Destination>,
    shard: usize,
    check: u8,
    lateness: Lateness,
) -> thread::JoinHandle<()> {
    let destination = destination.clone();
    thread::spawn(move || destination.join(shard, check, lateness))
}

/// Three callers share one shard, and at most one dispatcher runs.
pub(crate) fn no_enqueued_check_is_left_without_a_dispatcher() -> Model {
    let execution = || {
        let destination = Destination::new(ONE);
        let callers = [caller(&destination, 0, 0, at(0)), caller(&destination, 0, 1, at(0))];
        destination.join(0, 2, at(0));
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        destination.assert_all_sent(3, at(0));
    };
    Model { preemptions: BOUNDED, execution }
}

/// Callers use two shards, and one caller may send its own check.
pub(crate) fn no_check_of_any_shard_is_left_beside_direct_sends() -> Model {
    let execution = || {
        let destination = Destination::new(Limits { shards: 2, direct_sends: 1, ..ONE });
        let callers = [caller(&destination, 0, 0, at(0)), caller(&destination, 1, 1, at(0))];
        destination.join(0, 2, at(0));
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        destination.assert_all_sent(3, at(0));
    };
    Model { preemptions: BOUNDED, execution }
}

/// Each caller starts a dispatcher, up to two.
pub(crate) fn no_check_is_left_by_two_dispatchers() -> Model {
    let execution = || {
        let destination = Destination::new(Limits { dispatchers: 2, ..ONE });
        let callers = [caller(&destination, 0, 0, at(0)), caller(&destination, 0, 1, at(0))];
        destination.join(0, 2, at(0));
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        destination.assert_all_sent(3, at(0));
    };
    Model { preemptions: BOUNDED, execution }
}

/// For the last caller, the other dispatchers are overdue: it does not count them, but they still run.
pub(crate) fn no_check_is_left_by_an_overdue_dispatcher() -> Model {
    let execution = || {
        let destination = Destination::new(ONE);
        let callers = [caller(&destination, 0, 0, at(0)), caller(&destination, 0, 1, at(0))];
        destination.join(0, 2, at(1_000));
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        destination.assert_all_sent(3, at(1_000));
    };
    Model { preemptions: BOUNDED, execution }
}
