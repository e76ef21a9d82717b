//! Parses and formats durations, rates and units.

use std::time::Duration;

use tidegate::Rate;

/// Parses a duration such as `90s`, `1h30m` or `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text);
    duration.map_err(|error| format!("{error}: write such as 500ms, 90s, 15m, 1h30m or 7d"))
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

/// Formats a duration by its two largest units, rounded down: `2d 3h`, `1m 5s`, `12s`. Below 10 s, uses one
/// unit: `1.5s`, `250ms`, `17us`.
pub(crate) fn human(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = duration.as_secs();
    if seconds < 10 {
        return match duration.as_micros() {
            0 => "0s".to_owned(),
            us @ ..1_000 => format!("{us}us"),
            us @ ..1_000_000 => format!("{}ms", us / 1_000),
            us if us % 1_000_000 < 100_000 => format!("{}s", us / 1_000_000),
            us => format!("{}.{}s", us / 1_000_000, us % 1_000_000 / 100_000),
        };
    }
    let parts = UNITS.iter().scan(seconds, |rest, (size, name)| {
        let count = *rest / size;
        *rest %= size;
        Some((count, name))
    });
    let parts = parts.skip_while(|(count, _)| *count == 0).take(2).filter(|(count, _)| *count > 0);
    parts.map(|(count, name)| format!("{count}{name}")).collect::<Vec<_>>().join(" ")
}

/// Formats units with up to three decimals, because levels have fractions: `3`, `2.5`, `0.001`, `<0.001`.
pub(crate) fn units(used: f64) -> String {
    if used > 0.0 && used < 0.001 {
        return "<0.001".to_owned();
    }
    let text = format!("{used:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_formatted_by_its_two_largest_units() {
        let us = Duration::from_micros;
        let s = Duration::from_secs;
        for (duration, expected) in [
            (Duration::ZERO, "0s"),
            (Duration::from_nanos(999), "0s"),
            (us(1), "1us"),
            (us(999), "999us"),
            (us(1_000), "1ms"),
            (us(999_999), "999ms"),
            (us(1_000_000), "1s"),
            (us(1_099_999), "1s"),
            (us(1_100_000), "1.1s"),
            (us(9_999_999), "9.9s"),
            (s(10), "10s"),
            (s(59), "59s"),
            (s(60), "1m"),
            (s(61), "1m 1s"),
            (s(3_599), "59m 59s"),
            (s(3_600), "1h"),
            (s(3_601), "1h"),
            (s(86_399), "23h 59m"),
            (s(86_400), "1d"),
            (s(10 * 365 * 86_400), "3650d"),
        ] {
            assert_eq!(human(duration), expected, "{duration:?}");
        }
        // A reply can contain any duration.
        assert!(human(Duration::MAX).ends_with('h'));
    }

    #[test]
    fn units_have_at_most_three_decimals() {
        for (used, expected) in [
            (0.0, "0"),
            (0.000_1, "<0.001"),
            (0.001, "0.001"),
            (2.5, "2.5"),
            (10.0, "10"),
            (100.0, "100"),
            (1.0 / 3.0, "0.333"),
            ((1_u64 << 53) as f64, "9007199254740992"),
        ] {
            assert_eq!(units(used), expected);
        }
    }

    #[test]
    fn invalid_durations_and_rates_are_rejected() {
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
    }
}
