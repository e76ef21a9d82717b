//! The heartbeats by which instances count each other in the store. Each also publishes the figures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::FallbackInner;
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::HashTag;
use crate::runtime::background::Job;
use crate::store::Heartbeat;

/// The pause between two heartbeats, shortened by up to 10 % jitter.
const BEAT: Duration = Duration::from_secs(5);
/// An instance without a heartbeat for this long is not counted.
const LIFETIME: Duration = Duration::from_secs(15);
/// The longest heartbeat, and the longest call with figures. No request waits for them, so they have more time than a
/// check: an instance that Redis answers slowly is still counted.
pub(super) const CALL: Duration = Duration::from_secs(2);

/// Starts the heartbeats, unless they are running, or neither the number nor the figures need them.
#[inline]
pub(super) fn ensure_running(shared: &Arc<FallbackInner>) {
    if shared.instances.counted_at.is_some() || shared.publisher.is_some() {
        let beating = || Beating(Arc::downgrade(shared));
        shared.heartbeats.ensure_running(&shared.background, beating);
    }
}

/// Sends heartbeats until the limiter is dropped or shut down.
struct Beating(Weak<FallbackInner>);

impl Job for Beating {
    async fn run(&self) {
        // Shorter at first: instances that start together soon count each other.
        let mut pause = BEAT / 10;
        loop {
            let Some(shared) = self.0.upgrade().filter(|shared| !shared.breaker.is_shut_down()) else {
                return;
            };
            if let Err(error) = shared.count().await {
                shared.warn_uncounted(&error);
            }
            shared.publish(false).await;
            drop(shared);
            tokio::time::sleep(pause.mul_f64(1.0 - fastrand::f64() / 10.0)).await;
            pause = (pause * 2).min(BEAT);
        }
    }

    fn is_needed(&self) -> bool {
        false
    }
}

impl FallbackInner {
    /// Sends a heartbeat, also while the circuit breaker is open: operators find an instance by it whose Redis is too
    /// slow for checks. A failure changes nothing: the last count stays valid.
    async fn count(&self) -> Result<(), Error> {
        let Some((key, name)) = &self.instances.counted_at else { return Ok(()) };
        let beat = Heartbeat { key, name, lifetime: LIFETIME };
        let count = self.store.count_in(beat, Deadline::new(CALL)).await?.max(1);
        self.instances.known.store(count, Ordering::Relaxed);
        if let Some(observer) = &self.observer {
            observer.counted(count);
        }
        Ok(())
    }

    /// Warns of a heartbeat that failed. A shutdown closes the connection, which is not a failure.
    fn warn_uncounted(&self, error: &Error) {
        if self.breaker.is_shut_down() {
            return;
        }
        let message = || {
            let error = error.clone().at(self.store.address().unwrap_or_default());
            format!("this process is not counted, and its share in an outage is too large: {error}")
        };
        if !error.is_unanswered() {
            self.warnings.warn(&self.heartbeat_rejected, message);
        } else if self.breaker.answers_checks(HashTag::default()) {
            // Otherwise the breaker has reported, or is about to report, that Redis answers nothing.
            self.warnings.warn(&self.heartbeat_unanswered, message);
        }
    }

    /// Publishes the figures, if this process publishes any. A failure changes nothing for checks.
    pub(super) async fn publish(&self, is_last: bool) {
        let Some(publisher) = &self.publisher else { return };
        let instances = self.instances.known();
        let published = publisher.publish(&self.store, &self.breaker, instances, is_last).await;
        // Whether Redis answers is the breaker's to report.
        if let Err(error) = published
            && !error.is_unanswered()
            && !error.is_shut_down()
        {
            self.warnings.warn(&publisher.rejected, || {
                let error = error.at(self.store.address().unwrap_or_default());
                format!("the figures of this process are missing in those of the fleet: {error}")
            });
        }
    }
}

// The number of instances that share the quotas: configured, or counted by their heartbeats in the store.

pub(crate) struct Instances {
    /// 1 before the first count.
    pub(super) known: AtomicU64,
    /// The key in the store, and this instance's name there; `None` if the number is configured.
    pub(super) counted_at: Option<(String, String)>,
}

impl Instances {
    pub(crate) fn given(instances: u64) -> Self {
        Self { known: AtomicU64::new(instances.max(1)), counted_at: None }
    }

    /// Counts the instances at this key of the store.
    pub(crate) fn counted(key: String) -> Self {
        let name = format!("{:032x}", fastrand::u128(..));
        Self { counted_at: Some((key, name)), ..Self::given(1) }
    }

    pub(super) fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }
}
