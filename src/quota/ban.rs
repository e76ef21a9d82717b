//! The settings of a ban: how many denials of a key within a period block it, and for how long.

use std::time::Duration;

use crate::error::Error;
use crate::quota::{LONGEST_US, whole_micros};

/// Denials of one key that lead to a block: see [`Gate::ban`](crate::Gate::ban), which validates the ranges.
///
/// ```
/// use std::time::Duration;
/// use tidegate::Ban;
///
/// // 20 denials within 10 minutes block a key for an hour.
/// const BAN: Ban = Ban::after(20, Duration::from_secs(600)).lasting(Duration::from_secs(3_600));
/// assert_eq!((BAN.denials(), BAN.within(), BAN.lasts()), (20, Duration::from_secs(600), Duration::from_secs(3_600)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ban {
    denials: u64,
    within: Duration,
    lasts: Duration,
}

/// The largest number of denials: with it, every count is exact in the scripts.
const MAX_DENIALS: u64 = 1_000_000_000;

/// The shortest time, in µs: Redis keeps expiries in milliseconds.
const MIN_US: u64 = 1_000;

impl Ban {
    /// Makes a ban that begins after this number of denials, 1 to 1,000,000,000, within this period, in whole microseconds
    /// from 1 ms to 10 years. The check with the last denial is the last one before the block.
    ///
    /// The period begins with the first denial that is counted, and ends with a millisecond; the next denial begins a new
    /// one. So around the end of a period, up to `2 * denials - 2` denials may come within this duration without a ban.
    #[must_use]
    pub const fn after(denials: u64, within: Duration) -> Self {
        Self { denials, within, lasts: within }
    }

    /// Sets the duration of the block, in whole microseconds from 1 ms to 10 years.
    ///
    /// Default: that of the period in which denials are counted.
    #[must_use]
    pub const fn lasting(self, lasts: Duration) -> Self {
        Self { lasts, ..self }
    }

    /// Returns the number of denials that lead to the block.
    #[must_use]
    pub const fn denials(&self) -> u64 {
        self.denials
    }

    /// Returns the period in which denials are counted.
    #[must_use]
    pub const fn within(&self) -> Duration {
        self.within
    }

    /// Returns the duration of the block.
    #[must_use]
    pub const fn lasts(&self) -> Duration {
        self.lasts
    }

    /// Returns the period in which denials are counted, in µs, of at most 10 years.
    pub(crate) fn within_us(&self) -> u64 {
        self.within.as_micros().min(LONGEST_US.into()) as u64
    }

    /// Returns the duration of the block, in µs, of at most 10 years.
    pub(crate) fn lasts_us(&self) -> u64 {
        self.lasts.as_micros().min(LONGEST_US.into()) as u64
    }

    /// Validates the ranges, as [`Gate::ban`](crate::Gate::ban) does.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] with the number that is out of its range.
    pub fn validate(&self) -> Result<(), Error> {
        let Self { denials, within, lasts } = *self;
        if !(1..=MAX_DENIALS).contains(&denials) {
            return Err(Error::config(format!(
                "a ban after {denials} denials: `after` must be 1 to 1,000,000,000 denials"
            )));
        }
        for (setting, duration) in [("within", within), ("lasting", lasts)] {
            if whole_micros(duration, MIN_US).is_none() {
                return Err(Error::config(format!(
                    "a ban whose `{setting}` is {duration:?}: it must be whole microseconds, from 1 ms to 10 years"
                )));
            }
        }
        Ok(())
    }
}
