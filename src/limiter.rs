//! The limiter: one store, and the settings that its gates share.

mod builder;
mod check_all;
mod core;

use std::sync::Arc;

pub use self::builder::{Builder, Stub};
#[cfg(feature = "rules")]
pub(crate) use self::core::CLOSED_RETRY_US;
pub(crate) use self::core::Core;
use crate::check::Check;
use crate::clock::{Clock, ManualClock};
use crate::control::Control;
use crate::decision::AllDecision;
use crate::error::Error;
use crate::gate::Gate;
use crate::health::Health;
use crate::quota::Quota;

/// The failure policy: the result of a check that Redis does not answer in time.
///
/// Default: [`OnFailure::Local`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// This process decides alone, within its share of the quota. Of I [instances](Builder::instances), each
    /// has an I-th of the capacity and of the rate, or an I-th of the window's limit, rounded up.
    /// [`source`](crate::Decision::source) is `local`.
    ///
    /// It starts from the last known state, and charges Redis afterwards for the units that it admitted. So a
    /// fleet admits at most I shares more than the quota for each outage: about one limit.
    ///
    /// A cost above the share is denied, since only Redis can admit it. Its
    /// [`retry_after`](crate::Decision::retry_after) is when the whole quota would have room for it if every
    /// process had used as large a part of its share, and at least one second: Redis is probed that often.
    #[default]
    Local,
    /// Returns the error. The caller decides.
    Error,
    /// Admits the check; [`source`](crate::Decision::source) is `open`.
    Open,
    /// Denies the check, with a retry time of one second; `source` is `closed`.
    Closed,
}

/// Rate limits over one store. Cheap to clone; clones share everything.
///
/// # Runtimes
///
/// The connection is made when first needed and shared by all callers. It lives on a multi-thread tokio
/// runtime of the callers, where a round trip costs no switch of threads. If they have none, it lives on a
/// background thread of the limiter. When a multi-thread runtime ends or all its workers are blocked, the
/// connection counts as lost: after the [deadline](Builder::deadline) if it was in use, after 1.25 s if it
/// was being made. The next call reconnects. Checks that waited for it get the failure policy.
///
/// The background thread starts with the first check and ends with the limiter. It probes an unavailable
/// Redis, follows operators' overrides, sends heartbeats, keeps [leases](crate::Gate::leased), and charges
/// Redis for units admitted during an outage. So a process may use several runtimes, one for each call, or
/// one that is polled only inside `block_on`: at most 2 s after Redis is back or an operator's change, all
/// decisions follow it. A multi-thread runtime that lives as long as the process is the fastest choice. An
/// [observer](Builder::observer) that blocks holds up the background thread.
#[derive(Clone, Debug)]
pub struct Limiter {
    pub(crate) core: Arc<Core>,
}

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

/// # Using a limiter
impl Limiter {
    /// Returns a gate: a named quota, which a service keeps and calls. Gates with the same name and algorithm
    /// share their counts in all processes of the namespace, even if their limits differ.
    ///
    /// Does not fail. If the name does not match `[a-z0-9_.-]{1,64}`, every check of the gate returns an
    /// error. [`try_gate`](Self::try_gate) returns that error here.
    #[must_use]
    pub fn gate(&self, name: &str, quota: Quota) -> Gate {
        Gate::new(&self.core, name, quota)
    }

    /// Returns a [`gate`](Self::gate) whose name is known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the name is not `[a-z0-9_.-]{1,64}`.
    pub fn try_gate(&self, name: &str, quota: Quota) -> Result<Gate, Error> {
        let gate = self.gate(name, quota);
        gate.info().map(|_| gate.clone())
    }

    /// Decides several checks in one atomic step: all are admitted and charged, or none is. Two checks of the
    /// same key and gate count as one check with the sum of their costs.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let limiter = Limiter::in_memory();
    /// let user = limiter.gate("posts.user", Quota::token_bucket(1, Rate::per_second(1)));
    /// let all = limiter.gate("posts.all", Quota::token_bucket(10_000, Rate::per_second(10_000)));
    ///
    /// let decision = limiter.check_all([user.key("user:42"), all.key("")]).await?;
    /// assert!(decision.is_allowed());
    /// let decision = limiter.check_all([user.key("user:42"), all.key("")]).await?;
    /// assert_eq!(decision.binding().gate(), "posts.user");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Gate::check`]; [`Error::is_config`] if there is no check or more than 128, if a gate belongs to
    /// another limiter, if two gates of one name have different quotas, or if keys are in different slots of
    /// a Redis Cluster ([`Check::colocate_with`]).
    pub async fn check_all(&self, checks: impl IntoIterator<Item = Check>) -> Result<AllDecision, Error> {
        self.core.check_all(checks.into_iter().collect()).await
    }

    /// Returns the operators' interface: a gate's switch and a key's quota, for all processes of the
    /// namespace.
    #[must_use]
    pub fn control(&self) -> Control {
        Control::new(&self.core)
    }

    /// Tests Redis once with a peek: it responds, accepts the credentials, and permits scripts and reads.
    /// Writes nothing, so it cannot detect that Redis would reject a charge.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if the peek fails.
    pub async fn ready(&self) -> Result<(), Error> {
        self.core.ready().await
    }

    /// Returns the state of the circuit breaker, the number of processes, the server's version, and warnings:
    /// an eviction policy, permissions that the Redis user lacks.
    ///
    /// Sends INFO (permission `+info`) and a script, also while the breaker is open. Waits for the deadline
    /// at most.
    pub async fn health(&self) -> Health {
        self.core.health().await
    }

    /// Gives leases back, charges Redis for units admitted during an outage, then closes the connection.
    /// Takes at most 6 s, and about 1 s if Redis does not answer; units that could not be charged are
    /// reported to the [observer](Builder::observer) as a failure of their gate. Checks in flight get their
    /// answer or an error. Later checks get an error ([`Error::is_shut_down`]), regardless of [`OnFailure`].
    pub async fn shutdown(&self) {
        self.core.shutdown().await;
    }
}
