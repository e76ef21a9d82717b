//! Permits: units of in-flight limits that this process holds, and the callers that wait for units.
//!
//! ```text
//! acquire ── Waiting ──> Registry of KeyEntries <── Permit (release)
//!                              │ KeyState: queue, message in flight, units held
//!                           Driver ── message ──> batch ──> store
//!                              │
//!                           Holder (a lease per hash tag) <── heartbeats
//! ```
//!
//! The store counts units per key and holder, and a holder only as long as its lease lasts. A message reports
//! the units that this process keeps of a key, so every message corrects the effects of earlier ones: a
//! lost release, an admission without a reply, a lapse, a loss of the store's state. A permit has no state in
//! the store.
//!
//! Groups of keys travel in [flights](group_flights), which have a [turn] at each of their keys.
//!
//! [`key_state`] and [`flight`] decide, without I/O. A [`driver`] per key sends its messages, one
//! at a time; the [`heartbeat`] renews the leases, and prompts the keys that have to report.

pub(crate) mod adaptive;
mod driver;
mod flight;
mod group_flights;
mod heartbeat;
mod holder;
mod key_state;
mod permit;
mod pool;
mod registry;
#[cfg(test)]
mod tests;
mod turn;
mod waiting;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use self::group_flights::Groups;
pub(crate) use self::group_flights::{GroupAcquire, GroupAnswer, ItemAcquire};
pub(crate) use self::key_state::Polls;
pub(crate) use self::permit::UnitsGuard;
pub use self::permit::{Permit, Permits};
pub(crate) use self::pool::PermitSettings;
use self::pool::PoolState;
pub use self::waiting::OnLapse;
pub(crate) use self::waiting::{AcquireAnswer, AcquireTerms, AdaptiveTerms, TimeLimits, Waiting};
use crate::connection::Deadline;
use crate::error::Error;
use crate::store::Target;

/// The values of [`Builder::permit_ttl`](crate::Builder::permit_ttl).
const PERMIT_TTL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);

/// Returns an error for a time to live that no lease may have.
pub(crate) fn check_ttl(ttl: Duration) -> Result<(), Error> {
    match PERMIT_TTL.contains(&ttl) {
        true => Ok(()),
        false => Err(Error::config("`permit_ttl` must be 1 to 60 s, such as 10 s")),
    }
}

/// The permits of one limiter. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PermitPool {
    inner: Arc<PoolState>,
    groups: Arc<Groups>,
}

impl PermitPool {
    pub(crate) fn new(settings: PermitSettings) -> Self {
        let inner = Arc::new(PoolState::new(settings, heartbeat::ensure_running));
        Self { groups: Arc::new(Groups::new(inner.clone())), inner }
    }

    /// Enqueues an acquire. The first message is sent at once.
    pub(crate) fn enqueue(
        &self,
        target: &Target,
        terms: AcquireTerms,
        limits: TimeLimits,
    ) -> Result<Waiting, Error> {
        Waiting::new(&self.inner, target, terms, limits)
    }

    /// Acquires a group with at least one in-flight limit, until the deadline.
    pub(crate) async fn acquire_group(
        &self,
        group: GroupAcquire,
        deadline: Deadline,
    ) -> Result<GroupAnswer, Error> {
        self.groups.acquire(group, deadline).await
    }

    /// Returns the units that are left of this process's share of a limit.
    pub(crate) fn room(&self, target: &Target, terms: &AcquireTerms) -> u64 {
        turn::room(&self.inner, target, terms)
    }

    /// Holds units that the failure policy admitted to a group. Returns `None` if there is no room to count them.
    pub(crate) fn hold_locally(&self, target: &Target, terms: &AcquireTerms) -> Option<UnitsGuard> {
        turn::hold_locally(&self.inner, target, terms)
    }

    /// Returns the local clock, by which callers give up.
    pub(crate) fn local_us(&self) -> u64 {
        self.inner.clock.local_us()
    }

    /// Ends all leases, until `ends` at most.
    pub(crate) async fn end(&self, ends: Instant) {
        self.inner.end(ends).await;
    }
}

impl std::fmt::Debug for PermitPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PermitPool").field("keys", &self.inner.registry.len()).finish_non_exhaustive()
    }
}
