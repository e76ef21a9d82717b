//! The usage of a key.

use std::time::Duration;

use redis::Value;

use super::name::{Name, Shape};
use super::{OtherKey, StoredRow, unexpected_reply};
use crate::error::Error;
use crate::quota::Quota;
use crate::quota::algorithm::{RawState, State, Storage, exact_number};
use crate::quota::reference::Before;

/// The usage of a key at the server's current time.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    /// The used units. A level can have a fraction. A sliding counter reports its estimate for the window.
    pub used: f64,
    /// The quota that wrote the state. Only token buckets and leaky buckets store it.
    pub quota: Option<Quota>,
    /// The time until the usage is zero without further checks.
    pub reset_after: Duration,
    /// The remaining time of a block; `None` if not blocked.
    pub blocked_for: Option<Duration>,
}

impl Usage {
    /// Parses a state. Fails with the same errors as a limiter.
    pub(super) fn of_row(shape: Shape, row: &Result<StoredRow, Error>) -> Result<Self, Error> {
        let row = row.as_ref().map_err(Error::clone)?;
        let quota = shape.quota(1)?;
        let (state, written_by, blocked_until_us) =
            parse(&quota, &row.content).ok_or_else(|| Error::from_script(corrupt(shape)))?;
        let quota = written_by.unwrap_or(quota);
        let raw = quota.kind().algorithm().settle(&state, row.now_us);
        Ok(Self { quota: written_by, ..Self::new(&quota, raw, blocked_until_us, row.now_us) })
    }

    pub(super) fn of_log(quota: &Quota, before: &Before, now: u64) -> Self {
        Self::new(quota, before.raw, before.blocked_until_us, now)
    }

    fn new(quota: &Quota, raw: RawState, blocked_until_us: u64, now: u64) -> Self {
        let algorithm = quota.kind().algorithm();
        let used = algorithm.used(raw, now);
        let reset_after = Duration::from_micros(algorithm.reset_after(raw, now));
        let blocked = blocked_until_us.checked_sub(now).filter(|left| *left > 0);
        Self { used, quota: None, reset_after, blocked_for: blocked.map(Duration::from_micros) }
    }
}

/// Returns the error string of the scripts for a state that they cannot read.
fn corrupt(shape: Shape) -> &'static str {
    match shape.definition().storage {
        Storage::Count => "STATE value",
        Storage::Text | Storage::Log => "STATE used",
        Storage::Holders => "STATE held",
    }
}

/// Parses the format that the header of each algorithm's script describes. Returns the state, the quota that
/// wrote it if the text contains the quota, and the end of a block or 0.
fn parse(quota: &Quota, text: &str) -> Option<(State, Option<Quota>, u64)> {
    let (text, blocked) = match text.split_once(" blocked until ") {
        Some((text, until)) => (text, exact_number(until)?),
        None => (text, 0),
    };
    let (state, args) = quota.kind().algorithm().parse(text)?;
    let written_by = match args {
        Some(args) => Some(Quota::of_args(quota.kind().definition(), args).ok()?),
        None => None,
    };
    Some((state, written_by, blocked))
}

// States that were found, with their content.

/// A key with its content.
#[derive(Clone, Debug)]
pub struct Found {
    /// The parsed Redis key.
    pub name: Name,
    /// The usage. An error with [`is_corrupt_state`](Error::is_corrupt_state) if tidegate did not write the
    /// content, another error if Redis rejected the read of this key.
    pub usage: Result<Usage, Error>,
    /// The time until Redis removes the key. `None` if the key never expires, as keys that tidegate did not
    /// write, or if Redis rejected the read.
    pub expires_in: Option<Duration>,
}

impl Found {
    /// Returns a quota with the Redis key of this state: the quota that wrote it, if the state contains it.
    /// Else a quota with the algorithm and window of the Redis key, and limit 1.
    ///
    /// # Errors
    ///
    /// The error of [`usage`](Self::usage), if there is one.
    pub fn quota(&self) -> Result<Quota, Error> {
        let written_by = self.usage.as_ref().map_err(Error::clone)?.quota;
        written_by.map_or_else(|| self.name.shape.quota(1), Ok)
    }

    /// Unreadable state counts as blocked: the attempt to unblock it reports the error.
    pub(super) fn is_blocked(&self) -> bool {
        self.usage.as_ref().map_or(true, |usage| usage.blocked_for.is_some())
    }
}

/// The states of one key, from [`Inspector::find_key`](super::Inspector::find_key).
#[derive(Debug, Default)]
pub struct KeyStates {
    /// The states, by their Redis keys.
    pub found: Vec<Found>,
    /// The states that have holds. A state may have expired before its holds.
    pub with_holds: Vec<Name>,
    /// The states whose keys have denials counted for a ban. A state may have expired before its count.
    pub with_denials: Vec<Name>,
    /// Keys of the namespace that end as those of the key and are not states, at most 10,000.
    pub others: Vec<OtherKey>,
}

impl KeyStates {
    /// Returns the states of the key, and those of which only holds or counted denials are left.
    #[must_use]
    pub fn names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.found.iter().map(|found| found.name.clone()).collect();
        for name in self.with_holds.iter().chain(&self.with_denials) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}

/// The denials of one key that are counted for a [ban](crate::Gate::ban).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedDenials {
    /// Their number.
    pub count: u64,
    /// The time until they count no longer.
    pub ends_in: Duration,
}

impl CountedDenials {
    /// Parses the reply of `inspect.lua` to one key of the kind `count`.
    pub(super) fn of_reply(reply: Value) -> Result<Option<Self>, Error> {
        let Value::Array(reply) = reply else { return Err(unexpected_reply()) };
        match &*reply {
            [Value::Int(_), Value::Int(-2), Value::BulkString(_)] => Ok(None),
            [Value::Int(now), Value::Int(_), Value::BulkString(text)] => {
                let parsed = Self::parse(&String::from_utf8_lossy(text), now.unsigned_abs());
                parsed.map(Some).ok_or_else(|| Error::from_script("STATE denials"))
            }
            [Value::Int(_), Value::BulkString(error)] => {
                Err(Error::from_script(&String::from_utf8_lossy(error)))
            }
            _ => Err(unexpected_reply()),
        }
    }

    /// Parses the count and its end, such as `3 until 1763680520000000`.
    fn parse(text: &str, now_us: u64) -> Option<Self> {
        let (count, ends_us) = text.split_once(" until ")?;
        let ends_in = Duration::from_micros(exact_number(ends_us)?.saturating_sub(now_us));
        Some(Self { count: exact_number(count)?, ends_in })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::Name;
    use crate::quota::algorithm::EXACT;

    const NOW: u64 = 1_767_225_600_000_000;

    fn row(content: &str) -> Result<StoredRow, Error> {
        Ok(StoredRow { now_us: NOW, ttl_ms: 1, content: content.to_owned() })
    }

    fn read(shape: &str, content: &str) -> Result<Usage, Error> {
        let name = Name::parse("ns", format!("ns:2:login:{shape}:key").as_bytes()).unwrap();
        Usage::of_row(name.shape, &row(content))
    }

    #[test]
    fn usage_is_settled_to_now() {
        let minute = Duration::from_secs(60);
        let used =
            read("token_bucket", &format!("36000000/12000000 of 5, 1/us at {}", NOW - 6_000_000)).unwrap();
        assert_eq!(used.used, 2.5);
        assert_eq!(used.quota.unwrap().to_string(), "5/min burst 5");
        assert_eq!((used.reset_after, used.blocked_for), (minute / 2, None));
        let later = NOW + 5_000_000;
        let used = read("leaky_bucket", &format!("0/1 of 5, 5/us at {NOW} blocked until {later}")).unwrap();
        assert_eq!(used.quota.unwrap().to_string(), "5000000/s queue 5");
        assert_eq!(used.blocked_for, Some(Duration::from_secs(5)));

        let fixed = "fixed_window/60s";
        let used = read(fixed, &format!("17 until {}", NOW + 40_000_000)).unwrap();
        assert_eq!((used.used, used.reset_after, used.quota), (17.0, 2 * minute / 3, None));
        let used = read(fixed, &format!("17 until {NOW} blocked until {NOW}")).unwrap();
        assert_eq!((used.used, used.blocked_for), (0.0, None));

        let counter = "sliding_counter/60s";
        let used = read(counter, &format!("7+5 since {NOW}")).unwrap();
        assert_eq!(used.used, 12.0, "all of the previous window overlaps");
        let used = read(counter, &format!("7+5 since {}", NOW - 60_000_000)).unwrap();
        assert_eq!(used.used, 7.0);
    }

    #[test]
    fn largest_numbers_are_read_exactly() {
        let max = EXACT.to_string();
        let shape = format!("fixed_window/{}us", crate::quota::LONGEST_US);
        let used = read(&shape, &format!("{max} until {max}"));
        assert_eq!(used.unwrap().used, EXACT as f64);
        // The slowest rate, and the largest capacity.
        let per = 1_u64 << 48;
        let slow = read("token_bucket", &format!("{per}/{per} of 1, 1/us at {NOW}")).unwrap();
        assert_eq!((slow.used, slow.reset_after), (1.0, Duration::from_micros(per)));
        let fast = read("token_bucket", &format!("1/1 of {per}, {per}/us at {NOW}"));
        assert!(fast.is_ok() || fast.is_err_and(|error| error.is_corrupt_state()));
    }

    #[test]
    fn text_that_is_never_written_is_corrupt_state() {
        let shapes = ["token_bucket", "leaky_bucket", "fixed_window/60s@clock", "sliding_counter/60s"];
        let too_large = EXACT + 1;
        for text in [
            "",
            "x",
            "1",
            "1 until",
            "1 until x",
            "-1 until 1",
            "+1 until 1",
            "1 until 1 ",
            "1e3 until 1",
            "1 since 1",
            "1+ since 1",
            "1/1 of 1, 1/us at 1 blocked until",
            "1/0 of 5, 1/us at 1",
            "1/1 of 0, 1/us at 1",
            "1/1 of 5, 0/us at 1",
            "\x1b[31m until 1",
            "1 until 1 blocked until x",
            "1+1+1 since 1",
            &format!("{too_large} until 1"),
            &format!("{too_large}/1 of 1, 1/us at 1"),
            &format!("1+{too_large} since 1"),
        ] {
            for shape in shapes {
                let error = read(shape, text).unwrap_err();
                assert!(error.is_corrupt_state(), "{shape}: {text:?}: {error}");
            }
        }
    }
}

#[cfg(test)]
mod denials_tests {
    use super::*;

    #[test]
    fn count_is_parsed_with_its_end() {
        let denials = |count, us| Some(CountedDenials { count, ends_in: Duration::from_micros(us) });
        assert_eq!(CountedDenials::parse("3 until 1500", 1_000), denials(3, 500));
        assert_eq!(CountedDenials::parse("3 until 500", 1_000), denials(3, 0));
        for text in ["", "3", "x until 1", "-1 until 1", "3 until", "3 until x", "3 until 9007199254740993"] {
            assert_eq!(CountedDenials::parse(text, 0), None, "{text}");
        }
    }
}
