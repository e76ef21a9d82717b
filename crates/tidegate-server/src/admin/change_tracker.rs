//! Counts the changes that are under way, so that the end of the server waits for their audit entries.

use std::sync::Arc;

use tokio::sync::watch;

/// The changes that are under way. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ChangeTracker(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    is_stopping: bool,
    has_drained: bool,
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

    /// Lets the searches of the changes under way end: the drain time has passed.
    pub(crate) fn end_searches(&self) {
        self.0.send_modify(|state| state.has_drained = true);
    }

    /// Completes when the searches of changes are to end.
    pub async fn searches_ended(&self) {
        let _ = self.0.subscribe().wait_for(|state| state.has_drained).await;
    }

    /// Completes when no change is under way.
    pub(crate) async fn finished(&self) {
        // Fails only without a sender, and `self` is one.
        let _ = self.0.subscribe().wait_for(|state| state.under_way == 0).await;
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
        assert_eq!(tracker.finished().now_or_never(), None);
        drop(second);
        assert_eq!(tracker.finished().now_or_never(), Some(()));
        assert!(tracker.begin().is_none());
    }
}
