//! Counts the changes that are under way, so that the end of the server waits for their audit entries.

use std::sync::Arc;

use tokio::sync::watch;

/// The changes that are under way. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ChangeTracker(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    is_stopping: bool,
}

/// Counts as a change that is under way until it is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(ChangeTracker);

impl ChangeTracker {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }

    /// Counts a change. `None` if the server is stopping: then the change must not begin.
    pub(super) fn begin(&self) -> Option<UnderWay> {
        let has_begun = self.0.send_if_modified(|state| {
            state.under_way += usize::from(!state.is_stopping);
            !state.is_stopping
        });
        has_begun.then(|| UnderWay(self.clone()))
    }

    /// Lets no further change begin.
    pub(crate) fn stop(&self) {
        self.0.send_modify(|state| state.is_stopping = true);
    }

    /// Completes when no change is under way.
    pub(crate) async fn finished(&self) {
        // Fails only without a sender, and `self` is one.
        let _ = self.0.subscribe().wait_for(|state| state.under_way == 0).await;
    }
}

impl Drop for UnderWay {
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
        let tracker = ChangeTracker::new();
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
