//! The window of a quota.

use std::fmt;
use std::time::Duration;

use super::calendar::Calendar;
use super::invalid::Invalid;
#[cfg(feature = "admin")]
use super::rate::LONGEST_US;
use super::rate::{MAX_UNITS, Micros, whole_micros};

/// Redis expires keys by the millisecond.
const MIN_WINDOW_US: u64 = 1_000;

/// The window of a quota. Displays as in Redis keys: `60s`, `60s@clock`, `60s@clock+1500ms`, or
/// `month+15@Europe/Berlin` for windows of a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
    /// The length, in µs. Of windows of a calendar, their mean length.
    pub us: u64,
    /// The offset of windows that begin by the clock, in µs: they begin at multiples of their length since
    /// 1970, plus the offset. `None` for other windows.
    pub aligned_us: Option<u64>,
    pub(crate) calendar: Option<Calendar>,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(calendar) = &self.calendar {
            return write!(f, "{calendar}");
        }
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
        if text.starts_with(|first: char| !first.is_ascii_digit()) {
            let calendar = Calendar::of_text(text)?;
            // A calendar has one form in Redis keys.
            let is_written_so = calendar.to_string() == text;
            let window = Self { us: calendar.mean_us(), aligned_us: None, calendar: Some(calendar) };
            return is_written_so.then_some(window);
        }
        let Some((window, clock)) = text.split_once("@clock") else {
            return Some(Self { us: micros(text)?, aligned_us: None, calendar: None });
        };
        let offset = match clock.strip_prefix('+') {
            Some(offset) => micros(offset),
            None => clock.is_empty().then_some(0),
        };
        Some(Self { us: micros(window)?, aligned_us: Some(offset?), calendar: None })
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
    if let Err(invalid) = check_limit(limit) {
        return Err(invalid);
    }
    match whole_micros(window, MIN_WINDOW_US) {
        Some(window_us) => Ok(window_us),
        None => Err(Invalid("a window must be whole microseconds, from 1 ms to 10 years")),
    }
}

pub(crate) const fn check_limit(limit: u64) -> Result<(), Invalid> {
    match limit {
        1..=MAX_UNITS => Ok(()),
        _ => Err(Invalid("a limit must be 1 to 2^48 units")),
    }
}
