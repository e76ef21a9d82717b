//! The gate: a named quota, and the calls that charge it, refund it and read it.

use std::sync::Arc;
use std::time::Duration;

use crate::decision::Decision;
use crate::error::Error;
use crate::in_flight::OnLapse;
use crate::key::as_key::AsKey;
use crate::limiter::check::Check;
use crate::local::lease::{Lease, LeaseStats};
use crate::local::on_failure::OnFailure;
use crate::pipeline::Pipeline;
use crate::pipeline::request::{GateSpec, Request};
use crate::quota::Quota;
use crate::quota::algorithm::MAX_DEBT;
use crate::quota::ban::Ban;
use crate::runtime::sharded_arc::ShardedArc;
use crate::store::{GateInfo, Write};

/// A named quota on a limiter: the object that a service keeps and calls. Returned by
/// [`Limiter::gate`](crate::Limiter::gate). Cheap to clone.
///
/// Keys are text, bytes or integers ([`AsKey`]): a user, an address, a tenant. Each key has a limit of its
/// own.
///
/// # Cancel safety
///
/// Every method's future can be dropped at any point. A check that was already sent may then have been
/// charged.
#[derive(Clone)]
pub struct Gate {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) spec: Arc<GateSpec>,
}

/// # Checks
impl Gate {
    pub(crate) fn new(pipeline: &Arc<Pipeline>, name: &str, quota: Quota) -> Self {
        let info = pipeline.gate_info(name, quota);
        let spec = GateSpec {
            info: info.map(|info| Arc::new(ShardedArc::new(info))),
            on_failure: pipeline.on_failure,
            is_shadow: false,
            leases: None,
            on_lapse: OnLapse::default(),
            adaptive: None,
            ends_holds: false,
            ban: None,
            charges_used: false,
        };
        Self { pipeline: pipeline.clone(), spec: Arc::new(spec) }
    }

    /// Checks one unit for this key. Charges it if admitted; a denial charges nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::is_unavailable`] (and [`Error::is_timeout`]) if Redis did not answer in time and
    ///   [`OnFailure::Error`] is chosen
    /// - [`Error::is_corrupt_state`] if the key holds something else in Redis
    /// - [`Error::is_config`] if the gate's name is invalid
    ///
    /// # Panics
    ///
    /// Over Redis, if it is awaited outside of a tokio runtime with I/O and timers: see
    /// [`Limiter`](crate::Limiter#runtimes).
    pub async fn check(&self, key: impl AsKey) -> Result<Decision, Error> {
        self.check_cost(key, 1).await
    }

    /// Checks `cost` units for this key, all or nothing. A cost of 0 peeks.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); [`Error::is_over_capacity`] if the cost is above the quota's limit, so that
    /// the check can never be admitted, and the gate is not in [shadow mode](Self::shadow).
    pub async fn check_cost(&self, key: impl AsKey, cost: u64) -> Result<Decision, Error> {
        self.pipeline.check(&Request::new(&self.spec, &key.as_key(), cost)).await
    }

    /// Checks one unit for this key with the state that this process has. Never waits and needs no runtime.
    ///
    /// Admits if a [lease](Self::leased) holds the unit, and denies if a denial is
    /// [cached](crate::Builder::deny_cache). Returns `None` if only Redis can decide, or if the process made no
    /// check for ten seconds and has to read the [overrides](crate::Control) first: call [`check`](Self::check).
    #[inline]
    pub fn try_check(&self, key: impl AsKey) -> Option<Decision> {
        self.try_check_cost(key, 1)
    }

    /// Does the same as [`try_check`](Self::try_check) for `cost` units. Returns `None` for a cost of 0.
    #[inline]
    pub fn try_check_cost(&self, key: impl AsKey, cost: u64) -> Option<Decision> {
        self.pipeline.try_check(&self.spec, &key.as_key(), cost)
    }

    /// Checks one unit for each of these keys, in order and independently of each other.
    ///
    /// Takes one round trip for up to 128 keys (85 of a sliding counter, 51 of a log), and consecutive round
    /// trips for more. A key that fails does not fail the others.
    ///
    /// For costs and other options, pass checks to [`Limiter::check_each`](crate::Limiter::check_each).
    pub async fn check_many<K: AsKey>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Decision, Error>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let keys: Vec<_> = keys.iter().map(AsKey::as_key).collect();
        let requests = keys.iter().map(|key| Request::new(&self.spec, key, 1)).collect();
        self.pipeline.check_each(requests).await
    }

    /// Returns the decision that [`check`](Self::check) would make, without charging. Starts no window and
    /// writes nothing.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub async fn peek(&self, key: impl AsKey) -> Result<Decision, Error> {
        self.check_cost(key, 0).await
    }

    /// Waits until one unit is admitted, for at most `max_wait`. Returns a denial at once if the wait would
    /// be longer.
    ///
    /// With a leaky bucket, takes a place in the queue and returns when its turn has come.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before the turn has come gives the place in the queue back.
    pub async fn until_allowed(&self, key: impl AsKey, max_wait: Duration) -> Result<Decision, Error> {
        self.key(key).until_allowed(max_wait).await
    }

    /// Returns a check of this key, with options to set. It then [checks](Check::check), [peeks](Check::peek),
    /// [reserves](Check::reserve), [waits](Check::until_allowed), [takes what is available](Check::take_up_to), or is
    /// passed to
    /// [`check_all`](crate::Limiter::check_all) or [`check_each`](crate::Limiter::check_each) with others.
    ///
    /// The other methods of this section are shortcuts for a key, and a cost, without further options.
    pub fn key(&self, key: impl AsKey) -> Check {
        Check::new(&self.pipeline, Request::new(&self.spec, &key.as_key(), 1).into_owned())
    }
}

/// # Changing the usage of a key
impl Gate {
    /// Returns `units` to the key. The usage does not fall below zero.
    ///
    /// Sent at most once: a lost refund denies more, a repeated refund would admit more. To return units of a
    /// check, use [`reserve`](Self::reserve) instead: a reservation knows which of its units still count.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), regardless of [`OnFailure`].
    pub async fn refund(&self, key: impl AsKey, units: u64) -> Result<(), Error> {
        let units = units.min(MAX_DEBT);
        self.pipeline
            .write_effective(&self.spec, &key.as_key(), Write::Refund { units, stamp_us: None })
            .await
    }

    /// Charges `units` without a check. Units beyond the limit are stored as debt (up to 2^49 ticks or 2^52
    /// units). Later checks wait until the debt has drained.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), regardless of [`OnFailure`].
    pub async fn penalize(&self, key: impl AsKey, units: u64) -> Result<(), Error> {
        let units = units.min(MAX_DEBT);
        self.pipeline.write_effective(&self.spec, &key.as_key(), Write::Penalize { units }).await
    }

    /// Denies every check of this key for `duration` (at most 17 years), regardless of its usage. Units that
    /// are already [leased](Self::leased) can still be spent.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), regardless of [`OnFailure`].
    pub async fn block(&self, key: impl AsKey, duration: Duration) -> Result<(), Error> {
        let for_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).clamp(1, MAX_DEBT);
        self.pipeline.write_all_states(&self.spec, &key.as_key(), Write::Block { for_us }).await
    }

    /// Lifts a block, also that of a [ban](Self::ban), whose denials are then counted from zero. The usage stays.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), regardless of [`OnFailure`].
    pub async fn unblock(&self, key: impl AsKey) -> Result<(), Error> {
        self.pipeline.write_all_states(&self.spec, &key.as_key(), Write::Block { for_us: 0 }).await
    }

    /// Removes the state of the key, including a block and the denials counted for a [ban](Self::ban).
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), regardless of [`OnFailure`].
    pub async fn reset(&self, key: impl AsKey) -> Result<(), Error> {
        let key = &key.as_key();
        if let Some(leases) = &self.spec.leases {
            leases.forget(key);
        }
        self.pipeline.write_all_states(&self.spec, key, Write::Reset).await
    }
}

/// # Settings and properties
impl Gate {
    /// Sets the failure policy: the result of a check of this gate if Redis does not answer in time.
    ///
    /// Default: the limiter's.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.spec_mut().on_failure = on_failure;
        self
    }

    /// Sets shadow mode: decides and charges every check as usual, and admits it even if denied
    /// ([`Decision::is_shadow`]). A check that the gate cannot decide is admitted too
    /// ([`Source::Open`](crate::Source::Open)). Errors remain only for a limiter that was shut down and for an
    /// invalid configuration.
    ///
    /// An operator can [switch](crate::Control::switch) any gate to the same mode. A gate that is switched
    /// closed denies, also if it is in shadow mode.
    ///
    /// Default: false.
    #[must_use]
    pub fn shadow(mut self, is_shadow: bool) -> Self {
        self.spec_mut().is_shadow = is_shadow;
        self
    }

    /// Makes each check of this gate first end the holds of its key that have ended, so that units of
    /// reservations with [`Reserve::back`](crate::Reserve::back) return on time: [`Limiter::reserve`](crate::Limiter::reserve).
    /// Without it, only the next reservation or settle of the key ends them, and checks may be denied for longer.
    /// A check then takes about 1.4 times as long in Redis. In a group with a gate that has a [ban](Self::ban) or an
    /// in-flight limit, holds are not ended first. A [cached denial](crate::Builder::deny_cache) may still
    /// outlast the end of a hold.
    ///
    /// Default: not.
    #[must_use]
    pub fn holds(mut self) -> Self {
        self.spec_mut().ends_holds = true;
        self.with_checked_settings()
    }

    /// Blocks a key whose checks this gate denied too often: after [`Ban::denials`] in one period of
    /// [`Ban::within`], which begins with the first of them, all its checks are denied for [`Ban::lasts`]. Redis counts
    /// and blocks in the step that denies, so all processes share the count, and one ban begins.
    /// [`unblock`](Self::unblock) ends it, except for a key that was checked with
    /// [`colocate_with`](crate::Check::colocate_with) in a cluster: no write reaches that state.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use std::time::Duration;
    /// use tidegate::{Ban, Limiter, Quota, Rate};
    ///
    /// let limiter = Limiter::in_memory(); // in a fleet: Limiter::open("redis://…")?
    /// let ban = Ban::after(20, Duration::from_secs(600)).lasting(Duration::from_secs(3_600));
    /// let login = limiter.gate("login", Quota::token_bucket(5, Rate::per_minute(5))).ban(ban);
    /// for _ in 0..25 {
    ///     let _ = login.check("192.0.2.7").await?;
    /// }
    /// let banned = login.check("192.0.2.7").await?;
    /// assert!(banned.retry_after() > Duration::from_secs(3_500));
    /// # Ok(()) }
    /// ```
    ///
    /// Each denied check counts as one denial, whatever its cost, also those that
    /// [`until_allowed`](Self::until_allowed) makes while it waits. A [partial grant](Self::take_up_to) counts as
    /// one if it grants nothing. Not counted:
    ///
    /// - denials by a block, also by the ban itself
    /// - checks of `check_all` that only other gates denied
    /// - peeks, and checks while the gate is in [shadow mode](Self::shadow) or [switched](crate::Control::switch)
    /// - decisions by the [failure policy](Self::on_failure)
    /// - checks that are sent again because their connection was lost, or because their hash slot moves
    ///
    /// [`Limiter::reserve`](crate::Limiter::reserve) of such a gate is an error ([`Error::is_config`]), and so is
    /// [`acquire_all`](crate::Limiter::acquire_all) of such a gate together with an in-flight limit. So is every
    /// check of a gate that also has an in-flight limit, [`holds`](Self::holds) or [leases](Self::leased), or whose
    /// ban is out of its [ranges](Ban).
    ///
    /// Denied checks go to Redis each time to be counted: only denials of single checks by a block are
    /// [cached](crate::Builder::deny_cache). A check takes about three times as long in Redis, as one of
    /// [`check_all`](crate::Limiter::check_all) does, and a counted denial five times.
    ///
    /// Default: none.
    #[must_use]
    pub fn ban(mut self, ban: Ban) -> Self {
        self.spec_mut().ban = Some(ban);
        self.with_checked_settings()
    }

    /// Returns whether denials of a key lead to a [ban](Self::ban).
    #[must_use]
    pub fn has_ban(&self) -> bool {
        self.spec.ban.is_some()
    }

    /// Sets whether checks charge units that were used already, such as the tokens or bytes of a response that has
    /// ended. Such a check charges its cost whatever the state: also beyond the limit, a cost above the limit, and while
    /// the key is blocked. It is admitted if the units were within the limit. Its other values are those after the charge,
    /// for one unit.
    ///
    /// Units beyond the limit are debt, and later checks wait until it is paid. [`Builder::debt_cap`] limits the
    /// debt; what it cuts off is [reported](crate::Event::DebtCapped). Peeks decide as usual: peek before the units
    /// are used. In [`check_all`](crate::Limiter::check_all), the charge does not depend on the other checks, nor they on
    /// it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let tokens = Limiter::in_memory().gate("tokens", Quota::token_bucket(100, Rate::per_minute(100)));
    /// let used = tokens.clone().charge_used(true);
    /// while tokens.peek("ada").await?.is_allowed() {
    ///     let of_response = 70; // … serves a request
    ///     let _ = used.check_cost("ada", of_response).await?;
    /// }
    /// assert!(tokens.peek("ada").await?.retry_after().as_secs() > 20); // 40 units of debt
    /// # Ok(()) }
    /// ```
    ///
    /// [Reservations](Self::reserve) and [partial grants](Self::take_up_to) take units before they are used, so they
    /// are decided as usual. Without Redis, the [failure policy](Self::on_failure) gives the answer, and this process
    /// charges the units, to Redis when it answers again; if the policy is the error, nothing is charged. Each attempt of
    /// [`until_allowed`](Self::until_allowed) would charge, so it is an error, and so is every check of a gate that also
    /// has a [ban](Self::ban) or [leases](Self::leased) ([`Error::is_config`]). Permits are acquired before the work, so
    /// [`Limiter::acquire_all`](crate::Limiter::acquire_all) refuses such a gate. Its charges end no [holds](Self::holds):
    /// a peek, or another check of the key, does.
    ///
    /// Default: false.
    ///
    /// [`Builder::debt_cap`]: crate::Builder::debt_cap
    #[must_use]
    pub fn charge_used(mut self, charges_used: bool) -> Self {
        self.spec_mut().charges_used = charges_used;
        self.with_checked_settings()
    }

    /// Returns whether checks [charge units that were used](Self::charge_used).
    #[must_use]
    pub fn charges_used(&self) -> bool {
        self.spec.charges_used
    }

    /// Returns the settings, to be changed. Clones of the gate keep their own.
    pub(super) fn spec_mut(&mut self) -> &mut GateSpec {
        Arc::make_mut(&mut self.spec)
    }

    /// Makes every check an error if the settings do not permit each other.
    pub(super) fn with_checked_settings(mut self) -> Self {
        if let Err(error) = self.spec.check_settings() {
            self.spec_mut().info = Err(error);
        }
        self
    }

    /// Makes this a leased gate: takes units of frequently checked keys from Redis in blocks and spends them
    /// in this process. [`Lease`] documents how much more that can admit.
    ///
    /// Blocks are refilled in advance in the background. They are returned when the last clone of this gate is
    /// dropped or the limiter is [shut down](crate::Limiter::shutdown).
    ///
    /// Clones share the leases; a gate that is leased a second time has leases of its own. Leaky buckets,
    /// in-flight limits and quotas that count denied checks cannot be leased: every check is then an error ([`Error::is_config`]).
    #[must_use]
    pub fn leased(mut self, lease: Lease) -> Self {
        let leasable = self.info().and_then(|info| Lease::check_quota(&info.quota));
        match leasable {
            Ok(()) => {
                self.spec_mut().leases = self.info().ok().and_then(|info| self.pipeline.lease(lease, info))
            }
            Err(error) => self.spec_mut().info = Err(error),
        }
        self.with_checked_settings()
    }

    /// Returns the numbers of units leased, spent and returned; all 0 if the gate is not leased. Reads every
    /// lease, so call it for metrics, not for each check.
    #[must_use]
    pub fn lease_stats(&self) -> LeaseStats {
        self.spec.leases.as_ref().map(|leases| leases.stats()).unwrap_or_default()
    }

    /// Returns the gate's name, or `None` if the given name is invalid.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.info().ok().map(|info| &*info.name)
    }

    /// Returns the gate's own quota, or `None` if the given name is invalid.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.info().ok().map(|info| info.quota)
    }

    /// Returns the quota that decides this key: that of an override that this process knows, or the gate's own. `None` if
    /// the given name is invalid.
    #[must_use]
    pub fn effective_quota(&self, key: impl AsKey) -> Option<Quota> {
        let effective = self.pipeline.effective(&self.spec, &key.as_key());
        effective.info().ok().map(|info| info.quota)
    }

    /// Returns the Redis key of a key's state, for use with `redis-cli`.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the gate's name is invalid.
    pub fn redis_key(&self, key: impl AsKey) -> Result<String, Error> {
        Ok(Request::new(&self.spec, &key.as_key(), 0).target()?.redis_key)
    }

    pub(crate) fn info(&self) -> Result<&Arc<GateInfo>, Error> {
        self.spec.info()
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.spec.fmt(f)
    }
}
