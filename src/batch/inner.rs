//! The state that callers, dispatchers and the reaper share, and the call to the store.

use std::sync::Arc;
use std::time::Duration;

use super::destination::{Destination, Together};
use super::reaper::Reaper;
use crate::connection::Deadline;
use crate::error::Error;
use crate::observe::observer::Observer;
use crate::runtime::clock::Clock;
use crate::store::{Group, Outcome, Store};

pub(super) struct BatchInner {
    pub(super) store: Arc<Store>,
    pub(super) clock: Clock,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// The limiter's deadline. A check with a longer one is sent directly, so that no call delays
    /// others for longer than this.
    pub(super) longest: Duration,
    pub(super) together: Together,
    pub(super) destinations: Vec<Destination>,
    pub(super) reaper: Reaper,
}

impl BatchInner {
    /// Sends one call, and notifies the observer. Returns the outcomes, and this process's clock when the
    /// call was sent.
    pub(super) async fn call(
        &self,
        groups: &[Group],
        checks: usize,
        deadline: Deadline,
    ) -> (Vec<Result<Outcome, Error>>, u64) {
        let sent_us = self.clock.local_us();
        let outcomes = self.store.take(groups, deadline).await;
        if let Some(observer) = &self.observer {
            let took = self.clock.local_us().saturating_sub(sent_us);
            observer.called(checks, groups.len(), Duration::from_micros(took));
            for (group, outcome) in groups.iter().zip(&outcomes) {
                for ban in outcome.iter().flat_map(|outcome| &outcome.bans) {
                    let target = &group.items[ban.item].target;
                    let lasts = Duration::from_micros(ban.lasts_us);
                    observer.banned(&target.gate.name, &target.redis_key, lasts);
                }
            }
        }
        (outcomes, sent_us)
    }
}
