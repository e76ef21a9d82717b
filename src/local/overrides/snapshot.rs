//! The last reading of the overrides, which all checks share, and the word that tells a check whether to look at
//! it.
//!
//! The process reads while there are checks. After a silence it pauses, and the first check has it read again:
//!
//! ```text
//!                  no check for IDLE
//!     following ─────────────────────────> paused: the reading is old
//!         ^                                  │
//!         └──── a check asks; it was read ───┘
//! ```

use crate::runtime::sync::atomic::{AtomicU32, Ordering};
use crate::runtime::sync::{Arc, RwLock, read, write};

/// A known override is active: spares checks the lock while there is none.
const ACTIVE: u32 = 1;
/// Set by the reader, and cleared by the next check: so the reader learns of checks, and only one of them writes.
const UNSEEN: u32 = 2;
/// The reading is old: a check waits for another one.
const OLD: u32 = 4;

#[derive(Default)]
pub(super) struct Snapshot<T> {
    known: RwLock<Arc<T>>,
    /// 0 almost always: then a check has nothing to do.
    word: AtomicU32,
}

impl<T> Snapshot<T> {
    /// Applies a reading; `None` if the store reported no change. Calls must not overlap.
    ///
    /// A check observes the reading if it happens after this has returned, as established by any other
    /// synchronization. A check at the same time uses either this reading or the one before: `ACTIVE` is
    /// [`Relaxed`](Ordering::Relaxed), and orders nothing.
    pub(super) fn apply(&self, new: Option<Arc<T>>, is_any: bool) {
        if let Some(new) = new {
            *write(&self.known) = new;
        }
        match is_any {
            true => self.word.fetch_or(ACTIVE, Ordering::Relaxed),
            false => self.word.fetch_and(!ACTIVE, Ordering::Relaxed),
        };
    }

    /// Returns whether a check has nothing to do: no override is active, and the reader need not learn of it.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.word.load(Ordering::Relaxed) == 0
    }

    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.word.load(Ordering::Relaxed) & ACTIVE != 0
    }

    pub(super) fn known(&self) -> Arc<T> {
        read(&self.known).clone()
    }

    /// Notes a check. Returns whether the reading is old.
    pub(super) fn note_check(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        if word & UNSEEN != 0 {
            word = self.word.fetch_and(!UNSEEN, Ordering::Relaxed);
        }
        word & OLD != 0
    }

    /// Returns whether a check was noted since the last call.
    pub(super) fn take_check(&self) -> bool {
        self.word.fetch_or(UNSEEN, Ordering::Relaxed) & UNSEEN == 0
    }

    /// Returns whether no check was noted since the last [`take_check`](Self::take_check).
    pub(super) fn is_unseen(&self) -> bool {
        self.word.load(Ordering::Relaxed) & UNSEEN != 0
    }

    /// Marks the reading as old, unless a check was noted since the last [`take_check`](Self::take_check).
    pub(super) fn grow_old(&self) -> bool {
        let grown = |word| (word & UNSEEN != 0).then_some(word | OLD);
        self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_ok()
    }

    /// Marks the reading as new again: a check that observes this also observes the reading.
    pub(super) fn renew(&self) {
        self.word.fetch_and(!OLD, Ordering::Release);
    }

    pub(super) fn is_old(&self) -> bool {
        self.word.load(Ordering::Acquire) & OLD != 0
    }
}
