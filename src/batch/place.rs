//! What is under way to one place, and who sends what lines up for it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Most;
use super::queue::Queue;
use super::sender::Flight;

#[derive(Debug)]
pub(super) struct Place {
    pub(super) most: Most,
    pub(super) lines: Vec<Line>,
    /// Callers who send by themselves.
    alone: AtomicUsize,
    /// How many senders count, and when the last of their calls began: what whoever lines up
    /// has to know, without a lock that all threads would share.
    counted: AtomicUsize,
    begun_us: AtomicU64,
    senders: Mutex<Senders>,
    turn: AtomicUsize,
}

/// Apart from each other in memory, so that threads with lines of their own share nothing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Line {
    queue: Mutex<Queue>,
    /// Told when a full queue has room again.
    pub(super) room: Notify,
}

#[derive(Debug, Default)]
struct Senders {
    /// By their numbers, and when each began its last call.
    counted: Vec<(u64, u64)>,
    so_far: u64,
    /// What senders have under way, also those that do not count any more.
    flights: Vec<Arc<Flight>>,
}

/// A sender, as its place knows it.
#[derive(Debug)]
pub(super) struct Number(u64);

impl Place {
    pub(super) fn new(most: Most) -> Self {
        Self {
            most,
            lines: (0..most.lines).map(|_| Line::default()).collect(),
            alone: AtomicUsize::default(),
            counted: AtomicUsize::default(),
            begun_us: AtomicU64::default(),
            senders: Mutex::default(),
            turn: AtomicUsize::default(),
        }
    }

    /// For a caller who finds nobody else.
    pub(super) fn alone(&self) -> Option<Alone<'_>> {
        let one_more = |alone| (alone < self.most.alone).then_some(alone + 1);
        let is_free = self.counted.load(Ordering::Relaxed) == 0
            && self.alone.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        is_free.then(|| Alone(self))
    }

    /// For one who has lined up with so many others beside him. One sender more, if there are too
    /// few: one may be on a runtime that stands still, as a current-thread one does when its owner
    /// turns to something else. So one that is late is not waited for, and one that is overdue does
    /// not count.
    ///
    /// Whoever asks this has locked and left his line before. So has a sender that ends: after it
    /// was counted out it looks into all lines, and one of the two sees the other.
    pub(super) fn new_sender(&self, waiting: usize, slow: Slow) -> Option<(Number, Arc<Flight>)> {
        let is_enough = |counted: usize| counted >= self.most.senders || waiting < self.most.another;
        let counted = self.counted.load(Ordering::Relaxed);
        if counted > 0 && slow.is_in_time(self.begun_us.load(Ordering::Relaxed)) && is_enough(counted) {
            return None;
        }
        let mut senders = self.lock();
        if let Some(overdue_us) = slow.overdue_us {
            senders.counted.retain(|(_, begun_us)| *begun_us > overdue_us);
        }
        let is_in_time = senders.counted.iter().any(|(_, begun_us)| slow.is_in_time(*begun_us));
        if is_in_time && is_enough(senders.counted.len()) {
            self.tell(&senders);
            return None;
        }
        senders.so_far += 1;
        let number = Number(senders.so_far);
        senders.counted.push((number.0, slow.now_us));
        self.tell(&senders);
        let flight = Arc::new(Flight::default());
        senders.flights.push(flight.clone());
        Some((number, flight))
    }

    /// It counts as long as its calls are in time.
    pub(super) fn begins_a_call(&self, number: &Number, now_us: u64) {
        let mut senders = self.lock();
        if let Some((_, begun_us)) = senders.counted.iter_mut().find(|(counted, _)| *counted == number.0) {
            *begun_us = now_us;
        }
        self.tell(&senders);
    }

    /// Counts it out. Whether any is left.
    pub(super) fn forget(&self, number: &Number) -> bool {
        let mut senders = self.lock();
        senders.counted.retain(|(counted, _)| *counted != number.0);
        self.tell(&senders);
        !senders.counted.is_empty()
    }

    /// Counts it in again.
    pub(super) fn remember(&self, number: &Number, now_us: u64) {
        let mut senders = self.lock();
        senders.counted.push((number.0, now_us));
        self.tell(&senders);
    }

    pub(super) fn flights(&self) -> Vec<Arc<Flight>> {
        self.lock().flights.clone()
    }

    pub(super) fn has_landed(&self, flight: &Arc<Flight>) {
        self.lock().flights.retain(|other| !Arc::ptr_eq(other, flight));
    }

    /// All lines; another one first each time, so that none has to wait for all others.
    pub(super) fn lines_in_turn(&self) -> impl Iterator<Item = &Line> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.lines.len();
        self.lines[first..].iter().chain(&self.lines[..first])
    }

    /// How many ask, and how many different things.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let waiting = self.lines.iter().map(|line| line.lock().waiting());
        waiting.fold((0, 0), |(asks, rows), line| (asks + line.0, rows + line.1))
    }

    fn tell(&self, senders: &Senders) {
        let last = senders.counted.iter().map(|(_, begun_us)| *begun_us).max();
        self.begun_us.store(last.unwrap_or_default(), Ordering::Relaxed);
        self.counted.store(senders.counted.len(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Senders> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller who sends by himself.
pub(super) struct Alone<'a>(&'a Place);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.alone.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What had begun by then takes longer than it should; `None` where that is before all began.
#[derive(Clone, Copy)]
pub(super) struct Slow {
    now_us: u64,
    /// A tenth of the limiter's deadline.
    late_us: Option<u64>,
    /// Two of them.
    overdue_us: Option<u64>,
}

impl Slow {
    /// For one who asks now and gives up `after` so long, at `due_us`.
    pub(super) fn at(due_us: u64, after: Duration, longest: Duration) -> Self {
        // A deadline can be longer than any clock shows.
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let (now_us, longest_us) = (due_us.saturating_sub(micros(after)), micros(longest));
        Self {
            now_us,
            late_us: now_us.checked_sub(longest_us / 10),
            overdue_us: now_us.checked_sub(longest_us.saturating_mul(2)),
        }
    }

    fn is_in_time(self, begun_us: u64) -> bool {
        self.late_us.is_none_or(|late_us| begun_us > late_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Most = Most { lines: 1, alone: 1, senders: 2, another: 16, waiting: 100 };

    /// One who asks at this time, to whom 10 us are late and 200 overdue.
    fn at(now_us: u64) -> Slow {
        Slow { now_us, late_us: now_us.checked_sub(10), overdue_us: now_us.checked_sub(200) }
    }

    #[test]
    fn one_sender_is_enough_for_little_and_two_for_much() {
        let place = Place::new(MOST);
        assert!(place.new_sender(1, at(0)).is_some());
        assert!(place.alone().is_none());
        assert!(place.new_sender(15, at(1)).is_none());
        assert!(place.new_sender(16, at(1)).is_some());
        assert!(place.new_sender(16, at(1)).is_none());
    }

    #[test]
    fn nobody_is_late_under_a_deadline_beyond_all_clocks() {
        for seconds in [1 << 60, u64::MAX] {
            let endless = Duration::from_secs(seconds);
            assert!(Slow::at(1_000, endless, endless).is_in_time(0), "{seconds}");
        }
    }

    #[test]
    fn a_late_sender_is_not_waited_for_and_an_overdue_one_does_not_count() {
        let place = Place::new(MOST);
        let (first, _) = place.new_sender(1, at(100)).unwrap();
        assert!(place.new_sender(1, at(109)).is_none());
        let (second, _) = place.new_sender(1, at(110)).unwrap();
        assert!(place.new_sender(1, at(111)).is_none());
        // The first is late and alone again, however lately the second began.
        assert!(place.forget(&second));
        let (third, _) = place.new_sender(1, at(112)).unwrap();
        place.begins_a_call(&third, 300);
        assert!(place.new_sender(1, at(305)).is_none());
        assert!(place.forget(&first));
        assert!(!place.forget(&third));
        assert!(place.alone().is_some());
        place.new_sender(1, at(400)).unwrap();
        place.new_sender(1, at(600)).unwrap();
        assert_eq!(place.counted.load(Ordering::Relaxed), 1);
    }
}
