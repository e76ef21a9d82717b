//! Whether a job is running: at most once at a time, and always while there is work for it.

use crate::runtime::sync::Arc;
use crate::runtime::sync::atomic::{AtomicBool, Ordering};

/// Set while the job is running.
#[derive(Debug, Default)]
pub(crate) struct JobSlot(Arc<AtomicBool>);

/// Frees the slot when the job ends, also if it panics or is dropped: the next caller starts it again.
pub(super) struct Running(Arc<AtomicBool>);

impl JobSlot {
    /// Returns `None` if the job is running. Called after work was added.
    ///
    /// Race: a caller adds work, then reads the flag. A job that ends clears the flag, then checks for work.
    /// One of them always observes the other. This takes `SeqCst` on both sides, also where the work is
    /// added and checked for.
    #[inline]
    pub(super) fn claim(&self) -> Option<Running> {
        if self.0.load(Ordering::SeqCst) {
            return None;
        }
        Running::claim(&self.0)
    }
}

impl Running {
    fn claim(slot: &Arc<AtomicBool>) -> Option<Self> {
        (!slot.swap(true, Ordering::SeqCst)).then(|| Self(slot.clone()))
    }

    /// Frees the slot. Returns it again if the job is needed and no caller has started it meanwhile.
    pub(super) fn end_unless(self, is_needed: impl FnOnce() -> bool) -> Option<Self> {
        let slot = self.0.clone();
        drop(self);
        is_needed().then(|| Self::claim(&slot)).flatten()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
