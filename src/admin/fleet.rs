//! Reads the figures that the instances publish.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{join, try_join_all};
use redis::{Cmd, Value};

use super::figures::{FigureBucket, FleetFigures, Instance};
use super::{Inspector, unexpected_reply};
use crate::error::Error;
use crate::key::HashTag;
use crate::observe::figures::{BUCKET, KEPT, MAX_GATES, MAX_INSTANCES, RECORDS_BUCKET};
use crate::script;

/// The maximum hashes per call, so that Redis is not blocked for long: 8 hashes of 256 gates took it 4 ms.
const HASHES_PER_CALL: usize = 8;
/// The maximum bytes of a field and its text. The longest that tidegate writes are shorter.
const MAX_BYTES: usize = 4_096;

/// # Figures of the fleet
impl Inspector {
    /// Returns what all instances of the namespace did in the newest `span`, at most an hour, in buckets of 5 s by the
    /// server's clock, and the live instances.
    ///
    /// Each instance with [`publish_figures(true)`](crate::Builder::publish_figures) publishes its counters every 5 s, in a
    /// fleet of more than 150 instances every 10 s. So a bucket holds decisions of its own time and of up to 5 s, or 10 s,
    /// before it, and of an outage, whose figures are published after it. A bucket is final once a later one has begun.
    ///
    /// Of a limiter [in memory](Self::in_memory), its own figures, which are always complete.
    ///
    /// Takes two round trips: the second reads up to 720 hashes in calls that are in flight together.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer, or if another program has written a key of another type.
    pub async fn figures(&self, span: Duration) -> Result<FleetFigures, Error> {
        if let Some(memory) = self.0.memory() {
            return self.figures_in_memory(memory, span);
        }
        let (now_us, _) = self.read_hashes(&[]).await?;
        let starts = starts(now_us / 1_000_000, BUCKET, span.min(KEPT));
        let keyspace = self.0.pipeline.keyspace();
        let figures = starts.chunks(HASHES_PER_CALL).map(|starts| async move {
            let keys: Vec<_> = starts.iter().map(|&start_s| keyspace.figures(start_s)).collect();
            let (_, rows) = self.read_hashes(&keys).await?;
            let of_row = |(&start_s, fields): (&u64, Vec<_>)| FigureBucket::of_fields(start_s, &fields);
            let buckets = starts.iter().zip(rows).filter(|(_, fields)| !fields.is_empty()).map(of_row);
            Ok::<Vec<_>, Error>(buckets.collect())
        });
        let (buckets, instances) = join(try_join_all(figures), self.read_instances(now_us)).await;
        let buckets = buckets?.into_iter().flatten().collect();
        let now_unix_s = now_us / 1_000_000;
        Ok(FleetFigures { now_unix_s, bucket: BUCKET, buckets, instances: instances? })
    }

    async fn read_instances(&self, now_us: u64) -> Result<Vec<Instance>, Error> {
        let keyspace = self.0.pipeline.keyspace();
        // An instance publishes at least every 10 s, so its record is in one of the two.
        let starts = starts(now_us / 1_000_000, RECORDS_BUCKET, RECORDS_BUCKET * 2);
        let keys: Vec<_> = starts.iter().map(|&start_s| keyspace.instance_records(start_s)).collect();
        let (now_us, rows) = self.read_hashes(&keys).await?;
        let mut instances = BTreeMap::new();
        // The newest record last, so that it stays.
        for (id, text) in rows.into_iter().flatten() {
            let instance = Instance::of_text(&id, &text, now_us);
            instances.insert(id, instance);
        }
        Ok(instances.into_values().flatten().take(MAX_INSTANCES).collect())
    }

    /// Returns the server's time in µs since 1970, and the fields and texts of each hash.
    async fn read_hashes(&self, keys: &[String]) -> Result<(u64, Vec<Vec<(String, String)>>), Error> {
        let args = |command: &mut Cmd| {
            // Besides the gates or instances, a hash has up to three other fields.
            command.arg(keys.len()).arg(keys).arg(MAX_GATES.max(MAX_INSTANCES) + 3).arg(MAX_BYTES);
        };
        let target = self.0.call_target(HashTag::default());
        let reply = self.0.connection()?.run(&script::FIGURES, args, target).await?;
        let Value::Array(reply) = reply else { return Err(unexpected_reply()) };
        let [Value::Int(now_us), rows @ ..] = reply.as_slice() else { return Err(unexpected_reply()) };
        if rows.len() != keys.len() {
            return Err(unexpected_reply());
        }
        let rows = rows.iter().map(fields_of_row).collect::<Result<_, _>>()?;
        Ok((now_us.unsigned_abs(), rows))
    }
}

fn fields_of_row(row: &Value) -> Result<Vec<(String, String)>, Error> {
    let texts = match row {
        Value::Array(texts) => texts,
        Value::BulkString(error) => return Err(Error::from_script(&String::from_utf8_lossy(error))),
        _ => return Err(unexpected_reply()),
    };
    let text = |value: &Value| match value {
        Value::BulkString(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        _ => Err(unexpected_reply()),
    };
    let pair = |pair: &[Value]| match pair {
        [field, value] => Ok((text(field)?, text(value)?)),
        _ => Err(unexpected_reply()),
    };
    texts.chunks(2).map(pair).collect()
}

/// Returns the starts of the buckets of the newest `span`, oldest first, in seconds. The last one is current.
pub(super) fn starts(now_s: u64, bucket: Duration, span: Duration) -> Vec<u64> {
    let bucket_s = bucket.as_secs();
    let count = span.as_secs().div_ceil(bucket_s).max(1);
    let current_s = now_s - now_s % bucket_s;
    (0..count).rev().map(|ago| current_s.saturating_sub(ago * bucket_s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_is_the_newest_buckets_with_the_current_one() {
        let of = |now_s, span_s| starts(now_s, BUCKET, Duration::from_secs(span_s));
        assert_eq!(of(104, 10), [95, 100]);
        assert_eq!(of(105, 11), [95, 100, 105]);
        assert_eq!(of(100, 0), [100]);
        assert_eq!(of(1_763_683_200, 3_600).len(), 720);
    }
}
