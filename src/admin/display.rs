//! Formats durations, units and stored text for people.

use std::borrow::Cow;
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

/// Escapes characters that control a terminal, are invisible, or change the text direction. HTML needs its own escaping
/// after it.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unsafe(character) { out.extend(character.escape_unicode()) } else { out.push(character) }
    }
    Cow::Owned(out)
}

fn is_unsafe(character: char) -> bool {
    // Spaces of other widths look like a space, or like nothing.
    character.is_control()
        || (character.is_whitespace() && character != ' ')
        || matches!(character,
            // Format and bidi characters.
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{8e2}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
            // Letters without a shape: fillers, joiners and variation selectors.
            | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}'
            | '\u{fe00}'..='\u{fe0f}')
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
    fn terminal_control_characters_are_escaped() {
        for (text, expected) in [
            ("user:42", "user:42"),
            ("josé 🦀", "josé 🦀"),
            ("\x1b[31m", "\\u{1b}[31m"),
            ("a\nb\r\t\0", "a\\u{a}b\\u{d}\\u{9}\\u{0}"),
            ("\u{7f}\u{9b}0m", "\\u{7f}\\u{9b}0m"),
            ("\u{202e}gpj.exe", "\\u{202e}gpj.exe"),
            ("a\u{200b}b", "a\\u{200b}b"),
        ] {
            assert_eq!(visible(text), expected);
        }
    }

    #[test]
    fn invisible_and_bidi_letters_are_escaped() {
        let unsafe_letters = "\u{ad}\u{61c}\u{34f}\u{115f}\u{17b4}\u{180b}\u{200b}\u{200d}\u{200e}\u{2028}\u{202a}\u{202e}\
                              \u{2060}\u{2066}\u{2069}\u{2800}\u{3164}\u{fe0f}\u{feff}\u{ffa0}\u{fff9}\u{e0001}\u{e0100}\
                              \u{a0}\u{2003}\u{3000}";
        for letter in unsafe_letters.chars() {
            assert_eq!(visible(&letter.to_string()), letter.escape_unicode().to_string());
        }
    }
}
