//! Adaptive in-flight limits: the copies and the observations of this process.
//!
//! The store keeps one adaptive limit per key, and all processes [report](AdaptiveKey::exchange) to it. A copy has
//! the limit of the last reply. Reports are sent in the background, by the first operation that finds one due: so
//! an unused key costs nothing. The first acquire, also after a pause, reports before it is sent.
//!
//! [`copy`] is arithmetic without I/O; [`key`] reports.

mod adaptive_key;
mod copy;

use std::ops::RangeInclusive;
use std::sync::Arc;

pub(crate) use self::adaptive_key::{AdaptiveKey, AdaptiveSettings, Operation};
use crate::error::Error;
use crate::key::keyed_hash::IdentityHasher;
use crate::quota::reference::adapt::Bounds;
use crate::runtime::sync::{Mutex, lock};
use crate::store::Target;
use crate::store::generations::Generations;

/// The maximum number of keys. A key that was evicted asks the store for its limit again.
const MAX_KEYS: usize = 1 << 16;

/// The adaptive limits of one limiter.
pub(crate) struct AdaptiveLimits {
    settings: Arc<AdaptiveSettings>,
    keys: Mutex<Generations<Target, Arc<AdaptiveKey>, IdentityHasher>>,
}

impl AdaptiveLimits {
    pub(crate) fn new(settings: AdaptiveSettings) -> Self {
        Self { settings: Arc::new(settings), keys: Mutex::new(Generations::new(MAX_KEYS / 2)) }
    }

    /// Returns the limit of a key, which is added if needed. From now on, these bounds apply.
    pub(crate) fn key(&self, target: &Target, bounds: Bounds) -> Arc<AdaptiveKey> {
        let mut keys = lock(&self.keys);
        let rank = |_: &Arc<AdaptiveKey>| None::<u64>;
        let found = keys.update(target, rank, |key| key.clone());
        let key = found.unwrap_or_else(|| {
            let new = Arc::new(AdaptiveKey::new(&self.settings, target, bounds));
            keys.insert(target.clone(), new.clone(), rank);
            new
        });
        drop(keys);
        key.set_bounds(bounds);
        key
    }

    /// Returns the limit of a key if this process knows it.
    pub(crate) fn known(&self, target: &Target) -> Option<u64> {
        lock(&self.keys).get_mut(target)?.limit()
    }
}

/// The values of [`Adaptive::tolerance`].
const TOLERANCE: RangeInclusive<f64> = 1.1..=10.0;

/// The settings of a gate with [adaptive limits](crate::Gate::adaptive).
///
/// ```
/// use tidegate::{Adaptive, Limiter, Quota};
///
/// let payments = Limiter::in_memory().gate("payments", Quota::in_flight(400)).adaptive(Adaptive::new().min(20));
/// # let _ = payments;
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    min: u64,
    tolerance: f64,
}

impl Adaptive {
    /// Returns the defaults.
    #[must_use]
    pub const fn new() -> Self {
        Self { min: 8, tolerance: 1.5 }
    }

    /// Sets the lowest limit, in units: at least 1. The limit of an unused key starts here. If the quota has
    /// fewer units, the limit is the quota's and does not adapt.
    ///
    /// Choose a number of operations that the service can run without a queue even on a bad day. An overload
    /// that remains at this limit is not recognized.
    ///
    /// Default: 8.
    #[must_use]
    pub const fn min(self, units: u64) -> Self {
        Self { min: units, ..self }
    }

    /// Sets the latency that the limit aims at under load, as a multiple of the latency without a queue: from
    /// 1.1 to 10. A lower one keeps queues shorter, and takes chance for a queue more often.
    ///
    /// Default: 1.5.
    #[must_use]
    pub const fn tolerance(self, multiple: f64) -> Self {
        Self { tolerance: multiple, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.min == 0 {
            return Err(Error::config("`min` of an adaptive limit must be at least 1, such as 8"));
        }
        match TOLERANCE.contains(&self.tolerance) {
            true => Ok(()),
            false => Err(Error::config("`tolerance` of an adaptive limit must be 1.1 to 10, such as 1.5")),
        }
    }

    /// Returns the bounds under a quota of `max` units.
    pub(crate) fn bounds(&self, max: u64) -> Bounds {
        Bounds { min: self.min.min(max), max, tolerance: self.tolerance }
    }
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::new()
    }
}
