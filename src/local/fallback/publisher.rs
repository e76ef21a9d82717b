//! Publishes the figures of this process with its heartbeats.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::heartbeat::CALL;
use crate::connection::Deadline;
use crate::error::Error;
use crate::key::{HashTag, Keyspace};
use crate::local::breaker::Breaker;
use crate::observe::figures::Figures;
use crate::observe::warning::RepeatedWarning;
use crate::store::{Publication, Store};

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
