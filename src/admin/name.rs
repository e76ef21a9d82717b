//! Parses the Redis keys that `src/key.rs` makes.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::key::{
    ADAPTIVE, DENIALS, FIGURES, GOSSIP, HOLDS, HashTag, INSTANCE_RECORDS, Keyspace, LAYOUT, REGIONS,
    RELEASES, SHARE, SHARED_LAYOUT,
};
use crate::quota::algorithm::{ALGORITHMS, Definition, Parameters};
use crate::quota::{Quota, Rate, Window};

/// The parsed Redis key of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The whole Redis key.
    pub redis_key: String,
    /// The name of the gate.
    pub gate: String,
    /// The algorithm and the window.
    pub shape: Shape,
    /// The limited key as written in Redis: see [`KeyMode`](crate::KeyMode).
    pub written: String,
    pub(crate) hash_tag: HashTag,
}

/// The parts of a quota that a Redis key contains: the algorithm, and the window if it has one. Displays as
/// in Redis keys: `token_bucket`, `fixed_window/60s@clock` or `fixed_window/month@Europe/Berlin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// The position in [`ALGORITHMS`].
    algorithm: usize,
    window: Option<Window>,
}

/// A key under the namespace that is not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotState {
    /// A key for all gates: the instances, their figures, the operators' overrides and their audit log, the holders
    /// of in-flight limits and the releases that wait for them, or the charges that other regions read.
    Shared,
    /// A state in the format of another version of tidegate. Contains the number of that format.
    Layout(u32),
    /// The adaptive limit of a key of an in-flight limit: a hash with readable fields.
    AdaptiveLimit,
    /// A key of a gate that several regions replicate: its state, or its share while a peer is cut off.
    Replicated,
    /// Not written by tidegate.
    Foreign,
}

impl Name {
    /// Parses a Redis key of this namespace.
    pub(crate) fn parse(namespace: &str, redis_key: &[u8]) -> Result<Self, NotState> {
        let text = std::str::from_utf8(redis_key).map_err(|_| NotState::Foreign)?;
        // tidegate writes only printable characters.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NotState::Foreign);
        }
        let rest = text.strip_prefix(namespace).and_then(|rest| rest.strip_prefix(':'));
        let (layout, rest) = rest.and_then(|rest| rest.split_once(':')).ok_or(NotState::Foreign)?;
        let layout: u32 = layout.parse().map_err(|_| NotState::Foreign)?;
        if layout == SHARED_LAYOUT && rest.split_once(':').is_some_and(|(first, _)| first == REGIONS) {
            return Err(NotState::Shared);
        }
        if layout == LAYOUT && (rest.starts_with(GOSSIP) || rest.starts_with(SHARE)) {
            return Err(NotState::Replicated);
        }
        let mut parts = rest.splitn(3, ':');
        let (Some(gate), Some(shape), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            let last = rest.rsplit(':').next().unwrap_or_default();
            let is_numbered =
                [FIGURES, INSTANCE_RECORDS, RELEASES].iter().any(|start| last.starts_with(start));
            let is_known = is_numbered || matches!(last, "audit" | "instances" | "overrides" | "holders");
            let is_shared = layout == SHARED_LAYOUT && is_known;
            return Err(if is_shared { NotState::Shared } else { NotState::Foreign });
        };
        if layout != LAYOUT {
            return Err(NotState::Layout(layout));
        }
        Keyspace::check_gate_name(gate).map_err(|_| NotState::Foreign)?;
        if shape.strip_prefix(ADAPTIVE).and_then(Shape::parse).is_some_and(Shape::is_in_flight) {
            return Err(NotState::AdaptiveLimit);
        }
        let shape = Shape::parse(shape).ok_or(NotState::Foreign)?;
        let (hash_tag, written) = match key.strip_prefix('{').and_then(|key| key.split_once("}:")) {
            Some((tag, key)) => (HashTag::parse(tag).ok_or(NotState::Foreign)?, key),
            None => (HashTag::default(), key),
        };
        let (gate, written) = (gate.to_owned(), written.to_owned());
        Ok(Self { redis_key: text.to_owned(), gate, shape, written, hash_tag })
    }

    /// Parses the Redis key of the holds of a state. Returns the name of the state.
    pub(super) fn of_holds(namespace: &str, redis_key: &[u8]) -> Option<Self> {
        Self::of_key_beside(namespace, redis_key, HOLDS)
    }

    /// Parses the Redis key of the counted denials of a state's key. Returns the name of the state.
    pub(super) fn of_denials(namespace: &str, redis_key: &[u8]) -> Option<Self> {
        Self::of_key_beside(namespace, redis_key, DENIALS)
    }

    fn of_key_beside(namespace: &str, redis_key: &[u8], part: &str) -> Option<Self> {
        let text = std::str::from_utf8(redis_key).ok()?;
        let (before, shape) = text.split_at(shape_at(text)?);
        let name =
            Self::parse(namespace, format!("{before}{}", shape.strip_prefix(part)?).as_bytes()).ok()?;
        // In-flight limits have neither holds nor bans.
        (!name.shape.is_in_flight()).then_some(name)
    }

    /// Returns the Redis key of the state's holds.
    pub(super) fn holds_key(&self) -> String {
        self.key_beside(HOLDS)
    }

    /// Returns the Redis key of the counted denials of the state's key.
    pub(super) fn denials_key(&self) -> String {
        self.key_beside(DENIALS)
    }

    /// Returns the Redis keys that are removed with the state: its adaptive limit, or its holds and its counted
    /// denials.
    pub(super) fn removed_beside(&self) -> Vec<String> {
        match self.shape.is_in_flight() {
            true => vec![self.key_beside(ADAPTIVE)],
            false => vec![self.holds_key(), self.denials_key()],
        }
    }

    fn key_beside(&self, part: &str) -> String {
        let (before, shape) = self.redis_key.split_at(shape_at(&self.redis_key).unwrap_or(0));
        format!("{before}{part}{shape}")
    }

    /// Returns the limited key; `None` if only its hash or HMAC is stored.
    #[must_use]
    pub fn key(&self) -> Option<Vec<u8>> {
        decoded_key(&self.written)
    }
}

/// Returns the key that is written in Redis in this form, such as [`Name::written`]; `None` if it is a hash or an HMAC.
pub(super) fn decoded_key(written: &str) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(written.len());
    let mut rest = written.as_bytes();
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

/// Returns where the algorithm begins in a Redis key: after the namespace, the layout and the gate.
fn shape_at(redis_key: &str) -> Option<usize> {
    redis_key.match_indices(':').nth(2).map(|(at, _)| at + 1)
}

impl Shape {
    fn parse(text: &str) -> Option<Self> {
        let (name, window) = match text.split_once('/') {
            Some((name, window)) => (name, Some(Window::parse(window)?)),
            None => (text, None),
        };
        let algorithm = ALGORITHMS.iter().position(|definition| definition.name == name)?;
        let shape = Self { algorithm, window };
        // Not every algorithm has a window, or one that can be aligned to the clock.
        (shape.quota(1).ok()?.kind().algorithm().window() == window).then_some(shape)
    }

    fn is_in_flight(self) -> bool {
        self.quota(1).is_ok_and(|quota| quota.is_in_flight())
    }

    pub(super) fn definition(self) -> &'static Definition {
        ALGORITHMS[self.algorithm]
    }

    /// Returns a quota with this limit, in units, and the same Redis keys. The rate of a bucket, which its
    /// Redis keys do not contain, is `limit` per second.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if there is no such quota with this limit.
    pub fn quota(self, limit: u64) -> Result<Quota, Error> {
        if let Some(calendar) = self.window.and_then(|window| window.calendar) {
            return match self.definition().name {
                "fixed_window" => Quota::in_calendar(limit, calendar),
                name => Err(Error::config(format!("a {name} has no calendar"))),
            };
        }
        let us = Duration::from_micros;
        let quota = match self.definition().parameters {
            Parameters::Rate => {
                Quota::with_rate(self.definition(), limit, Rate::try_new(limit, Duration::from_secs(1))?)
            }
            Parameters::Window => {
                Quota::with_window(self.definition(), limit, us(self.window.map_or(0, |window| window.us)))
            }
            Parameters::Count => Quota::with_count(self.definition(), limit),
        }?;
        match self.window.and_then(|window| window.aligned_us) {
            Some(offset) => quota.try_aligned_to_clock_at(us(offset)),
            None => Ok(quota),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.definition().name)?;
        self.window.map_or(Ok(()), |window| write!(f, "/{window}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyMode;

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
            Quota::in_flight(3),
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
                    assert_eq!(vec![name.written.clone()], keyspace.stored_forms(key), "{redis_key}");
                    let holds_key = prefix.holds_key(&redis_key);
                    assert_eq!(name.holds_key(), holds_key);
                    assert_eq!(Name::parse("ns", holds_key.as_bytes()), Err(NotState::Foreign));
                    let of_holds = Name::of_holds("ns", holds_key.as_bytes());
                    assert_eq!(of_holds, (!quota.is_in_flight()).then(|| name.clone()), "{holds_key}");
                    assert_eq!(Name::of_holds("ns", redis_key.as_bytes()), None);
                    let adaptive_key = prefix.adaptive_key(&redis_key);
                    let is_adaptive =
                        Name::parse("ns", adaptive_key.as_bytes()) == Err(NotState::AdaptiveLimit);
                    assert_eq!(is_adaptive, quota.is_in_flight(), "{adaptive_key}");
                    let denials_key = prefix.denials_key(&redis_key);
                    assert_eq!(name.denials_key(), denials_key);
                    assert_eq!(Name::parse("ns", denials_key.as_bytes()), Err(NotState::Foreign));
                    let of_denials = Name::of_denials("ns", denials_key.as_bytes());
                    assert_eq!(of_denials, (!quota.is_in_flight()).then(|| name.clone()), "{denials_key}");
                    assert_eq!(Name::of_denials("ns", redis_key.as_bytes()), None);
                    let beside = match quota.is_in_flight() {
                        true => vec![adaptive_key],
                        false => vec![holds_key, denials_key],
                    };
                    assert_eq!(name.removed_beside(), beside);
                    let same = keyspace.prefix("login.v2", &name.shape.quota(1).unwrap()).unwrap();
                    assert_eq!(same.key(key, hash_tag), redis_key);
                }
            }
        }
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn redis_key_of_a_calendar_window_parses_into_its_parts() {
        for calendar in
            ["day@UTC", "month+15@Europe/Berlin", "year+02-29@America/Port-au-Prince", "week@Etc/GMT+5"]
        {
            let quota = Quota::calendar_window(3, calendar.parse().unwrap());
            for is_spread in [false, true] {
                let keyspace = Keyspace::new("ns", KeyMode::Clear).unwrap().spread_over_a_cluster(is_spread);
                let prefix = keyspace.prefix("api", &quota).unwrap();
                let redis_key = prefix.key(b"user:42", prefix.hash_tag(b"user:42"));
                assert!(redis_key.starts_with(&format!("ns:2:api:fixed_window/{calendar}:")), "{redis_key}");
                let name = Name::parse("ns", redis_key.as_bytes()).unwrap();
                assert_eq!(name.shape.quota(3).unwrap(), quota);
                assert_eq!(name.key(), Some(b"user:42".to_vec()));
                assert_eq!(name.shape.to_string(), format!("fixed_window/{calendar}"));
                let holds = Name::of_holds("ns", prefix.holds_key(&redis_key).as_bytes());
                assert_eq!(holds, Some(name));
            }
        }
        for window in
            ["month", "Month@UTC", "month+1@UTC", "month@utc", "month@No/Where", "month@UTC@UTC", "@UTC"]
        {
            let redis_key = format!("ns:2:api:fixed_window/{window}:x");
            assert_eq!(Name::parse("ns", redis_key.as_bytes()), Err(NotState::Foreign), "{window}");
        }
        let log = Name::parse("ns", b"ns:2:api:sliding_log/month@UTC:x");
        assert_eq!(log, Err(NotState::Foreign));
    }

    #[test]
    fn keys_that_are_not_states_are_classified() {
        for (redis_key, expected) in [
            ("ns:1:instances", NotState::Shared),
            ("ns:1:{cr}:instances", NotState::Shared),
            ("ns:1:overrides", NotState::Shared),
            ("ns:1:audit", NotState::Shared),
            ("ns:1:{g2}:holders", NotState::Shared),
            ("ns:1:figures/1763683200", NotState::Shared),
            ("ns:1:releases/a1b2c3d4", NotState::Shared),
            ("ns:1:{cr}:instances/1763683200", NotState::Shared),
            ("ns:1:login:token_bucket:x", NotState::Layout(1)),
            ("ns:3:login:token_bucket:x", NotState::Layout(3)),
            ("ns:1:regions:outbox", NotState::Shared),
            ("ns:1:regions:from:us", NotState::Shared),
            ("ns:2:gossip/login:token_bucket:x", NotState::Replicated),
            ("ns:2:share/login:token_bucket:x", NotState::Replicated),
            ("ns:3:instances", NotState::Foreign),
            ("ns:2:Login:sliding_log/60s:x", NotState::Foreign),
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
