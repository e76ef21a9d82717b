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
use crate::algorithm::MOST_DEBT;
use crate::connection::{Connection, To};
use crate::error::Error;
use crate::fingerprint::Fingerprint;
use crate::key::Place;
use crate::limiter::{Core, Limiter};
use crate::orders::Order;
use crate::quota::Quota;
use crate::script;
use crate::store::{Group, Item, Target, Write};

/// The maximum keys and logs per call, so that Redis is not blocked for long.
const TOGETHER: usize = 128;
const LOGS_TOGETHER: usize = 51;

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
struct Held {
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
        for letter in written.chars() {
            if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        Scan::new(self, pattern)
    }

    /// Reads these keys, except those that have expired meanwhile.
    pub async fn read(&self, names: &[Name]) -> Result<Vec<Found>, Error> {
        let mut found = Vec::with_capacity(names.len());
        for ((place, is_log, _), part) in in_parts(names) {
            let held = self.held(place, &part).await?;
            let usages: Vec<Result<Usage, Error>> = match is_log {
                true => self.of_logs(place, &part).await?,
                false => {
                    part.iter().zip(&held).map(|(name, held)| Usage::of_text(name.shape, held)).collect()
                }
            };
            for ((name, held), usage) in part.into_iter().zip(held).zip(usages) {
                let (usage, ttl_ms) = match held {
                    Ok(Held { ttl_ms: -2, .. }) => continue,
                    Ok(held) => (usage, held.ttl_ms),
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
        let mut gone = 0;
        for ((place, ..), part) in in_parts(names) {
            let args = |command: &mut Cmd| {
                command.arg(part.len());
                for name in &part {
                    command.arg(&name.redis_key);
                }
            };
            match self.connection()?.run(&script::RESET, args, self.to(place)).await? {
                Value::Int(removed) => gone += removed.unsigned_abs(),
                _ => return Err(unexpected()),
            }
        }
        Ok(gone)
    }

    /// Denies every check for `lasts`, or lifts the block if `lasts` is zero. The usage stays.
    pub async fn block(&self, found: &Found, lasts: Duration) -> Result<(), Error> {
        let Name { gate, redis_key, place, .. } = &found.name;
        let gate = Arc::new(self.core.gate_info(gate, found.quota()?)?);
        let (redis_key, place) = (redis_key.clone(), *place);
        let target = Target { gate, redis_key, fingerprint: Fingerprint(0), place };
        let for_us = u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX).min(MOST_DEBT);
        let deadline = self.to(place).deadline;
        self.core.store().write(&target, Write::Block { for_us }, deadline).await.map(drop)
    }

    /// Reads the operators' overrides, so that the limiter applies them at once.
    pub async fn read_orders(&self) -> Result<(), Error> {
        self.core.read_orders().await
    }

    /// Returns the active overrides, as [`Control::orders`](crate::Control::orders).
    pub async fn orders(&self) -> Result<Vec<Order>, Error> {
        self.core.all_orders().await
    }

    /// Removes the override of a key, given as written in Redis.
    pub async fn end_override(&self, gate: &str, written: &str) -> Result<(), Error> {
        self.core.orders_for(gate)?.set_override(gate, written, None, None).await
    }

    fn connection(&self) -> Result<&Connection, Error> {
        let none = || Error::config("there is nothing to look into without a Redis");
        self.core.store().connection().ok_or_else(none)
    }

    async fn held(&self, place: Place, names: &[&Name]) -> Result<Vec<Result<Held, Error>>, Error> {
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
        let Value::Array(reply) = self.connection()?.run(&script::INSPECT, args, self.to(place)).await?
        else {
            return Err(unexpected());
        };
        let mut reply = reply.into_iter();
        let Some(Value::Int(now)) = reply.next() else { return Err(unexpected()) };
        let rows = names.iter().map(|_| match reply.next() {
            Some(Value::Int(ttl_ms)) => match reply.next() {
                Some(Value::BulkString(content)) => {
                    let content = String::from_utf8_lossy(&content).into_owned();
                    Ok(Ok(Held { now_us: now.unsigned_abs(), ttl_ms, content }))
                }
                _ => Err(unexpected()),
            },
            Some(Value::BulkString(failed)) => Ok(Err(Error::from_script(&String::from_utf8_lossy(&failed)))),
            _ => Err(unexpected()),
        });
        rows.collect()
    }

    /// Reads logs with the script that decides on them, which reads only the entries it needs.
    async fn of_logs(&self, place: Place, names: &[&Name]) -> Result<Vec<Result<Usage, Error>>, Error> {
        let Some(first) = names.first() else { return Ok(Vec::new()) };
        let quota = first.shape.quota(1)?;
        let gate = Arc::new(self.core.gate_info(&first.gate, quota)?);
        let peek = |name: &&Name| {
            let (gate, redis_key) = (gate.clone(), name.redis_key.clone());
            let target = Target { gate, redis_key, fingerprint: Fingerprint(0), place };
            Group { items: SmallVec::from_buf([Item { target, cost: 1, max_delay_us: None }]), n: 0 }
        };
        let groups: Vec<Group> = names.iter().map(peek).collect();
        let outcomes = self.core.store().take(&groups, self.to(place).deadline).await;
        let usages = outcomes.into_iter().map(|outcome| match outcome {
            Err(error) if !error.is_corrupt_state() => Err(error),
            Err(error) => Ok(Err(error)),
            Ok(outcome) => Ok(Ok(Usage::of_log(&quota, &outcome.before[0], outcome.now_us))),
        });
        usages.collect()
    }

    fn to(&self, place: Place) -> To {
        To { place: Some(place), deadline: self.core.deadline_of(None), again: true }
    }
}

/// The hash tag, whether it is a log, and its window: keys that agree can be read in one call.
type Part = (Place, bool, Shape);

fn in_parts(names: &[Name]) -> Vec<(Part, Vec<&Name>)> {
    let mut parts: Vec<(Part, Vec<&Name>)> = Vec::new();
    for name in names {
        let (key, most) = match name.shape {
            Shape::SlidingLog { .. } => ((name.place, true, name.shape), LOGS_TOGETHER),
            // All states stored as text are read by the same script.
            _ => ((name.place, false, Shape::TokenBucket), TOGETHER),
        };
        match parts.iter_mut().rev().find(|(other, part)| *other == key && part.len() < most) {
            Some((_, part)) => part.push(name),
            None => parts.push((key, vec![name])),
        }
    }
    parts
}

fn unexpected() -> Error {
    Error::unavailable("its reply is none of tidegate's scripts: is this a Redis?")
}
