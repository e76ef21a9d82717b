//! Parses durations, sizes and counts, and formats durations, counts and units.

use std::str::FromStr;
use std::time::Duration;

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

/// Parses a number of units, such as `5`.
pub(crate) fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write a whole number from 0, such as 5".to_owned())
}

/// Parses a limit or a rate. The error omits the text, which clap's message has.
pub(crate) fn limit<T: FromStr<Err = tidegate::Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: tidegate::Error| {
        let message = error.to_string();
        message.split_once(&format!("`{text}`: ")).map_or(message.clone(), |(_, reason)| reason.to_owned())
    })
}

/// Returns `1 key` or `2 keys`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns a duration in whole microseconds, as JSON has it.
pub(crate) fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn above_zero(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_durations_sizes_and_counts_are_rejected() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
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
