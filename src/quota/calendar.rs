//! The windows of a calendar: days, weeks, months, quarters and years in a time zone.

mod boundaries;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::str::FromStr;
use std::sync::LazyLock;

use jiff::tz::{TimeZone, db};

use self::boundaries::{FirstDays, Period};
use crate::error::Error;
use crate::runtime::sync::{Mutex, lock};

/// The windows of a [calendar window](crate::Quota::calendar_window): days, weeks, months, quarters or years in a
/// time zone. They begin at midnight.
///
/// Displays as in Redis keys: `month@UTC`, `month+15@Europe/Berlin`, `year+02-29@UTC`. The text after `+` is the
/// [anchor](Self::anchored_to_day), where the period does not begin on its first day. A text is parsed from the same
/// form; without `@`, the zone is UTC.
///
/// # Boundaries
///
/// A window contains its beginning, and not its end, which begins the next one.
///
/// - A day begins with its first instant: at 00:00, or later where the zone's clocks skip midnight. Days with a
///   change of daylight-saving time last 23 or 25 hours. Where clocks show midnight twice, the first one counts.
/// - A day that a zone skipped, as Samoa did with 2011-12-30, has no window. A window that is anchored to it begins
///   with the next day.
/// - An anchor after a month's last day falls on that last day: the 31st on 30 April, 29 February on 28 February.
///
/// # Zone data
///
/// Zones are those of the system's IANA database (the package `tzdata`), as jiff finds it. A zone is read once in the
/// life of a process. Two names of one zone, such as `Europe/Kiev` and `Europe/Kyiv`, are two windows with separate
/// counts.
///
/// ```no_run
/// use tidegate::quota::Calendar;
/// use tidegate::{Error, Quota};
///
/// # fn main() -> Result<(), Error> {
/// let billing = Calendar::MONTH.anchored_to_day(31)?.in_zone("Europe/Berlin")?;
/// let quota = Quota::calendar_window(10_000, billing);
/// assert_eq!(quota.to_string(), "10000/month from 31 in Europe/Berlin");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Calendar {
    first_days: FirstDays,
    zone: Zone,
}

const PERIODS: [(&str, Period); 5] = [
    ("day", Period::Day),
    ("week", Period::Week),
    ("month", Period::Month),
    ("quarter", Period::Quarter),
    ("year", Period::Year),
];

/// # Calendars in UTC
impl Calendar {
    /// Days. In UTC, the windows are those of a fixed window of 24 hours
    /// [aligned to the clock](crate::Quota::aligned_to_clock).
    pub const DAY: Self = Self::new(Period::Day);
    /// Weeks, which begin on Monday.
    pub const WEEK: Self = Self::new(Period::Week);
    /// Months, which begin on the 1st.
    pub const MONTH: Self = Self::new(Period::Month);
    /// Quarters, which begin on 1 January, 1 April, 1 July and 1 October.
    pub const QUARTER: Self = Self::new(Period::Quarter);
    /// Years, which begin on 1 January.
    pub const YEAR: Self = Self::new(Period::Year);

    const fn new(period: Period) -> Self {
        Self { first_days: FirstDays { period, month: 1, day: 1 }, zone: Zone::UTC }
    }
}

/// # Anchors and zones
impl Calendar {
    /// Makes weeks begin on this weekday, 1 for Monday to 7 for Sunday, or months on this day, 1 to 31. In a month
    /// without the day, the window begins on the month's last day.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] for other days, and for other periods.
    pub fn anchored_to_day(self, day: u8) -> Result<Self, Error> {
        let longest = match self.first_days.period {
            Period::Week => 7,
            Period::Month => 31,
            Period::Day | Period::Quarter | Period::Year => 0,
        };
        match (1..=longest).contains(&day) {
            true => Ok(Self { first_days: FirstDays { day, ..self.first_days }, ..self }),
            false => Err(self.wrong_anchor(day)),
        }
    }

    /// Makes years begin on this day of this month (1 to 12), or quarters on this day of their first, second or third
    /// month (1 to 3). In a month without the day, the window begins on the month's last day.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] for other months, for days that the month never has, and for other periods.
    pub fn anchored_to_date(self, month: u8, day: u8) -> Result<Self, Error> {
        let longest = match self.first_days.period {
            Period::Quarter if (1..=3).contains(&month) => 31,
            Period::Year if (1..=12).contains(&month) => boundaries::longest_month(month),
            _ => 0,
        };
        match (1..=longest).contains(&day) {
            true => Ok(Self { first_days: FirstDays { month, day, ..self.first_days }, ..self }),
            false => Err(self.wrong_anchor(format_args!("{month:02}-{day:02}"))),
        }
    }

    /// Makes days begin in this time zone of the IANA database, such as `Europe/Berlin`. Upper and lower case are the
    /// same.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the database has no such zone, with the most similar name, or if there is no database.
    pub fn in_zone(self, name: &str) -> Result<Self, Error> {
        Ok(Self { zone: Zone::of_name(name)?, ..self })
    }

    fn wrong_anchor(&self, anchor: impl fmt::Display) -> Error {
        let expected = match self.first_days.period {
            Period::Day => "a day has no anchor",
            Period::Week => "the anchor of a week is a weekday, 1 (Monday) to 7 (Sunday)",
            Period::Month => "the anchor of a month is a day, 1 to 31",
            Period::Quarter => "the anchor of a quarter is a month, 01 to 03, and a day, such as 02-15",
            Period::Year => "the anchor of a year is a month and a day, such as 02-29",
        };
        Error::config(format!("anchor {anchor}: {expected}"))
    }
}

/// # Windows
impl Calendar {
    /// Returns the beginning and the end of the window that contains `now_us`. Times are in µs since 1970, at most
    /// 2^53. A window that began before 1970 begins at 0.
    #[must_use]
    pub fn window_at(&self, now_us: u64) -> Range<u64> {
        self.first_days.window_at(self.zone.time_zone(), now_us)
    }

    /// Returns the mean length of the windows, in µs: of a month 30.436875 days, as in the Gregorian calendar.
    pub(crate) const fn mean_us(&self) -> u64 {
        match self.first_days.period {
            Period::Day => 86_400_000_000,
            Period::Week => 604_800_000_000,
            Period::Month => 2_629_746_000_000,
            Period::Quarter => 7_889_238_000_000,
            Period::Year => 31_556_952_000_000,
        }
    }
}

impl Calendar {
    /// Returns the period, the anchor if it is another than the first day, and the zone, each as it is written.
    pub(crate) fn parts(&self) -> (&'static str, String, &'static str) {
        let FirstDays { period, month, day } = self.first_days;
        let name = PERIODS.iter().find(|(_, known)| *known == period).map_or("", |(name, _)| name);
        let anchor = match (period, month, day) {
            (_, 1, 1) => String::new(),
            (Period::Quarter | Period::Year, month, day) => format!("{month:02}-{day:02}"),
            (_, _, day) => day.to_string(),
        };
        (name, anchor, self.zone.name())
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (period, anchor, zone) = self.parts();
        let plus = if anchor.is_empty() { "" } else { "+" };
        write!(f, "{period}{plus}{anchor}@{zone}")
    }
}

/// Formats as [`Display`](fmt::Display) does.
impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Calendar {
    type Err = Error;

    /// Parses the form that [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the text is no calendar; the message says what is wrong.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (rest, zone) = text.split_once('@').unwrap_or((text, Zone::UTC.name()));
        Self::of_period(rest)?.in_zone(zone)
    }
}

impl Calendar {
    /// Parses the text that a process wrote. Unlike [`FromStr`], spends no time on a hint.
    pub(crate) fn of_text(text: &str) -> Option<Self> {
        let (rest, zone) = text.split_once('@')?;
        Some(Self { zone: Zone::find(zone)?, ..Self::of_period(rest).ok()? })
    }

    /// Parses a period with its anchor, such as `month+15`.
    fn of_period(rest: &str) -> Result<Self, Error> {
        let (name, anchor) = match rest.split_once('+') {
            Some((name, anchor)) => (name, Some(anchor)),
            None => (rest, None),
        };
        let Some((_, period)) = PERIODS.into_iter().find(|(known, _)| *known == name) else {
            let name = name.escape_debug();
            return Err(Error::config(format!("no period `{name}`: use day, week, month, quarter or year")));
        };
        let calendar = Self::new(period);
        match anchor {
            Some(anchor) => calendar.anchored(anchor),
            None => Ok(calendar),
        }
    }

    /// Parses an anchor: `15`, or `02-29`.
    fn anchored(self, anchor: &str) -> Result<Self, Error> {
        let number = |text: &str| {
            let is_number = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u8>().ok().filter(|_| is_number)
        };
        let parsed = match anchor.split_once('-') {
            None => number(anchor).map(|day| self.anchored_to_day(day)),
            Some((month, day)) => {
                number(month).zip(number(day)).map(|(month, day)| self.anchored_to_date(month, day))
            }
        };
        parsed.unwrap_or_else(|| Err(self.wrong_anchor(anchor.escape_debug())))
    }
}

// Time zones as small values: each is read once, and kept until the process ends.

/// No name in the database is longer.
const MAX_NAME_BYTES: usize = 64;

/// A time zone with its name in the database.
#[derive(Clone, Copy)]
struct Zone(&'static Entry);

#[derive(Debug)]
struct Entry {
    name: &'static str,
    time_zone: TimeZone,
}

static UTC: Entry = Entry { name: "UTC", time_zone: TimeZone::UTC };

/// The zones in use, by their names: at most as many as the database has.
static ZONES: LazyLock<Mutex<HashMap<&'static str, Zone>>> = LazyLock::new(Mutex::default);

impl Zone {
    const UTC: Self = Self(&UTC);

    /// Finds a zone. Upper and lower case are the same.
    ///
    /// # Errors
    ///
    /// With the most similar name of all, which takes milliseconds.
    fn of_name(name: &str) -> Result<Self, Error> {
        Self::find(name).ok_or_else(|| unknown(name))
    }

    fn find(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case(UTC.name) {
            return Some(Self::UTC);
        }
        if let Some(zone) = lock(&ZONES).get(name) {
            return Some(*zone);
        }
        // A name is a part of Redis keys, and jiff looks for a file of this name.
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'+' | b'-' | b'/');
        let is_name = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_letter);
        let time_zone = if is_name { db().get(name).ok()? } else { return None };
        // The name as the database writes it, so that the zone has one name in Redis keys.
        let written = time_zone.iana_name()?.to_owned();
        let mut zones = lock(&ZONES);
        if let Some(zone) = zones.get(&*written) {
            return Some(*zone);
        }
        let name = &*String::leak(written);
        let zone = Self(Box::leak(Box::new(Entry { name, time_zone })));
        zones.insert(name, zone);
        Some(zone)
    }

    const fn name(self) -> &'static str {
        self.0.name
    }

    const fn time_zone(self) -> &'static TimeZone {
        &self.0.time_zone
    }
}

fn unknown(name: &str) -> Error {
    if db().available().next().is_none() {
        return Error::config(
            "no time zone database: install `tzdata`, or enable the feature `tzdb-bundle-always` of the crate `jiff`",
        );
    }
    // The time is the product of both lengths.
    let word = name.chars().take(MAX_NAME_BYTES).collect::<String>().to_lowercase();
    let names = db().available().map(|zone| zone.to_string());
    let near = names.map(|zone| (strsim::damerau_levenshtein(&word, &zone.to_lowercase()), zone)).min();
    let near = near.filter(|(distance, zone)| *distance <= 1 + zone.len() / 4);
    let hint = near.map_or_else(
        || "use a name of the IANA database, such as `Europe/Berlin`".to_owned(),
        |(_, zone)| format!("did you mean `{zone}`?"),
    );
    let name: String = name.chars().take(MAX_NAME_BYTES).collect();
    Error::config(format!("no time zone `{}`: {hint}", name.escape_debug()))
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialOrd for Zone {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Zone {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(other.0.name)
    }
}
