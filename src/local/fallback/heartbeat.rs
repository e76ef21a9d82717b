//! The heartbeats by which instances count each other in the store. Each also publishes the figures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::FallbackInner;
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::{HashTag, Keyspace};
use crate::local::breaker::Breaker;
use crate::observe::figures::Figures;
use crate::observe::observer::Event;
use crate::observe::warning::RepeatedWarning;
use crate::runtime::background::Job;
use crate::store::{Heartbeat, Publication, Store};

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
        self.breaker.note_instances(count);
        self.events.notify(&Event::InstancesCounted(count));
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

// Publishes the figures of this process with its heartbeats.

/// A process that decides nothing still publishes its record after this time: with every second heartbeat. So does each
/// process of a [large fleet](LARGE_FLEET).
const RECORD_AFTER: Duration = Duration::from_millis(7_500);
/// Above this number of instances, each publishes half as often.
const LARGE_FLEET: u64 = 150;

pub(crate) struct Publisher {
    figures: Arc<Figures>,
    keyspace: Keyspace,
    /// The random name of this process in its record.
    id: String,
    pub(super) rejected: RepeatedWarning,
    /// Locked while a call is in flight, so that the record of the shutdown is the last.
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// When this process last published; at first, when it could have.
    last_at: Option<Instant>,
    has_published: bool,
    has_ended: bool,
}

impl Publisher {
    pub(crate) fn new(figures: Arc<Figures>, keyspace: Keyspace) -> Self {
        Self {
            figures,
            keyspace,
            id: format!("{:032x}", fastrand::u128(..)),
            rejected: RepeatedWarning::new("figures-rejected"),
            progress: Mutex::default(),
        }
    }

    fn record(&self, is_breaker_open: bool, is_last: bool) -> String {
        let (version, errors) = (env!("CARGO_PKG_VERSION"), self.figures.errors());
        let breaker = if is_breaker_open { "open" } else { "closed" };
        let ended = if is_last { " ended=1" } else { "" };
        format!("version={version} breaker={breaker} errors={errors}{ended}")
    }

    /// Publishes what was counted since the last call, if there is anything to report.
    ///
    /// Each number is sent at most once: if the reply is lost, the figures may be missing, but are never counted twice.
    /// While the circuit breaker is open, nothing is sent, and the numbers stay in the counters.
    pub(super) async fn publish(
        &self,
        store: &Store,
        breaker: &Breaker,
        instances: u64,
        is_last: bool,
    ) -> Result<(), Error> {
        let mut progress = self.progress.lock().await;
        // On a cluster the keys are in the first hash tag.
        if progress.has_ended || breaker.is_open(HashTag::default()) {
            return Ok(());
        }
        let last_at = *progress.last_at.get_or_insert_with(Instant::now);
        if !is_last && is_early(instances, last_at.elapsed()) {
            return Ok(());
        }
        let fields = self.figures.take();
        let is_record_due = last_at.elapsed() >= RECORD_AFTER || is_last && progress.has_published;
        if fields.is_empty() && !is_record_due {
            return Ok(());
        }
        let record = self.record(breaker.open_for().is_some(), is_last);
        let publication =
            Publication { keyspace: &self.keyspace, id: &self.id, record: &record, fields: &fields };
        *progress = Progress { last_at: Some(Instant::now()), has_published: true, has_ended: is_last };
        store.publish(publication, Deadline::new(CALL)).await
    }
}

/// Returns whether a process of a fleet waits for its next heartbeat, this long after its last publication.
fn is_early(instances: u64, since_last: Duration) -> bool {
    instances > LARGE_FLEET && since_last < RECORD_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_of_a_large_fleet_publishes_with_every_second_heartbeat() {
        // A heartbeat comes after 4.5 to 5 s.
        let [one, two] = [5_000, 9_000].map(Duration::from_millis);
        assert!(!is_early(150, one) && is_early(151, one));
        assert!(!is_early(1_000_000, two));
    }
}
