//! Formats durations and units for people.

use std::time::Duration;

/// Formats a duration by its two largest units, rounded down: `2d 3h`, `1m 5s`, `12s`. Below 10 s, uses one
/// unit: `1.5s`, `250ms`, `17us`.
#[must_use]
pub fn human(duration: Duration) -> String {
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
#[must_use]
pub fn units(used: f64) -> String {
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
}
