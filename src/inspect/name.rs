//! Parses the Redis keys that `src/key.rs` makes.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::key::{HashTag, LAYOUT, SHARED_LAYOUT};
use crate::quota::{LONGEST_US, Micros, Quota, Rate};

/// The parsed Redis key of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The whole Redis key.
    pub redis_key: String,
    pub gate: String,
    pub shape: Shape,
    /// The limited key as written in Redis.
    pub written: String,
    pub(crate) hash_tag: HashTag,
}

/// The parameters of a quota that a Redis key contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    TokenBucket,
    LeakyBucket,
    FixedWindow { window_us: u64, aligned_us: Option<u64> },
    SlidingLog { window_us: u64 },
    SlidingCounter { window_us: u64 },
}

/// A key under the namespace that is not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotState {
    /// A key for all gates: the instances, or the operators' overrides.
    Shared,
    /// A state of another version of tidegate in another format.
    Layout(u32),
    /// Not written by tidegate.
    Foreign,
}

impl Name {
    /// Parses a Redis key of this namespace.
    pub fn parse(namespace: &str, redis_key: &[u8]) -> Result<Self, NotState> {
        let text = std::str::from_utf8(redis_key).map_err(|_| NotState::Foreign)?;
        // tidegate writes only printable characters.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NotState::Foreign);
        }
        let rest = text.strip_prefix(namespace).and_then(|rest| rest.strip_prefix(':'));
        let (layout, rest) = rest.and_then(|rest| rest.split_once(':')).ok_or(NotState::Foreign)?;
        let layout: u32 = layout.parse().map_err(|_| NotState::Foreign)?;
        let mut parts = rest.splitn(3, ':');
        let (Some(gate), Some(shape), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            let last = rest.rsplit(':').next().unwrap_or_default();
            let is_shared = layout == SHARED_LAYOUT && matches!(last, "instances" | "overrides");
            return Err(if is_shared { NotState::Shared } else { NotState::Foreign });
        };
        if layout != LAYOUT {
            return Err(NotState::Layout(layout));
        }
        let shape = Shape::parse(shape).ok_or(NotState::Foreign)?;
        let (hash_tag, written) = match key.strip_prefix('{').and_then(|key| key.split_once("}:")) {
            Some((tag, key)) => (HashTag::of_tag(tag).ok_or(NotState::Foreign)?, key),
            None => (HashTag::default(), key),
        };
        let (gate, written) = (gate.to_owned(), written.to_owned());
        Ok(Self { redis_key: text.to_owned(), gate, shape, written, hash_tag })
    }

    /// Returns the limited key; `None` if only its hash is stored.
    pub fn key(&self) -> Option<Vec<u8>> {
        let mut key = Vec::with_capacity(self.written.len());
        let mut rest = self.written.as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16);
        loop {
            (rest, _) = match rest {
                [] => return Some(key),
                [b'%', high, low, more @ ..] => (more, key.push((digit(*high)? << 4 | digit(*low)?) as u8)),
                [b'%', ..] => return None,
                [byte, more @ ..] => (more, key.push(*byte)),
            };
        }
    }
}

impl Shape {
    fn parse(text: &str) -> Option<Self> {
        let (algorithm, window) = match text.split_once('/') {
            Some((algorithm, window)) => (algorithm, Some(window)),
            None => (text, None),
        };
        let (window, clock) = match window.map(|window| window.split_once("@clock")) {
            Some(Some((window, clock))) => (Some(window), Some(clock)),
            Some(None) => (window, None),
            None => (None, None),
        };
        let window_us = window.map(micros);
        Some(match (algorithm, window_us, clock) {
            ("token_bucket", None, None) => Self::TokenBucket,
            ("leaky_bucket", None, None) => Self::LeakyBucket,
            ("fixed_window", Some(window), clock) => {
                let aligned = clock.map(|clock| match clock.strip_prefix('+') {
                    Some(offset) => micros(offset),
                    None => clock.is_empty().then_some(0),
                });
                let aligned_us = match aligned {
                    Some(offset) => Some(offset?),
                    None => None,
                };
                Self::FixedWindow { window_us: window?, aligned_us }
            }
            ("sliding_log", Some(window), None) => Self::SlidingLog { window_us: window? },
            ("sliding_counter", Some(window), None) => Self::SlidingCounter { window_us: window? },
            _ => return None,
        })
    }

    /// Returns the algorithm's name, such as `token_bucket`.
    pub const fn algorithm(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow { .. } => "fixed_window",
            Self::SlidingLog { .. } => "sliding_log",
            Self::SlidingCounter { .. } => "sliding_counter",
        }
    }

    pub const fn window(self) -> Option<Duration> {
        match self {
            Self::TokenBucket | Self::LeakyBucket => None,
            Self::FixedWindow { window_us, .. }
            | Self::SlidingLog { window_us }
            | Self::SlidingCounter { window_us } => Some(Duration::from_micros(window_us)),
        }
    }

    /// Returns a quota with this limit and the same Redis key.
    ///
    /// # Errors
    ///
    /// If there is no such quota with this limit.
    pub fn quota(self, limit: u64) -> Result<Quota, Error> {
        let window = self.window().unwrap_or(Duration::from_secs(1));
        match self {
            Self::TokenBucket => Quota::try_token_bucket(limit, Rate::try_new(limit, window)?),
            Self::LeakyBucket => Quota::try_leaky_bucket(limit, Rate::try_new(limit, window)?),
            Self::FixedWindow { aligned_us: None, .. } => Quota::try_fixed_window(limit, window),
            Self::FixedWindow { aligned_us: Some(offset), .. } => {
                Quota::try_fixed_window(limit, window)?.try_aligned_to_clock_at(Duration::from_micros(offset))
            }
            Self::SlidingLog { .. } => Quota::try_sliding_log(limit, window),
            Self::SlidingCounter { .. } => Quota::try_sliding_counter(limit, window),
        }
    }
}

/// Displays the form used in Redis keys: `fixed_window/60s@clock`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm())?;
        if let Some(window) = self.window() {
            write!(f, "/{}", Micros(window.as_micros() as u64))?;
        }
        match *self {
            Self::FixedWindow { aligned_us: Some(0), .. } => f.write_str("@clock"),
            Self::FixedWindow { aligned_us: Some(offset), .. } => write!(f, "@clock+{}", Micros(offset)),
            _ => Ok(()),
        }
    }
}

/// Parses the output of [`Micros`].
fn micros(text: &str) -> Option<u64> {
    let unit_start = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_start);
    let unit = match unit {
        "s" => 1_000_000,
        "ms" => 1_000,
        "us" => 1,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|us| *us <= LONGEST_US)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{KeyMode, Keyspace};

    #[test]
    fn redis_key_parses_into_its_parts() {
        let second = Duration::from_secs(1);
        let fixed = Quota::fixed_window(3, 60 * second);
        let quotas = [
            Quota::token_bucket(3, Rate::per_hour(3)),
            Quota::leaky_bucket(3, Rate::per_hour(3)),
            fixed,
            fixed.aligned_to_clock(),
            fixed.aligned_to_clock_at(Duration::from_micros(1_500)),
            Quota::sliding_log(3, Duration::from_micros(1_001)),
            Quota::sliding_counter(3, Duration::from_millis(1_500)),
        ];
        let keys: [&[u8]; 8] =
            [b"user:42", b"", b"a b%{}:*[", b"\0\x1b[31m\xff", &[b'x'; 200], &[b'x'; 201], b"{cr}:x", b":"];
        for is_spread in [false, true] {
            let keyspace = Keyspace::new("ns", KeyMode::Clear).unwrap().spread_over_a_cluster(is_spread);
            for quota in quotas {
                for key in keys {
                    let prefix = keyspace.prefix("login.v2", &quota).unwrap();
                    let hash_tag = prefix.hash_tag(key);
                    let redis_key = prefix.key(key, hash_tag);
                    let name = Name::parse("ns", redis_key.as_bytes()).unwrap();
                    assert_eq!((&*name.gate, name.hash_tag), ("login.v2", hash_tag), "{redis_key}");
                    assert_eq!(name.key().is_none(), key.len() > 200, "{redis_key}");
                    assert!(name.key().is_none_or(|found| found == key), "{redis_key}");
                    assert_eq!(vec![name.written], keyspace.written(key), "{redis_key}");
                    let same = keyspace.prefix("login.v2", &name.shape.quota(1).unwrap()).unwrap();
                    assert_eq!(same.key(key, hash_tag), redis_key);
                }
            }
        }
    }

    #[test]
    fn keys_that_are_not_states_are_classified() {
        for (redis_key, expected) in [
            ("ns:1:instances", NotState::Shared),
            ("ns:1:{cr}:instances", NotState::Shared),
            ("ns:1:overrides", NotState::Shared),
            ("ns:1:login:token_bucket:x", NotState::Layout(1)),
            ("ns:3:login:token_bucket:x", NotState::Layout(3)),
            ("ns:3:instances", NotState::Foreign),
            ("ns:2:login:token_bucket", NotState::Foreign),
            ("ns:2:login:token_bucket/60s:x", NotState::Foreign),
            ("ns:2:login:fixed_window:x", NotState::Foreign),
            ("ns:2:login:fixed_window/60m:x", NotState::Foreign),
            ("ns:2:login:fixed_window/99999999999999999999s:x", NotState::Foreign),
            ("ns:2:login:sliding_log/60s@clock:x", NotState::Foreign),
            ("ns:2:login:token_bucket:{zz}:x", NotState::Foreign),
            ("ns:2:login:token_bucket:a b", NotState::Foreign),
            ("ns:x", NotState::Foreign),
            ("ns2:2:login:token_bucket:x", NotState::Foreign),
        ] {
            assert_eq!(Name::parse("ns", redis_key.as_bytes()), Err(expected), "{redis_key}");
        }
        assert_eq!(Name::parse("ns", b"ns:2:login:token_bucket:\xff"), Err(NotState::Foreign));
    }
}
