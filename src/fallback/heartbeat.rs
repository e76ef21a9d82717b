//! The heartbeats by which instances count each other in the store. Each also publishes the figures.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::inner::FallbackInner;
use crate::background::Job;
use crate::connection::Deadline;
use crate::key::HashTag;
use crate::store::Heartbeat;

/// The pause between two heartbeats, shortened by up to 10 % jitter.
const BEAT: Duration = Duration::from_secs(5);
/// An instance without a heartbeat for this long is not counted.
const LIFETIME: Duration = Duration::from_secs(15);

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
            shared.count().await;
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
    async fn count(&self) {
        let Some((key, name)) = &self.instances.counted_at else { return };
        // On a cluster the key is in the first hash tag.
        if self.breaker.is_open(HashTag::default()) {
            return;
        }
        // A failure changes nothing: the last count stays valid.
        let beat = Heartbeat { key, name, lifetime: LIFETIME };
        match self.store.count_in(beat, Deadline::new(self.deadline)).await {
            Ok(count) => {
                self.instances.known.store(count.max(1), Ordering::Relaxed);
                if let Some(observer) = &self.observer {
                    observer.counted(count.max(1));
                }
            }
            Err(error) if !error.is_unanswered() => {
                self.warnings.warn(&self.heartbeat_rejected, || {
                    let error = error.at(self.store.address().unwrap_or_default());
                    format!("this process is not counted, and its share in an outage is too large: {error}")
                });
            }
            Err(_) => {}
        }
    }

    /// Publishes the figures, if this process publishes any. A failure changes nothing for checks.
    pub(super) async fn publish(&self, is_last: bool) {
        let Some(publisher) = &self.publisher else { return };
        let published = publisher.publish(&self.store, &self.breaker, self.deadline, is_last).await;
        // Whether Redis answers is the breaker's to report.
        if let Err(error) = published
            && !error.is_unanswered()
        {
            self.warnings.warn(&publisher.rejected, || {
                let error = error.at(self.store.address().unwrap_or_default());
                format!("the figures of this process are missing in those of the fleet: {error}")
            });
        }
    }
}
