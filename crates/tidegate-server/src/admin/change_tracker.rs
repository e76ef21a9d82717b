//! Counts the changes that are under way, so that the end of the server waits for their audit entries.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// The changes that are under way. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ChangeTracker(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    is_stopping: bool,
}

/// Counts as a change that is under way until it is dropped.
#[derive(Debug)]
pub struct ChangeUnderWay(ChangeTracker);

impl ChangeTracker {
    /// Counts a change. `None` if the server is stopping: then the change must not begin.
    #[must_use]
    pub fn begin(&self) -> Option<ChangeUnderWay> {
        let has_begun = self.0.send_if_modified(|state| {
            state.under_way += usize::from(!state.is_stopping);
            !state.is_stopping
        });
        has_begun.then(|| ChangeUnderWay(self.clone()))
    }

    /// Lets no further change begin.
    pub fn stop(&self) {
        self.0.send_modify(|state| state.is_stopping = true);
    }

    /// Completes when the server has been stopping for this time.
    pub async fn stopping_for(&self, time: Duration) {
        let _ = self.0.subscribe().wait_for(|state| state.is_stopping).await;
        tokio::time::sleep(time).await;
    }

    /// Completes when no change is under way.
    pub(crate) async fn finished(&self) {
        // Fails only without a sender, and `self` is one.
        let _ = self.0.subscribe().wait_for(|state| state.under_way == 0).await;
    }

    /// Reports the changes that the end of the server cuts off.
    pub(crate) fn report_unfinished(&self) {
        let changes = self.under_way();
        if changes > 0 {
            tracing::error!(
                target: "tidegate::audit",
                changes,
                "the drain time has ended before these changes, whose audit entries may be missing"
            );
        }
    }

    fn under_way(&self) -> usize {
        self.0.borrow().under_way
    }
}

impl Drop for ChangeUnderWay {
    fn drop(&mut self) {
        self.0.0.send_modify(|state| state.under_way -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn end_waits_for_each_change_and_lets_none_begin() {
        let tracker = ChangeTracker::default();
        let (first, second) = (tracker.begin().unwrap(), tracker.begin().unwrap());
        tracker.stop();
        assert!(tracker.begin().is_none());
        drop(first);
        assert_eq!((tracker.finished().now_or_never(), tracker.under_way()), (None, 1));
        drop(second);
        assert_eq!((tracker.finished().now_or_never(), tracker.under_way()), (Some(()), 0));
        assert!(tracker.begin().is_none());
    }
}
