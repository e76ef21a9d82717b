//! The settings of a ban: how many denials of a key within a period block it, and for how long.

use std::time::Duration;

use crate::error::Error;
use crate::quota::{LONGEST_US, whole_micros};

/// Denials of one key that lead to a block: see [`Gate::ban`](crate::Gate::ban).
///
/// ```
/// use std::time::Duration;
/// use tidegate::Ban;
///
/// // 20 denials within 10 minutes block a key for an hour.
/// let ban = Ban { after: 20, within: Duration::from_secs(600), lasts: Duration::from_secs(3_600) };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ban {
    /// The number of denials, 1 to 1,000,000,000. The check with this denial is the last one before the block.
    pub after: u64,
    /// The period in which they are counted, in whole microseconds from 1 ms to 10 years. It begins with the first
    /// denial that is counted, and ends with a millisecond; the next denial begins a new one. So around the end of a
    /// period, up to `2 * after - 2` denials may come within this duration without a ban.
    pub within: Duration,
    /// The duration of the block, in whole microseconds from 1 ms to 10 years.
    pub lasts: Duration,
}

/// The largest [`Ban::after`]: with it, every count is exact in the scripts.
const MAX_AFTER: u64 = 1_000_000_000;

/// The shortest time, in µs: Redis keeps expiries in milliseconds.
const MIN_US: u64 = 1_000;

impl Ban {
    /// Returns the period in which denials are counted, in µs, of at most 10 years.
    pub(crate) fn within_us(&self) -> u64 {
        self.within.as_micros().min(LONGEST_US.into()) as u64
    }

    /// Returns the duration of the block, in µs, of at most 10 years.
    pub(crate) fn lasts_us(&self) -> u64 {
        self.lasts.as_micros().min(LONGEST_US.into()) as u64
    }

    /// Validates the ranges of the fields, as [`Gate::ban`](crate::Gate::ban) does.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] with the field that is out of its range.
    pub fn validate(&self) -> Result<(), Error> {
        let Self { after, within, lasts } = *self;
        if !(1..=MAX_AFTER).contains(&after) {
            return Err(Error::config(format!(
                "a ban after {after} denials: `after` must be 1 to 1,000,000,000 denials"
            )));
        }
        for (field, duration) in [("within", within), ("lasts", lasts)] {
            if whole_micros(duration, MIN_US).is_none() {
                return Err(Error::config(format!(
                    "a ban whose `{field}` is {duration:?}: it must be whole microseconds, from 1 ms to 10 years"
                )));
            }
        }
        Ok(())
    }
}
