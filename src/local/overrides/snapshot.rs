//! The last reading of the overrides, which all checks share.

use crate::runtime::sync::atomic::{AtomicBool, Ordering};
use crate::runtime::sync::{Arc, RwLock, read, write};

#[derive(Default)]
pub(super) struct Snapshot<T> {
    known: RwLock<Arc<T>>,
    /// Whether any known override is active: spares checks the lock while there is none.
    is_any: AtomicBool,
}

impl<T> Snapshot<T> {
    /// Applies a reading; `None` if the store reported no change. Calls must not overlap.
    ///
    /// A check observes the reading if it happens after this has returned, as established by any other
    /// synchronization. A check at the same time uses either this reading or the one before: `is_any` is
    /// [`Relaxed`](Ordering::Relaxed), and orders nothing.
    pub(super) fn apply(&self, new: Option<Arc<T>>, is_any: bool) {
        if let Some(new) = new {
            *write(&self.known) = new;
        }
        self.is_any.store(is_any, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    pub(super) fn known(&self) -> Arc<T> {
        read(&self.known).clone()
    }
}
