//! The figures that instances publish, parsed from the texts in Redis.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::key::Keyspace;
use crate::observe::figures::Histogram;
use crate::observe::figures::format::{self, ERRORS, LATENCY, OTHER};

/// What the instances of a namespace did, by time: see [`Inspector::figures`](super::Inspector::figures).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetFigures {
    /// The server's time when they were read, in seconds since 1970.
    pub now_unix_s: u64,
    /// The time of one bucket: 5 s.
    pub bucket: Duration,
    /// The buckets in which an instance published figures, oldest first. The last one may still grow.
    pub buckets: Vec<FigureBucket>,
    /// The live instances that publish figures, by id; at most 1,024.
    pub instances: Vec<Instance>,
}

/// The figures that instances published within 5 s of the server's clock: those of their last 5 s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FigureBucket {
    /// The beginning of the bucket by the server's clock, in seconds since 1970.
    pub start_unix_s: u64,
    /// The gates that decided checks, by name.
    pub gates: Vec<GateFigures>,
    /// The latencies of all gates.
    pub latency_us: LatencyFigures,
}

/// The decisions of one gate in one bucket, of all instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateFigures {
    /// The name of the gate; [`OTHER`](Self::OTHER) for the sum of the gates beyond the maximum number.
    pub gate: String,
    /// Checks that were admitted, without those in `shadow_denied`.
    pub allowed: u64,
    /// Checks that were denied.
    pub denied: u64,
    /// The checks of `allowed` that the store admitted with less than 20 % of the limit left.
    pub near_limit: u64,
    /// Checks that were admitted only because of shadow mode.
    pub shadow_denied: u64,
    /// Checks that the store did not decide, and other calls for this gate that failed. If the failure policy decided a
    /// check, it also counts as a decision.
    pub errors: u64,
    /// All decisions by the [source](crate::Source) that decided, by its name.
    pub by_source: Vec<(String, u64)>,
}

/// The latencies of the decisions that waited for Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyFigures {
    /// The number of measured decisions.
    pub count: u64,
    /// The median in µs, right within a factor of two. 0 if none was measured.
    pub p50_us: u64,
    /// The 99th percentile in µs, right within a factor of two.
    pub p99_us: u64,
}

/// One process with a limiter of this namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// The random name of the limiter.
    pub id: String,
    /// The time since it last published.
    pub age: Duration,
    /// The version of tidegate.
    pub version: String,
    /// Whether its circuit breaker is open, when it last published: it does not publish while the circuit of the figures'
    /// key is open.
    pub breaker_open: bool,
    /// The sum of [`errors`](GateFigures::errors) since the instance started.
    pub store_errors: u64,
}

impl GateFigures {
    /// The name under which the gates beyond the maximum number are summed: 128 of an instance, and 256 of a bucket.
    pub const OTHER: &str = OTHER;

    fn of_text(gate: &str, text: &str) -> Self {
        let mut figures = Self { gate: gate.to_owned(), ..Self::default() };
        let mut by_source = BTreeMap::new();
        for (word, count) in format::numbers(text) {
            match word.split_once('/') {
                Some((outcome, source)) if is_source(source) && figures.add(outcome, count) => {
                    add(by_source.entry(source).or_default(), count);
                }
                None if word == ERRORS => add(&mut figures.errors, count),
                _ => {}
            }
        }
        figures.by_source = by_source.into_iter().map(|(source, count)| (source.to_owned(), count)).collect();
        figures
    }

    /// Adds decisions of an outcome. Returns whether the outcome is known.
    fn add(&mut self, outcome: &str, count: u64) -> bool {
        match outcome {
            "a" => add(&mut self.allowed, count),
            "n" => {
                add(&mut self.allowed, count);
                add(&mut self.near_limit, count);
            }
            "d" => add(&mut self.denied, count),
            "s" => add(&mut self.shadow_denied, count),
            _ => return false,
        }
        true
    }
}

impl LatencyFigures {
    fn of_text(text: &str) -> Self {
        let mut histogram = Histogram::default();
        for (bound, count) in format::numbers(text) {
            if let Ok(bound_us) = bound.parse() {
                histogram.add(bound_us, count);
            }
        }
        Self {
            count: histogram.count(),
            p50_us: histogram.percentile_us(50),
            p99_us: histogram.percentile_us(99),
        }
    }
}

impl FigureBucket {
    pub(super) fn of_fields(start_unix_s: u64, fields: &[(String, String)]) -> Self {
        let mut bucket = Self { start_unix_s, ..Self::default() };
        for (field, text) in fields {
            if field == LATENCY {
                bucket.latency_us = LatencyFigures::of_text(text);
            } else if field == OTHER || Keyspace::check_gate_name(field).is_ok() {
                bucket.gates.push(GateFigures::of_text(field, text));
            }
        }
        bucket.gates.sort_by(|a, b| a.gate.cmp(&b.gate));
        bucket
    }
}

impl Instance {
    /// Returns `None` for an instance that was shut down, and for a field that no instance writes.
    pub(super) fn of_text(id: &str, text: &str, now_us: u64) -> Option<Self> {
        let is_id = (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let mut instance = is_id.then(|| Self { id: id.to_owned(), ..Self::default() })?;
        let mut at_us = None;
        for (word, value) in format::words(text) {
            match word {
                "version" if is_version(value) => instance.version = value.to_owned(),
                "breaker" => instance.breaker_open = value == "open",
                "errors" => instance.store_errors = value.parse().unwrap_or(0),
                "ended" => return None,
                "at" => at_us = value.parse().ok(),
                _ => {}
            }
        }
        instance.age = Duration::from_micros(now_us.saturating_sub(at_us?));
        Some(instance)
    }
}

fn is_source(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

fn is_version(text: &str) -> bool {
    text.len() <= 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+'))
}

/// Adds a number that any program may have written.
fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_is_the_sums_of_its_outcomes_and_sources() {
        let figures =
            GateFigures::of_text("login", "a/redis=120 n/redis=3 d/deny_cache=4 d/redis=1 s/local=2 e=5");
        assert_eq!((figures.allowed, figures.near_limit, figures.denied), (123, 3, 5));
        assert_eq!((figures.shadow_denied, figures.errors), (2, 5));
        let by_source: Vec<_> =
            figures.by_source.iter().map(|(source, count)| (source.as_str(), *count)).collect();
        assert_eq!(by_source, [("deny_cache", 4), ("local", 2), ("redis", 124)]);
    }

    #[test]
    fn words_of_other_versions_and_of_other_programs_are_skipped() {
        let text = "x/redis=9 a/<b>=9 a/=9 a/redis=1 z=9 e a/redis=-1 \u{0}=1";
        let figures = GateFigures::of_text("login", text);
        let expected = GateFigures {
            gate: "login".to_owned(),
            allowed: 1,
            by_source: vec![("redis".to_owned(), 1)],
            ..GateFigures::default()
        };
        assert_eq!(figures, expected);
        let large = format!("a/redis={0} n/redis={0}", u64::MAX);
        assert_eq!(GateFigures::of_text("login", &large).allowed, 2 << 32);
    }

    #[test]
    fn only_gates_and_known_fields_are_figures() {
        let fields = ["b", "a", "(other)", "(count)", "(latency)", "<script>", "A", "", "\u{fffd}"];
        let fields = fields.map(|field| (field.to_owned(), "a/redis=1 64=2".to_owned()));
        let bucket = FigureBucket::of_fields(5, &fields);
        let gates: Vec<_> = bucket.gates.iter().map(|gate| &*gate.gate).collect();
        assert_eq!(gates, [GateFigures::OTHER, "a", "b"]);
        assert_eq!(bucket.latency_us.count, 2);
    }

    #[test]
    fn record_is_read_without_unknown_words() {
        let text = "version=1.2.3-rc.1 breaker=open errors=7 new=1 at=1000";
        let instance = Instance::of_text("3f2a", text, 3_000).unwrap();
        assert_eq!(
            (&*instance.version, instance.breaker_open, instance.store_errors),
            ("1.2.3-rc.1", true, 7)
        );
        assert_eq!(instance.age, Duration::from_millis(2));
        assert_eq!(Instance::of_text("3f2a", "version=<b> at=4000", 3_000).unwrap().version, "");
        for (id, text) in [
            ("3f2a", "ended=1 at=1"),
            ("", "at=1"),
            ("<b>", "at=1"),
            ("(count)", "at=1"),
            ("3f2a", ""),
            ("3f2a", "at=x"),
        ] {
            assert_eq!(Instance::of_text(id, text, 3_000), None, "{id} {text}");
        }
    }
}
