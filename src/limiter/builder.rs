//! Opening a limiter, with its settings.

mod connecting;
mod connection;
#[cfg(feature = "regions")]
mod regions;

use std::sync::Arc;
use std::time::Duration;

use self::connecting::Connecting;
use crate::batch::{Batch, Together};
use crate::connection::Connection;
use crate::error::Error;
use crate::in_flight::check_ttl;
use crate::key::reservation_secret::Secrets;
use crate::key::{KeyMode, Keyspace};
use crate::limiter::Limiter;
use crate::local::deny_cache::DenyCache;
use crate::local::on_failure::OnFailure;
use crate::observe::observer::{EventSink, Observer};
use crate::observe::trace;
use crate::observe::warning::WarningSink;
use crate::pipeline::request::check_deadline;
use crate::pipeline::{LimiterSettings, Pipeline};
use crate::quota::MAX_INSTANCES;
use crate::runtime::background::Background;
use crate::runtime::clock::{Clock, ManualClock};
use crate::store::{Store, Stub};

/// # Opening a limiter
impl Limiter {
    /// Returns a limiter on the Redis at `url`, such as `redis://127.0.0.1:6379` or
    /// `redis://user:password@host:6379/0`. Does not connect yet, and does not fail if Redis is down: use
    /// [`ready`](Self::ready) for that.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the URL is invalid.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// Returns a limiter on the Redis of an existing pool. It removes one connection from the pool
    /// permanently, when first needed.
    #[must_use]
    pub fn from_pool(pool: deadpool_redis::Pool) -> Self {
        Self::expect_defaults(Self::builder().pool(pool))
    }

    /// Returns a limiter in this process's memory, for up to 100,000 keys. It has the same semantics, shares
    /// nothing with other processes, and needs no server.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::expect_defaults(Self::builder().in_memory())
    }

    /// Returns an [`in_memory`](Self::in_memory) limiter with a clock that a test moves.
    #[must_use]
    pub fn in_memory_with(clock: ManualClock) -> Self {
        Self::expect_defaults(Self::builder().in_memory().clock(Clock::Manual(clock)))
    }

    /// Returns a limiter that gives every check the same result, for tests of surrounding code.
    #[must_use]
    pub fn stub(stub: Stub) -> Self {
        Self::expect_defaults(Self::builder().stub(stub))
    }

    /// Returns a builder with all settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn expect_defaults(builder: Builder) -> Self {
        #[expect(clippy::expect_used, reason = "only settings of the user's can be wrong")]
        builder.build().expect("the defaults are right")
    }
}

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
    debt_cap: u64,
    on_failure: OnFailure,
    clock: Clock,
    max_keys: usize,
    observer: Option<Arc<dyn Observer>>,
    stderr_warnings: bool,
    batching: bool,
    deny_cache: Duration,
    instances: Option<u64>,
    breaker: bool,
    overrides: bool,
    figures: bool,
    permit_ttl: Duration,
    operator_deadline: Duration,
    reservation_secrets: Vec<Vec<u8>>,
    #[cfg(feature = "regions")]
    regions: regions::Regions,
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
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            backend: Backend::None,
            connecting: Connecting::default(),
            namespace: "tidegate".to_owned(),
            key_mode: KeyMode::default(),
            deadline: Duration::from_millis(100),
            debt_cap: 10,
            on_failure: OnFailure::default(),
            clock: Clock::System,
            max_keys: 100_000,
            observer: None,
            stderr_warnings: true,
            batching: true,
            deny_cache: Duration::from_millis(500),
            instances: None,
            breaker: true,
            overrides: true,
            figures: false,
            permit_ttl: Duration::from_secs(10),
            operator_deadline: Duration::from_secs(5),
            reservation_secrets: Vec::new(),
            #[cfg(feature = "regions")]
            regions: regions::Regions::default(),
        }
    }
}

impl Builder {
    /// Uses this process's memory as the store: see [`Limiter::in_memory`].
    pub fn in_memory(mut self) -> Self {
        self.backend = Backend::Memory;
        self
    }

    pub(crate) fn stub(mut self, stub: Stub) -> Self {
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

    /// Sets the longest time that a decision may take, including all waiting. Above zero: with a deadline of
    /// zero, Redis could decide no check.
    ///
    /// Default: 100 ms.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the longest time that a call for an operator may take: those of [`Control`](crate::Control),
    /// [`Limiter::health`] and the inspector of the feature `admin`. They matter most while Redis is slow, and no request
    /// waits for them. Above zero.
    ///
    /// Default: 5 s.
    pub fn operator_deadline(mut self, deadline: Duration) -> Self {
        self.operator_deadline = deadline;
        self
    }

    /// Sets the most debt of a key that [units used](crate::Gate::charge_used) may leave, in limits of their quota: with
    /// 10, at most 11 limits are used afterwards. So one wrong report of usage does not deny a key for good. With 0, there
    /// is no debt. What is cut off is [reported](crate::Event::DebtCapped).
    ///
    /// Applies also where more units than reserved by [`Gate::reserve`](crate::Gate::reserve) are committed. Not to holds of
    /// [`Limiter::reserve`], nor to [`Gate::penalize`](crate::Gate::penalize).
    ///
    /// Default: 10.
    pub fn debt_cap(mut self, limits: u64) -> Self {
        self.debt_cap = limits;
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

    /// Sets how many processes share the quotas, 1 to 65,535. Each process computes its share from this number
    /// while Redis does not answer: [`OnFailure::Local`].
    ///
    /// Default: the processes count themselves, in a key of the namespace, every 5 s. A process that starts
    /// while Redis is unavailable counts only itself, and so takes the whole quota as its share.
    pub fn instances(mut self, instances: u64) -> Self {
        self.instances = Some(instances);
        self
    }

    /// Enables following the operators' overrides for the whole fleet: [`Control`](crate::Control). The
    /// process reads them twice a second from its first check on. After ten seconds without a check it stops, and its
    /// next check waits for a reading, as a part of its deadline.
    ///
    /// Default: true.
    pub fn follow_overrides(mut self, follow: bool) -> Self {
        self.overrides = follow;
        self
    }

    /// Enables publishing the figures of this process for the fleet's console: per gate, the decisions by outcome and
    /// source, and errors; latencies; and a record with the version and the state of the circuit breaker.
    ///
    /// The process publishes them every 5 s while there is anything to report, in one call, and when it is
    /// [shut down](Limiter::shutdown). In a fleet of more than 150 instances, every 10 s. Redis keeps them for an hour. No
    /// key of a check is published, and a failure changes no decision. A limiter in memory has no fleet: it keeps its figures
    /// for its own console, from the first `Inspector::in_memory` (feature `admin`) on.
    ///
    /// Default: false. `tidegate serve` enables it.
    pub fn publish_figures(mut self, publish: bool) -> Self {
        self.figures = publish;
        self
    }

    /// Sets the maximum number of keys that an in-memory limiter keeps, or that the fallback of a Redis
    /// limiter keeps while Redis does not answer. Beyond it, the least recently used keys are evicted and
    /// count as unused. Counts of denials for [bans](crate::Gate::ban) are further keys, of which an in-memory
    /// limiter keeps the same number; it evicts the smallest counts first.
    ///
    /// Blocked keys, and then keys that have used at least half of their limit, are evicted last: no such key
    /// is evicted while they are at most a quarter of `keys`. Beyond that, the shortest blocks and the least
    /// used keys are evicted first. So a client cannot free its own key by checks of many other keys, unless
    /// it uses half the limits of a quarter of `keys`. Any other key stays until a quarter of `keys` other
    /// keys were used since its last use. The fallback divides its keys among 16 parts, so its bounds hold
    /// approximately.
    ///
    /// Does not bound the keys of in-flight limits of which this process holds units, or waits for some. They are at most
    /// 1,048,576: see [`Gate::acquire`](crate::Gate::acquire). An in-memory limiter evicts keys with units in flight last.
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

    pub(crate) fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Signs the [tokens](crate::Token) of reservations with this secret of at least 16 bytes (32 random ones), and makes
    /// every settle reject a token without its signature. For tokens that pass through clients or other services,
    /// which could otherwise settle for keys of their choice. Every instance needs the same secret.
    ///
    /// To replace a secret, call this again with the old one: the first secret signs, all are accepted.
    /// Signatures are HMAC-SHA-256, cut to 128 bits, and also cover the namespace.
    ///
    /// Default: none. Then tokens are not signed, and those of an instance with a secret are accepted.
    pub fn reservation_secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.reservation_secrets.push(secret.into());
        self
    }

    /// Sets the observer of the limiter's events; combine several as a pair.
    ///
    /// Default: none.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Enables one line on standard error for each [warning](crate::Warning) that neither a `tracing` subscriber nor
    /// an [`observer`](Self::observer) [reports](Observer::reports_warnings): a wrong Redis address, for example, would
    /// otherwise show only as limits that are not shared.
    ///
    /// Default: true.
    pub fn stderr_warnings(mut self, enabled: bool) -> Self {
        self.stderr_warnings = enabled;
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
}

impl Builder {
    /// Builds the limiter. Does not connect yet, except to the Redis of each region, in the background.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if no store was chosen, or if a URL, namespace, secret, deadline, number of
    /// instances, region or time to live of permits is invalid. The error shows no password of a URL.
    pub fn build(self) -> Result<Limiter, Error> {
        check_deadline("deadline", self.deadline)?;
        check_deadline("operator_deadline", self.operator_deadline)?;
        if self.instances.is_some_and(|instances| !(1..=MAX_INSTANCES).contains(&instances)) {
            return Err(Error::config(format!("`instances` must be 1 to {MAX_INSTANCES} processes")));
        }
        check_ttl(self.permit_ttl)?;
        let events = EventSink::new(trace::with_events(self.observer));
        let warnings = WarningSink::new(events.clone(), self.stderr_warnings, self.clock.clone());
        let is_cluster = self.backend.is_cluster();
        let keyspace = Keyspace::new(&self.namespace, self.key_mode)?.spread_over_a_cluster(is_cluster);
        let background = Arc::new(match self.clock {
            Clock::System => Background::default(),
            Clock::Manual(_) => Background::on_callers_runtime(),
        });
        #[cfg(feature = "regions")]
        let peers = self.regions.servers(&self.connecting)?;
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
            Backend::Stub(stub) => Store::Stub(stub),
        };
        #[cfg(feature = "regions")]
        let replicator = {
            let own = store.connection().cloned();
            self.regions.start(own, peers, &keyspace, &background, events.clone(), &warnings)?
        };
        let settings = LimiterSettings {
            #[cfg(feature = "regions")]
            replicator,
            background,
            keyspace,
            deadline: self.deadline,
            debt_cap: self.debt_cap,
            on_failure: self.on_failure,
            events: events.clone(),
            warnings,
            clock: self.clock.clone(),
            max_keys: self.max_keys,
            instances: self.instances,
            breaker: self.breaker,
            overrides: self.overrides,
            figures: self.figures,
            permit_ttl: self.permit_ttl,
            operator_deadline: self.operator_deadline,
            secrets: Secrets::new(&self.namespace, self.reservation_secrets)?,
        };
        let is_redis = matches!(store, Store::Redis(_));
        self.clock.warm_up();
        let store = Arc::new(store);
        let together = match is_redis && self.batching {
            false => Together::Nothing,
            true if is_cluster => Together::EachHashTag,
            true => Together::All,
        };
        let batch = Batch::new(store.clone(), self.clock.clone(), events, self.deadline, together);
        let remembers = is_redis && !self.deny_cache.is_zero();
        let deny_cache = remembers.then(|| DenyCache::new(self.clock, self.deny_cache));
        let pipeline = Pipeline::new(store, batch, deny_cache, settings)?;
        Ok(Limiter { pipeline: Arc::new(pipeline) })
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

// Several settings at once.

/// # Presets
impl Builder {
    /// Makes Redis decide each check by itself: a check gets the reply of Redis, or an error. Sets
    ///
    /// | setting | without it |
    /// | --- | --- |
    /// | [`on_failure`](Self::on_failure)`(OnFailure::Error)` | this process decides while Redis does not answer |
    /// | [`deny_cache`](Self::deny_cache)`(Duration::ZERO)` | this process repeats denials for up to 500 ms |
    /// | [`breaker`](Self::breaker)`(false)` | checks get an error without a call after several unanswered ones |
    /// | [`follow_overrides`](Self::follow_overrides)`(false)` | an operator's switch decides without a call |
    /// | [`instances`](Self::instances)`(1)` | heartbeats write the number of processes, which only a fallback needs |
    ///
    /// Later calls of these methods replace a setting. Gates keep what they set themselves:
    /// [`Gate::on_failure`](crate::Gate::on_failure), [`Gate::leased`](crate::Gate::leased) and
    /// [`Gate::shadow`](crate::Gate::shadow). A gate with [`OnFailure::Local`] would take its whole quota in each
    /// process: set [`instances`](Self::instances) for it. [Batching](Self::batching) stays on, since Redis decides every
    /// check of a batch.
    ///
    /// While Redis does not answer, each check waits for its deadline.
    ///
    /// ```
    /// # fn main() -> Result<(), tidegate::Error> {
    /// let limiter = tidegate::Limiter::builder().url("redis://127.0.0.1:6379").strict().build()?;
    /// # Ok(()) }
    /// ```
    pub fn strict(self) -> Self {
        self.on_failure(OnFailure::Error)
            .deny_cache(Duration::ZERO)
            .breaker(false)
            .follow_overrides(false)
            .instances(1)
    }
}

// Settings of the permits of in-flight limits.

/// # Permits of in-flight limits
impl Builder {
    /// Sets the time to live of this process's [permits](crate::Permit), in whole milliseconds: 1 to 60 s. If
    /// the process ends or is stopped, the store counts its permits for at most this long. A running process
    /// sends a heartbeat after each third of it.
    ///
    /// A shorter time frees the units of a lost process sooner. A longer time survives longer interruptions of
    /// the process, of Redis and of the network. Processes may have different values.
    ///
    /// Default: 10 s.
    pub fn permit_ttl(mut self, ttl: Duration) -> Self {
        self.permit_ttl = ttl;
        self
    }
}
