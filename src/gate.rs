//! The gate: a named quota, and all that can be asked of it.

mod in_force;

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::MOST_DEBT;
use crate::as_key::AsKey;
use crate::ask::{Ask, AskRef};
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::lease::{self, Lease, LeaseStats, Leases};
use crate::limiter::{Core, OnFailure};
use crate::per_thread::PerThread;
use crate::quota::Quota;
use crate::reservation::Reservation;
use crate::store::{GateInfo, Target, Write};

/// A named quota on a limiter: what a service keeps and asks, from
/// [`Limiter::gate`](crate::Limiter::gate). Cheap to clone.
///
/// Keys are text, bytes or integers ([`AsKey`]): a user, an address, a tenant. Each
/// has a limit of its own. Every method's future can be dropped at any point; an ask
/// that was already sent may then have been charged.
#[derive(Clone)]
pub struct Gate {
    pub(crate) core: Arc<Core>,
    info: Result<Arc<PerThread<GateInfo>>, Error>,
    pub(crate) on_failure: OnFailure,
    /// It decides, and whoever asks it by itself passes all the same.
    pub(crate) is_shadow: bool,
    leases: Option<Arc<Leases>>,
}

/// # Asking
impl Gate {
    pub(crate) fn new(core: &Arc<Core>, name: &str, quota: Quota) -> Self {
        Self {
            core: core.clone(),
            info: core.gate_info(name, quota).map(|info| Arc::new(PerThread::new(|| info.clone()))),
            on_failure: core.on_failure,
            is_shadow: false,
            leases: None,
        }
    }

    /// May one unit pass for this key? Charges it if so; a denial charges
    /// nothing.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] (and [`Error::is_timeout`]) if Redis did not
    /// answer in time and [`OnFailure::Error`] is chosen;
    /// [`Error::is_corrupt_state`] if the key holds something else in Redis;
    /// [`Error::is_config`] if the gate's name is bad.
    pub async fn check(&self, key: impl AsKey) -> Result<Decision, Error> {
        self.check_cost(key, 1).await
    }

    /// May `cost` units pass, all of them or none? A cost of 0 peeks.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); [`Error::is_over_capacity`] if the cost is
    /// above the quota's limit, so that it can never pass.
    pub async fn check_cost(&self, key: impl AsKey, cost: u64) -> Result<Decision, Error> {
        self.decide(&AskRef::new(self, &key.as_key(), cost)).await
    }

    /// May one unit pass for this key, as far as this process knows? Never waits
    /// and needs no runtime. Allowed where a [lease](Self::leased) has it, denied
    /// where a denial is [remembered](crate::Builder::deny_cache); `None` means
    /// that Redis has to be asked: [`check`](Self::check).
    #[inline]
    pub fn try_check(&self, key: impl AsKey) -> Option<Decision> {
        self.try_check_cost(key, 1)
    }

    /// [`try_check`](Self::try_check) for `cost` units; `None` for a cost of 0.
    #[inline]
    pub fn try_check_cost(&self, key: impl AsKey, cost: u64) -> Option<Decision> {
        let key = &key.as_key();
        if self.core.has_orders() {
            return self.try_under_orders(key, cost);
        }
        self.try_by_itself(key, cost)
    }

    #[inline]
    fn try_by_itself(&self, key: &[u8], cost: u64) -> Option<Decision> {
        let leased = self.leases.as_ref().and_then(|leases| self.core.spend(leases, key, cost));
        leased.or_else(|| self.core.remembered(AskRef::new(self, key, cost)))
    }

    /// May one unit pass for each of these keys? Decided in their order, each by
    /// itself, in one round trip for up to 128 keys (85 of a sliding counter, 51
    /// of a log), one after the other for more. One that fails does not
    /// fail the others.
    pub async fn check_many<K: AsKey>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Decision, Error>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let keys: Vec<_> = keys.iter().map(AsKey::as_key).collect();
        let asks: Vec<_> = keys.iter().map(|key| AskRef::new(self, key, 1)).collect();
        self.core.check_each(&asks).await
    }

    /// What a check would say, without charging anything. Starts no window and
    /// leaves no trace.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub async fn peek(&self, key: impl AsKey) -> Result<Decision, Error> {
        self.check_cost(key, 0).await
    }

    /// Waits until one unit is admitted, for at most `max_wait`. Returns a denial
    /// at once if the wait would be longer.
    ///
    /// At a leaky bucket, it takes a place in the queue and returns when its turn
    /// has come. Dropping the future before that gives the place back.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub async fn until_allowed(&self, key: impl AsKey, max_wait: Duration) -> Result<Decision, Error> {
        let key = &key.as_key();
        let waited = self.core.stopwatch();
        loop {
            let left = max_wait.saturating_sub(waited());
            let gate = self.in_force(key);
            let ask = AskRef { max_delay: Some(left), ..AskRef::new(&gate, key, 1) };
            let decision = gate.decide(&ask).await?;
            if decision.is_allowed() {
                if decision.delay() > Duration::ZERO {
                    let place = Place::new(&gate, key, &decision);
                    self.core.sleep(decision.delay()).await;
                    place.reached();
                }
                return Ok(decision);
            }
            let until_retry = decision.retry_after();
            // At a leaky bucket, the caller waits for a place in the queue and then for its turn: together at
            // most the time in which the queue drains.
            let until_allowed = match gate.info()?.quota.has_queue() {
                true => until_retry.max(decision.reset_after()),
                false => until_retry,
            };
            if until_allowed > left || left.is_zero() {
                return Ok(decision);
            }
            self.core.sleep(until_retry).await;
        }
    }

    /// Takes `cost` units now, whose true number is known later:
    /// [`commit`](Reservation::commit) settles it, [`cancel`](Reservation::cancel)
    /// gives all back.
    ///
    /// # Errors
    ///
    /// As [`check_cost`](Self::check_cost).
    pub async fn reserve(&self, key: impl AsKey, cost: u64) -> Result<Reservation, Error> {
        let key = &key.as_key();
        let ask = self.in_force(key).ask(key).cost(cost);
        let decision = ask.clone().check().await?;
        Ok(Reservation::new(ask, decision))
    }

    /// An ask to set options on, or to give to
    /// [`check_all`](crate::Limiter::check_all).
    pub fn ask(&self, key: impl AsKey) -> Ask {
        Ask::new(self, &key.as_key())
    }
}

/// # Changing what a key has used
impl Gate {
    /// Gives `units` back, on the caller's word; never below untouched. Sent at
    /// most once: one that is lost denies more, one that is doubled would admit
    /// more. To give back what a check took, [`reserve`](Self::reserve) it
    /// instead: that knows what of it still counts.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), whatever [`OnFailure`] says.
    pub async fn refund(&self, key: impl AsKey, units: u64) -> Result<(), Error> {
        let units = units.min(MOST_DEBT);
        self.write_in_force(&key.as_key(), Write::Refund { units, stamp_us: None }).await
    }

    /// Charges `units` without asking. What goes beyond the limit is stored as
    /// debt (up to 2^49 ticks or 2^52 units), which later asks have to wait for.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), whatever [`OnFailure`] says.
    pub async fn penalize(&self, key: impl AsKey, units: u64) -> Result<(), Error> {
        let units = units.min(MOST_DEBT);
        self.write_in_force(&key.as_key(), Write::Penalize { units }).await
    }

    /// Denies every ask of this key for so long (at most 17 years), whatever it
    /// has used. What is [leased](Self::leased) already can still be spent.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), whatever [`OnFailure`] says.
    pub async fn block(&self, key: impl AsKey, duration: Duration) -> Result<(), Error> {
        let for_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).clamp(1, MOST_DEBT);
        self.write_wherever(&key.as_key(), Write::Block { for_us }).await
    }

    /// Lifts a block. What was used stays used.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), whatever [`OnFailure`] says.
    pub async fn unblock(&self, key: impl AsKey) -> Result<(), Error> {
        self.write_wherever(&key.as_key(), Write::Block { for_us: 0 }).await
    }

    /// Makes the key as if it had never been asked for; lifts a block too.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), whatever [`OnFailure`] says.
    pub async fn reset(&self, key: impl AsKey) -> Result<(), Error> {
        let key = &key.as_key();
        if let Some(leases) = &self.leases {
            leases.forget(key);
        }
        self.write_wherever(key, Write::Reset).await
    }
}

/// # Settings and what it is
impl Gate {
    /// What an ask to this gate gets when Redis cannot answer it in time.
    ///
    /// Default: the limiter's.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    #[cfg(feature = "rules")]
    pub(crate) fn shadow(mut self, is_shadow: bool) -> Self {
        self.is_shadow = is_shadow;
        self
    }

    /// Makes it a leased gate: units of keys that are asked for often are taken
    /// from Redis in blocks, spent in this process, refilled ahead in the
    /// background, and given back when the last clone of this gate is dropped or
    /// the limiter [shut down](crate::Limiter::shutdown). How much more that can
    /// admit says [`Lease`].
    ///
    /// Clones share the leases; a gate that is leased a second time has leases of
    /// its own. Leaky buckets and quotas that count denied asks cannot be leased:
    /// every ask is then an error ([`Error::is_config`]).
    #[must_use]
    pub fn leased(mut self, lease: Lease) -> Self {
        let leasable = self.info().and_then(|info| lease::check_leasable(&info.quota));
        match leasable {
            Ok(()) => self.leases = self.info().ok().and_then(|info| self.core.lease(lease, info)),
            Err(error) => self.info = Err(error),
        }
        self
    }

    /// What it has leased, and what became of it; all 0 if it is not leased.
    /// Reads every lease: for metrics, not for each ask.
    #[must_use]
    pub fn lease_stats(&self) -> LeaseStats {
        self.leases.as_ref().map(|leases| leases.stats()).unwrap_or_default()
    }

    /// Its name, or `None` if the name it was given is bad.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.info().ok().map(|info| &*info.name)
    }

    /// Where a key's state lives in Redis, to look at with `redis-cli`.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the gate's name is bad.
    pub fn redis_key(&self, key: impl AsKey) -> Result<String, Error> {
        Ok(Target::new(self.info()?, &key.as_key(), None).redis_key)
    }

    pub(crate) fn info(&self) -> Result<&Arc<GateInfo>, Error> {
        match &self.info {
            Ok(infos) => Ok(infos.mine()),
            Err(error) => Err(error.clone()),
        }
    }

    pub(crate) async fn decide(&self, ask: &AskRef<'_>) -> Result<Decision, Error> {
        if self.core.has_orders() {
            return Box::pin(self.decide_under_orders(ask)).await;
        }
        self.decide_by_itself(ask).await
    }

    async fn decide_by_itself(&self, ask: &AskRef<'_>) -> Result<Decision, Error> {
        match &self.leases {
            Some(leases) if self.info()?.prefix.is_in_its_own_place(ask.key, ask.beside) => {
                self.core.check_leased(leases, ask).await
            }
            _ => self.core.check(ask).await,
        }
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.info() {
            Ok(info) => write!(f, "Gate({:?}, {})", info.name, info.quota),
            Err(error) => write!(f, "Gate({error})"),
        }
    }
}

/// A place in a leaky bucket's queue, given back if nobody waits for it any
/// more.
struct Place {
    ask: Option<Ask>,
    stamp_us: u64,
}

impl Place {
    fn new(gate: &Gate, key: &[u8], decision: &Decision) -> Self {
        let is_held = matches!(decision.source(), Source::Redis | Source::Memory);
        Self { ask: is_held.then(|| gate.ask(key)), stamp_us: decision.stamp_us }
    }

    fn reached(mut self) {
        self.ask = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Drop cannot wait, so a background job does.
        if let Some(ask) = self.ask.take() {
            let core = ask.gate.core.clone();
            let give_back = Write::Refund { units: 1, stamp_us: Some(self.stamp_us) };
            core.spawn(async move { drop(ask.gate.core.write(ask.as_ref(), give_back).await) });
        }
    }
}
