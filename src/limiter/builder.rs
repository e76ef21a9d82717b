//! Settings of a limiter.

#[cfg(feature = "cluster")]
mod cluster;
mod connecting;

use std::sync::Arc;
use std::time::Duration;

use self::connecting::Connecting;
use super::core::Settings;
use super::{Core, Limiter, OnFailure};
use crate::background::Background;
use crate::batch::{Batch, Together};
use crate::clock::{Clock, ManualClock};
use crate::connection::Connection;
use crate::deny_cache::DenyCache;
use crate::error::Error;
use crate::key::{KeyMode, Keyspace};
use crate::observer::Observer;
use crate::store::Store;
use crate::trace;

/// Settings of a limiter, from [`Limiter::builder`].
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, OnFailure};
///
/// # fn main() -> Result<(), tidegate::Error> {
/// let limiter = Limiter::builder()
///     .url("redis://127.0.0.1:6379")
///     .namespace("shop-production")
///     .deadline(Duration::from_millis(50))
///     .on_failure(OnFailure::Open)
///     .build()?;
/// # Ok(()) }
/// ```
#[must_use = "a builder builds nothing until `build`"]
pub struct Builder {
    backend: Backend,
    connecting: Connecting,
    namespace: String,
    key_mode: KeyMode,
    deadline: Duration,
    on_failure: OnFailure,
    clock: Clock,
    max_keys: usize,
    observer: Option<Arc<dyn Observer>>,
    batching: bool,
    deny_cache: Duration,
    instances: Option<u64>,
    breaker: bool,
    orders: bool,
}

enum Backend {
    None,
    Url(String),
    Sentinels {
        urls: Vec<String>,
        name: String,
    },
    #[cfg(feature = "cluster")]
    Cluster(Vec<String>),
    Pool(deadpool_redis::Pool),
    Memory,
    Double(Double),
}

impl Backend {
    const fn is_cluster(&self) -> bool {
        #[cfg(feature = "cluster")]
        return matches!(self, Self::Cluster(_));
        #[cfg(not(feature = "cluster"))]
        false
    }
}

/// What a [`Limiter::double`] answers, whatever its gates' [`OnFailure`] says.
/// Those that allow or deny take every refund, penalty, block and reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Double {
    /// Everything passes; the source is `open`.
    Allow,
    /// Everything is denied; the source is `closed`.
    Deny,
    /// Every ask is an error that is [unavailable](Error::is_unavailable).
    Fail,
    /// No ask is answered before its deadline.
    Hang,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            backend: Backend::None,
            connecting: Connecting::default(),
            namespace: "tidegate".to_owned(),
            key_mode: KeyMode::default(),
            deadline: Duration::from_millis(100),
            on_failure: OnFailure::default(),
            clock: Clock::System,
            max_keys: 100_000,
            observer: None,
            batching: true,
            deny_cache: Duration::from_millis(500),
            instances: None,
            breaker: true,
            orders: true,
        }
    }
}

impl Builder {
    /// This process's memory: see [`Limiter::in_memory`].
    pub fn in_memory(mut self) -> Self {
        self.backend = Backend::Memory;
        self
    }

    pub(super) fn double(mut self, double: Double) -> Self {
        self.backend = Backend::Double(double);
        self
    }

    /// The first part of every Redis key: one per application and environment,
    /// so that several on one Redis do not meet. 1 to 64 letters, digits, `_`,
    /// `.` or `-`.
    ///
    /// Default: `tidegate`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.to_owned();
        self
    }

    /// How keys are written in Redis.
    ///
    /// Default: [`KeyMode::Clear`].
    pub fn key_mode(mut self, mode: KeyMode) -> Self {
        self.key_mode = mode;
        self
    }

    /// The longest that a decision may take, with all that it waits for.
    ///
    /// Default: 100 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// What an ask gets when Redis cannot answer it in time.
    /// [`Gate::on_failure`](crate::Gate::on_failure) sets it for one gate.
    ///
    /// Default: [`OnFailure::Local`].
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Whether checks are no longer sent to Redis when they stay unanswered (five in a row, or more
    /// than half for a while). Then [`on_failure`](Self::on_failure) decides at once, and Redis is
    /// probed, at first after 50 ms and at least twice a second, until it answers. Refusals do not
    /// count. On a cluster each hash tag is handled separately, so a lost primary does not affect the
    /// keys of the others.
    ///
    /// Default: true.
    pub fn breaker(mut self, breaker: bool) -> Self {
        self.breaker = breaker;
        self
    }

    /// How many processes share the quotas, by which each knows its share where
    /// Redis does not answer: [`OnFailure::Local`].
    ///
    /// Default: they count themselves, in a key of the namespace, every 5 s. One that
    /// starts while Redis is away counts itself alone, and so takes all for its share.
    pub fn instances(mut self, instances: u64) -> Self {
        self.instances = Some(instances);
        self
    }

    /// Whether this process follows what operators order for the whole fleet, which it asks Redis for
    /// twice a second once it has asked for anything: [`Control`](crate::Control).
    ///
    /// Default: true.
    pub fn follow_orders(mut self, follow: bool) -> Self {
        self.orders = follow;
        self
    }

    /// The most keys that an in-memory limiter remembers, or one over Redis decides by itself while
    /// that does not answer. Beyond it, those that
    /// were not used for longest are forgotten, which for them means untouched.
    ///
    /// Default: 100,000.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// The clock of an in-memory limiter, and of what this process remembers and
    /// holds ([leases](crate::Lease), denials). With Redis the server's decides all
    /// else.
    ///
    /// Default: this machine's.
    pub fn manual_clock(self, clock: ManualClock) -> Self {
        self.clock(Clock::Manual(clock))
    }

    pub(super) fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Who is told what the limiter does; several as a pair.
    ///
    /// Default: nobody.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Whether what is asked while calls are under way is gathered and goes out
    /// together, equal asks as one. Alone, an ask goes out at once either way.
    /// Over Redis only.
    ///
    /// Default: true.
    pub fn batching(mut self, batching: bool) -> Self {
        self.batching = batching;
        self
    }

    /// For how long at most this process caches a denial, and denies the same key without a call to
    /// Redis; never longer than the denial's [`retry_after`](crate::Decision::retry_after).
    ///
    /// A cached answer is the answer that Redis would give if other processes had left the key alone since
    /// the denial: their charges, resets, refunds and unblocks are observed up to this much later. Those by
    /// callers of this process are observed at once, unless a caller gives up before the answer. Of a
    /// sliding log, [`remaining`](crate::Decision::remaining) is that at the denial.
    ///
    /// Zero switches it off. Over Redis only.
    ///
    /// Default: 500 ms.
    pub fn deny_cache(mut self, longest: Duration) -> Self {
        self.deny_cache = longest;
        self
    }

    /// The limiter. Does not connect yet.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if no store was chosen, or if URL, namespace or
    /// secret cannot be used.
    pub fn build(self) -> Result<Limiter, Error> {
        let observer = trace::with_events(self.observer);
        let is_cluster = self.backend.is_cluster();
        let keyspace = Keyspace::new(&self.namespace, self.key_mode)?.spread_over_a_cluster(is_cluster);
        let background = Arc::new(match self.clock {
            Clock::System => Background::default(),
            Clock::Manual(_) => Background::on_callers_runtime(),
        });
        let redis = |connection| Store::redis(connection, keyspace.instances());
        let store = match self.backend {
            Backend::None => {
                return Err(Error::config("no store: give the builder a `url`, a `pool`, or `in_memory()`"));
            }
            Backend::Url(url) => redis(self.connecting.by_url(&url, &background)?),
            Backend::Sentinels { urls, name } => {
                redis(self.connecting.by_sentinels(&urls, name, &background)?)
            }
            #[cfg(feature = "cluster")]
            Backend::Cluster(urls) => redis(self.connecting.by_cluster(&urls, &background)?),
            Backend::Pool(pool) => redis(Connection::of_pool(pool, background.clone())),
            Backend::Memory => Store::memory(self.clock.clone(), self.max_keys),
            Backend::Double(Double::Allow) => Store::Always { allowed: true },
            Backend::Double(Double::Deny) => Store::Always { allowed: false },
            Backend::Double(Double::Fail) => Store::Failing,
            Backend::Double(Double::Hang) => Store::Hanging,
        };
        let settings = Settings {
            background,
            keyspace,
            deadline: self.deadline,
            on_failure: self.on_failure,
            observer: observer.clone(),
            clock: self.clock.clone(),
            max_keys: self.max_keys,
            instances: self.instances,
            breaker: self.breaker,
            orders: self.orders,
        };
        let is_redis = matches!(store, Store::Redis(_));
        self.clock.warm_up();
        let store = Arc::new(store);
        let together = match is_redis && self.batching {
            false => Together::Nothing,
            true if is_cluster => Together::EachPlace,
            true => Together::All,
        };
        let batch = Batch::new(store.clone(), self.clock.clone(), observer, self.deadline, together);
        let remembers = is_redis && !self.deny_cache.is_zero();
        let deny_cache = remembers.then(|| DenyCache::new(self.clock, self.deny_cache));
        let core = Core::new(store, batch, deny_cache, settings)?;
        Ok(Limiter { core: Arc::new(core) })
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("namespace", &self.namespace)
            .field("key_mode", &self.key_mode)
            .field("deadline", &self.deadline)
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}
