//! Permits, as services hold them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use tokio::sync::oneshot;

use super::adaptive::Operation;
use super::driver;
use super::pool::PoolState;
use super::registry::KeyEntry;
use super::waiting::PermitGrant;
use crate::error::Error;
use crate::observe::observer::Event;
use crate::runtime::sync::lock;
use crate::store::GateInfo;

/// The right to some units of an [in-flight limit](crate::Quota::in_flight), until it is released. Returned by
/// [`Gate::acquire`](crate::Gate::acquire). Can be sent to other tasks and threads.
///
/// Dropping it releases the units in the background, within a few milliseconds;
/// [`release`](Self::release) waits until the store has done so. The store counts the units as long as this
/// process sends heartbeats, so a process that ends without a release blocks them for at most the
/// [time to live](crate::Builder::permit_ttl) of its permits.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use tidegate::{Acquired, Limiter, Quota};
///
/// let exports = Limiter::in_memory().gate("exports", Quota::in_flight(1));
/// let Acquired::Admitted(permit, _) = exports.try_acquire("tenant:7").await? else { unreachable!() };
/// assert_eq!(exports.peek("tenant:7").await?.remaining(), 0);
/// permit.release().await?;
/// assert_eq!(exports.peek("tenant:7").await?.remaining(), 1);
/// # Ok(()) }
/// ```
#[must_use = "dropping a permit releases its units"]
pub struct Permit {
    /// `None` if the units are not counted.
    held: Option<UnitsGuard>,
    units: u64,
}

impl Permit {
    pub(crate) const fn new(held: Option<UnitsGuard>, units: u64) -> Self {
        Self { held, units }
    }

    /// Makes the permit of units that this process counts.
    pub(crate) fn counted(held: UnitsGuard) -> Self {
        Self { units: held.grant.map_or(0, |grant| grant.units), held: Some(held) }
    }

    /// Returns the units that it stands for: the cost of the acquire.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// Returns the units that this process counts: none if the gate was [switched](crate::Control::switch) open, or
    /// [shadow mode](crate::Gate::shadow) admitted beyond the limit. Such a permit has nothing to release.
    #[must_use]
    pub const fn counted_units(&self) -> u64 {
        if self.held.is_some() { self.units } else { 0 }
    }

    /// Returns whether the store counts the units, as far as this process knows without a call: its lease was
    /// renewed in time, and the units were restored after a lapse.
    ///
    /// Also true if no store counts them: the gate was [switched](crate::Control::switch) open, the store denied
    /// the acquire and [shadow mode](crate::Gate::shadow) admitted it, or Redis was unavailable and
    /// [`OnFailure`](crate::OnFailure) did. In the last case, the units are counted, and can lapse, when Redis is
    /// back; with [`OnLapse::Lost`](crate::OnLapse::Lost), they are lost if Redis then refuses a heartbeat.
    ///
    /// Measured by a clock that stands still while the machine is suspended.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held.as_ref().is_none_or(UnitsGuard::is_held)
    }

    /// Completes when the permit is no longer [held](Self::is_held): the lease of this process lapsed, or was
    /// not renewed in time. Other processes may then be given the units. Never completes for units that no
    /// store counts.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any point.
    pub async fn lapsed(&self) {
        match &self.held {
            Some(held) => held.lapsed().await,
            None => std::future::pending().await,
        }
    }

    /// Marks the operation as rejected by a service that is overloaded: a response 503 or 429, or a time-out. If
    /// at least 1 % of the operations are, an [adaptive](crate::Gate::adaptive) limit shrinks. Without effect on
    /// other limits.
    pub fn overloaded(&self) {
        if let Some(operation) = self.operation() {
            operation.overloaded();
        }
    }

    /// Excludes the operation from an [adaptive](crate::Gate::adaptive) limit, since its time says nothing about
    /// the load of the service: a websocket, an answer from a cache. Without effect on other limits, and on the
    /// units, which stay held.
    pub fn disregard(&self) {
        if let Some(operation) = self.operation() {
            operation.disregard();
        }
    }

    fn operation(&self) -> Option<&Operation> {
        self.held.as_ref()?.operation.as_ref()
    }

    /// Releases the units, and waits until the store has done so.
    ///
    /// # Errors
    ///
    /// If the store did not answer. The units are then released in the background, at the latest with the
    /// first heartbeat that is answered.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the units in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        match self.held.take() {
            Some(held) => held.release().await,
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit").field("units", &self.units).field("is_held", &self.is_held()).finish()
    }
}

/// Permits that are released together, such as those of one [`acquire_all`](crate::Limiter::acquire_all). The
/// default holds nothing.
#[must_use = "dropping permits releases their units"]
#[derive(Debug, Default)]
pub struct Permits(Vec<Permit>);

impl Permits {
    pub(crate) const fn new(permits: Vec<Permit>) -> Self {
        Self(permits)
    }

    /// Returns the units of all permits.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.0.iter().map(Permit::units).sum()
    }

    /// Returns the [counted units](Permit::counted_units) of all permits. Without any, there is nothing to release.
    #[must_use]
    pub fn counted_units(&self) -> u64 {
        self.0.iter().map(Permit::counted_units).sum()
    }

    /// Returns whether all permits are [held](Permit::is_held).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.iter().all(Permit::is_held)
    }

    /// Completes when one of the permits has [lapsed](Permit::lapsed).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any point.
    pub async fn lapsed(&self) {
        match self.0.is_empty() {
            true => std::future::pending().await,
            false => {
                let lapses = self.0.iter().map(|permit| Box::pin(permit.lapsed()));
                futures_util::future::select_all(lapses).await;
            }
        }
    }

    /// Marks each operation: see [`Permit::overloaded`].
    pub fn overloaded(&self) {
        self.0.iter().for_each(Permit::overloaded);
    }

    /// Excludes each operation: see [`Permit::disregard`].
    pub fn disregard(&self) {
        self.0.iter().for_each(Permit::disregard);
    }

    /// Releases all units, and waits until the store has done so.
    ///
    /// # Errors
    ///
    /// As [`Permit::release`]; the first error of several.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the units in the background.
    pub async fn release(self) -> Result<(), Error> {
        let released = futures_util::future::join_all(self.0.into_iter().map(Permit::release)).await;
        released.into_iter().collect()
    }

    /// Returns the permits in the order of the checks: one for each key whose units this process counts. Checks
    /// of one key and gate share one. Gates that are switched open, or whose shadow mode admitted, have none.
    #[must_use]
    pub fn into_each(self) -> Vec<Permit> {
        self.0
    }
}

impl From<Permit> for Permits {
    fn from(permit: Permit) -> Self {
        Self(vec![permit])
    }
}

impl Extend<Permit> for Permits {
    fn extend<I: IntoIterator<Item = Permit>>(&mut self, permits: I) {
        self.0.extend(permits);
    }
}

/// Units of a key that this process counts. Released when dropped.
pub(crate) struct UnitsGuard {
    inner: Arc<PoolState>,
    key: Arc<KeyEntry>,
    gate: Arc<GateInfo>,
    /// `None` once released.
    grant: Option<PermitGrant>,
    /// Its time is a sample of an adaptive limit.
    operation: Option<Operation>,
}

impl UnitsGuard {
    pub(super) fn new(
        inner: &Arc<PoolState>,
        key: &Arc<KeyEntry>,
        gate: &Arc<GateInfo>,
        grant: PermitGrant,
        operation: Option<Operation>,
    ) -> Self {
        inner.events.notify(&Event::PermitsHeld { gate: &gate.name, change: grant.units.cast_signed() });
        Self { inner: inner.clone(), key: key.clone(), gate: gate.clone(), grant: Some(grant), operation }
    }

    fn is_held(&self) -> bool {
        self.held_until_us().is_some_and(|until_us| self.inner.clock.local_us() < until_us)
    }

    /// Returns until when the units are surely counted; `None` if they are not.
    fn held_until_us(&self) -> Option<u64> {
        let grant = self.grant.as_ref()?;
        let lease = self.key.holder.lease();
        let state = lock(&self.key.state);
        if self.inner.has_ended() || state.is_lost(grant) {
            return None;
        }
        if !state.is_counted(grant) {
            return Some(u64::MAX);
        }
        lease.filter(|lease| state.counts_under(lease.number)).map(|lease| lease.valid_until_us)
    }

    async fn lapsed(&self) {
        /// How often units are looked at that the store does not count yet.
        const LONGEST_US: u64 = 1_000_000;
        let clock = &self.inner.clock;
        loop {
            // Registered before the state is read, so that no lapse is missed.
            let changed = self.key.holder.changed.notified();
            let now_us = clock.local_us();
            let Some(until_us) = self.held_until_us().filter(|until_us| now_us < *until_us) else { return };
            let pause_us = match until_us {
                u64::MAX => LONGEST_US,
                _ => until_us - now_us,
            };
            select(pin!(changed), pin!(clock.sleep(Duration::from_micros(pause_us)))).await;
        }
    }

    async fn release(mut self) -> Result<(), Error> {
        let Some(grant) = self.take_grant() else { return Ok(()) };
        if self.inner.has_ended() {
            return Ok(());
        }
        let (reporter, reported) = oneshot::channel();
        driver::change(&self.inner, &self.key, |state, now_us| state.release(&grant, now_us, Some(reporter)));
        reported.await.unwrap_or_else(|_| Err(Error::runtime_ended()))
    }

    fn take_grant(&mut self) -> Option<PermitGrant> {
        let grant = self.grant.take()?;
        self.operation = None;
        let change = -grant.units.cast_signed();
        self.inner.events.notify(&Event::PermitsHeld { gate: &self.gate.name, change });
        Some(grant)
    }
}

impl Drop for UnitsGuard {
    fn drop(&mut self) {
        if let Some(grant) = self.take_grant() {
            driver::change(&self.inner, &self.key, |state, now_us| state.release(&grant, now_us, None));
        }
    }
}
