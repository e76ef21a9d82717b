//! The usage of a key.

use std::time::Duration;

use super::{Shape, StoredRow};
use crate::algorithm::{Before, EXACT, RawState, State};
use crate::error::Error;
use crate::quota::{Kind, Quota, Rate};

/// The usage of a key at the server's current time.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    /// Units. A level can have a fraction; a sliding counter shows its estimate for the window.
    pub used: f64,
    /// The quota that wrote the state; only levels contain it.
    pub quota: Option<Quota>,
    /// The time until the usage is zero.
    pub reset_after: Duration,
    /// The remaining time of a block; `None` if not blocked.
    pub blocked_for: Option<Duration>,
}

impl Usage {
    /// Parses a state. Fails with the same errors as a limiter.
    pub(super) fn of_row(shape: Shape, row: &Result<StoredRow, Error>) -> Result<Self, Error> {
        let row = row.as_ref().map_err(Error::clone)?;
        let (state, blocked_until_us) =
            parse(shape, &row.content).ok_or_else(|| Error::from_script(corrupt(shape)))?;
        let now = row.now_us;
        let quota = match state {
            State::Level { by, .. } => quota_of_level(shape, by)?,
            _ => shape.quota(1)?,
        };
        let raw = quota.kind().algorithm().settle(&state, now);
        let usage = Self::new(&quota, raw, blocked_until_us, now);
        Ok(Self { quota: matches!(state, State::Level { .. }).then_some(quota), ..usage })
    }

    pub(super) fn of_log(quota: &Quota, before: &Before, now: u64) -> Self {
        Self::new(quota, before.raw, before.blocked_until_us, now)
    }

    fn new(quota: &Quota, raw: RawState, blocked_until_us: u64, now: u64) -> Self {
        let used = match quota.kind() {
            Kind::TokenBucket(bucket) => raw[0] as f64 / bucket.per as f64,
            Kind::LeakyBucket(queue) => raw[0] as f64 / queue.0.per as f64,
            Kind::FixedWindow(_) | Kind::SlidingLog(_) => raw[0] as f64,
            Kind::SlidingCounter(counter) => {
                let [current, previous, _] = raw.map(u128::from);
                let (window, elapsed) = (u128::from(counter.window_us), u128::from(now % counter.window_us));
                (current + previous - (previous * elapsed).div_ceil(window)) as f64
            }
        };
        let reset_after = Duration::from_micros(quota.kind().algorithm().reset_after(raw, now));
        let blocked = blocked_until_us.checked_sub(now).filter(|left| *left > 0);
        Self { used, quota: None, reset_after, blocked_for: blocked.map(Duration::from_micros) }
    }
}

/// Returns the error string of the scripts for a state that they cannot read.
fn corrupt(shape: Shape) -> &'static str {
    match shape {
        Shape::FixedWindow { .. } => "STATE value",
        _ => "STATE used",
    }
}

/// Parses the format that the header of each algorithm's script describes. Returns the state, and the end of a
/// block or 0.
fn parse(shape: Shape, text: &str) -> Option<(State, u64)> {
    let (text, blocked) = match text.split_once(" blocked until ") {
        Some((text, until)) => (text, number(until)?),
        None => (text, 0),
    };
    let state = match shape {
        Shape::TokenBucket | Shape::LeakyBucket => {
            let (ticks, rest) = text.split_once('/')?;
            let (per, rest) = rest.split_once(" of ")?;
            let (capacity, rest) = rest.split_once(", ")?;
            let (rate, at) = rest.split_once("/us at ")?;
            let by = [number(capacity)?, number(rate)?, number(per)?];
            State::Level { ticks: number(ticks)?, by, at_us: number(at)? }
        }
        Shape::FixedWindow { .. } => {
            let (used, end) = text.split_once(" until ")?;
            State::Window { used: number(used)?, end_ms: number(end)? / 1_000 }
        }
        Shape::SlidingCounter { .. } => {
            let (counts, start) = text.split_once(" since ")?;
            let (current, previous) = counts.split_once('+')?;
            let (current, previous) = (number(current)?, number(previous)?);
            State::Counter { current, previous, start_us: number(start)? }
        }
        Shape::SlidingLog { .. } => return None,
    };
    Some((state, blocked))
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number <= EXACT)
}

/// Returns the bucket with these numbers. Chooses a period in which its rate is a whole number.
fn quota_of_level(shape: Shape, [capacity, rate, per]: [u64; 3]) -> Result<Quota, Error> {
    let corrupt = || Error::from_script(corrupt(shape));
    let whole = |seconds: u64| {
        let ticks = u128::from(rate) * u128::from(seconds) * 1_000_000;
        let units = u64::try_from(ticks.checked_div(u128::from(per))?).ok()?;
        (ticks % u128::from(per) == 0).then(|| Rate::try_new(units, Duration::from_secs(seconds)).ok())?
    };
    let exact = [1, 60, 3_600, 86_400].into_iter().find_map(whole);
    let rate = exact.or_else(|| Rate::try_new(rate, Duration::from_micros(per)).ok()).ok_or_else(corrupt)?;
    let quota = match shape {
        Shape::LeakyBucket => Quota::try_leaky_bucket(capacity, rate),
        _ => Quota::try_token_bucket(capacity, rate),
    };
    quota.map_err(|_| corrupt())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_767_225_600_000_000;

    fn row(content: &str) -> Result<StoredRow, Error> {
        Ok(StoredRow { now_us: NOW, ttl_ms: 1, content: content.to_owned() })
    }

    fn read(shape: Shape, content: &str) -> Result<Usage, Error> {
        Usage::of_row(shape, &row(content))
    }

    #[test]
    fn usage_is_settled_to_now() {
        let minute = Duration::from_secs(60);
        let used = read(Shape::TokenBucket, &format!("36000000/12000000 of 5, 1/us at {}", NOW - 6_000_000))
            .unwrap();
        assert_eq!(used.used, 2.5);
        assert_eq!(used.quota.unwrap().to_string(), "token_bucket 5, refilled 5/min");
        assert_eq!((used.reset_after, used.blocked_for), (minute / 2, None));
        let later = NOW + 5_000_000;
        let used =
            read(Shape::LeakyBucket, &format!("0/1 of 5, 5/us at {NOW} blocked until {later}")).unwrap();
        assert_eq!(used.quota.unwrap().to_string(), "leaky_bucket 5, drained 5000000/s");
        assert_eq!(used.blocked_for, Some(Duration::from_secs(5)));

        let window_us = 60_000_000;
        let fixed = Shape::FixedWindow { window_us, aligned_us: None };
        let used = read(fixed, &format!("17 until {}", NOW + 40_000_000)).unwrap();
        assert_eq!((used.used, used.reset_after, used.quota), (17.0, 2 * minute / 3, None));
        let used = read(fixed, &format!("17 until {NOW} blocked until {NOW}")).unwrap();
        assert_eq!((used.used, used.blocked_for), (0.0, None));

        let counter = Shape::SlidingCounter { window_us };
        let used = read(counter, &format!("7+5 since {NOW}")).unwrap();
        assert_eq!(used.used, 12.0, "all of the previous window overlaps");
        let used = read(counter, &format!("7+5 since {}", NOW - window_us)).unwrap();
        assert_eq!(used.used, 7.0);
    }

    #[test]
    fn largest_numbers_are_read_exactly() {
        let max = EXACT.to_string();
        let window_us = crate::quota::LONGEST_US;
        let used = read(Shape::FixedWindow { window_us, aligned_us: None }, &format!("{max} until {max}"));
        assert_eq!(used.unwrap().used, EXACT as f64);
        // The slowest rate, and the largest capacity.
        let per = 1_u64 << 48;
        let slow = read(Shape::TokenBucket, &format!("{per}/{per} of 1, 1/us at {NOW}")).unwrap();
        assert_eq!((slow.used, slow.reset_after), (1.0, Duration::from_micros(per)));
        let fast = read(Shape::TokenBucket, &format!("1/1 of {per}, {per}/us at {NOW}"));
        assert!(fast.is_ok() || fast.is_err_and(|error| error.is_corrupt_state()));
    }

    #[test]
    fn text_that_is_never_written_is_corrupt_state() {
        let us = 60_000_000;
        let shapes = [
            Shape::TokenBucket,
            Shape::LeakyBucket,
            Shape::FixedWindow { window_us: us, aligned_us: Some(0) },
            Shape::SlidingCounter { window_us: us },
        ];
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
