//! The limiter: one store, and the settings that its gates share.

mod builder;
mod check_all;
mod core;

use std::sync::Arc;

pub use self::builder::{Builder, Double};
#[cfg(feature = "rules")]
pub(crate) use self::core::CLOSED_RETRY_US;
pub(crate) use self::core::Core;
use crate::ask::Ask;
use crate::clock::{Clock, ManualClock};
use crate::control::Control;
use crate::decision::AllDecision;
use crate::error::Error;
use crate::gate::Gate;
use crate::health::Health;
use crate::quota::Quota;

/// What an ask gets when Redis cannot answer it in time.
///
/// Default: [`OnFailure::Local`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// This process decides by itself, within its share of the quota. Of I [instances](Builder::instances),
    /// each has an I-th of the capacity and of the rate, or an I-th of the window's limit, rounded up.
    /// [`source`](crate::Decision::source) is `local`.
    ///
    /// It starts from the last known state, and charges Redis afterwards for what it admitted. So a fleet
    /// admits at most I shares more than the quota for each outage: about one limit.
    ///
    /// A cost above the share is denied, since only Redis can admit it. Its
    /// [`retry_after`](crate::Decision::retry_after) is when the whole quota would have room for it if
    /// every process had used as large a part of its share, and at least a second: Redis is probed that
    /// often.
    #[default]
    Local,
    /// The error. The caller decides what that means.
    Error,
    /// Passes; [`source`](crate::Decision::source) says `open`.
    Open,
    /// Is denied, to be tried again after a second; `source` says `closed`.
    Closed,
}

/// Rate limits over one store. Cheap to clone; clones share everything.
///
/// # Runtimes
///
/// The connection is made when first needed and shared by all callers. It lives on a multi-thread tokio
/// runtime of the callers, where a round trip costs no switch of threads. If they have none, it lives
/// on a background thread of the limiter. When a multi-thread runtime ends or all its workers are
/// blocked, the connection counts as lost: after the [deadline](Builder::deadline) if it was in use,
/// after 1.25 s if it was being made. The next call makes a new one. Checks that waited for it get the
/// failure policy.
///
/// The background thread starts with the first check and ends with the limiter. It probes a Redis that
/// was away, follows what operators set, sends heartbeats, keeps [leases](crate::Gate::leased), and
/// charges what was admitted during an outage. So a process may use several runtimes, one for each
/// call, or one that is polled only inside `block_on`: at most 2 s after Redis is back or an operator's
/// change, all decisions follow it. A multi-thread runtime that lives as long as the process is the
/// fastest choice. An [observer](Builder::observer) that blocks holds up the background thread.
#[derive(Clone, Debug)]
pub struct Limiter {
    pub(crate) core: Arc<Core>,
}

/// # Opening one
impl Limiter {
    /// A limiter on the Redis at `url`, such as `redis://127.0.0.1:6379` or
    /// `redis://user:password@host:6379/0`. Does not connect yet, and never
    /// fails because Redis is down; [`ready`](Self::ready) asks.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the URL cannot be understood.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// A limiter on the Redis of a pool that the service already has. One
    /// connection is taken out of it for good, when first needed.
    #[must_use]
    pub fn from_pool(pool: deadpool_redis::Pool) -> Self {
        Self::expect_defaults(Self::builder().pool(pool))
    }

    /// A limiter in this process's memory: the same semantics, nothing shared
    /// with other processes, nothing to install. Holds up to 100,000 keys.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::expect_defaults(Self::builder().in_memory())
    }

    /// [`in_memory`](Self::in_memory) with a clock that a test moves.
    #[must_use]
    pub fn in_memory_with(clock: ManualClock) -> Self {
        Self::expect_defaults(Self::builder().in_memory().clock(Clock::Manual(clock)))
    }

    /// A limiter that gives every ask the same answer, for tests of the code
    /// around it.
    #[must_use]
    pub fn double(double: Double) -> Self {
        Self::expect_defaults(Self::builder().double(double))
    }

    /// All settings.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn expect_defaults(builder: Builder) -> Self {
        #[expect(clippy::expect_used, reason = "only settings of the user's can be wrong")]
        builder.build().expect("the defaults are right")
    }
}

/// # Using it
impl Limiter {
    /// A gate: a named quota, which a service keeps and asks. Gates of one name
    /// and algorithm share their counts, in this process and in all others of
    /// the namespace, also where their limits differ.
    ///
    /// Never fails: with a name that is not `[a-z0-9_.-]{1,64}`, every ask to
    /// the gate is an error that says so. [`try_gate`](Self::try_gate) says it
    /// here.
    #[must_use]
    pub fn gate(&self, name: &str, quota: Quota) -> Gate {
        Gate::new(&self.core, name, quota)
    }

    /// [`gate`](Self::gate), for names known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the name is not `[a-z0-9_.-]{1,64}`.
    pub fn try_gate(&self, name: &str, quota: Quota) -> Result<Gate, Error> {
        let gate = self.gate(name, quota);
        gate.info().map(|_| gate.clone())
    }

    /// Decides several asks in one atomic step: all are admitted and charged, or
    /// none is. One key of one gate asked twice counts as one ask of both costs.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let limiter = Limiter::in_memory();
    /// let user = limiter.gate("posts.user", Quota::token_bucket(1, Rate::per_second(1)));
    /// let all = limiter.gate("posts.all", Quota::token_bucket(10_000, Rate::per_second(10_000)));
    ///
    /// let decision = limiter.check_all([user.ask("user:42"), all.ask("")]).await?;
    /// assert!(decision.is_allowed());
    /// let decision = limiter.check_all([user.ask("user:42"), all.ask("")]).await?;
    /// assert_eq!(decision.binding().gate(), "posts.user");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Gate::check`]; [`Error::is_config`] if there is no ask or more than
    /// 128, if a gate is another limiter's, if two gates of one name have
    /// different quotas, or if keys lie in different slots of a Redis Cluster
    /// ([`Ask::beside`]).
    pub async fn check_all(&self, asks: impl IntoIterator<Item = Ask>) -> Result<AllDecision, Error> {
        self.core.check_all(asks.into_iter().collect()).await
    }

    /// What operators set for all processes of the namespace at once: a gate's switch, a key's quota.
    #[must_use]
    pub fn control(&self) -> Control {
        Control::new(&self.core)
    }

    /// Asks Redis once, with a peek: that it is there, knows our credentials and
    /// lets us run scripts and read. Writes nothing, so it cannot tell whether
    /// Redis would take a charge.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if not.
    pub async fn ready(&self) -> Result<(), Error> {
        self.core.ready().await
    }

    /// How it is: the circuit breaker, the number of processes, the server's version, and what to
    /// warn of: an eviction policy, rights that its user lacks. Asks Redis with INFO (which its
    /// user must be allowed: `+info`) and a script, also while the breaker is open; waits for the
    /// deadline at most.
    pub async fn health(&self) -> Health {
        self.core.health().await
    }

    /// Gives back what is leased, charges Redis for what was admitted during an outage, then closes
    /// the connection. Takes at most 6 s, and about 1 s where Redis does not answer; units that could
    /// not be charged are reported to the [observer](Builder::observer) as a failure of their gate.
    /// Checks in flight get their answer or an error. Later ones get an error
    /// ([`Error::is_shut_down`]), whatever [`OnFailure`] says.
    pub async fn shutdown(&self) {
        self.core.shutdown().await;
    }
}
