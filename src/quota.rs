//! Quotas: an algorithm with its numbers. Invalid quotas cannot be constructed.
//!
//! Constructors are `const fn` and panic, so an invalid quota in a `const` does not compile. Each has a
//! `try_` variant for numbers that are known only at run time.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::{Quota, Rate};
//!
//! const LOGIN: Quota = Quota::token_bucket(5, Rate::per_minute(5));
//! const API: Quota = Quota::fixed_window(1_000, Duration::from_secs(3_600)).aligned_to_clock();
//!
//! assert_eq!(LOGIN.limit(), 5);
//! assert!(Quota::try_token_bucket(0, Rate::per_second(1)).is_err());
//! ```

pub mod algorithm;
pub(crate) mod ban;
#[cfg(feature = "calendar")]
mod calendar;
#[cfg(not(feature = "calendar"))]
#[path = "quota/no_calendar.rs"]
mod calendar;
mod invalid;
mod modifiers;
mod rate;
pub mod reference;
#[cfg(feature = "serde")]
pub(crate) mod serde;
pub(crate) mod settlement;
pub(crate) mod text;
mod window;

use std::time::Duration;

#[cfg(feature = "calendar")]
pub use self::calendar::Calendar;
#[cfg(not(feature = "calendar"))]
pub(crate) use self::calendar::Calendar;
pub(crate) use self::invalid::Invalid;
pub use self::rate::Rate;
pub(crate) use self::rate::{LONGEST_US, MAX_UNITS, whole_micros};
pub use self::window::Window;
pub(crate) use self::window::{check_limit, limit_and_window};
use crate::error::Error;
use crate::quota::algorithm::{Definition, Parameters};
use crate::quota::algorithm::{
    FixedWindow, InFlight, Kind, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket,
};

/// A larger number of instances is clamped to this.
pub(crate) const MAX_INSTANCES: u64 = 65_535;

/// An algorithm with its numbers. See the [module docs](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(::serde::Serialize), serde(transparent))]
pub struct Quota {
    kind: Kind,
}

/// # Constructors
///
/// Capacities and limits are 1 to 2^48 units, 1 to 10^12 of an in-flight limit; windows are whole
/// microseconds from 1 ms to ten years.
impl Quota {
    /// Makes a bucket of `capacity` units that starts full and is refilled at `rate`, never above its
    /// capacity. Admits a burst of `capacity`, then `rate`.
    ///
    /// A rate that cannot be counted exactly with so large a capacity is rounded down to the nearest exact
    /// one (by less than 1 in 10^8).
    ///
    /// # Panics
    ///
    /// If `capacity` is 0 or above 2^48, or if the bucket would take more than 2^48 µs (8.9 years) to fill.
    #[must_use]
    pub const fn token_bucket(capacity: u64, rate: Rate) -> Self {
        match TokenBucket::build(capacity, rate) {
            Ok(bucket) => Self { kind: Kind::TokenBucket(bucket) },
            Err(invalid) => invalid.panic(),
        }
    }

    /// Makes a [`Quota::token_bucket`] from numbers known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the constructor would panic.
    pub fn try_token_bucket(capacity: u64, rate: Rate) -> Result<Self, Error> {
        let bucket = TokenBucket::build(capacity, rate).map_err(Invalid::into_error)?;
        Ok(Self { kind: Kind::TokenBucket(bucket) })
    }

    /// Makes a queue of `queue` places that drains at `rate`. The decision tells an admitted check how long
    /// to wait for its turn ([`delay`](crate::Decision::delay)), so that the output is evenly spaced. A full
    /// queue denies.
    ///
    /// # Panics
    ///
    /// As [`Quota::token_bucket`].
    #[must_use]
    pub const fn leaky_bucket(queue: u64, rate: Rate) -> Self {
        match TokenBucket::build(queue, rate) {
            Ok(bucket) => Self { kind: Kind::LeakyBucket(LeakyBucket(bucket)) },
            Err(invalid) => invalid.panic(),
        }
    }

    /// Makes a [`Quota::leaky_bucket`] from numbers known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the constructor would panic.
    pub fn try_leaky_bucket(queue: u64, rate: Rate) -> Result<Self, Error> {
        let bucket = TokenBucket::build(queue, rate).map_err(Invalid::into_error)?;
        Ok(Self { kind: Kind::LeakyBucket(LeakyBucket(bucket)) })
    }

    /// Admits at most `limit` units in each window. A window begins with the first charge (or by the clock:
    /// [`aligned_to_clock`](Self::aligned_to_clock)). Windows begin and end with a millisecond, such as that
    /// of the first charge.
    ///
    /// Known limitation: `limit` units at the end of one window and `limit` units at the start of the next
    /// are all admitted, which is twice the limit within one window's length.
    ///
    /// # Panics
    ///
    /// If `limit` or `window` is outside the bounds above.
    #[must_use]
    pub const fn fixed_window(limit: u64, window: Duration) -> Self {
        match FixedWindow::build(limit, window) {
            Ok(fixed) => Self { kind: Kind::FixedWindow(fixed) },
            Err(invalid) => invalid.panic(),
        }
    }

    /// Makes a [`Quota::fixed_window`] from numbers known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the constructor would panic.
    pub fn try_fixed_window(limit: u64, window: Duration) -> Result<Self, Error> {
        let fixed = FixedWindow::build(limit, window).map_err(Invalid::into_error)?;
        Ok(Self { kind: Kind::FixedWindow(fixed) })
    }

    /// Makes a [`Quota::fixed_window`] whose windows are those of a calendar: the days, weeks, months, quarters or
    /// years of a time zone. All else is as for other fixed windows.
    ///
    /// The server's clock decides which window a check is in. Windows differ in length:
    /// [`window`](Self::window), which headers report as `w`, is their mean.
    ///
    /// # Panics
    ///
    /// If `limit` is outside the bounds above.
    #[cfg(feature = "calendar")]
    #[must_use]
    pub const fn calendar_window(limit: u64, calendar: Calendar) -> Self {
        match FixedWindow::of_calendar(limit, calendar) {
            Ok(fixed) => Self { kind: Kind::FixedWindow(fixed) },
            Err(invalid) => invalid.panic(),
        }
    }

    /// Makes a [`Quota::calendar_window`] from a limit known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the constructor would panic.
    #[cfg(feature = "calendar")]
    pub fn try_calendar_window(limit: u64, calendar: Calendar) -> Result<Self, Error> {
        Self::in_calendar(limit, calendar)
    }

    /// Admits at most `limit` units in any window of this length, exactly. Stores one log entry for each
    /// admitted take.
    ///
    /// # Panics
    ///
    /// If `limit` or `window` is outside the bounds above.
    #[must_use]
    pub const fn sliding_log(limit: u64, window: Duration) -> Self {
        match SlidingLog::build(limit, window) {
            Ok(log) => Self { kind: Kind::SlidingLog(log) },
            Err(invalid) => invalid.panic(),
        }
    }

    /// Makes a [`Quota::sliding_log`] from numbers known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the constructor would panic.
    pub fn try_sliding_log(limit: u64, window: Duration) -> Result<Self, Error> {
        let log = SlidingLog::build(limit, window).map_err(Invalid::into_error)?;
        Ok(Self { kind: Kind::SlidingLog(log) })
    }

    /// Approximates a sliding log with two counters: this window's count, plus the overlapping share of the
    /// previous window's count, rounded down. Windows begin by the clock.
    ///
    /// # Panics
    ///
    /// If `limit` or `window` is outside the bounds above, or `limit` times the window in microseconds is
    /// above 2^52.
    #[must_use]
    pub const fn sliding_counter(limit: u64, window: Duration) -> Self {
        match SlidingCounter::build(limit, window) {
            Ok(counter) => Self { kind: Kind::SlidingCounter(counter) },
            Err(invalid) => invalid.panic(),
        }
    }

    /// Makes a [`Quota::sliding_counter`] from numbers known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the constructor would panic.
    pub fn try_sliding_counter(limit: u64, window: Duration) -> Result<Self, Error> {
        let counter = SlidingCounter::build(limit, window).map_err(Invalid::into_error)?;
        Ok(Self { kind: Kind::SlidingCounter(counter) })
    }

    /// Admits while at most `limit` units are held at the same time by all processes, such as the calls in
    /// progress at a service. A unit is held from its admission until its release, or until the process that
    /// holds it is lost.
    ///
    /// Lowering `limit` takes effect at once, and revokes no unit that is held.
    ///
    /// # Panics
    ///
    /// If `limit` is 0 or above 10^12.
    #[must_use]
    pub const fn in_flight(limit: u64) -> Self {
        match InFlight::build(limit) {
            Ok(in_flight) => Self { kind: Kind::InFlight(in_flight) },
            Err(invalid) => invalid.panic(),
        }
    }

    /// Makes a [`Quota::in_flight`] from numbers known only at run time.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the constructor would panic.
    pub fn try_in_flight(limit: u64) -> Result<Self, Error> {
        let in_flight = InFlight::build(limit).map_err(Invalid::into_error)?;
        Ok(Self { kind: Kind::InFlight(in_flight) })
    }
}

/// # Quotas of any algorithm
impl Quota {
    /// Makes a quota from the numbers of [`Kind::args`].
    pub(crate) fn of_args(algorithm: &Definition, args: [u64; 4]) -> Result<Self, Error> {
        Kind::of_args(algorithm, args).map(|kind| Self { kind })
    }

    pub(crate) fn in_calendar(limit: u64, calendar: Calendar) -> Result<Self, Error> {
        let fixed = FixedWindow::of_calendar(limit, calendar).map_err(Invalid::into_error)?;
        Ok(Self { kind: Kind::FixedWindow(fixed) })
    }

    /// Makes a quota of an algorithm with [`Parameters::Rate`](crate::quota::algorithm::Parameters), such as one
    /// that a configuration file names.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] as for [`Quota::try_token_bucket`], or if the algorithm has other parameters.
    pub fn with_rate(algorithm: &Definition, capacity: u64, rate: Rate) -> Result<Self, Error> {
        let period_us = rate.period().as_micros() as u64;
        Self::of_parameters(algorithm, Parameters::Rate, [capacity, rate.units(), period_us, 0])
    }

    /// Makes a quota of an algorithm with [`Parameters::Window`](crate::quota::algorithm::Parameters), such as one
    /// that a configuration file names.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] as for [`Quota::try_fixed_window`], or if the algorithm has other parameters.
    pub fn with_window(algorithm: &Definition, limit: u64, window: Duration) -> Result<Self, Error> {
        // Zero is as invalid as a fraction of a microsecond.
        let window_us = whole_micros(window, 1).unwrap_or(0);
        Self::of_parameters(algorithm, Parameters::Window, [limit, window_us, 0, 0])
    }

    /// Makes a quota of an algorithm with [`Parameters::Count`](crate::quota::algorithm::Parameters), such as one
    /// that a configuration file names.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] as for [`Quota::try_in_flight`], or if the algorithm has other parameters.
    pub fn with_count(algorithm: &Definition, limit: u64) -> Result<Self, Error> {
        Self::of_parameters(algorithm, Parameters::Count, [limit, 0, 0, 0])
    }

    fn of_parameters(algorithm: &Definition, given: Parameters, args: [u64; 4]) -> Result<Self, Error> {
        match algorithm.parameters == given {
            true => Self::of_args(algorithm, args),
            false => Err(Error::config(format!("a quota of {} has other parameters", algorithm.name))),
        }
    }
}

/// # Properties
impl Quota {
    /// The longest window: ten years.
    pub const MAX_WINDOW: Duration = Duration::from_micros(LONGEST_US);

    /// Returns the number to show to a client: capacity, queue, or units per window. A single check with a
    /// cost above it is never admitted.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.kind.args()[0]
    }

    /// Returns the algorithm's name in Redis keys, rules and metrics, such as `token_bucket`.
    #[must_use]
    pub const fn algorithm(&self) -> &'static str {
        self.kind.definition().name
    }

    /// Returns the length of the window; of a bucket, the time in which it fills. The windows of a calendar have no
    /// one length: returns their mean, such as 30.436875 days for months.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.kind.algorithm().window_us())
    }

    /// Returns the calendar of a calendar window; `None` for other quotas.
    #[cfg(feature = "calendar")]
    #[must_use]
    pub const fn calendar(&self) -> Option<Calendar> {
        self.kind.calendar()
    }

    /// Returns whether this limits the units that are held at the same time: such a gate is
    /// [acquired](Self::in_flight), not checked.
    #[must_use]
    pub const fn is_in_flight(&self) -> bool {
        matches!(self.kind, Kind::InFlight(_))
    }

    /// Returns an in-flight limit of at most `units`. Rates do not change.
    pub(crate) fn at_most(self, units: Option<u64>) -> Self {
        match (self.kind, units) {
            (Kind::InFlight(in_flight), Some(units)) => {
                let limit = in_flight.limit.min(units.max(1));
                Self { kind: Kind::InFlight(InFlight { limit }) }
            }
            _ => self,
        }
    }

    /// Returns this quota with another [limit](Self::limit). A rate and a window stay as they are.
    ///
    /// ```
    /// use tidegate::{Quota, Rate};
    ///
    /// let quota = Quota::token_bucket(5, Rate::per_minute(5)).try_with_limit(20)?;
    /// assert_eq!(quota, Quota::token_bucket(20, Rate::per_minute(5)));
    /// # Ok::<(), tidegate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the limit is 0 or too large, as the constructor of such a quota.
    pub fn try_with_limit(self, limit: u64) -> Result<Self, Error> {
        #[cfg(feature = "calendar")]
        if let Some(calendar) = self.kind.calendar() {
            return Self::try_calendar_window(limit, calendar);
        }
        let [_, b, c, d] = self.kind.args();
        Self::of_args(self.kind.definition(), [limit, b, c, d])
    }

    /// Returns whether admitted checks can have a [`delay`](crate::Decision::delay).
    #[must_use]
    pub fn has_queue(&self) -> bool {
        self.kind.algorithm().has_queue()
    }

    /// Returns the share of one of `instances` processes, which it uses while Redis is unavailable. The limit
    /// or capacity is divided by `instances` and rounded up; a level drains at `rate / instances`. So all
    /// shares together exceed the quota by less than one unit per instance.
    pub(crate) fn share(&self, instances: u64) -> Self {
        Self { kind: self.kind.share(instances.clamp(1, MAX_INSTANCES)) }
    }

    /// Returns the algorithm with its numbers, for the [reference](mod@reference).
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }
}

/// Scales `units` of a quota to units of its share, rounded up.
pub(crate) fn units_of_share(units: u64, limit: u64, share: &Quota) -> u64 {
    (u128::from(units) * u128::from(share.limit())).div_ceil(u128::from(limit.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_exceed_the_quota_by_less_than_a_unit_each() {
        for limit in [1, 2, 3, 10, 999, 1_000_000] {
            for instances in [1, 2, 3, 7, 64, 65_535] {
                let bucket = Quota::token_bucket(limit, Rate::new(limit, Duration::from_secs(60)));
                let window = Quota::fixed_window(limit, Duration::from_secs(60));
                for quota in [bucket, window] {
                    let share = quota.share(instances);
                    assert!(share.limit() >= 1, "{quota} {instances}");
                    assert!(share.limit() * instances < limit + instances, "{quota} {instances}");
                }
                let Kind::TokenBucket(whole) = *bucket.kind() else { unreachable!() };
                let Kind::TokenBucket(part) = *bucket.share(instances).kind() else { unreachable!() };
                let over = u128::from(part.rate) * u128::from(whole.per) * u128::from(instances);
                assert!(over <= u128::from(whole.rate) * u128::from(part.per), "{bucket} {instances}");
            }
        }
    }
}
