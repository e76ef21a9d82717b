//! Quotas as operators write them.

use std::time::Duration;

use crate::error::Error;
use crate::quota::algorithm::{Definition, Parameters};
use crate::quota::{Quota, Rate};

/// Parses a rate such as `5/s`, `100/m` or `1/1500ms`.
///
/// # Errors
///
/// [`Error::is_config`] if the text is not a rate, or if there is no such rate.
pub fn parse_rate(text: &str) -> Result<Rate, Error> {
    let invalid = || Error::config("write 5/s, 100/m, 1000/h or 1/1500ms");
    let (units, period) = text.split_once('/').ok_or_else(invalid)?;
    let period = period.trim();
    let one = if period.starts_with(|first: char| first.is_ascii_digit()) { "" } else { "1" };
    let period = humantime::parse_duration(&format!("{one}{period}")).map_err(|_| invalid())?;
    Rate::try_new(units.trim().parse().map_err(|_| invalid())?, period)
}

/// Returns the quota of an algorithm with these numbers.
///
/// # Errors
///
/// [`Error::is_config`] if the algorithm needs a number that is missing, or does not use one that is given, or if there
/// is no such quota.
pub fn quota_of(
    algorithm: &'static Definition,
    limit: u64,
    rate: Option<Rate>,
    window: Option<Duration>,
) -> Result<Quota, Error> {
    let needs = match (algorithm.parameters, rate, window) {
        (Parameters::Rate, Some(rate), None) => return Quota::with_rate(algorithm, limit, rate),
        (Parameters::Window, None, Some(window)) => return Quota::with_window(algorithm, limit, window),
        (Parameters::Count, None, None) => return Quota::with_count(algorithm, limit),
        (Parameters::Rate, ..) => "a rate, such as 5/s, and no window",
        (Parameters::Window, ..) => "a window, such as 60s, and no rate",
        (Parameters::Count, ..) => "neither a rate nor a window",
    };
    Err(Error::config(format!("the algorithm {} needs {needs}", algorithm.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units_and_a_period() {
        for (text, expected) in [
            ("5/s", "5/s"),
            ("100/m", "100/min"),
            ("7/min", "7/min"),
            ("1/1500ms", "1/1500ms"),
            ("2/d", "2/d"),
        ] {
            assert_eq!(parse_rate(text).unwrap().to_string(), expected, "{text}");
        }
        for text in
            ["", "5", "/s", "5/", "5/x", "-5/s", "0/s", "5/0s", "5.5/s", "99999999999999999999/s", "1/99999y"]
        {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
