//! The store of the state: Redis or this process's memory, with the same interface.

mod memory;
mod redis;
mod target_cache;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use self::memory::MemoryStore;
use self::redis::RedisStore;
pub(crate) use self::target_cache::TargetCache;
use crate::algorithm::{Before, EXACT};
use crate::clock::{Clock, Stopwatch};
use crate::connection::{Connection, Deadline};
use crate::error::Error;
use crate::gate_name::GateName;
use crate::health::Server;
use crate::key::{HashTag, Keyspace, Prefix};
use crate::keyed_hash::{KeyedHash, KeyedHasher};
use crate::quota::Quota;

/// The part that all checks of one gate share.
#[derive(Clone, Debug)]
pub(crate) struct GateInfo {
    pub(crate) name: GateName,
    pub(crate) quota: Quota,
    pub(crate) prefix: Prefix,
    pub(crate) keyed_hasher: KeyedHasher,
}

impl GateInfo {
    pub(crate) fn new(
        keyspace: &Keyspace,
        keyed_hasher: &KeyedHasher,
        name: &str,
        quota: Quota,
    ) -> Result<Self, Error> {
        let prefix = keyspace.prefix(name, &quota)?;
        // The name is part of the prefix, so its length was checked.
        let name = GateName::new(name).ok_or_else(|| Error::config("a gate's name has at most 64 bytes"))?;
        Ok(Self { name, quota, prefix, keyed_hasher: keyed_hasher.clone() })
    }
}

/// One key of one gate, as the store names it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) gate: Arc<GateInfo>,
    pub(crate) redis_key: String,
    /// The keyed_hash of `redis_key`.
    pub(crate) keyed_hash: KeyedHash,
    /// Keys with different hash tags need separate calls.
    pub(crate) hash_tag: HashTag,
}

impl Target {
    /// Uses the hash tag of `beside` if given, else of the key.
    pub(crate) fn new(gate: &Arc<GateInfo>, key: &[u8], colocate_with: Option<&[u8]>) -> Self {
        Self::at(gate, key, gate.prefix.hash_tag(colocate_with.unwrap_or(key)))
    }

    /// Uses this hash tag for any key.
    pub(crate) fn at(gate: &Arc<GateInfo>, key: &[u8], hash_tag: HashTag) -> Self {
        let redis_key = gate.prefix.key(key, hash_tag);
        Self { keyed_hash: gate.keyed_hasher.of(&redis_key), redis_key, hash_tag, gate: gate.clone() }
    }
}

impl Hash for Target {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.keyed_hash.hash(state);
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.redis_key == other.redis_key
    }
}

impl Eq for Target {}

/// One gate's part in a group.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) target: Target,
    pub(crate) cost: u64,
    /// The longest delay that the caller accepts; always `None` except for a leaky bucket.
    pub(crate) max_delay_us: Option<u64>,
}

/// A unit of decision: `n` equal checks, each of which needs every item.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) items: SmallVec<[Item; 1]>,
    /// 0 peeks.
    pub(crate) n: u64,
}

impl Group {
    /// Makes a group of one item. A cost of 0 makes it a peek at one unit.
    pub(crate) fn of_one(item: Item) -> Self {
        let n = u64::from(item.cost > 0);
        Self { items: SmallVec::from_buf([Item { cost: item.cost.max(1), ..item }]), n }
    }

    /// Returns the hash tag that all items share.
    pub(crate) fn hash_tag(&self) -> HashTag {
        self.items.first().map(|item| item.target.hash_tag).unwrap_or_default()
    }

    /// Returns how long the group occupies the store, in units of [`MAX_WORK`].
    pub(crate) fn work(&self) -> u32 {
        self.items.iter().map(|item| item.target.gate.quota.kind().work()).sum()
    }
}

/// The maximum work of one call: about 0.6 ms of Redis's single thread, which is 128 levels, 85 counters or
/// 51 logs.
pub(crate) const MAX_WORK: u32 = 256;

/// The outcome of a group.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The number of checks admitted and charged.
    pub(crate) k: u64,
    /// One entry per item.
    pub(crate) before: SmallVec<[Before; 1]>,
    /// The server's clock, in µs since 1970.
    pub(crate) now_us: u64,
}

impl Outcome {
    /// Returns whether tidegate's scripts can have sent this reply.
    fn is_possible(&self, group: &Group) -> bool {
        let mut found = group.items.iter().zip(&self.before);
        let (k, n, now) = (self.k, group.n, self.now_us);
        let is_affordable = |item: &Item, before: &Before| {
            let quota = &item.target.gate.quota;
            quota.kind().algorithm().is_possible(before.raw, now)
                && k <= before.afford(quota, n, item.cost, item.max_delay_us, now)
        };
        now <= EXACT && found.all(|(item, before)| is_affordable(item, before))
    }
}

/// Small writes other than a take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write {
    /// Returns units. With the stamp of the take that charged them, returns only those that still count.
    Refund { units: u64, stamp_us: Option<u64> },
    /// Charges units without a check.
    Penalize { units: u64 },
    /// Denies everything for `for_us`; 0 lifts the block.
    Block { for_us: u64 },
    /// Removes the state.
    Reset,
}

/// The sign of life of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heartbeat<'a> {
    /// The key in which the processes that share the quotas are counted.
    pub(crate) key: &'a str,
    pub(crate) name: &'a str,
    /// How long the process counts after this heartbeat.
    pub(crate) lifetime: Duration,
}

/// An operator's override to write: [`crate::overrides`].
#[derive(Debug)]
pub(crate) struct OverrideText {
    pub(crate) field: String,
    /// `None` removes the override.
    pub(crate) text: Option<String>,
    /// `None`: until it is removed.
    pub(crate) lasts_us: Option<u64>,
}

/// The operators' overrides in the store.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// The clock that decides when they end.
    pub(crate) now_us: u64,
    /// When they were last changed; empty if never.
    pub(crate) changed: String,
    /// Fields and texts; empty if nothing has changed since the caller's version.
    pub(crate) fields: Vec<(String, String)>,
}

/// The maximum number of overrides in a namespace: each process keeps all of them, and reads all when one has
/// changed.
pub(crate) const MAX_OVERRIDES: usize = 4_096;

pub(crate) fn too_many_overrides() -> Error {
    Error::config(format!(
        "there are {MAX_OVERRIDES} overrides, as many as there can be: take one back, or give whole groups of keys a gate with a quota of its own"
    ))
}

#[derive(Debug)]
pub(crate) enum Store {
    Redis(RedisStore),
    Memory(MemoryStore),
    /// Never answers.
    Hanging,
    /// Returns an error.
    Failing,
    /// Admits everything or nothing; accepts every write.
    Always {
        allowed: bool,
    },
}

impl Store {
    /// Makes a Redis store. `key` is any key of the namespace.
    pub(crate) fn redis(connection: Connection, key: String) -> Self {
        Self::Redis(RedisStore::new(connection, key))
    }

    pub(crate) fn memory(clock: Clock, max_keys: usize) -> Self {
        Self::Memory(MemoryStore::new(clock, max_keys))
    }

    /// Decides the groups in order. Each group sees the writes of the groups before it. Returns one outcome
    /// per group.
    pub(crate) async fn take(&self, groups: &[Group], deadline: Deadline) -> Vec<Result<Outcome, Error>> {
        match self {
            Self::Redis(store) => {
                let mut outcomes = store.take(groups, deadline).await;
                for (group, outcome) in groups.iter().zip(&mut outcomes) {
                    if outcome.as_ref().is_ok_and(|outcome| !outcome.is_possible(group)) {
                        *outcome = Err(impossible());
                    }
                }
                outcomes
            }
            Self::Memory(store) => store.take(groups),
            Self::Hanging => vec![Err(hang(deadline).await); groups.len()],
            Self::Failing | Self::Always { .. } => vec![Err(failing()); groups.len()],
        }
    }

    /// Makes a small write. Returns a stamp for a penalty, by which its units are refunded. For other writes
    /// returns the store's clock, in µs since 1970 (not for a reset).
    pub(crate) async fn write(
        &self,
        target: &Target,
        write: Write,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        match self {
            Self::Redis(store) => store.write(target, write, deadline).await,
            Self::Memory(store) => Ok(store.write(target, write)),
            Self::Hanging => Err(hang(deadline).await),
            Self::Failing => Err(failing()),
            Self::Always { .. } => Ok(0),
        }
    }

    /// Returns the server's properties.
    pub(crate) async fn server(&self, deadline: Deadline) -> Result<Server, Error> {
        match self {
            Self::Redis(store) => store.server(deadline).await,
            Self::Memory(_) => {
                Ok(Server { version: "this process's memory".to_owned(), ..Server::default() })
            }
            Self::Always { .. } => Ok(Server { version: "a stub".to_owned(), ..Server::default() }),
            Self::Hanging => Err(hang(deadline).await),
            Self::Failing => Err(failing()),
        }
    }

    /// Counts this process. Returns the number of processes.
    pub(crate) async fn count_in(&self, beat: Heartbeat<'_>, deadline: Deadline) -> Result<u64, Error> {
        match self {
            Self::Redis(store) => store.count_in(beat, deadline).await,
            _ => Ok(1),
        }
    }

    /// Returns the operators' overrides; `known` is the version that the caller has.
    pub(crate) async fn overrides(
        &self,
        key: &str,
        known: &str,
        deadline: Deadline,
    ) -> Result<Standing, Error> {
        match self {
            Self::Redis(store) => store.overrides(key, known, deadline).await,
            Self::Memory(store) => Ok(store.overrides()),
            Self::Hanging => Err(hang(deadline).await),
            Self::Failing => Err(failing()),
            Self::Always { .. } => Ok(Standing::default()),
        }
    }

    pub(crate) async fn set_override(
        &self,
        key: &str,
        entry: &OverrideText,
        deadline: Deadline,
    ) -> Result<(), Error> {
        match self {
            Self::Redis(store) => store.set_override(key, entry, deadline).await,
            Self::Memory(store) => store.set_override(entry),
            Self::Hanging => Err(hang(deadline).await),
            Self::Failing => Err(failing()),
            Self::Always { .. } => Ok(()),
        }
    }

    /// Returns `None` if the store is not Redis.
    #[cfg(feature = "cli")]
    pub(crate) const fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Redis(store) => Some(store.connection()),
            _ => None,
        }
    }

    /// Names the event that unanswered callers wait for.
    pub(crate) fn waited_for(&self) -> &'static str {
        match self {
            Self::Redis(store) => store.waited_for(),
            _ => "an answer",
        }
    }

    /// Returns a stopwatch on the clock that [`sleep`](Self::sleep) uses.
    pub(crate) fn stopwatch(&self) -> Stopwatch {
        match self {
            Self::Memory(store) => store.clock().stopwatch(),
            _ => Clock::System.stopwatch(),
        }
    }

    /// Sleeps on the store's clock.
    pub(crate) async fn sleep(&self, duration: Duration) {
        match self {
            Self::Memory(store) => store.clock().sleep(duration).await,
            _ => tokio::time::sleep(duration).await,
        }
    }

    /// Releases the connection.
    pub(crate) fn close(&self) {
        if let Self::Redis(store) = self {
            store.close();
        }
    }
}

async fn hang(deadline: Deadline) -> Error {
    tokio::time::sleep_until(deadline.at).await;
    Error::timeout("a store that hangs (Stub::Hang)", deadline.after)
}

fn impossible() -> Error {
    Error::unavailable("its reply holds numbers that tidegate's scripts never reply: is this a Redis?")
}

fn failing() -> Error {
    Error::unavailable("this store always fails (Stub::Fail)")
}
