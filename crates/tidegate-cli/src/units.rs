//! Parses durations, sizes, counts and rates, and formats durations and units.

use std::time::Duration;

use tidegate::Rate;
pub(crate) use tidegate::admin::{human, units};

/// Parses a duration such as `90s`, `1h30m` or `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text);
    duration.map_err(|error| format!("{error}: write such as 500ms, 90s, 15m, 1h30m or 7d"))
}

/// Parses a number of bytes above 0, such as `1048576`.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    above_zero(text).ok_or_else(|| "write a whole number of bytes from 1, such as 1048576".to_owned())
}

/// Parses a number above 0, such as `16384`.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    above_zero(text).ok_or_else(|| "write a whole number from 1, such as 16384".to_owned())
}

fn above_zero(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number| *number > 0)
}

/// Parses a rate such as `5/s`, `100/m` or `1/1500ms`.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let invalid = || "write such as 5/s, 100/m, 1000/h or 1/1500ms".to_owned();
    let (units, period) = text.split_once('/').ok_or_else(invalid)?;
    let units = units.trim().parse().map_err(|_| invalid())?;
    let period = period.trim();
    let one = if period.starts_with(|first: char| first.is_ascii_digit()) { "" } else { "1" };
    let period = duration(&format!("{one}{period}")).map_err(|_| invalid())?;
    Rate::try_new(units, period).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_durations_sizes_counts_and_rates_are_rejected() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for (text, expected) in [
            ("5/s", "5/s"),
            ("100/m", "100/min"),
            ("7/min", "7/min"),
            ("1/1500ms", "1/1500ms"),
            ("2/d", "2/d"),
        ] {
            assert_eq!(rate(text).unwrap().to_string(), expected, "{text}");
        }
        for text in
            ["", "5", "/s", "5/", "5/x", "-5/s", "0/s", "5/0s", "5.5/s", "99999999999999999999/s", "1/99999y"]
        {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["", "5", "x", "-1s", "99999999999999999999y"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!((bytes("4096"), count("1")), (Ok(4096), Ok(1)));
        for text in ["", "0", "-1", "1.5", "4k", "99999999999999999999"] {
            assert!(bytes(text).unwrap_err().contains("such as 1048576"), "{text}");
            assert!(count(text).unwrap_err().contains("such as 16384"), "{text}");
        }
    }
}
