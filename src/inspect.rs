//! What an operator sees of the state: which keys of a namespace there are, and what
//! each of them holds, without the quotas that services have.
//!
//! Keys are found by SCAN, a page at a time, on each node that holds some. For the
//! command line.

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

/// How many keys are read in one call, and how many logs: so that Redis is not held up.
const TOGETHER: usize = 128;
const LOGS_TOGETHER: usize = 51;

/// What a key holds.
#[derive(Debug)]
pub struct Found {
    pub name: Name,
    /// Or why it cannot be told: it is nothing that tidegate writes.
    pub usage: Result<Usage, Error>,
    /// Until it vanishes by itself; `None`: never, as of no key of ours.
    pub expires_in: Option<Duration>,
}

impl Found {
    /// A quota that has its state here: the one that wrote it, or one with another limit. Of windows the
    /// Redis key says all else.
    pub fn quota(&self) -> Result<Quota, Error> {
        let written_by = self.usage.as_ref().map_err(Error::clone)?.quota;
        written_by.map_or_else(|| self.name.shape.quota(1), Ok)
    }
}

/// Looks into the Redis of a limiter.
#[derive(Clone, Debug)]
pub struct Inspector {
    core: Arc<Core>,
}

/// What `inspect.lua` says of a key.
struct Held {
    now_us: u64,
    /// -1: kept for ever; -2: there is none.
    ttl_ms: i64,
    content: String,
}

impl Inspector {
    /// Fails where the limiter is not over a Redis.
    pub fn new(limiter: &Limiter) -> Result<Self, Error> {
        let inspector = Self { core: limiter.core.clone() };
        inspector.connection().map(drop)?;
        Ok(inspector)
    }

    pub fn namespace(&self) -> &str {
        self.core.keyspace().namespace()
    }

    /// All keys of the namespace, or of one of its gates.
    pub fn all(&self, gate: Option<&str>) -> Scan {
        let pattern = match gate {
            None => format!("{}:*", self.namespace()),
            Some(gate) => format!("{}:*:{gate}:*", self.namespace()),
        };
        Scan::new(self, pattern)
    }

    /// How a key may stand in Redis: as it is, or under a secret.
    pub fn written(&self, key: &[u8]) -> Vec<String> {
        self.core.keyspace().written(key)
    }

    /// Those of all gates, or of one, that end with a key as it stands in Redis.
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

    /// What these hold, but for those that have gone meanwhile.
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

    /// Makes these as if they had never been asked for; how many there were.
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

    /// Denies everything for so long, or lifts that where it is nothing. What is used stays.
    pub async fn block(&self, found: &Found, lasts: Duration) -> Result<(), Error> {
        let Name { gate, redis_key, place, .. } = &found.name;
        let gate = Arc::new(self.core.gate_info(gate, found.quota()?)?);
        let (redis_key, place) = (redis_key.clone(), *place);
        let target = Target { gate, redis_key, fingerprint: Fingerprint(0), place };
        let for_us = u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX).min(MOST_DEBT);
        let deadline = self.to(place).deadline;
        self.core.store().write(&target, Write::Block { for_us }, deadline).await.map(drop)
    }

    /// So that the limiter decides at once by what was ordered for the whole fleet.
    pub async fn read_orders(&self) -> Result<(), Error> {
        self.core.read_orders().await
    }

    /// What is in force, as [`Control::orders`](crate::Control::orders).
    pub async fn orders(&self) -> Result<Vec<Order>, Error> {
        self.core.all_orders().await
    }

    /// Ends an override of a key as it is written.
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

    /// By the script that decides on them: no more is read than what tells it.
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

/// Where a key is, and for a log its window: what can be read in one call.
type Part = (Place, bool, Shape);

fn in_parts(names: &[Name]) -> Vec<(Part, Vec<&Name>)> {
    let mut parts: Vec<(Part, Vec<&Name>)> = Vec::new();
    for name in names {
        let (key, most) = match name.shape {
            Shape::SlidingLog { .. } => ((name.place, true, name.shape), LOGS_TOGETHER),
            // Texts are read alike.
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
