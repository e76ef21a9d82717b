//! The protocol's units of time.

use std::time::Duration;

use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::envoy::r#type::v3::RateLimitUnit;

const DAY_S: u64 = 86_400;
/// The windows that have a unit. A window of a calendar is as long as its mean.
const UNITS: [(u64, Unit); 9] = [
    (1, Unit::Second),
    (60, Unit::Minute),
    (3_600, Unit::Hour),
    (DAY_S, Unit::Day),
    (7 * DAY_S, Unit::Week),
    (30 * DAY_S, Unit::Month),
    (2_629_746, Unit::Month),
    (365 * DAY_S, Unit::Year),
    (31_556_952, Unit::Year),
];

/// Returns the unit of a window, or [`Unit::Unknown`].
pub(crate) fn of_window(window: Duration) -> Unit {
    let named = UNITS.iter().find(|(seconds, _)| Duration::from_secs(*seconds) == window);
    named.map_or(Unit::Unknown, |(_, unit)| *unit)
}

/// Returns the window of a unit in a descriptor's own limit, `None` if it is unknown. A month has 30 days and a year
/// 365, as in rule files.
pub(crate) fn window(unit: i32) -> Option<Duration> {
    let unit = match RateLimitUnit::try_from(unit).ok()? {
        RateLimitUnit::Unknown => return None,
        RateLimitUnit::Second => Unit::Second,
        RateLimitUnit::Minute => Unit::Minute,
        RateLimitUnit::Hour => Unit::Hour,
        RateLimitUnit::Day => Unit::Day,
        RateLimitUnit::Month => Unit::Month,
        RateLimitUnit::Year => Unit::Year,
    };
    UNITS.iter().find(|(_, named)| *named == unit).map(|(seconds, _)| Duration::from_secs(*seconds))
}
