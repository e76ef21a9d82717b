//! One check with its options, decided alone or together with others.

mod until_allowed;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::decision::Decision;
use crate::error::Error;
use crate::error::redact::RedactedKey;
use crate::key::as_key::AsKey;
use crate::pipeline::request::{Request, check_deadline};
use crate::pipeline::{Pipeline, charged_units};
use crate::quota::Quota;

/// One check of a gate: a key, a cost, and options. Made by [`Gate::key`](crate::Gate::key).
///
/// | call | does |
/// | --- | --- |
/// | [`check`](Check::check) | decides it |
/// | [`decide`](Check::decide) | decides it, and leaves it to the caller |
/// | [`peek`](Check::peek) | returns the decision that it would get |
/// | [`reserve`](Check::reserve) | takes units whose final number is known later |
/// | [`until_allowed`](Check::until_allowed) | waits until it is admitted |
/// | [`take_up_to`](Check::take_up_to) | takes as many such checks as are available |
/// | [`Limiter::check_all`](crate::Limiter::check_all) | decides several, all or none |
/// | [`Limiter::check_each`](crate::Limiter::check_each) | decides several, independently of each other |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use std::time::Duration;
/// use tidegate::{Limiter, Quota, Rate};
///
/// let api = Limiter::in_memory().gate("api", Quota::token_bucket(10, Rate::per_second(10)));
/// let export = api.key("user:42").cost(4).deadline(Duration::from_millis(20));
/// assert_eq!(export.clone().check().await?.remaining(), 6);
/// export.clone().reserve().await?.cancel().await?;
/// assert!(export.clone().peek().await?.is_allowed());
/// assert!(export.until_allowed(Duration::from_secs(1)).await?.is_allowed());
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// The future of each call can be dropped at any point. A check that was already sent may then have been
/// charged.
#[must_use = "a check is not made until `check` is called or it is passed to `check_all`"]
#[derive(Clone)]
pub struct Check {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) request: Request<'static>,
}

impl Check {
    pub(crate) fn new(pipeline: &Arc<Pipeline>, request: Request<'static>) -> Self {
        Self { pipeline: pipeline.clone(), request }
    }

    /// Replaces the gate's settings by those that decide this key now: an operator's
    /// [override](crate::Control::set_override), if there is one. A later refund then reaches the state that
    /// was charged, also if the override has ended.
    pub fn effective(mut self) -> Self {
        self.apply_overrides();
        self
    }

    /// Does the same as [`effective`](Self::effective) for several checks of one limiter. If this process made no check
    /// for ten seconds, waits for a new reading of the overrides, which is a part of the [deadline](Self::deadline).
    pub async fn follow(checks: &mut [Self]) {
        let Some(first) = checks.first() else { return };
        if first.pipeline.needs_following() {
            let pipeline = first.pipeline.clone();
            let own = checks.iter().filter_map(|check| check.request.deadline).min();
            // Boxed, so that the future of each request is small.
            let left = Box::pin(pipeline.follow_within(own)).await;
            if left != own {
                checks.iter_mut().for_each(|check| check.request.deadline = left);
            }
        }
        checks.iter_mut().for_each(Self::apply_overrides);
    }

    fn apply_overrides(&mut self) {
        if let Cow::Owned(gate) = self.pipeline.effective(&self.request.gate, &self.request.key) {
            self.request.gate = Cow::Owned(gate);
        }
    }

    /// Sets the units that the check consumes. 0 makes it a peek, which charges nothing and never denies
    /// others.
    ///
    /// Default: 1.
    pub const fn cost(mut self, units: u64) -> Self {
        self.request.cost = units;
        self
    }

    /// Sets the longest [`delay`](Decision::delay) that the caller accepts at a leaky bucket. A check that
    /// would wait longer is denied and takes no place in the queue. Other algorithms have no delay.
    ///
    /// Default: any.
    pub const fn max_delay(mut self, delay: Duration) -> Self {
        self.request.max_delay = Some(delay);
        self
    }

    /// Restricts the acquire to a part of an [in-flight limit](Quota::in_flight): it is admitted only if at most
    /// `units` are held afterwards. The limit itself, which other acquires of the key use, does not change. Decisions
    /// report the lower number. Checks of rates are not restricted. Of an [adaptive](crate::Gate::adaptive) limit, the
    /// same part is used.
    ///
    /// Reserves slots for critical work. A restricted acquire should not [wait](crate::Acquire::max_wait): acquires
    /// of one process that wait for a key are admitted in order of arrival, so it would delay the critical ones.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Acquired, Limiter, Quota};
    ///
    /// let fleet = Limiter::in_memory().gate("fleet", Quota::in_flight(10));
    /// let _batch = fleet.key("all").cost(8).at_most(8).acquire().await?;
    /// let denied = fleet.key("all").at_most(8).acquire().await?;
    /// assert!(matches!(denied, Acquired::Denied(_)));
    /// let Acquired::Admitted(_critical, _) = fleet.acquire("all").await? else { unreachable!() };
    /// # Ok(()) }
    /// ```
    ///
    /// Default: the limit.
    pub const fn at_most(mut self, units: u64) -> Self {
        self.request.at_most = Some(units);
        self
    }

    /// Sets the time limit for the decision. Among several checks in one
    /// [`check_all`](crate::Limiter::check_all) the shortest applies. With a deadline of zero, the check is an
    /// error ([`Error::is_config`]).
    ///
    /// Default: the limiter's.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.request.deadline = Some(deadline);
        self
    }

    /// Stores the key in the Redis Cluster slot of another key, so that one
    /// [`check_all`](crate::Limiter::check_all) can decide both. The keys of one atomic step must be in one
    /// slot; all gates of one key are. With a single Redis, or in memory, this changes nothing.
    ///
    /// A colocated key has its own state. It does not share a limit with the same key without `colocate_with`,
    /// or colocated with a third key. Always pass the same owner, which must never change:
    /// `users.key("user:42").colocate_with("tenant:7")`. Other operations (a refund, a block, a reset) and
    /// [leases](crate::Lease) apply to the key in its own slot.
    ///
    /// One node decides all keys that are colocated with one key. A global limit in one step with each user's
    /// limit therefore moves all users to one node.
    ///
    /// Default: the key's own slot.
    pub fn colocate_with(mut self, key: impl AsKey) -> Self {
        self.request.colocate_with = Some(Cow::Owned(key.as_key().to_vec()));
        self
    }

    /// Returns the name of the gate, or `None` if it is invalid.
    #[must_use]
    pub fn gate(&self) -> Option<&str> {
        self.request.gate.info().ok().map(|info| &*info.name)
    }

    /// Returns the quota that decides, or `None` if the gate's name is invalid.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.request.gate.info().ok().map(|info| info.quota)
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.request.key
    }

    /// Returns the units that the check consumes: its [`cost`](Self::cost).
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.request.cost
    }

    /// Returns the units that this decision on the check charged: by the store, a lease or the fallback. 0 if it was
    /// denied, or admitted without a charge.
    #[must_use]
    pub fn units_charged_by(&self, decision: &Decision) -> u64 {
        charged_units(&self.request, decision)
    }

    /// Returns the units that may be held after the acquire, if it is [restricted](Self::at_most).
    #[must_use]
    pub const fn restriction(&self) -> Option<u64> {
        self.request.at_most
    }

    /// Returns whether the gate is in shadow mode: a check that is denied or undecided is admitted.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.request.gate.is_shadow
    }

    /// Decides the check.
    ///
    /// # Errors
    ///
    /// As [`Gate::check`](crate::Gate::check).
    pub async fn check(self) -> Result<Decision, Error> {
        self.decide().await
    }

    /// Returns the decision that [`check`](Self::check) would make, without charging. Starts no window and
    /// writes nothing. With a cost of 0, peeks for one unit.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub async fn peek(self) -> Result<Decision, Error> {
        if self.request.cost <= 1 {
            return self.cost(0).check().await;
        }
        self.validate()?;
        let all = self.pipeline.peek_all(vec![self.request.borrowed()]).await?;
        Ok(all.binding().clone())
    }

    /// Denies the check without making it, since its cost is above the limit: turns a peek of the key into the denial.
    /// Counts it as a decision of the gate, and notifies the observer. For services that answer such a check as any denial,
    /// because their clients do not know the limits.
    ///
    /// If the peek would admit, the [`retry_after`](Decision::retry_after) is the time until the limit is entirely available.
    pub fn deny(&self, peeked: Decision) -> Decision {
        let denied = peeked.into_denied();
        self.pipeline.notify(&self.request, &denied);
        denied
    }

    /// Does the same as [`check`](Self::check), for a caller that keeps the check: to make it again, or to settle it
    /// as a [`Reservation`](crate::Reservation).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let api = Limiter::in_memory().gate("api", Quota::token_bucket(2, Rate::per_minute(2)));
    /// let search = api.key("user:42");
    /// assert_eq!(search.decide().await?.remaining(), 1);
    /// assert_eq!(search.decide().await?.remaining(), 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub async fn decide(&self) -> Result<Decision, Error> {
        self.validate()?;
        self.pipeline.check(&self.request).await
    }

    /// Returns an error for options with which the check can never be decided.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let checked = self.request.deadline.map_or(Ok(()), |deadline| check_deadline("deadline", deadline));
        checked.map_err(|error| self.request.with_context(error))
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check")
            .field("gate", &self.request.gate)
            .field("key", &RedactedKey::new(&self.request.key))
            .field("cost", &self.request.cost)
            .finish_non_exhaustive()
    }
}
