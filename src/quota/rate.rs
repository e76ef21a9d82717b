//! The speed at which a bucket refills or drains: units per period.

use std::fmt;
use std::time::Duration;

use super::invalid::Invalid;
use crate::error::Error;

/// The maximum period or window: ten years, in microseconds.
pub(crate) const LONGEST_US: u64 = 10 * 365 * 86_400 * 1_000_000;

/// The maximum number of units of a quota or a rate.
pub(crate) const MAX_UNITS: u64 = 1 << 48;

/// Units per period: the refill of a token bucket, or the outflow of a leaky bucket.
///
/// The caller chooses the unit (requests, bytes, tokens). A rate is continuous: `per_minute(60)` gives one
/// unit each second, not 60 at the end of a minute.
///
/// ```
/// use std::time::Duration;
/// use tidegate::Rate;
///
/// assert_eq!(Rate::per_second(5).to_string(), "5/s");
/// assert_eq!(Rate::new(1, Duration::from_millis(1500)).to_string(), "1/1500ms");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    units: u64,
    period_us: u64,
}

/// # Constructors
///
/// All constructors take 1 to 2^48 units. A period is whole microseconds from 1 µs to ten years.
impl Rate {
    /// Returns a rate of `units` per second.
    ///
    /// # Panics
    ///
    /// If `units` is 0 or above 2^48; in a `const` that is a compile error.
    #[must_use]
    pub const fn per_second(units: u64) -> Self {
        Self::new(units, Duration::from_secs(1))
    }

    /// Returns a rate of `units` per minute.
    ///
    /// # Panics
    ///
    /// If `units` is 0 or above 2^48; in a `const` that is a compile error.
    #[must_use]
    pub const fn per_minute(units: u64) -> Self {
        Self::new(units, Duration::from_secs(60))
    }

    /// Returns a rate of `units` per hour.
    ///
    /// # Panics
    ///
    /// If `units` is 0 or above 2^48; in a `const` that is a compile error.
    #[must_use]
    pub const fn per_hour(units: u64) -> Self {
        Self::new(units, Duration::from_secs(3_600))
    }

    /// Returns a rate of `units` per day of 24 hours.
    ///
    /// # Panics
    ///
    /// If `units` is 0 or above 2^48; in a `const` that is a compile error.
    #[must_use]
    pub const fn per_day(units: u64) -> Self {
        Self::new(units, Duration::from_secs(86_400))
    }

    /// Returns a rate of `units` per `period`.
    ///
    /// # Panics
    ///
    /// If `units` or `period` is outside the bounds above; in a `const` that is a compile error. Use
    /// [`Rate::try_new`] for numbers known only at run time.
    #[must_use]
    pub const fn new(units: u64, period: Duration) -> Self {
        match Self::build(units, period) {
            Ok(rate) => rate,
            Err(invalid) => invalid.panic(),
        }
    }

    /// Returns a rate of `units` per `period`, for numbers known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if `units` or `period` is outside the bounds above.
    pub fn try_new(units: u64, period: Duration) -> Result<Self, Error> {
        Self::build(units, period).map_err(Invalid::into_error)
    }

    const fn build(units: u64, period: Duration) -> Result<Self, Invalid> {
        if units == 0 || units > MAX_UNITS {
            return Err(Invalid(
                "a rate needs 1 to 2^48 units; to refuse everything use OnFailure or a block, not a rate of 0",
            ));
        }
        match whole_micros(period, 1) {
            Some(period_us) => Ok(Self { units, period_us }),
            None => Err(Invalid("a rate's period must be whole microseconds, from 1 us to 10 years")),
        }
    }
}

/// # Properties
impl Rate {
    /// Returns the number of units per [`period`](Self::period).
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// Returns the time in which [`units`](Self::units) are refilled or drained.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period_us)
    }
}

/// Returns `duration` in µs if it is a whole number of microseconds, from `min_us` to ten years.
pub(crate) const fn whole_micros(duration: Duration, min_us: u64) -> Option<u64> {
    let us = duration.as_micros();
    if !duration.subsec_nanos().is_multiple_of(1_000) || us > LONGEST_US as u128 || us < min_us as u128 {
        return None;
    }
    Some(us as u64)
}

/// A duration as written in Redis keys and messages: in the largest of the units s, ms and us that represents
/// it exactly. So two different durations never print the same text.
#[derive(Clone, Copy)]
pub(crate) struct Micros(pub(crate) u64);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us.is_multiple_of(1_000_000) => write!(f, "{}s", us / 1_000_000),
            us if us.is_multiple_of(1_000) => write!(f, "{}ms", us / 1_000),
            us => write!(f, "{us}us"),
        }
    }
}
