//! How fast a bucket refills or drains: units in a period.

use std::fmt;
use std::time::Duration;

use super::invalid::Invalid;
use crate::error::Error;

/// The longest period or window, ten years, in microseconds.
pub(crate) const LONGEST_US: u64 = 10 * 365 * 86_400 * 1_000_000;

/// The largest number of units that any quota or rate may name.
pub(crate) const MOST_UNITS: u64 = 1 << 48;

/// Units in a period: the refill of a token bucket, the outflow of a leaky one.
///
/// The unit is yours (requests, bytes, tokens). A rate is continuous:
/// `per_minute(60)` gives one unit each second, not 60 at the end of a minute.
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
/// All of them take 1 to 2^48 units and a period of whole microseconds from
/// 1 µs to ten years.
impl Rate {
    /// `units` in each second.
    ///
    /// # Panics
    ///
    /// If `units` is 0 or above 2^48; in a `const` that is a compile error.
    #[must_use]
    pub const fn per_second(units: u64) -> Self {
        Self::new(units, Duration::from_secs(1))
    }

    /// `units` in each minute.
    ///
    /// # Panics
    ///
    /// If `units` is 0 or above 2^48; in a `const` that is a compile error.
    #[must_use]
    pub const fn per_minute(units: u64) -> Self {
        Self::new(units, Duration::from_secs(60))
    }

    /// `units` in each hour.
    ///
    /// # Panics
    ///
    /// If `units` is 0 or above 2^48; in a `const` that is a compile error.
    #[must_use]
    pub const fn per_hour(units: u64) -> Self {
        Self::new(units, Duration::from_secs(3_600))
    }

    /// `units` in each day of 24 hours.
    ///
    /// # Panics
    ///
    /// If `units` is 0 or above 2^48; in a `const` that is a compile error.
    #[must_use]
    pub const fn per_day(units: u64) -> Self {
        Self::new(units, Duration::from_secs(86_400))
    }

    /// `units` in each `period`.
    ///
    /// # Panics
    ///
    /// If `units` or `period` is outside the bounds above; in a `const` that is
    /// a compile error. [`Rate::try_new`] is for numbers known only at run time.
    #[must_use]
    pub const fn new(units: u64, period: Duration) -> Self {
        match Self::build(units, period) {
            Ok(rate) => rate,
            Err(invalid) => invalid.panic(),
        }
    }

    /// `units` in each `period`, for numbers known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if `units` or `period` is outside the bounds above.
    pub fn try_new(units: u64, period: Duration) -> Result<Self, Error> {
        Self::build(units, period).map_err(Invalid::into_error)
    }

    const fn build(units: u64, period: Duration) -> Result<Self, Invalid> {
        if units == 0 || units > MOST_UNITS {
            return Err(Invalid::RateUnits);
        }
        match whole_micros(period, 1) {
            Some(period_us) => Ok(Self { units, period_us }),
            None => Err(Invalid::Period),
        }
    }
}

/// # What it was made of
impl Rate {
    /// How many units there are in each [`period`](Self::period).
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// The time in which [`units`](Self::units) are refilled or drained.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period_us)
    }
}

/// Such as `5/s`, `100/min`, `1/1500ms`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = match self.period_us {
            1_000_000 => "s",
            60_000_000 => "min",
            3_600_000_000 => "h",
            86_400_000_000 => "d",
            us => return write!(f, "{}/{}", self.units, Micros(us)),
        };
        write!(f, "{}/{period}", self.units)
    }
}

/// `duration` in µs, if it is a whole number of them from `least` to ten years.
pub(crate) const fn whole_micros(duration: Duration, least: u64) -> Option<u64> {
    let us = duration.as_micros();
    if !duration.subsec_nanos().is_multiple_of(1_000) || us > LONGEST_US as u128 || us < least as u128 {
        return None;
    }
    Some(us as u64)
}

/// A span as it stands in Redis keys and texts: in the largest of s, ms and us
/// that holds it exactly, so that two spans never print alike.
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
