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
    overrides: bool,
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
    Stub(Stub),
}

impl Backend {
    const fn is_cluster(&self) -> bool {
        #[cfg(feature = "cluster")]
        return matches!(self, Self::Cluster(_));
        #[cfg(not(feature = "cluster"))]
        false
    }
}

/// The result of every check of a [`Limiter::stub`], regardless of its gates' [`OnFailure`]. The variants
/// that allow or deny accept every refund, penalty, block and reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stub {
    /// Admits every check; the source is `open`.
    Allow,
    /// Denies every check; the source is `closed`.
    Deny,
    /// Fails every check with an error that is [unavailable](Error::is_unavailable).
    Fail,
    /// Answers no check before its deadline.
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
            overrides: true,
        }
    }
}

impl Builder {
    /// Uses this process's memory as the store: see [`Limiter::in_memory`].
    pub fn in_memory(mut self) -> Self {
        self.backend = Backend::Memory;
        self
    }

    pub(super) fn stub(mut self, stub: Stub) -> Self {
        self.backend = Backend::Stub(stub);
        self
    }

    /// Sets the first part of every Redis key: 1 to 64 letters, digits, `_`, `.` or `-`. Use one per
    /// application and environment, so that those on the same Redis do not collide.
    ///
    /// Default: `tidegate`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.to_owned();
        self
    }

    /// Sets how keys are written in Redis.
    ///
    /// Default: [`KeyMode::Clear`].
    pub fn key_mode(mut self, mode: KeyMode) -> Self {
        self.key_mode = mode;
        self
    }

    /// Sets the longest time that a decision may take, including all waiting.
    ///
    /// Default: 100 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the failure policy: the result of a check that Redis does not answer in time.
    /// [`Gate::on_failure`](crate::Gate::on_failure) sets it for one gate.
    ///
    /// Default: [`OnFailure::Local`].
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Enables the circuit breaker: checks are no longer sent to Redis when they stay unanswered (five in a
    /// row, or more than half for a while). Then [`on_failure`](Self::on_failure) decides at once, and Redis
    /// is probed, at first after 50 ms and at least twice a second, until it answers. Errors that Redis
    /// replies do not count. On a cluster each hash tag is handled separately, so a lost primary does not
    /// affect the keys of the others.
    ///
    /// Default: true.
    pub fn breaker(mut self, breaker: bool) -> Self {
        self.breaker = breaker;
        self
    }

    /// Sets how many processes share the quotas. Each process computes its share from this number while Redis
    /// does not answer: [`OnFailure::Local`].
    ///
    /// Default: the processes count themselves, in a key of the namespace, every 5 s. A process that starts
    /// while Redis is unavailable counts only itself, and so takes the whole quota as its share.
    pub fn instances(mut self, instances: u64) -> Self {
        self.instances = Some(instances);
        self
    }

    /// Enables following the operators' overrides for the whole fleet: [`Control`](crate::Control). The
    /// process reads them twice a second from its first check on.
    ///
    /// Default: true.
    pub fn follow_overrides(mut self, follow: bool) -> Self {
        self.overrides = follow;
        self
    }

    /// Sets the maximum number of keys that an in-memory limiter keeps, or that the fallback of a Redis
    /// limiter keeps while Redis does not answer. Beyond it, the least recently used keys are evicted and
    /// count as unused.
    ///
    /// Default: 100,000.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

    /// Sets the clock of an in-memory limiter, and of this process's [leases](crate::Lease) and cached
    /// denials. With Redis, the server's clock decides everything else.
    ///
    /// Default: this machine's.
    pub fn manual_clock(self, clock: ManualClock) -> Self {
        self.clock(Clock::Manual(clock))
    }

    pub(super) fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the observer of the limiter's events; combine several as a pair.
    ///
    /// Default: none.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Enables batching: checks made while calls are in flight are sent together, equal checks merged into
    /// one. A check with no call in flight is sent at once. Over Redis only.
    ///
    /// Default: true.
    pub fn batching(mut self, batching: bool) -> Self {
        self.batching = batching;
        self
    }

    /// Sets how long at most this process caches a denial, and denies the same key without a call to Redis;
    /// never longer than the denial's [`retry_after`](crate::Decision::retry_after).
    ///
    /// A cached answer is the answer that Redis would give if other processes had left the key alone since
    /// the denial: their charges, resets, refunds and unblocks are observed up to this much later. Those by
    /// callers of this process are observed at once, unless a caller gives up before the answer. For a
    /// sliding log, [`remaining`](crate::Decision::remaining) is the value at the denial.
    ///
    /// Zero disables the cache. Over Redis only.
    ///
    /// Default: 500 ms.
    pub fn deny_cache(mut self, longest: Duration) -> Self {
        self.deny_cache = longest;
        self
    }

    /// Builds the limiter. Does not connect yet.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if no store was chosen, or if the URL, namespace or secret is invalid.
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
            Backend::Stub(Stub::Allow) => Store::Always { allowed: true },
            Backend::Stub(Stub::Deny) => Store::Always { allowed: false },
            Backend::Stub(Stub::Fail) => Store::Failing,
            Backend::Stub(Stub::Hang) => Store::Hanging,
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
            overrides: self.overrides,
        };
        let is_redis = matches!(store, Store::Redis(_));
        self.clock.warm_up();
        let store = Arc::new(store);
        let together = match is_redis && self.batching {
            false => Together::Nothing,
            true if is_cluster => Together::EachHashTag,
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
