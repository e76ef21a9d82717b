//! The window of a quota.

use std::fmt;
use std::time::Duration;

use super::invalid::Invalid;
#[cfg(feature = "admin")]
use super::rate::LONGEST_US;
use super::rate::{MAX_UNITS, Micros, whole_micros};

/// Redis expires keys by the millisecond.
const MIN_WINDOW_US: u64 = 1_000;

/// The window of a quota. Displays as in Redis keys: `60s`, `60s@clock` or `60s@clock+1500ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
    /// The length, in µs.
    pub us: u64,
    /// The offset of windows that begin by the clock, in µs: they begin at multiples of their length since
    /// 1970, plus the offset. `None` for other windows.
    pub aligned_us: Option<u64>,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Micros(self.us))?;
        match self.aligned_us {
            None => Ok(()),
            Some(0) => f.write_str("@clock"),
            Some(offset) => write!(f, "@clock+{}", Micros(offset)),
        }
    }
}

#[cfg(feature = "admin")]
impl Window {
    /// Parses the form of Redis keys.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let Some((window, clock)) = text.split_once("@clock") else {
            return Some(Self { us: micros(text)?, aligned_us: None });
        };
        let offset = match clock.strip_prefix('+') {
            Some(offset) => micros(offset),
            None => clock.is_empty().then_some(0),
        };
        Some(Self { us: micros(window)?, aligned_us: Some(offset?) })
    }
}

/// Parses the output of [`Micros`].
#[cfg(feature = "admin")]
fn micros(text: &str) -> Option<u64> {
    let unit_start = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_start);
    let unit = match unit {
        "s" => 1_000_000,
        "ms" => 1_000,
        "us" => 1,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|us| *us <= LONGEST_US)
}

/// Validates the numbers of a quota with a window. Returns the window in µs.
pub(crate) const fn limit_and_window(limit: u64, window: Duration) -> Result<u64, Invalid> {
    if limit == 0 || limit > MAX_UNITS {
        return Err(Invalid("a limit must be 1 to 2^48 units"));
    }
    match whole_micros(window, MIN_WINDOW_US) {
        Some(window_us) => Ok(window_us),
        None => Err(Invalid("a window must be whole microseconds, from 1 ms to 10 years")),
    }
}
