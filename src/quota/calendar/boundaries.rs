//! The boundaries of calendar windows. The windows of a calendar have numbers: the window `n` begins with the first
//! instant of the day `first_day(n)`.

use std::ops::Range;

use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// Thursday, 1 January 1970.
const EPOCH: Date = Date::constant(1970, 1, 1);
/// 2^53 µs since 1970, in the year 2255.
const LATEST_US: u64 = 1 << 53;

/// The days with which the windows of a calendar begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FirstDays {
    pub(super) period: Period,
    /// Of a quarter or a year: the month in which it begins, from 1.
    pub(super) month: u8,
    /// Of a week: the weekday with which it begins, 1 for Monday. Of longer periods: the day of the month.
    pub(super) day: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Period {
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

impl FirstDays {
    /// Returns the window that contains `now_us`, in µs since 1970.
    pub(super) fn window_at(&self, zone: &TimeZone, now_us: u64) -> Range<u64> {
        let now_s = (now_us.min(LATEST_US) / 1_000_000) as i64;
        let begins_s = |number| first_instant_s(zone, self.first_day(number));
        let mut number = self.number_of(zone.to_datetime(timestamp(now_s)).date());
        let mut start_s = begins_s(number);
        // Where clocks are set back over midnight, they show a date again whose window has ended.
        while start_s > now_s {
            number -= 1;
            start_s = begins_s(number);
        }
        let mut end_s = begins_s(number + 1);
        while end_s <= now_s {
            number += 1;
            (start_s, end_s) = (end_s, begins_s(number + 1));
        }
        let micros = |seconds: i64| u64::try_from(seconds).unwrap_or(0) * 1_000_000;
        micros(start_s)..micros(end_s)
    }

    /// Returns the number of the window that contains the day.
    fn number_of(&self, day: Date) -> i64 {
        let days = day.duration_since(EPOCH).as_hours() / 24;
        match self.months() {
            None if self.period == Period::Day => days,
            None => (days - self.first_weekday()).div_euclid(7),
            Some(months) => {
                let month = i64::from(day.year()) * 12 + i64::from(day.month()) - i64::from(self.month);
                let number = month.div_euclid(months);
                if self.first_day(number) > day { number - 1 } else { number }
            }
        }
    }

    /// Returns the first day of a window.
    fn first_day(&self, number: i64) -> Date {
        let Some(months) = self.months() else {
            let days = if self.period == Period::Day { number } else { self.first_weekday() + 7 * number };
            return EPOCH.saturating_add(SignedDuration::from_hours(24 * days));
        };
        let month = number * months + i64::from(self.month) - 1;
        let (year, month) = (month.div_euclid(12), month.rem_euclid(12) + 1);
        let first = Date::constant(year as i16, month as i8, 1);
        Date::constant(year as i16, month as i8, first.days_in_month().min(self.day as i8))
    }

    /// Returns the number of months in a window; `None` if it is a day or a week.
    const fn months(&self) -> Option<i64> {
        match self.period {
            Period::Day | Period::Week => None,
            Period::Month => Some(1),
            Period::Quarter => Some(3),
            Period::Year => Some(12),
        }
    }

    /// Returns the day with which the week 0 begins, in days since 1970, at most 6 days before or after.
    fn first_weekday(&self) -> i64 {
        // 29 December 1969 was a Monday.
        i64::from(self.day) - 1 - 3
    }
}

/// Returns the first instant of a day, or of the next one if the zone skips the day.
fn first_instant_s(zone: &TimeZone, day: Date) -> i64 {
    let midnight = day.to_datetime(Time::midnight());
    let utc_s = midnight.duration_since(EPOCH.to_datetime(Time::midnight())).as_secs();
    match zone.to_ambiguous_timestamp(midnight).offset() {
        AmbiguousOffset::Unambiguous { offset } => utc_s - i64::from(offset.seconds()),
        // The first of two midnights.
        AmbiguousOffset::Fold { before, .. } => utc_s - i64::from(before.seconds()),
        // Clocks are set forward over midnight: the day begins with that change, which is not after the midnight
        // that clocks would have shown without it.
        AmbiguousOffset::Gap { before, .. } => {
            let without_change_s = utc_s - i64::from(before.seconds());
            let change = zone.preceding(timestamp(without_change_s + 1)).next();
            change.map_or(without_change_s, |change| change.timestamp().as_second())
        }
    }
}

/// Returns the number of days of a month in a leap year.
pub(super) fn longest_month(month: u8) -> u8 {
    Date::constant(2000, month as i8, 1).days_in_month() as u8
}

fn timestamp(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH)
}
