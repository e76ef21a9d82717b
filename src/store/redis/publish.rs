//! Publishes figures in the bucket of the server's time.

use redis::{Cmd, Value};

use super::RedisStore;
use super::reply::unexpected;
use crate::connection::{CallTarget, Deadline};
use crate::error::Error;
use crate::key::HashTag;
use crate::observe::figures::{BUCKET, KEPT, MAX_GATES, MAX_INSTANCES, RECORDS_BUCKET};
use crate::script;
use crate::store::command::Publication;

/// The buckets whose keys a call names: the one of the server's time as this process estimates it, and both next to
/// it.
const BUCKETS: u64 = 3;
/// If the estimate is further off, the script writes nothing and reports its time, and a second call is right.
const ATTEMPTS: usize = 2;

impl RedisStore {
    /// Publishes as [`Store::publish`](crate::store::Store::publish) does.
    pub(crate) async fn publish(
        &self,
        publication: Publication<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let start_s = first_bucket_s(self.clock.now_us());
            let args = |command: &mut Cmd| append_args(&publication, start_s, command);
            // A call that ran before its connection was lost must not add its figures twice.
            let to = CallTarget { hash_tag: Some(HashTag::default()), deadline, is_repeatable: false };
            match result(self.connection.run(&script::PUBLISH, args, to).await?)? {
                Published::Written => return Ok(()),
                Published::InNoBucket { now_us } => self.clock.set(now_us),
            }
        }
        Err(Error::unavailable(
            "its clock has left the times of two calls: find out what sets the server's clock",
        ))
    }
}

enum Published {
    Written,
    /// The server's time is in none of the buckets.
    InNoBucket {
        now_us: u64,
    },
}

fn result(reply: Value) -> Result<Published, Error> {
    match &reply {
        Value::BulkString(error) => Err(Error::from_script(&String::from_utf8_lossy(error))),
        Value::Array(values) => match values.as_slice() {
            [Value::Int(_), Value::Int(1)] => Ok(Published::Written),
            [Value::Int(now_us @ 0..), Value::Int(0)] => {
                Ok(Published::InNoBucket { now_us: now_us.unsigned_abs() })
            }
            _ => Err(unexpected(&reply)),
        },
        _ => Err(unexpected(&reply)),
    }
}

/// Returns the second at which the bucket before that of this time begins.
fn first_bucket_s(now_us: u64) -> u64 {
    let (now_s, bucket_s) = (now_us / 1_000_000, BUCKET.as_secs());
    (now_s - now_s % bucket_s).saturating_sub(bucket_s)
}

fn append_args(publication: &Publication<'_>, start_s: u64, command: &mut Cmd) {
    let starts_s = (0..BUCKETS).map(|bucket| start_s + bucket * BUCKET.as_secs());
    let figures = starts_s.clone().map(|start_s| publication.keyspace.figures(start_s));
    let records = starts_s
        .map(|start_s| publication.keyspace.instance_records(start_s - start_s % RECORDS_BUCKET.as_secs()));
    command.arg(2 * BUCKETS).arg(figures.chain(records).collect::<Vec<_>>());
    command.arg(start_s * 1_000_000);
    for duration in [BUCKET, KEPT, RECORDS_BUCKET] {
        command.arg(duration.as_micros() as u64);
    }
    command.arg(MAX_GATES).arg(MAX_INSTANCES).arg(publication.id).arg(publication.record);
    for (field, text) in publication.fields {
        command.arg(field).arg(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{KeyMode, Keyspace};

    #[test]
    fn call_names_the_buckets_around_the_time_and_their_records() {
        let keyspace = Keyspace::new("shop", KeyMode::Clear).unwrap().spread_over_a_cluster(false);
        let fields = [("login".to_owned(), "a/redis=1".to_owned())];
        let publication = Publication { keyspace: &keyspace, id: "id", record: "version=1", fields: &fields };
        let mut command = Cmd::new();
        let start_s = first_bucket_s(1_763_683_207_999_999);
        append_args(&publication, start_s, &mut command);
        let args: Vec<_> = command
            .args_iter()
            .map(|arg| match arg {
                redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [
            "6",
            "shop:1:figures/1763683200",
            "shop:1:figures/1763683205",
            "shop:1:figures/1763683210",
            "shop:1:instances/1763683200",
            "shop:1:instances/1763683200",
            "shop:1:instances/1763683200",
            "1763683200000000",
            "5000000",
            "3600000000",
            "15000000",
            "256",
            "1024",
            "id",
            "version=1",
            "login",
            "a/redis=1",
        ];
        assert_eq!(args, expected);
    }
}
