//! The operator's view of the state: the keys of a namespace and their content, without the quotas of
//! services.
//!
//! SCAN finds the keys, one page at a time, on each node of a cluster. Used by the command line.

mod name;
mod scan;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use smallvec::SmallVec;

pub use self::name::{Name, NotState, Shape};
pub use self::scan::{Page, Scan};
pub use self::usage::Usage;
use crate::algorithm::MAX_DEBT;
use crate::connection::{CallTarget, Connection};
use crate::error::Error;
use crate::key::HashTag;
use crate::keyed_hash::KeyedHash;
use crate::limiter::{Core, Limiter};
use crate::overrides::Override;
use crate::quota::Quota;
use crate::script;
use crate::store::{Group, Item, Target, Write};

/// The maximum keys and logs per call, so that Redis is not blocked for long.
const KEYS_PER_CALL: usize = 128;
const LOGS_PER_CALL: usize = 51;

/// The content of a key.
#[derive(Debug)]
pub struct Found {
    pub name: Name,
    /// An error if tidegate did not write the content.
    pub usage: Result<Usage, Error>,
    /// The time until the key expires; `None` if it never does, as for keys that tidegate did not write.
    pub expires_in: Option<Duration>,
}

impl Found {
    /// Returns a quota whose state has this form: the quota that wrote it, or one with another limit. The
    /// Redis key of a window names the other parameters.
    pub fn quota(&self) -> Result<Quota, Error> {
        let written_by = self.usage.as_ref().map_err(Error::clone)?.quota;
        written_by.map_or_else(|| self.name.shape.quota(1), Ok)
    }
}

/// Reads and changes the state in a limiter's Redis.
#[derive(Clone, Debug)]
pub struct Inspector {
    core: Arc<Core>,
}

/// A key's row in the reply of `inspect.lua`.
struct StoredRow {
    now_us: u64,
    /// -1: never expires; -2: does not exist.
    ttl_ms: i64,
    content: String,
}

impl Inspector {
    /// Fails if the limiter has no Redis.
    pub fn new(limiter: &Limiter) -> Result<Self, Error> {
        let inspector = Self { core: limiter.core.clone() };
        inspector.connection().map(drop)?;
        Ok(inspector)
    }

    pub fn namespace(&self) -> &str {
        self.core.keyspace().namespace()
    }

    /// Returns a scan of all keys of the namespace, or of one gate.
    pub fn all(&self, gate: Option<&str>) -> Scan {
        let pattern = match gate {
            None => format!("{}:*", self.namespace()),
            Some(gate) => format!("{}:*:{gate}:*", self.namespace()),
        };
        Scan::new(self, pattern)
    }

    /// Returns the possible forms of a key in Redis: in clear, or as an HMAC.
    pub fn written(&self, key: &[u8]) -> Vec<String> {
        self.core.keyspace().written(key)
    }

    /// Returns a scan of all gates, or of one, for names that end with this key as written in Redis.
    pub fn of_key(&self, gate: Option<&str>, written: &str) -> Scan {
        let mut pattern = format!("{}:*:{}:*:", self.namespace(), gate.unwrap_or("*"));
        for character in written.chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        Scan::new(self, pattern)
    }

    /// Reads these keys, except those that have expired meanwhile.
    pub async fn read(&self, names: &[Name]) -> Result<Vec<Found>, Error> {
        let mut found = Vec::with_capacity(names.len());
        for ((hash_tag, is_log, _), part) in call_parts(names) {
            let rows = self.stored_rows(hash_tag, &part).await?;
            let usages: Vec<Result<Usage, Error>> = match is_log {
                true => self.log_usages(hash_tag, &part).await?,
                false => part.iter().zip(&rows).map(|(name, row)| Usage::of_row(name.shape, row)).collect(),
            };
            for ((name, row), usage) in part.into_iter().zip(rows).zip(usages) {
                let (usage, ttl_ms) = match row {
                    Ok(StoredRow { ttl_ms: -2, .. }) => continue,
                    Ok(row) => (usage, row.ttl_ms),
                    Err(error) => (Err(error), -1),
                };
                let expires_in = u64::try_from(ttl_ms).ok().map(Duration::from_millis);
                found.push(Found { name: name.clone(), usage, expires_in });
            }
        }
        Ok(found)
    }

    /// Removes the state of these keys. Returns the number of keys that existed.
    pub async fn remove(&self, names: &[Name]) -> Result<u64, Error> {
        let mut removed = 0;
        for ((hash_tag, ..), part) in call_parts(names) {
            let args = |command: &mut Cmd| {
                command.arg(part.len());
                for name in &part {
                    command.arg(&name.redis_key);
                }
            };
            match self.connection()?.run(&script::RESET, args, self.call_target(hash_tag)).await? {
                Value::Int(count) => removed += count.unsigned_abs(),
                _ => return Err(unexpected_reply()),
            }
        }
        Ok(removed)
    }

    /// Denies every check for `duration`, or lifts the block if `duration` is zero. The usage stays.
    pub async fn block(&self, found: &Found, duration: Duration) -> Result<(), Error> {
        let Name { gate, redis_key, hash_tag, .. } = &found.name;
        let gate = Arc::new(self.core.gate_info(gate, found.quota()?)?);
        let (redis_key, hash_tag) = (redis_key.clone(), *hash_tag);
        let target = Target { gate, redis_key, keyed_hash: KeyedHash(0), hash_tag };
        let for_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(MAX_DEBT);
        let deadline = self.call_target(hash_tag).deadline;
        self.core.store().write(&target, Write::Block { for_us }, deadline).await.map(drop)
    }

    /// Reads the operators' overrides, so that the limiter applies them at once.
    pub async fn read_overrides(&self) -> Result<(), Error> {
        self.core.read_overrides().await
    }

    /// Returns the active overrides, as [`Control::overrides`](crate::Control::overrides).
    pub async fn overrides(&self) -> Result<Vec<Override>, Error> {
        self.core.all_overrides().await
    }

    /// Removes the override of a key, given as written in Redis.
    pub async fn end_override(&self, gate: &str, written: &str) -> Result<(), Error> {
        self.core.overrides_for(gate)?.set_override(gate, written, None, None).await
    }

    fn connection(&self) -> Result<&Connection, Error> {
        let none = || Error::config("the limiter has no Redis to inspect");
        self.core.store().connection().ok_or_else(none)
    }

    /// Reads the rows of these keys. The outer error fails the call, an inner one a single key.
    async fn stored_rows(
        &self,
        hash_tag: HashTag,
        names: &[&Name],
    ) -> Result<Vec<Result<StoredRow, Error>>, Error> {
        let args = |command: &mut Cmd| {
            command.arg(names.len());
            for name in names {
                command.arg(&name.redis_key);
            }
            for name in names {
                command.arg(match name.shape {
                    Shape::SlidingLog { .. } => "log",
                    Shape::FixedWindow { .. } => "count",
                    _ => "text",
                });
            }
        };
        let target = self.call_target(hash_tag);
        let Value::Array(reply) = self.connection()?.run(&script::INSPECT, args, target).await? else {
            return Err(unexpected_reply());
        };
        let mut reply = reply.into_iter();
        let Some(Value::Int(now)) = reply.next() else { return Err(unexpected_reply()) };
        let rows = names.iter().map(|_| match reply.next() {
            Some(Value::Int(ttl_ms)) => match reply.next() {
                Some(Value::BulkString(content)) => {
                    let content = String::from_utf8_lossy(&content).into_owned();
                    Ok(Ok(StoredRow { now_us: now.unsigned_abs(), ttl_ms, content }))
                }
                _ => Err(unexpected_reply()),
            },
            Some(Value::BulkString(error)) => Ok(Err(Error::from_script(&String::from_utf8_lossy(&error)))),
            _ => Err(unexpected_reply()),
        });
        rows.collect()
    }

    /// Reads logs with the script that decides on them, which reads only the entries it needs.
    async fn log_usages(
        &self,
        hash_tag: HashTag,
        names: &[&Name],
    ) -> Result<Vec<Result<Usage, Error>>, Error> {
        let Some(first) = names.first() else { return Ok(Vec::new()) };
        let quota = first.shape.quota(1)?;
        let gate = Arc::new(self.core.gate_info(&first.gate, quota)?);
        let peek = |name: &&Name| {
            let (gate, redis_key) = (gate.clone(), name.redis_key.clone());
            let target = Target { gate, redis_key, keyed_hash: KeyedHash(0), hash_tag };
            Group { items: SmallVec::from_buf([Item { target, cost: 1, max_delay_us: None }]), n: 0 }
        };
        let groups: Vec<Group> = names.iter().map(peek).collect();
        let outcomes = self.core.store().take(&groups, self.call_target(hash_tag).deadline).await;
        let usages = outcomes.into_iter().map(|outcome| match outcome {
            Err(error) if !error.is_corrupt_state() => Err(error),
            Err(error) => Ok(Err(error)),
            Ok(outcome) => Ok(Ok(Usage::of_log(&quota, &outcome.before[0], outcome.now_us))),
        });
        usages.collect()
    }

    fn call_target(&self, hash_tag: HashTag) -> CallTarget {
        CallTarget { hash_tag: Some(hash_tag), deadline: self.core.deadline_of(None), is_repeatable: true }
    }
}

/// The hash tag, whether it is a log, and the shape. Keys with the same value can be read in one call.
type Part = (HashTag, bool, Shape);

/// Splits the keys into parts, each for one call.
fn call_parts(names: &[Name]) -> Vec<(Part, Vec<&Name>)> {
    let mut parts: Vec<(Part, Vec<&Name>)> = Vec::new();
    for name in names {
        let (part_key, max_keys) = match name.shape {
            Shape::SlidingLog { .. } => ((name.hash_tag, true, name.shape), LOGS_PER_CALL),
            // All states stored as text are read by the same script.
            _ => ((name.hash_tag, false, Shape::TokenBucket), KEYS_PER_CALL),
        };
        match parts.iter_mut().rev().find(|(other, part)| *other == part_key && part.len() < max_keys) {
            Some((_, part)) => part.push(name),
            None => parts.push((part_key, vec![name])),
        }
    }
    parts
}

fn unexpected_reply() -> Error {
    Error::unavailable("unexpected reply to a tidegate script: check that the server is a Redis")
}
