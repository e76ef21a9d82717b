//! The figures of the fleet and the load of Redis, read at most once in two seconds for all readers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Error;
use tidegate::admin::{FigureBucket, Inspector, Instance, RedisLoad};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::hour::{Hour, SPAN, Stale};

/// Readers within this time share a reading.
const SHARED_FOR: Duration = Duration::from_secs(2);
/// Buckets of this age can still change: an instance publishes them with its next heartbeat.
const UNSETTLED: Duration = Duration::from_secs(30);

/// The figures of the fleet. After the first reading, which takes the whole hour, only the newest buckets are read.
pub(super) struct Figures {
    inspector: Inspector,
    /// Younger figures are not complete.
    settled: Duration,
    kept: Mutex<Kept>,
    load: Mutex<Load>,
}

#[derive(Default)]
struct Kept {
    buckets: BTreeMap<u64, FigureBucket>,
    instances: Vec<Instance>,
    bucket: Duration,
    /// The last reading that succeeded, and the server's time of it.
    read_at: Option<(Instant, u64)>,
    /// The hour of the last reading, also of one that failed, and its time.
    hour: Option<(Instant, Result<Arc<Hour>, Error>)>,
}

#[derive(Default)]
struct Load {
    last: Option<(Instant, Result<Vec<RedisLoad>, Error>)>,
    /// The one before it, for the difference of processor times.
    before: Option<(Instant, Vec<RedisLoad>)>,
}

/// The load of a server, and its processor load since the reading before.
#[derive(Clone)]
pub(super) struct NodeLoad {
    pub(super) load: RedisLoad,
    /// In processors; since the server's start if there is no earlier reading.
    pub(super) processors: f64,
}

impl Figures {
    pub(super) fn new(inspector: Inspector, settled: Duration) -> Self {
        Self { inspector, settled, kept: Mutex::default(), load: Mutex::default() }
    }

    /// Returns the figures of the last hour. If Redis does not answer, returns the last ones, which say so.
    pub(super) async fn hour(&self) -> Result<Arc<Hour>, Error> {
        let mut kept = self.kept.lock().await;
        if let Some((made_at, hour)) = &kept.hour
            && made_at.elapsed() < SHARED_FOR
        {
            return hour.clone();
        }
        let hour = self.read_hour(&mut kept).await.map(Arc::new);
        // After the reading: readers share one that took longer than they share it for.
        kept.hour = Some((Instant::now(), hour.clone()));
        hour
    }

    async fn read_hour(&self, kept: &mut Kept) -> Result<Hour, Error> {
        let span = kept.read_at.map_or(SPAN, |(read_at, _)| (read_at.elapsed() + UNSETTLED).min(SPAN));
        let now = Instant::now();
        let stale = match self.inspector.figures(span).await {
            Ok(figures) => {
                // A bucket without figures is absent, also if it was read before.
                let from = figures.now_unix_s.saturating_sub(span.as_secs());
                kept.buckets.retain(|start, _| *start < from);
                kept.buckets.extend(figures.buckets.into_iter().map(|bucket| (bucket.start_unix_s, bucket)));
                kept.read_at = Some((now, figures.now_unix_s));
                (kept.instances, kept.bucket) = (figures.instances, figures.bucket);
                None
            }
            Err(error) if kept.read_at.is_none() => return Err(error),
            Err(error) => Some(error.to_string()),
        };
        // The server's clock, so that this machine's need not be right.
        let now_unix_s = kept.read_at.map_or(0, |(read_at, unix_s)| unix_s + read_at.elapsed().as_secs());
        let oldest = now_unix_s.saturating_sub(SPAN.as_secs() + UNSETTLED.as_secs());
        kept.buckets.retain(|start, _| *start >= oldest);
        let (read_unix_s, age) =
            kept.read_at.map_or_else(Default::default, |(at, unix_s)| (unix_s, at.elapsed()));
        let mut instances = kept.instances.clone();
        for instance in &mut instances {
            instance.age = instance.age.saturating_add(age);
        }
        let until_unix_s = now_unix_s.saturating_sub(self.settled.as_secs());
        let hour = Hour::new(kept.buckets.values(), instances, kept.bucket, until_unix_s);
        let stale = stale.map(|error| Stale { error, read_unix_s });
        Ok(Hour { stale, ..hour })
    }

    /// Returns the load of each server.
    pub(super) async fn load(&self) -> Result<Vec<NodeLoad>, Error> {
        let mut load = self.load.lock().await;
        if load.last.as_ref().is_none_or(|(read_at, _)| read_at.elapsed() >= SHARED_FOR) {
            let new = self.inspector.redis_load().await;
            if let Some((read_at, Ok(loads))) = load.last.replace((Instant::now(), new)) {
                load.before = Some((read_at, loads));
            }
        }
        let Some((read_at, loads)) = &load.last else { return Ok(Vec::new()) };
        let before = load.before.as_ref();
        Ok(loads.clone()?.into_iter().map(|node| NodeLoad::new(node, *read_at, before)).collect())
    }
}

impl NodeLoad {
    fn new(load: RedisLoad, read_at: Instant, before: Option<&(Instant, Vec<RedisLoad>)>) -> Self {
        let earlier = before.and_then(|(at, loads)| {
            // A restarted server counts from zero.
            let same = loads.iter().find(|other| other.node == load.node && other.uptime <= load.uptime)?;
            let elapsed = read_at.saturating_duration_since(*at);
            Some((load.cpu.saturating_sub(same.cpu), elapsed)).filter(|_| !elapsed.is_zero())
        });
        let (busy, elapsed) = earlier.unwrap_or((load.cpu, load.uptime.max(Duration::from_secs(1))));
        Self { processors: busy.as_secs_f64() / elapsed.as_secs_f64(), load }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Limiter;

    use super::*;

    #[tokio::test]
    async fn failed_reading_is_kept_for_the_readers_that_wait() {
        // Nothing listens there.
        let limiter = Limiter::builder().url("redis://127.0.0.1:1").stderr_warnings(false).build().unwrap();
        let figures = Figures::new(Inspector::new(&limiter).unwrap(), UNSETTLED);
        assert!(figures.hour().await.is_err());
        let (made_at, _) = figures.kept.lock().await.hour.clone().unwrap();
        assert!(figures.hour().await.is_err());
        assert_eq!(figures.kept.lock().await.hour.clone().unwrap().0, made_at, "not read again");
    }
}
