//! How many processes share the quotas: as given, or as they count themselves in
//! the store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Shared;
use crate::connection::Deadline;
use crate::store::Heartbeat;

/// Between heartbeats, each by chance up to a tenth sooner.
const BEAT: Duration = Duration::from_secs(5);
/// Who has not been heard of for so long does not count.
pub(crate) const LIFETIME: Duration = Duration::from_secs(15);

pub(crate) struct Instances {
    /// One where nobody has been counted yet.
    known: AtomicU64,
    /// The key in the store, and this process's name there; `None` where the
    /// number was given.
    place: Option<(String, String)>,
    is_beating: AtomicBool,
}

impl Instances {
    pub(crate) fn given(instances: u64) -> Self {
        Self { known: AtomicU64::new(instances.max(1)), place: None, is_beating: AtomicBool::new(false) }
    }

    /// At this key of the store.
    pub(crate) fn counted(key: String) -> Self {
        let name = format!("{:032x}", fastrand::u128(..));
        Self { place: Some((key, name)), ..Self::given(1) }
    }

    pub(super) fn known(&self) -> u64 {
        self.known.load(Ordering::Relaxed)
    }
}

/// Begins to count, unless that goes on or the number was given.
pub(super) fn beat(shared: &Arc<Shared>) {
    let instances = &shared.instances;
    let goes_on =
        || instances.is_beating.load(Ordering::Relaxed) || instances.is_beating.swap(true, Ordering::AcqRel);
    if instances.place.is_some() && !goes_on() {
        tokio::spawn(Beating(Arc::downgrade(shared)).run());
    }
}

/// Ends with the limiter, or with its runtime: then the next ask begins anew.
struct Beating(Weak<Shared>);

impl Beating {
    async fn run(self) {
        // Others that start now are heard of soon.
        let mut pause = BEAT / 10;
        loop {
            let Some(shared) = self.0.upgrade().filter(|shared| !shared.breaker.is_over()) else { return };
            shared.count().await;
            drop(shared);
            tokio::time::sleep(pause.mul_f64(1.0 - fastrand::f64() / 10.0)).await;
            pause = (pause * 2).min(BEAT);
        }
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.instances.is_beating.store(false, Ordering::Release);
        }
    }
}

impl Shared {
    async fn count(&self) {
        let Some((key, name)) = &self.instances.place else { return };
        if self.breaker.open_for().is_some() {
            return;
        }
        // A failure changes nothing: the last count is the best there is.
        let beat = Heartbeat { key, name, lifetime: LIFETIME };
        if let Ok(count) = self.store.count_in(beat, Deadline::new(self.deadline)).await {
            self.instances.known.store(count.max(1), Ordering::Relaxed);
            if let Some(observer) = &self.observer {
                observer.counted(count.max(1));
            }
        }
    }
}
