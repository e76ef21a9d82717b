//! The settings of a gate's adaptive limits.

use std::ops::RangeInclusive;

use crate::error::Error;
use crate::quota::reference::adapt::Bounds;

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
