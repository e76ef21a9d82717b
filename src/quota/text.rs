//! Quotas and rates as text, such as `100/min`, `5/min burst 20` and `10 in flight`: what [`Display`](fmt::Display) writes,
//! `FromStr` reads as the same quota.
//!
//! ```text
//! quota  = units per period                        a fixed window by the clock of the server
//!        | units per period "offset" period        the same, each window that much later
//!        | units per period "from first use"       a fixed window that begins with its first charge
//!        | units per period "burst" units          a token bucket with so many units at once
//!        | units per period "queue" units          a leaky bucket with so many places
//!        | units per period "sliding log" ["counting denied"]
//!        | units per period "sliding counter"
//!        | units per part ["from" anchor] "in" zone    a calendar window
//!        | units "in flight"
//! rate   = units per period
//! per    = "/" | "per"
//! period = [number] ("us" | "ms" | "s" | "min" | "h" | "d" | "week")
//! part   = "day" | "week" | "month" | "quarter" | "year"
//! ```
//!
//! Units of time can be written out (`2 hours`), and `m` is a minute. Upper and lower case are the same. Between words stand
//! spaces; elsewhere they can.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Calendar, Quota, Rate, Window};
use crate::error::Error;
use crate::quota::algorithm::{ALGORITHMS, Definition, Parameters};

/// Each unit of time as it is written, in µs, and the other names that are read.
const UNITS: [(&str, u64, &[&str]); 7] = [
    ("week", 604_800_000_000, &["w", "weeks"]),
    ("d", 86_400_000_000, &["day", "days"]),
    ("h", 3_600_000_000, &["hr", "hour", "hours"]),
    ("min", 60_000_000, &["m", "mins", "minute", "minutes"]),
    ("s", 1_000_000, &["sec", "secs", "second", "seconds"]),
    ("ms", 1_000, &["millisecond", "milliseconds"]),
    ("us", 1, &["µs", "microsecond", "microseconds"]),
];

/// The periods of calendars that have no fixed length, each with the one that a reader may have meant.
const WITHOUT_LENGTH: [(&str, &str); 3] = [("month", "30d"), ("quarter", "90d"), ("year", "365d")];

const RIGHT: &str = "write such as `100/min`, `5/min burst 20`, `20 per 3h sliding log`, `10 in flight`, or \
                     `1000 per month in Europe/Berlin`";

/// The longest text that an error repeats, in characters.
const MAX_SHOWN: usize = 60;

/// A period of time, in the largest unit of which it is a whole number: `min`, `90s`, `3h`.
struct TextPeriod(u64);

impl fmt::Display for TextPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = |us: &u64| self.0.is_multiple_of(*us);
        let (name, us, _) = UNITS.into_iter().find(|(_, us, _)| is_whole(us)).unwrap_or(UNITS[6]);
        match self.0 / us {
            1 => f.write_str(name),
            number => write!(f, "{number}{name}"),
        }
    }
}

/// Displays `5/s`, `100/min` or `1/1500ms`, for example.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.units(), TextPeriod(self.period().as_micros() as u64))
    }
}

/// Displays `100/min`, `5/min burst 20` or `10 in flight`, for example: the [`FromStr`] form.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, algorithm) = (self.limit(), self.kind().algorithm());
        let Definition { words, .. } = *self.kind().definition();
        if let Some(rate) = algorithm.rate() {
            return write!(f, "{rate} {words} {limit}");
        }
        let Some(Window { us, aligned_us, calendar }) = algorithm.window() else {
            return write!(f, "{limit} {words}");
        };
        if let Some(calendar) = calendar {
            let (part, anchor, zone) = calendar.parts();
            let from = if anchor.is_empty() { "" } else { " from " };
            return write!(f, "{limit}/{part}{from}{anchor} in {zone}");
        }
        write!(f, "{limit}/{}", TextPeriod(us))?;
        match (words, aligned_us) {
            ("", None) => f.write_str(" from first use"),
            ("", Some(0)) => Ok(()),
            ("", Some(offset)) => write!(f, " offset {}", TextPeriod(offset)),
            (words, _) if algorithm.counts_denied() => write!(f, " {words} counting denied"),
            (words, _) => write!(f, " {words}"),
        }
    }
}

impl FromStr for Quota {
    type Err = Error;

    /// Parses a limit such as `100/min` (a fixed window by the clock), `5/min burst 20` (a token bucket),
    /// `20 per 3h sliding log`, `10 in flight` or `1000 per month in Europe/Berlin`. `docs/guide/gates.md` has the grammar.
    ///
    /// ```
    /// use tidegate::{Quota, Rate};
    ///
    /// let login: Quota = "5/min burst 20".parse()?;
    /// assert_eq!(login, Quota::token_bucket(20, Rate::per_minute(5)));
    /// assert_eq!(login.to_string(), "5/min burst 20");
    /// # Ok::<(), tidegate::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the text is no limit, with the place and right examples; if there is no such quota; or for a
    /// calendar window without the feature `calendar`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut reader = TextReader::new(text);
        reader.quota().map_err(|reason| reader.error("limit", &reason))
    }
}

impl FromStr for Rate {
    type Err = Error;

    /// Parses a rate such as `5/s`, `100 per minute` or `1/1500ms`.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the text is no rate, with a right example, or if there is no such rate.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut reader = TextReader::new(text);
        reader.rate_alone().map_err(|reason| reader.error("rate", &reason))
    }
}

/// Reads a time such as `50ms`.
#[cfg(feature = "serde")]
pub(crate) fn duration(text: &str) -> Result<Duration, Error> {
    let mut reader = TextReader::new(text);
    let read = reader.period().and_then(|time| reader.end().map(|()| time));
    read.map_err(|reason| reader.error("time", &reason))
}

/// Reads a text from its beginning on. Reasons for errors follow the text.
struct TextReader<'t> {
    text: &'t str,
    rest: &'t str,
}

impl<'t> TextReader<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, rest: text.trim() }
    }

    fn quota(&mut self) -> Result<Quota, String> {
        let units = self.number("a number of units")?;
        if self.take_words("in flight") {
            self.end()?;
            return Quota::try_in_flight(units).map_err(reason);
        }
        self.per()?;
        let (number, unit) = self.number_and_unit()?;
        if self.take_words("in") {
            return self.calendar(units, number, unit, "");
        }
        if self.take_words("from first use") {
            self.end()?;
            return Quota::try_fixed_window(units, period(number, unit)?).map_err(reason);
        }
        if self.take_words("from") {
            let anchor = self.take_while(|character| !character.is_whitespace());
            return match self.take_words("in") {
                true => self.calendar(units, number, unit, anchor),
                false => Err(format!("`from {}` needs a time zone: `in Europe/Berlin`", shown(anchor))),
            };
        }
        let window = period(number, unit)?;
        if self.rest.is_empty() || self.take_words("offset") {
            let offset = if self.rest.is_empty() { Duration::ZERO } else { self.period()? };
            self.end()?;
            let fixed = Quota::try_fixed_window(units, window);
            return fixed.and_then(|fixed| fixed.try_aligned_to_clock_at(offset)).map_err(reason);
        }
        let Some(algorithm) = self.algorithm() else {
            return Err(format!("`{}` is not understood", shown(self.rest)));
        };
        let quota = match algorithm.parameters {
            Parameters::Rate => {
                let words = algorithm.words;
                if self.rest.is_empty() {
                    return Err(format!("after `{words}` comes a number of units, such as `{words} 20`"));
                }
                let capacity = self.number(words)?;
                Quota::with_rate(algorithm, capacity, Rate::try_new(units, window).map_err(reason)?)
            }
            Parameters::Window | Parameters::Count => Quota::with_window(algorithm, units, window),
        };
        let quota = match self.take_words("counting denied") {
            true => quota.and_then(Quota::try_count_denied),
            false => quota,
        };
        self.end()?;
        quota.map_err(reason)
    }

    fn rate_alone(&mut self) -> Result<Rate, String> {
        let units = self.number("a number of units")?;
        self.per()?;
        let period = self.period()?;
        self.end()?;
        Rate::try_new(units, period).map_err(reason)
    }

    /// Reads the zone of a calendar window, which is the rest.
    fn calendar(&mut self, units: u64, number: u64, part: &str, anchor: &str) -> Result<Quota, String> {
        let part = part.to_ascii_lowercase();
        let part = match &*part {
            "d" | "days" => "day",
            "w" | "weeks" => "week",
            "months" => "month",
            "quarters" => "quarter",
            "years" => "year",
            part => part,
        };
        if number != 1 || self.rest.is_empty() || self.rest.len() > MAX_SHOWN {
            return Err(
                "a window of a calendar is one day, week, month, quarter or year `in` a time zone".to_owned()
            );
        }
        let plus = if anchor.is_empty() { "" } else { "+" };
        let calendar: Calendar = format!("{part}{plus}{anchor}@{}", self.rest).parse().map_err(reason)?;
        Quota::in_calendar(units, calendar).map_err(reason)
    }

    /// Reads the words of an algorithm.
    fn algorithm(&mut self) -> Option<&'static Definition> {
        let rates = ALGORITHMS.into_iter().filter(|algorithm| !algorithm.words.is_empty());
        rates
            .into_iter()
            .find(|algorithm| algorithm.parameters != Parameters::Count && self.take_words(algorithm.words))
    }

    fn per(&mut self) -> Result<(), String> {
        if let Some(rest) = self.rest.strip_prefix('/') {
            self.rest = rest.trim_start();
            return Ok(());
        }
        match self.take_words("per") {
            true => Ok(()),
            false => Err(self.no_period()),
        }
    }

    /// Returns the reason why no period follows the number that was read, with the right form of a frequent mistake.
    fn no_period(&self) -> String {
        const EXPECTED: &str = "after the number of units comes a period, such as `/min`";
        let (text, rest) = (self.text.trim(), self.rest);
        let number = shown(text[..text.len() - rest.len()].trim_end());
        let (word, tail) = rest.split_at(rest.find(|it: char| !it.is_alphabetic()).unwrap_or(rest.len()));
        let tail = shown(tail.trim_start());
        let right = match (&*word.to_ascii_lowercase(), rest.chars().next()) {
            (_, None) => return EXPECTED.to_owned(),
            ("in", _) => format!("write `{number} in flight`"),
            ("e" | "k" | "m", _) | (_, Some(',' | '_' | '\'')) => {
                "write the number in digits alone, such as `1000/min`".to_owned()
            }
            (_, Some('.')) => "a number is whole: write `3/2s` for 1.5 per second".to_owned(),
            ("rps", _) => format!("write `{number}/s`"),
            ("rpm", _) => format!("write `{number}/min`"),
            ("rph", _) => format!("write `{number}/h`"),
            (_, Some(first)) if first.is_alphabetic() && tail.starts_with('/') => {
                format!("write `{number}{tail}`")
            }
            (_, Some(first)) if first.is_alphabetic() && tail.starts_with("per ") => {
                format!("write `{number} {tail}`")
            }
            _ => EXPECTED.to_owned(),
        };
        format!("`{}` after `{number}` is not understood: {right}", shown(rest))
    }

    fn period(&mut self) -> Result<Duration, String> {
        let (number, unit) = self.number_and_unit()?;
        period(number, unit)
    }

    /// Reads such as `min`, `90s` or `3 hours`.
    fn number_and_unit(&mut self) -> Result<(u64, &'t str), String> {
        let number = match self.rest.starts_with(|first: char| first.is_ascii_digit()) {
            true => self.number("a period")?,
            false => 1,
        };
        Ok((number, self.take_while(char::is_alphabetic)))
    }

    fn number(&mut self, of: &str) -> Result<u64, String> {
        let digits = self.take_while(|character| character.is_ascii_digit());
        let number = digits.parse();
        number.map_err(|_| match digits.is_empty() {
            true if self.rest.is_empty() => format!("{of} is missing"),
            true => format!(
                "{of} is missing before `{}`{}",
                shown(self.rest),
                match self.rest.chars().next() {
                    Some('-' | '−') => ": a limit is not negative",
                    Some(first) if first.is_numeric() => ": write it in the digits 0 to 9",
                    _ => "",
                }
            ),
            false => format!("`{}` is too large", shown(digits)),
        })
    }

    /// Reads these words if they come next.
    fn take_words(&mut self, words: &str) -> bool {
        let mut rest = self.rest;
        for word in words.split(' ') {
            let Some((head, tail)) = rest.split_at_checked(word.len()) else { return false };
            if !head.eq_ignore_ascii_case(word) || tail.starts_with(char::is_alphanumeric) {
                return false;
            }
            rest = tail.trim_start();
        }
        self.rest = rest;
        true
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|character| !is_part(character)).unwrap_or(self.rest.len());
        let (part, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        part
    }

    fn end(&self) -> Result<(), String> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(format!("`{}` is not understood", shown(self.rest))),
        }
    }

    fn error(&self, kind: &str, reason: &str) -> Error {
        let right = match kind {
            // The reason has the right form of this very text.
            _ if reason.contains("write `") => {
                return Error::config(format!("no {kind} `{}`: {reason}", shown(self.text)));
            }
            "rate" => "write such as `5/s` or `100/min`",
            "time" => "write such as `50ms`",
            _ => RIGHT,
        };
        Error::config(format!("no {kind} `{}`: {reason}; {right}", shown(self.text)))
    }
}

/// Returns a period of a fixed length.
fn period(number: u64, unit: &str) -> Result<Duration, String> {
    if unit == "M" {
        return Err("`M` can be a minute or a month: write `min`, or `per month in UTC`".to_owned());
    }
    let is_unit = |name: &str| name.eq_ignore_ascii_case(unit);
    if let Some((_, us, _)) =
        UNITS.into_iter().find(|(name, _, others)| is_unit(name) || others.iter().copied().any(is_unit))
    {
        let us = number.checked_mul(us).ok_or_else(|| format!("`{number}{unit}` is too long"))?;
        return Ok(Duration::from_micros(us));
    }
    let singular = unit.strip_suffix(['s', 'S']).unwrap_or(unit);
    match WITHOUT_LENGTH.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(singular)) {
        Some((name, days)) => Err(format!(
            "a {name} has no fixed length: write `per {name} in UTC`, or another time zone, for those of the calendar, or \
             `per {days}`"
        )),
        None if unit.is_empty() => Err("a unit of time is missing: use s, min, h, d or week".to_owned()),
        None => Err(format!("`{}` is no unit of time: use s, min, h, d or week", shown(unit))),
    }
}

fn reason(error: Error) -> String {
    error.to_string()
}

/// Returns a text for an error: cut, and control characters escaped.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3_600);

    fn quota(text: &str) -> Quota {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn error(text: &str) -> String {
        let parsed: Result<Quota, Error> = text.parse();
        parsed.map_or_else(|error| error.to_string(), |quota| panic!("{text} is {quota}"))
    }

    #[test]
    fn texts_are_read_as_they_are_meant() {
        let five = Rate::per_minute(5);
        let aligned = Quota::fixed_window(100, MINUTE).aligned_to_clock();
        for (text, expected, written) in [
            ("100/min", aligned, "100/min"),
            ("100 per minute", aligned, "100/min"),
            (" 100 / 60 S ", aligned, "100/min"),
            (
                "100/m offset 15s",
                Quota::fixed_window(100, MINUTE).aligned_to_clock_at(MINUTE / 4),
                "100/min offset 15s",
            ),
            ("100/90s", Quota::fixed_window(100, MINUTE * 3 / 2).aligned_to_clock(), "100/90s"),
            ("100/h from first use", Quota::fixed_window(100, HOUR), "100/h from first use"),
            ("5/min burst 20", Quota::token_bucket(20, five), "5/min burst 20"),
            ("5 per 60000ms Burst 20", Quota::token_bucket(20, five), "5/min burst 20"),
            ("5/min queue 20", Quota::leaky_bucket(20, five), "5/min queue 20"),
            ("20 per 3h sliding log", Quota::sliding_log(20, HOUR * 3), "20/3h sliding log"),
            (
                "20/h sliding log counting denied",
                Quota::sliding_log(20, HOUR).count_denied(),
                "20/h sliding log counting denied",
            ),
            ("20/2 hours sliding counter", Quota::sliding_counter(20, HOUR * 2), "20/2h sliding counter"),
            ("10 in flight", Quota::in_flight(10), "10 in flight"),
            ("9/week", Quota::fixed_window(9, HOUR * 168).aligned_to_clock(), "9/week"),
        ] {
            assert_eq!((quota(text), &*quota(text).to_string()), (expected, written), "{text}");
        }
        assert_eq!("7 per 2s".parse::<Rate>().unwrap(), Rate::new(7, Duration::from_secs(2)));
    }

    #[test]
    fn what_is_no_limit_is_an_error_with_its_place_and_right_examples() {
        for (text, part) in [
            ("", "a number of units is missing"),
            ("many/min", "missing before `many/min`"),
            ("5", "after the number of units comes a period"),
            ("5/", "a unit of time is missing"),
            ("5/fortnight", "`fortnight` is no unit of time"),
            ("-5/min", "missing before `-5/min`: a limit is not negative"),
            ("١٠٠/min", "missing before `١٠٠/min`: write it in the digits 0 to 9"),
            ("5.5/min", "`.5/min` after `5` is not understood: a number is whole: write `3/2s`"),
            ("1e3/min", "`e3/min` after `1` is not understood: write the number in digits alone"),
            ("1,000/min", "`,000/min` after `1` is not understood: write the number in digits alone"),
            ("10k/min", "`k/min` after `10` is not understood: write the number in digits alone"),
            ("5r/s ", "`r/s` after `5` is not understood: write `5/s`"),
            ("100 requests per minute", "write `100 per minute`"),
            ("100rpm", "`rpm` after `100` is not understood: write `100/min`"),
            ("10 in fligt", "`in fligt` after `10` is not understood: write `10 in flight`"),
            ("10 units", "`units` after `10` is not understood: after the number of units comes a period"),
            ("5/min queue", "after `queue` comes a number of units, such as `queue 20`"),
            ("0/min", "a limit must be 1 to 2^48 units"),
            ("99999999999999999999/min", "`99999999999999999999` is too large"),
            ("5/99999999999week", "too long"),
            ("5/min brust 20", "`brust 20` is not understood"),
            ("5/min burst", "after `burst` comes a number of units"),
            ("5/min burst 20 30", "`30` is not understood"),
            ("5/min burst 20 counting denied", "only a sliding log"),
            ("5/min sliding log denied", "`denied` is not understood"),
            ("5/min offset 60s", "shorter than the window"),
            ("5/min sliding", "`sliding` is not understood"),
            ("5 in flights", "write `5 in flight`"),
            (
                "5/month",
                "write `per month in UTC`, or another time zone, for those of the calendar, or `per 30d`",
            ),
            ("5/2years", "`per 365d`"),
            ("5/month from 15", "`from 15` needs a time zone"),
            ("5/M", "`M` can be a minute or a month"),
            ("5/2months in UTC", "one day, week, month, quarter or year"),
            ("5/day in", "`in` a time zone"),
        ] {
            let error = error(text);
            let has_right = error.contains("write such as `100/min`") || error.contains("write `");
            assert!(error.contains(part) && has_right, "{text}: {error}");
        }
        let rate = "5/x".parse::<Rate>().unwrap_err().to_string();
        assert!(rate.contains("no rate `5/x`") && rate.contains("such as `5/s`"), "{rate}");
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn windows_of_a_calendar_name_their_zone() {
        let calendar = |text: &str| Quota::calendar_window(1_000, text.parse().unwrap());
        for (text, expected, written) in [
            ("1000 per month in Europe/Berlin", "month@Europe/Berlin", "1000/month in Europe/Berlin"),
            (
                "1000/month from 15 in europe/berlin",
                "month+15@Europe/Berlin",
                "1000/month from 15 in Europe/Berlin",
            ),
            ("1000/day in UTC", "day@UTC", "1000/day in UTC"),
            ("1000/d in UTC", "day@UTC", "1000/day in UTC"),
            ("1000 per Month In utc", "month@UTC", "1000/month in UTC"),
            ("1000/year from 02-29 in UTC", "year+02-29@UTC", "1000/year from 02-29 in UTC"),
        ] {
            assert_eq!((quota(text), &*quota(text).to_string()), (calendar(expected), written), "{text}");
        }
        assert!(error("5/month in Europe/Berlim").contains("did you mean `Europe/Berlin`?"));
        assert!(
            error("5/h in UTC").contains("no period `h`") && error("5/s in UTC").contains("no period `s`")
        );
    }

    #[cfg(not(feature = "calendar"))]
    #[test]
    fn windows_of_a_calendar_name_the_feature_that_they_need() {
        assert!(error("1000 per month in Europe/Berlin").contains("needs the feature `calendar`"));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn text_and_map_deserialize_to_the_same_quota() {
        let bucket = Quota::token_bucket(20, Rate::per_minute(5));
        let map = serde_json::to_value(bucket).unwrap();
        assert!(map.is_object(), "{map}");
        for json in [map, "5/min burst 20".into()] {
            assert_eq!(serde_json::from_value::<Quota>(json).unwrap(), bucket);
        }
        let error = serde_json::from_str::<Quota>(r#""5/fortnight""#).unwrap_err().to_string();
        assert!(error.contains("`fortnight` is no unit of time"), "{error}");
        for rate in [r#""5/s""#, r#"{"units":5,"period_us":1000000}"#, "[5,1000000]"] {
            assert_eq!(serde_json::from_str::<Rate>(rate).unwrap(), Rate::per_second(5), "{rate}");
        }
        let number = serde_json::from_str::<Quota>("5").unwrap_err().to_string();
        assert!(number.contains(r#"expected a limit, such as "100/min""#), "{number}");
    }

    fn quotas() -> impl Strategy<Value = Quota> {
        let units = [1_u64, 1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000, 604_800_000_000];
        let period = (1_u64..100_000, 0..units.len()).prop_map(move |(number, at)| {
            Duration::from_micros((number * units[at]).min(Quota::MAX_WINDOW.as_micros() as u64))
        });
        let offset = 0_u64..2_000_000;
        (1_u64..1 << 40, 1_u64..1 << 30, period, offset, 0..8).prop_filter_map(
            "out of range",
            |(limit, units, period, offset, kind)| {
                let rate = Rate::try_new(units, period).ok()?;
                let quota = match kind {
                    0 => Quota::try_token_bucket(limit, rate),
                    1 => Quota::try_leaky_bucket(limit, rate),
                    2 => Quota::try_fixed_window(limit, period),
                    3 => Quota::try_fixed_window(limit, period)
                        .and_then(|fixed| fixed.try_aligned_to_clock_at(Duration::from_micros(offset))),
                    4 => Quota::try_sliding_log(limit, period),
                    5 => Quota::try_sliding_log(limit, period).and_then(Quota::try_count_denied),
                    6 => Quota::try_sliding_counter(limit, period),
                    _ => Quota::try_in_flight(limit),
                };
                quota.ok()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100_000, max_global_rejects: 1 << 20, ..ProptestConfig::default() })]

        #[test]
        fn what_prints_is_read_as_the_same_quota(expected in quotas()) {
            let text = expected.to_string();
            prop_assert_eq!(text.parse::<Quota>().ok(), Some(expected), "{}", text);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9a-z/µ ]{0,40}|.{0,40}|[0-9]{1,20} ?(/|per) ?[0-9]{0,20}[a-zµ]{0,6}.{0,20}") {
            let _ = (text.parse::<Quota>(), text.parse::<Rate>());
        }
    }
}
