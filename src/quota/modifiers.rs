//! Options of one algorithm: alignment of a fixed window, counting of denied checks.

use std::time::Duration;

use super::{Invalid, Quota};
use crate::error::Error;
use crate::quota::algorithm::{Kind, SlidingLog};

/// # Modifiers
impl Quota {
    /// Aligns a fixed window to the server's clock, as Envoy's and Lyft's rules do: minutes at :00, days at
    /// 00:00 UTC, weeks on Thursday (the weekday of 1970-01-01; see
    /// [`aligned_to_clock_at`](Self::aligned_to_clock_at)).
    ///
    /// # Panics
    ///
    /// If this is not a fixed window.
    #[must_use]
    pub const fn aligned_to_clock(self) -> Self {
        self.aligned_to_clock_at(Duration::ZERO)
    }

    /// Does the same as [`aligned_to_clock`](Self::aligned_to_clock) for quotas known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the method would panic.
    pub fn try_aligned_to_clock(self) -> Result<Self, Error> {
        self.try_aligned_to_clock_at(Duration::ZERO)
    }

    /// Does the same as [`aligned_to_clock`](Self::aligned_to_clock), with each window beginning `offset`
    /// later: with 4 days, weeks begin on Monday.
    ///
    /// # Panics
    ///
    /// If this is not a fixed window, or `offset` is not whole microseconds shorter than the window.
    #[must_use]
    pub const fn aligned_to_clock_at(self, offset: Duration) -> Self {
        match self.align(offset) {
            Ok(quota) => quota,
            Err(invalid) => invalid.panic(),
        }
    }

    /// Does the same as [`aligned_to_clock_at`](Self::aligned_to_clock_at) for quotas known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the method would panic.
    pub fn try_aligned_to_clock_at(self, offset: Duration) -> Result<Self, Error> {
        self.align(offset).map_err(Invalid::into_error)
    }

    /// Makes a sliding log count denied checks too, so that a client that keeps retrying stays denied. Counts
    /// only denials by this limit itself, each with its cost.
    ///
    /// # Panics
    ///
    /// If this is not a sliding log.
    #[must_use]
    pub const fn count_denied(self) -> Self {
        match self.counting() {
            Ok(quota) => quota,
            Err(invalid) => invalid.panic(),
        }
    }

    /// Does the same as [`count_denied`](Self::count_denied) for quotas known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the method would panic.
    pub fn try_count_denied(self) -> Result<Self, Error> {
        self.counting().map_err(Invalid::into_error)
    }

    const fn align(self, offset: Duration) -> Result<Self, Invalid> {
        let Kind::FixedWindow(fixed) = self.kind else {
            return Err(Invalid(
                "only a fixed window can be aligned to the clock (a sliding counter always is)",
            ));
        };
        match fixed.aligned_at(offset) {
            Ok(fixed) => Ok(Self { kind: Kind::FixedWindow(fixed) }),
            Err(invalid) => Err(invalid),
        }
    }

    const fn counting(self) -> Result<Self, Invalid> {
        let Kind::SlidingLog(log) = self.kind else {
            return Err(Invalid("only a sliding log can count denied requests"));
        };
        Ok(Self { kind: Kind::SlidingLog(SlidingLog { count_denied: true, ..log }) })
    }
}
