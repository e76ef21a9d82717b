//! Acquiring permits of in-flight limits.

#[cfg(doctest)]
mod refused_lines;

use std::borrow::Borrow;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::decision::{AllDecision, Decision};
use crate::error::Error;
use crate::in_flight::adaptive::Adaptive;
use crate::in_flight::{OnLapse, Permit, Permits};
use crate::key::as_key::AsKey;
use crate::limiter::Limiter;
use crate::limiter::check::Check;
use crate::limiter::gate::Gate;

/// # Permits of an in-flight limit
impl Gate {
    /// Acquires one unit for this key, which is held until the [`Permit`] is released or dropped. Decides once;
    /// with [`max_wait`](Acquire::max_wait), waits for units. Await it, or set options first. [`Acquired`] shows
    /// how to keep the permit while the work runs.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Acquired, Limiter, Quota};
    ///
    /// let exports = Limiter::in_memory().gate("exports", Quota::in_flight(2));
    /// match exports.acquire("tenant:7").cost(2).await? {
    ///     Acquired::Admitted(permit, decision) => {
    ///         assert_eq!(decision.remaining(), 0);
    ///         // … the work
    ///         permit.release().await?;
    ///     }
    ///     Acquired::Denied(decision) => println!("try again in {:?}", decision.retry_after()),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// When awaited:
    ///
    /// - [`Error::is_config`] if the gate has no in-flight limit, its name is invalid, or the cost is 0
    /// - [`Error::is_over_capacity`] if the cost is above the limit, and the gate is not in
    ///   [shadow mode](Gate::shadow)
    /// - [`Error::is_unavailable`] (and [`Error::is_timeout`]) if Redis did not answer in time and
    ///   [`OnFailure::Error`](crate::OnFailure::Error) is chosen. Also if 65,536 callers of this process wait for
    ///   the key, or it holds or waits for units of 1,048,576 keys: then `Open` admits without counting the units,
    ///   `Closed` denies, and `Local` is an error as well, since the process cannot count its share
    /// - [`Error::is_corrupt_state`] if the key holds something else in Redis
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any point. Units that were admitted meanwhile go to another caller or are
    /// released.
    pub fn acquire(&self, key: impl AsKey) -> Acquire {
        self.key(key).acquire()
    }

    /// Acquires one unit for this key, and waits for it for at most `max_wait`: the same as
    /// [`acquire(key)`](Self::acquire)[`.max_wait(max_wait)`](Acquire::max_wait).
    pub fn acquire_timeout(&self, key: impl AsKey, max_wait: Duration) -> Acquire {
        self.acquire(key).max_wait(max_wait)
    }

    /// Acquires one unit for this key if it is admitted now: the same as [`acquire(key)`](Self::acquire) without
    /// options.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self, key: impl AsKey) -> Result<Acquired, Error> {
        self.acquire(key).await
    }

    /// Sets what happens to the permits of this gate if the lease of this process lapses.
    ///
    /// Default: [`OnLapse::Restore`].
    #[must_use]
    pub fn on_lapse(mut self, on_lapse: OnLapse) -> Self {
        self.spec_mut().on_lapse = on_lapse;
        self
    }

    /// Makes the in-flight limit follow the latency of the operations, from the admission of a permit to its
    /// release: the limit shrinks when operations begin to queue, and grows while it is used and they do not. The
    /// quota stays the highest limit.
    ///
    /// Each key has its own adaptive limit, which all processes share over Redis; with
    /// [`Limiter::in_memory`](crate::Limiter::in_memory) it is that of this process. An acquire that costs more
    /// than the adaptive limit, and not more than the quota, is admitted when no units are held. Of an acquire
    /// with [`at_most`](Check::at_most), that number is lowered in proportion.
    ///
    /// [`Permit::overloaded`] marks operations that the service rejected; [`Permit::disregard`] excludes those
    /// whose time says nothing. Has no effect in [shadow mode](Gate::shadow), which keeps no operation back. If
    /// the gate has no in-flight limit, or a setting is out of range, every acquire is an error
    /// ([`Error::is_config`]).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Acquired, Adaptive, Limiter, Quota};
    ///
    /// let limiter = Limiter::in_memory();
    /// let payments = limiter.gate("payments", Quota::in_flight(400)).adaptive(Adaptive::new().min(20));
    /// if let Acquired::Admitted(_permit, decision) = payments.acquire("provider").await? {
    ///     assert_eq!(decision.limit(), 20); // grows while it is used
    /// }
    /// assert_eq!(payments.adaptive_limit("provider"), Some(20));
    /// # Ok(()) }
    /// ```
    ///
    /// Default: not.
    #[must_use]
    pub fn adaptive(mut self, adaptive: Adaptive) -> Self {
        let checked = self.info().and_then(|info| match info.quota.is_in_flight() {
            true => adaptive.check(),
            false => Err(Error::config("only an in-flight limit can be adaptive: use `Quota::in_flight`")),
        });
        match checked {
            Ok(()) => self.spec_mut().adaptive = Some(adaptive),
            Err(error) => self.spec_mut().info = Err(error),
        }
        self
    }

    /// Returns the [adaptive](Self::adaptive) limit of a key as this process knows it: it may be a window old.
    /// `None` if the limit is not adaptive, or if this process has not acquired the key recently. Makes no call.
    #[must_use]
    pub fn adaptive_limit(&self, key: impl AsKey) -> Option<u64> {
        self.pipeline.adaptive_limit(&self.spec, &key.as_key())
    }
}

impl Check {
    /// Acquires the units of this check: see [`Gate::acquire`]. [`max_delay`](Self::max_delay) has no effect.
    pub fn acquire(self) -> Acquire {
        Acquire { check: self, max_wait: Duration::ZERO }
    }
}

/// An acquire with its options, made by [`Gate::acquire`]. Awaiting it returns [`Acquired`].
#[must_use = "nothing is acquired until it is awaited"]
#[derive(Clone, Debug)]
pub struct Acquire {
    check: Check,
    max_wait: Duration,
}

impl Acquire {
    /// Sets the units to acquire, all or nothing.
    ///
    /// Default: 1.
    pub fn cost(self, units: u64) -> Self {
        Self { check: self.check.cost(units), ..self }
    }

    /// Sets how long to wait for units. Callers of one process that wait for one key are admitted in order of
    /// arrival. Between processes, the first acquire after a release is admitted. An acquire in
    /// [shadow mode](Gate::shadow) does not wait.
    ///
    /// Default: zero, which decides once.
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Sets the time limit of the first decision, and of each later message. With a deadline of zero, the
    /// acquire is an error ([`Error::is_config`]).
    ///
    /// Default: the limiter's.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { check: self.check.deadline(deadline), ..self }
    }

    /// Stores the key in the Redis Cluster slot of another key: see [`Check::colocate_with`].
    ///
    /// Default: the key's own slot.
    pub fn colocate_with(self, key: impl AsKey) -> Self {
        Self { check: self.check.colocate_with(key), ..self }
    }

    async fn run(self) -> Result<Acquired, Error> {
        self.check.validate()?;
        let Check { pipeline, request } = &self.check;
        let (decision, permit) = pipeline.acquire(request, self.max_wait).await?;
        Ok(Acquired::new(permit, decision))
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Acquired, Error>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// The result of an acquire: the decision, and the permit if the units were admitted. `P` and `D` are
/// [`Permits`] and [`AllDecision`] for an [`acquire_all`](Limiter::acquire_all).
///
/// Dropping the permit releases its units, so bind it to a name that lives as long as the work:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// # async fn work() {}
/// use tidegate::{Acquired, Limiter, Quota};
///
/// let jobs = Limiter::in_memory().gate("jobs", Quota::in_flight(2));
/// let Acquired::Admitted(_permit, _) = jobs.acquire("tenant:7").await? else {
///     return Ok(()); // denied: the limit is in use
/// };
/// work().await; // the permit lives until the end of this block
/// # Ok(()) }
/// ```
///
/// It has no method that tells whether the units were admitted: in `if jobs.acquire(key).await?.…() { work() }`, the
/// permit would be dropped before the work begins. The compiler refuses that line, a result that is not used, and a
/// permit that is used after its release. It cannot refuse these, which also drop the permit at once:
///
/// - `let _ = jobs.acquire(key).await?;`
/// - `matches!(jobs.acquire(key).await?, Acquired::Admitted(..))`
/// - `let Acquired::Admitted(_, decision) = jobs.acquire(key).await? else { … };`
#[must_use = "dropping a permit releases its units: bind it to a name while the work runs"]
#[derive(Debug)]
pub enum Acquired<P = Permit, D = Decision> {
    /// The units were admitted, and are held until the permit is released or dropped.
    Admitted(P, D),
    /// The units were denied: nothing is held.
    ///
    /// Limit and remaining of a decision count units that are held at the same time. Its
    /// [`retry_after`](Decision::retry_after) is a hint, since nobody knows when a unit is released.
    Denied(D),
}

impl<P, D> Acquired<P, D> {
    fn new(permit: Option<P>, decision: D) -> Self {
        match permit {
            Some(permit) => Self::Admitted(permit, decision),
            None => Self::Denied(decision),
        }
    }
}

/// # Several gates in one step
impl Limiter {
    /// Acquires permits and charges rate limits in one atomic step: all are admitted, or none is. As
    /// [`check_all`](Self::check_all), for gates of which some have an in-flight limit.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Acquired, Limiter, Quota, Rate};
    ///
    /// let limiter = Limiter::in_memory();
    /// let calls = limiter.gate("calls", Quota::token_bucket(100, Rate::per_minute(100)));
    /// let exports = limiter.gate("exports", Quota::in_flight(1));
    /// let checks = [calls.key("tenant:7"), exports.key("tenant:7")];
    /// if let Acquired::Admitted(permits, _) = limiter.acquire_all(&checks).await? {
    ///     if let Acquired::Denied(decision) = limiter.acquire_all(&checks).await? {
    ///         assert_eq!(decision.binding().gate(), "exports");
    ///     }
    ///     permits.release().await?;
    /// }
    /// assert_eq!(calls.peek("tenant:7").await?.remaining(), 99);
    /// # Ok(()) }
    /// ```
    ///
    /// While callers of this process wait for units of one of the keys, the group is denied: it overtakes no
    /// caller.
    ///
    /// # Errors
    ///
    /// As [`check_all`](Self::check_all) and [`Gate::acquire`]. Also [`Error::is_config`] for a gate with a
    /// [ban](Gate::ban) together with an in-flight limit: its denials would not be counted.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any point. Units that were admitted meanwhile are released; charges of
    /// rate limits stay.
    pub async fn acquire_all<C: Borrow<Check>>(
        &self,
        checks: impl IntoIterator<Item = C>,
    ) -> Result<Acquired<Permits, AllDecision>, Error> {
        self.acquire_all_timeout(checks, Duration::ZERO).await
    }

    /// Does the same as [`acquire_all`](Self::acquire_all), and repeats it until it is admitted, for at most
    /// `max_wait`. Returns a denial at once if the wait would be longer.
    ///
    /// # Errors
    ///
    /// As [`acquire_all`](Self::acquire_all).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire_all`](Self::acquire_all).
    pub async fn acquire_all_timeout<C: Borrow<Check>>(
        &self,
        checks: impl IntoIterator<Item = C>,
        max_wait: Duration,
    ) -> Result<Acquired<Permits, AllDecision>, Error> {
        let checks: Vec<C> = checks.into_iter().collect();
        let requests = self.requests(&checks)?.into_iter().map(|request| request.into_owned()).collect();
        let (decision, permits) = Arc::clone(&self.pipeline).acquire_all(requests, max_wait).await?;
        Ok(Acquired::new(permits, decision))
    }
}
