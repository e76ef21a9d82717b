//! Models of checks that are concurrent with a reading of the overrides. A reading is a pair of equal
//! numbers. Odd numbers contain an override.

use loom::thread;

use super::snapshot::Snapshot;
use crate::check::{Model, Preemptions};
use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::runtime::sync::{Arc, Mutex, lock};

const ALL: Preemptions = Preemptions { quick: None, full: None };

#[derive(Default)]
struct Overrides {
    snapshot: Snapshot<[u64; 2]>,
    /// Serializes readings.
    reading: Mutex<()>,
    /// The reading that the store returns.
    store: AtomicU64,
    /// The last reading that was applied.
    applied: AtomicU64,
}

impl Overrides {
    fn apply(&self, number: u64) {
        self.snapshot.apply(Some(Arc::new([number; 2])), number % 2 == 1);
        self.applied.store(number, Ordering::Release);
    }

    /// Does the same as `OverridesInner::read` in `src/local/overrides.rs`.
    fn read(&self) {
        let _reading = lock(&self.reading);
        let number = self.store.load(Ordering::Acquire);
        self.apply(number);
    }
}

/// A check that observes an applied reading uses it. The first reading contains an override, the second one
/// does not.
pub(crate) fn a_check_that_starts_after_a_reading_was_applied_uses_it() -> Model {
    let execution = || {
        let overrides = Arc::new(Overrides::default());
        for number in [1, 2] {
            let checking = overrides.clone();
            let check = thread::spawn(move || {
                let is_applied = checking.applied.load(Ordering::Acquire) == number;
                let used = (checking.snapshot.is_any(), checking.snapshot.known()[0]);
                assert!(!is_applied || used == (number == 1, number), "violated: {used:?} after {number}");
            });
            overrides.apply(number);
            check.join().unwrap();
            let known = overrides.snapshot.known()[0];
            assert!(known == number, "violated: {known} after {number}");
        }
    };
    Model { preemptions: ALL, execution }
}

/// A check observes one reading as a whole, and later reads never return an older reading.
pub(crate) fn a_check_uses_one_reading() -> Model {
    let execution = || {
        let overrides = Arc::new(Overrides::default());
        let checking = overrides.clone();
        let check = thread::spawn(move || {
            let known = [*checking.snapshot.known(), *checking.snapshot.known()];
            assert!(known.iter().all(|[one, other]| one == other), "violated: a mix: {known:?}");
            assert!(known[0] <= known[1], "violated: readings go back: {known:?}");
        });
        overrides.apply(1);
        overrides.apply(2);
        check.join().unwrap();
    };
    Model { preemptions: ALL, execution }
}

/// The store changes while two tasks read it. At the end, the last reading is active.
pub(crate) fn an_older_reading_does_not_replace_a_newer_one() -> Model {
    let execution = || {
        let overrides = Arc::new(Overrides::default());
        let reading = overrides.clone();
        let other = thread::spawn(move || reading.read());
        overrides.store.store(1, Ordering::Release);
        overrides.read();
        other.join().unwrap();
        let known = overrides.snapshot.known()[0];
        assert!(known == 1 && overrides.snapshot.is_any(), "violated: reading {known} in use");
    };
    Model { preemptions: ALL, execution }
}
