//! Where the state lives: Redis, or this process's memory. Both answer the same
//! few questions in the same way.

mod by_target;
mod memory;
mod redis;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub(crate) use self::by_target::ByTarget;
use self::memory::MemoryStore;
use self::redis::RedisStore;
use crate::algorithm::{Before, EXACT};
use crate::clock::{Clock, Stopwatch};
use crate::connection::{Connection, Deadline};
use crate::error::Error;
use crate::fingerprint::{Fingerprint, Fingerprints};
use crate::gate_name::GateName;
use crate::health::Server;
use crate::key::{Keyspace, Place, Prefix};
use crate::quota::Quota;

/// What all asks to one gate have in common.
#[derive(Clone, Debug)]
pub(crate) struct GateInfo {
    pub(crate) name: GateName,
    pub(crate) quota: Quota,
    pub(crate) prefix: Prefix,
    pub(crate) fingerprints: Fingerprints,
}

impl GateInfo {
    pub(crate) fn new(
        keyspace: &Keyspace,
        fingerprints: &Fingerprints,
        name: &str,
        quota: Quota,
    ) -> Result<Self, Error> {
        let prefix = keyspace.prefix(name, &quota)?;
        // The prefix was made of it, so it is not too long.
        let name = GateName::new(name).ok_or_else(|| Error::config("a gate's name has at most 64 bytes"))?;
        Ok(Self { name, quota, prefix, fingerprints: fingerprints.clone() })
    }
}

/// One key of one gate, as it is called in the store.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) gate: Arc<GateInfo>,
    pub(crate) redis_key: String,
    /// Of `redis_key`.
    pub(crate) fingerprint: Fingerprint,
    /// What lies in another place is another call.
    pub(crate) place: Place,
}

impl Target {
    /// Where `beside` lives, if that is given.
    pub(crate) fn new(gate: &Arc<GateInfo>, key: &[u8], beside: Option<&[u8]>) -> Self {
        Self::at(gate, key, gate.prefix.place(beside.unwrap_or(key)))
    }

    /// With this hash tag, whatever the key.
    pub(crate) fn at(gate: &Arc<GateInfo>, key: &[u8], place: Place) -> Self {
        let redis_key = gate.prefix.key(key, place);
        Self { fingerprint: gate.fingerprints.of(&redis_key), redis_key, place, gate: gate.clone() }
    }
}

impl Hash for Target {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state);
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
    /// The longest delay that the caller accepts; always `None` but for a leaky bucket.
    pub(crate) max_delay_us: Option<u64>,
}

/// What is decided together: `n` asks, each of which needs every item.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) items: SmallVec<[Item; 1]>,
    /// 0 peeks.
    pub(crate) n: u64,
}

impl Group {
    /// A cost of nothing asks nothing: a peek at what one unit would get.
    pub(crate) fn of_one(item: Item) -> Self {
        let n = u64::from(item.cost > 0);
        Self { items: SmallVec::from_buf([Item { cost: item.cost.max(1), ..item }]), n }
    }

    /// That of all its items.
    pub(crate) fn place(&self) -> Place {
        self.items.first().map(|item| item.target.place).unwrap_or_default()
    }

    /// How long it holds the store for all others, in parts of [`MOST_WORK`].
    pub(crate) fn work(&self) -> u32 {
        self.items.iter().map(|item| item.target.gate.quota.kind().work()).sum()
    }
}

/// What one call means for the store at most: some 0.6 ms of Redis's one thread,
/// which are 128 levels, 85 counters or 51 logs.
pub(crate) const MOST_WORK: u32 = 256;

/// What became of a group.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// How many were admitted and charged.
    pub(crate) k: u64,
    /// One for each item.
    pub(crate) before: SmallVec<[Before; 1]>,
    /// The server's clock, µs since 1970.
    pub(crate) now_us: u64,
}

impl Outcome {
    /// Whether our scripts can have replied it.
    fn is_possible(&self, group: &Group) -> bool {
        let mut found = group.items.iter().zip(&self.before);
        let (k, n, now) = (self.k, group.n, self.now_us);
        let is_affordable = |item: &Item, before: &Before| {
            let quota = &item.target.gate.quota;
            quota.kind().algorithm().is_possible(before.seen, now)
                && k <= before.afford(quota, n, item.cost, item.max_delay_us, now)
        };
        now <= EXACT && found.all(|(item, before)| is_affordable(item, before))
    }
}

/// The small writes beside the take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Write {
    /// Returns units; with the stamp of the take that charged them, only those
    /// that still count.
    Refund { units: u64, stamp_us: Option<u64> },
    /// Charges units without asking.
    Penalize { units: u64 },
    /// Denies everything for so long; 0 lifts that.
    Block { for_us: u64 },
    /// As if never asked for.
    Reset,
}

/// That a process is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heartbeat<'a> {
    /// Where those that share the quotas are counted.
    pub(crate) key: &'a str,
    pub(crate) name: &'a str,
    /// For how long it counts.
    pub(crate) lifetime: Duration,
}

/// An order to write: [`crate::orders`].
#[derive(Debug)]
pub(crate) struct OrderText {
    pub(crate) field: String,
    /// `None` takes it back.
    pub(crate) text: Option<String>,
    /// `None`: until it is taken back.
    pub(crate) lasts_us: Option<u64>,
}

/// The orders that stand in the store.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    /// The clock that decides when they end.
    pub(crate) now_us: u64,
    /// When they were last changed; empty for never.
    pub(crate) changed: String,
    /// Fields and texts; none where nothing has changed since the caller's.
    pub(crate) fields: Vec<(String, String)>,
}

/// The most orders of a namespace: each process keeps all of them, and reads all when one has changed.
pub(crate) const MOST_ORDERS: usize = 4_096;

pub(crate) fn too_many_orders() -> Error {
    Error::config(format!(
        "there are {MOST_ORDERS} orders, as many as there can be: take one back, or give whole groups of keys a gate with a quota of its own"
    ))
}

#[derive(Debug)]
pub(crate) enum Store {
    Redis(RedisStore),
    Memory(MemoryStore),
    /// Never answers.
    Hanging,
    /// Answers that it cannot.
    Failing,
    /// Lets everything pass, or nothing; takes every write.
    Always {
        allowed: bool,
    },
}

impl Store {
    /// With any key of the namespace.
    pub(crate) fn redis(connection: Connection, key: String) -> Self {
        Self::Redis(RedisStore::new(connection, key))
    }

    pub(crate) fn memory(clock: Clock, max_keys: usize) -> Self {
        Self::Memory(MemoryStore::new(clock, max_keys))
    }

    /// Decides the groups in their order, each seeing what those before it
    /// wrote; one outcome per group.
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

    /// Makes a small write. Returns the stamp by which the units of a penalty are given back; of other
    /// writes the store's clock, µs since 1970 (not for a reset).
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

    /// What it is.
    pub(crate) async fn server(&self, deadline: Deadline) -> Result<Server, Error> {
        match self {
            Self::Redis(store) => store.server(deadline).await,
            Self::Memory(_) => {
                Ok(Server { version: "this process's memory".to_owned(), ..Server::default() })
            }
            Self::Always { .. } => Ok(Server { version: "a double".to_owned(), ..Server::default() }),
            Self::Hanging => Err(hang(deadline).await),
            Self::Failing => Err(failing()),
        }
    }

    /// Counts this process; how many there are.
    pub(crate) async fn count_in(&self, beat: Heartbeat<'_>, deadline: Deadline) -> Result<u64, Error> {
        match self {
            Self::Redis(store) => store.count_in(beat, deadline).await,
            _ => Ok(1),
        }
    }

    /// What operators have ordered; `known` is when the caller's orders were changed.
    pub(crate) async fn orders(&self, key: &str, known: &str, deadline: Deadline) -> Result<Standing, Error> {
        match self {
            Self::Redis(store) => store.orders(key, known, deadline).await,
            Self::Memory(store) => Ok(store.orders()),
            Self::Hanging => Err(hang(deadline).await),
            Self::Failing => Err(failing()),
            Self::Always { .. } => Ok(Standing::default()),
        }
    }

    pub(crate) async fn order(&self, key: &str, order: &OrderText, deadline: Deadline) -> Result<(), Error> {
        match self {
            Self::Redis(store) => store.order(key, order, deadline).await,
            Self::Memory(store) => store.order(order),
            Self::Hanging => Err(hang(deadline).await),
            Self::Failing => Err(failing()),
            Self::Always { .. } => Ok(()),
        }
    }

    /// `None` where there is no Redis.
    #[cfg(feature = "cli")]
    pub(crate) const fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Redis(store) => Some(store.connection()),
            _ => None,
        }
    }

    /// What whoever is not answered yet waits for.
    pub(crate) fn waited_for(&self) -> &'static str {
        match self {
            Self::Redis(store) => store.waited_for(),
            _ => "an answer",
        }
    }

    /// Measures the time by which [`sleep`](Self::sleep) waits.
    pub(crate) fn stopwatch(&self) -> Stopwatch {
        match self {
            Self::Memory(store) => store.clock().stopwatch(),
            _ => Clock::System.stopwatch(),
        }
    }

    /// Waits by the clock that decides.
    pub(crate) async fn sleep(&self, duration: Duration) {
        match self {
            Self::Memory(store) => store.clock().sleep(duration).await,
            _ => tokio::time::sleep(duration).await,
        }
    }

    /// Lets go of what is held.
    pub(crate) fn close(&self) {
        if let Self::Redis(store) = self {
            store.close();
        }
    }
}

async fn hang(deadline: Deadline) -> Error {
    tokio::time::sleep_until(deadline.at).await;
    Error::timeout("a store that hangs (Double::Hang)", deadline.after)
}

fn impossible() -> Error {
    Error::unavailable("its reply holds numbers that tidegate's scripts never reply: is this a Redis?")
}

fn failing() -> Error {
    Error::unavailable("this store always fails (Double::Fail)")
}
