//! Reads and changes the state in Redis, for operators. Needs no quotas of services: the Redis keys and their
//! content name the algorithm.
//!
//! Not covered by semantic versioning: a minor version may change what is here.
//!
//! An [`Inspector`] finds keys with SCAN, one [`Page`] at a time, on each node of a cluster. [`Changes`] makes and records
//! the changes of operators. The command line and the console use both.
//!
//! ```no_run
//! # async fn example() -> Result<(), tidegate::Error> {
//! use tidegate::Limiter;
//! use tidegate::admin::Inspector;
//!
//! let inspector = Inspector::new(&Limiter::open("redis://127.0.0.1")?)?;
//! let mut scan = inspector.scan(Some("login"));
//! while let Some(page) = scan.next().await? {
//!     for found in inspector.read(&page.names).await? {
//!         println!("{}: {} used", found.name.redis_key, found.usage?.used);
//!     }
//! }
//! # Ok(()) }
//! ```

mod audit;
mod changes;
mod display;
mod figures;
mod fleet;
mod holders;
mod holds;
mod instances;
mod key_search;
mod memory;
mod name;
mod ranking;
mod redis_load;
#[cfg(feature = "regions")]
mod regions;
mod releases;
mod scan;
mod similar;
pub mod top_keys;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use smallvec::SmallVec;

pub use self::audit::{AuditEntry, AuditRecord};
pub use self::changes::{
    Action, Author, Change, ChangedGate, Changes, CheckedChange, Effect, GivenKey, Made, Refusal, quota_of,
};
pub use self::display::{human, units};
pub use self::figures::{FigureBucket, FleetFigures, GateFigures, Instance, LatencyFigures};
use self::holders::MAX_HOLDERS;
pub use self::holders::{Holder, Holders};
use self::holds::MAX_HOLDS;
pub use self::holds::{FoundHold, KeyHolds};
use self::name::decoded_key;
pub use self::name::{Name, NotState, Shape};
pub use self::ranking::Ranking;
pub use self::redis_load::RedisLoad;
#[cfg(feature = "regions")]
pub use self::regions::{PeerFigures, RegionFigures};
pub use self::releases::ReleaseInbox;
pub use self::scan::{OtherKey, Page, Scan};
pub use self::similar::{did_you_mean, listed};
pub use self::usage::{CountedDenials, Found, KeyStates, Usage};
use crate::connection::{CallTarget, Connection};
use crate::error::Error;
pub use crate::error::redact::visible;
use crate::key::HashTag;
use crate::limiter::Limiter;
use crate::pipeline::Pipeline;
use crate::quota::algorithm::Storage;
use crate::script;
use crate::store::{Group, GroupItem, MemoryStore, Target, Write};

/// The maximum keys and logs per call, so that Redis is not blocked for long.
const KEYS_PER_CALL: usize = 128;
const LOGS_PER_CALL: usize = 51;

/// Reads and changes the state in a limiter's Redis, within the limiter's namespace.
///
/// Each call to Redis has the [deadline of operators](crate::Builder::operator_deadline). Failure policies, the circuit
/// breaker and the deny cache do not apply.
#[derive(Clone, Debug)]
pub struct Inspector(StoreAccess);

impl Inspector {
    /// Makes an inspector for the Redis of this limiter.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the limiter has no Redis: it is in memory or a stub.
    pub fn new(limiter: &Limiter) -> Result<Self, Error> {
        StoreAccess::new(limiter.pipeline.clone()).map(Self)
    }

    /// Returns the limiter's namespace, with which all its Redis keys begin.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.namespace()
    }

    /// Parses a Redis key of a state of this namespace, such as [`Gate::redis_key`](crate::Gate::redis_key)
    /// returns. Returns `None` if it is not one.
    #[must_use]
    pub fn parse(&self, redis_key: &str) -> Option<Name> {
        Name::parse(self.namespace(), redis_key.as_bytes()).ok()
    }

    /// Returns a scan of all keys of the namespace, or of one gate. The scan of a gate can also find keys of
    /// other gates: compare [`Name::gate`].
    #[must_use]
    pub fn scan(&self, gate: Option<&str>) -> Scan {
        let pattern = match gate {
            None => format!("{}:*", self.namespace()),
            Some(gate) => format!("{}:*:{gate}:*", self.namespace()),
        };
        Scan::new(&self.0, pattern)
    }

    /// Returns the possible forms of a key in Redis, for [`scan_key`](Self::scan_key): under
    /// [`KeyMode::Hmac`](crate::KeyMode::Hmac) the HMAC, and in every mode the form of
    /// [`KeyMode::Clear`](crate::KeyMode::Clear). Of a hash, only the hash itself.
    #[must_use]
    pub fn stored_forms(&self, key: &GivenKey) -> Vec<String> {
        key.forms(self.0.pipeline.keyspace())
    }

    /// Returns a scan for the states of one key, in all gates or in one. `written` is the key as written in
    /// Redis: one of its [`stored_forms`](Self::stored_forms). The scan can also find other keys: compare
    /// [`Name::written`] and [`Name::gate`].
    #[must_use]
    pub fn scan_key(&self, gate: Option<&str>, written: &str) -> Scan {
        let mut pattern = format!("{}:*:{}:*:", self.namespace(), gate.unwrap_or("*"));
        for character in written.chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        Scan::new(&self.0, pattern)
    }

    /// Reads these keys, in one call per 128 keys (or 51 sliding logs) and hash tag. Skips keys that have
    /// expired since. The result is not in the order of `names`.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer. A key that tidegate did not write is no error of
    /// the call: see [`Found::usage`].
    pub async fn read(&self, names: &[Name]) -> Result<Vec<Found>, Error> {
        if let Some(memory) = self.0.memory() {
            return self.read_in_memory(memory, names);
        }
        let mut found = Vec::with_capacity(names.len());
        for ((hash_tag, log), part) in call_parts(names) {
            let rows = self.stored_rows(hash_tag, &part).await?;
            let usages: Vec<Result<Usage, Error>> = match log {
                Some(shape) => self.log_usages(hash_tag, shape, &part).await?,
                None => part.iter().zip(&rows).map(|(name, row)| Usage::of_row(name.shape, row)).collect(),
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

    /// Reads the holds of the state with this name. The state itself need not exist.
    ///
    /// # Errors
    ///
    /// - [`Error::is_corrupt_state`] if tidegate did not write them.
    /// - [`Error::is_unavailable`] if Redis did not answer.
    pub async fn holds(&self, name: &Name) -> Result<KeyHolds, Error> {
        let key = name.holds_key();
        let args = |command: &mut Cmd| {
            command.arg(1).arg(&key).arg(MAX_HOLDS);
        };
        let target = self.0.call_target(name.hash_tag);
        KeyHolds::of_reply(self.0.connection()?.run(&script::INSPECT_HOLDS, args, target).await?)
    }

    /// Reads the holders of a key of an in-flight limit, in one call. Empty for other keys.
    ///
    /// # Errors
    ///
    /// - [`Error::is_corrupt_state`] if tidegate did not write the content of the key.
    /// - [`Error::is_unavailable`] if Redis did not answer.
    pub async fn holders(&self, name: &Name) -> Result<Holders, Error> {
        if name.shape.definition().storage != Storage::Holders {
            return Ok(Holders::default());
        }
        let leases = self.0.pipeline.keyspace().holders(name.hash_tag);
        let args = |command: &mut Cmd| {
            command.arg(2).arg(&name.redis_key).arg(&leases).arg(MAX_HOLDERS);
        };
        let target = self.0.call_target(name.hash_tag);
        Holders::of_reply(&self.0.connection()?.run(&script::INSPECT_HOLDERS, args, target).await?)
    }

    /// Reads the denials of the key of the state with this name that were counted for a [ban](crate::Gate::ban).
    /// The state itself need not exist. Returns `None` if none count.
    ///
    /// # Errors
    ///
    /// - [`Error::is_corrupt_state`] if tidegate did not write the content of the key.
    /// - [`Error::is_unavailable`] if Redis did not answer.
    pub async fn denials(&self, name: &Name) -> Result<Option<CountedDenials>, Error> {
        if let Some(memory) = self.0.memory() {
            return Ok(CountedDenials::in_memory(memory, name));
        }
        let args = |command: &mut Cmd| {
            command.arg(1).arg(name.denials_key()).arg("count");
        };
        let target = self.0.call_target(name.hash_tag);
        CountedDenials::of_reply(self.0.connection()?.run(&script::INSPECT, args, target).await?)
    }

    /// Removes the [counted denials](Self::denials) of the key of the state with this name. A block and the usage stay.
    /// The state itself need not exist.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer.
    async fn remove_denials(&self, name: &Name) -> Result<(), Error> {
        let args = |command: &mut Cmd| {
            command.arg(1).arg(name.denials_key());
        };
        self.0.connection()?.run(&script::RESET, args, self.0.call_target(name.hash_tag)).await.map(drop)
    }

    /// Removes the state of these keys, and so lifts their blocks, with their [holds](Self::holds), [counted
    /// denials](Self::denials) and adaptive limits. Returns the number of Redis keys that existed; the holds of a key
    /// are one, and so is its count. A call is repeated if its connection is lost; the number can then be too low.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer. Some of the keys may have been removed.
    async fn remove(&self, names: &[Name]) -> Result<u64, Error> {
        let mut removed = 0;
        for ((hash_tag, ..), part) in call_parts(names) {
            let args = |command: &mut Cmd| {
                let beside = part.iter().map(|name| name.removed_beside()).collect::<Vec<_>>();
                command.arg(part.len() + beside.iter().map(Vec::len).sum::<usize>());
                for (name, beside) in part.iter().zip(&beside) {
                    command.arg(&name.redis_key).arg(beside);
                }
            };
            match self.0.connection()?.run(&script::RESET, args, self.0.call_target(hash_tag)).await? {
                Value::Int(count) => removed += count.unsigned_abs(),
                _ => return Err(unexpected_reply()),
            }
        }
        Ok(removed)
    }

    /// Denies every check of a key for `for_us`, at most 2^49 µs (17.8 years). Zero lifts the block, and removes the
    /// [counted denials](Self::denials). The usage stays.
    ///
    /// # Errors
    ///
    /// - [`Error::is_corrupt_state`] if tidegate did not write the content of the key.
    /// - [`Error::is_unavailable`] if Redis did not answer. Lifting a block is sent at most once.
    async fn block(&self, found: &Found, for_us: u64) -> Result<(), Error> {
        let Name { gate, redis_key, hash_tag, .. } = &found.name;
        let gate = Arc::new(self.0.pipeline.gate_info(gate, found.quota()?)?);
        let target = Target::of_redis_key(&gate, redis_key.clone(), *hash_tag);
        self.0.pipeline.write_for_operator(&target, Write::Block { for_us }).await
    }

    /// Reads the operators' overrides into the limiter, which then applies them without a delay.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer.
    pub async fn read_overrides(&self) -> Result<(), Error> {
        self.0.pipeline.read_overrides().await
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
                command.arg(match name.shape.definition().storage {
                    Storage::Text => "text",
                    Storage::Count => "count",
                    Storage::Log => "log",
                    Storage::Holders => "holders",
                });
            }
        };
        let target = self.0.call_target(hash_tag);
        let Value::Array(reply) = self.0.connection()?.run(&script::INSPECT, args, target).await? else {
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
        shape: Shape,
        names: &[&Name],
    ) -> Result<Vec<Result<Usage, Error>>, Error> {
        let Some(first) = names.first() else { return Ok(Vec::new()) };
        let quota = shape.quota(1)?;
        let gate = Arc::new(self.0.pipeline.gate_info(&first.gate, quota)?);
        let peek = |name: &&Name| {
            let target = Target::of_redis_key(&gate, name.redis_key.clone(), hash_tag);
            Group { items: SmallVec::from_buf([GroupItem::new(target, 1)]), n: 0 }
        };
        let groups: Vec<Group> = names.iter().map(peek).collect();
        let outcomes = self.0.pipeline.store().take(&groups, self.0.call_target(hash_tag).deadline).await;
        let usages = outcomes.into_iter().map(|outcome| match outcome {
            Err(error) if !error.is_corrupt_state() => Err(error),
            Err(error) => Ok(Err(error)),
            Ok(outcome) => Ok(Ok(Usage::of_log(&quota, &outcome.before[0], outcome.now_us))),
        });
        usages.collect()
    }
}

/// The hash tag, and the shape of a log. Keys with the same value can be read in one call: the same script
/// reads all states stored as text.
type CallShape = (HashTag, Option<Shape>);

/// Splits the keys into parts, each for one call.
fn call_parts(names: &[Name]) -> Vec<(CallShape, Vec<&Name>)> {
    let mut parts: Vec<(CallShape, Vec<&Name>)> = Vec::new();
    for name in names {
        let (part_key, max_keys) = match name.shape.definition().storage {
            Storage::Log => ((name.hash_tag, Some(name.shape)), LOGS_PER_CALL),
            Storage::Text | Storage::Count | Storage::Holders => ((name.hash_tag, None), KEYS_PER_CALL),
        };
        match parts.iter_mut().rev().find(|(other, part)| *other == part_key && part.len() < max_keys) {
            Some((_, part)) => part.push(name),
            None => parts.push((part_key, vec![name])),
        }
    }
    parts
}

/// The pipeline of a limiter with a Redis; of an inspector [in memory](Inspector::in_memory), of one without.
#[derive(Clone, Debug)]
struct StoreAccess {
    pipeline: Arc<Pipeline>,
}

/// A key's row in the reply of `inspect.lua`.
struct StoredRow {
    now_us: u64,
    /// -1: never expires; -2: does not exist.
    ttl_ms: i64,
    content: String,
}

impl StoreAccess {
    /// Fails if the limiter has no Redis.
    fn new(pipeline: Arc<Pipeline>) -> Result<Self, Error> {
        let access = Self { pipeline };
        access.connection().map(drop)?;
        Ok(access)
    }

    fn namespace(&self) -> &str {
        self.pipeline.keyspace().namespace()
    }

    fn memory(&self) -> Option<&MemoryStore> {
        self.pipeline.store().as_memory()
    }

    fn connection(&self) -> Result<&Connection, Error> {
        let none = || Error::config("the limiter has no Redis to inspect");
        self.pipeline.store().connection().map(|connection| &**connection).ok_or_else(none)
    }

    fn call_target(&self, hash_tag: HashTag) -> CallTarget {
        CallTarget {
            hash_tag: Some(hash_tag),
            deadline: self.pipeline.operator_deadline(),
            is_repeatable: true,
        }
    }
}

fn unexpected_reply() -> Error {
    Error::unavailable("unexpected reply to a tidegate script: check that the server is a Redis")
}
