//! The figures of the fleet of one hour, summed for the pages.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tidegate::admin::{FigureBucket, Instance};
use tidegate_rules::Rule;

/// The length of the figures.
pub(super) const SPAN: Duration = Duration::from_secs(3_600);
/// The time of one bar of a chart, in seconds.
pub(super) const STEP_S: u64 = 30;
/// The number of bars of a chart.
pub(super) const STEPS: usize = (SPAN.as_secs() / STEP_S) as usize;
/// Instances publish with their heartbeats: younger figures than this are not complete. Those in memory always are.
pub(super) const SETTLED: Duration = Duration::from_secs(10);
/// The time that counts as now, in seconds.
const NOW_S: u64 = 60;

/// Sums of decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Without those that only shadow mode admitted.
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) near_limit: u64,
    pub(super) shadow_denied: u64,
    pub(super) errors: u64,
}

/// The figures of one gate.
#[derive(Clone, Debug)]
pub(super) struct GateHour {
    pub(super) hour: Totals,
    /// The last minute.
    pub(super) now: Totals,
    pub(super) steps: Vec<Totals>,
    /// Decisions of the hour by source.
    pub(super) sources: BTreeMap<String, u64>,
    pub(super) sources_now: BTreeMap<String, u64>,
}

/// The latency of one step: the highest of its buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Latency {
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
}

/// A latency above this is slow.
pub(super) const SLOW_US: u64 = 50_000;

/// The figures of the fleet, for one moment.
#[derive(Clone, Debug)]
pub(super) struct Hour {
    pub(super) gates: BTreeMap<String, GateHour>,
    /// One per step; `None` if no decision waited for Redis.
    pub(super) latency: Vec<Option<Latency>>,
    /// The highest of the last minute.
    pub(super) latency_now: Option<Latency>,
    pub(super) instances: Vec<Instance>,
    /// The time that an instance sums before it publishes.
    pub(super) bucket: Duration,
    /// The end of the figures, in seconds since 1970.
    pub(super) until_unix_s: u64,
    /// `None` if the figures are current.
    pub(super) stale: Option<Stale>,
}

/// Why the figures are not current.
#[derive(Clone, Debug)]
pub(super) struct Stale {
    pub(super) error: String,
    /// The time of the last reading that succeeded, in seconds since 1970.
    pub(super) read_unix_s: u64,
}

impl Totals {
    /// Returns all decisions.
    pub(super) const fn decisions(&self) -> u64 {
        self.allowed.saturating_add(self.denied).saturating_add(self.shadow_denied)
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.allowed, other.allowed),
            (&mut self.denied, other.denied),
            (&mut self.near_limit, other.near_limit),
            (&mut self.shadow_denied, other.shadow_denied),
            (&mut self.errors, other.errors),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl Default for GateHour {
    fn default() -> Self {
        let steps = vec![Totals::default(); STEPS];
        let (hour, now, sources, sources_now) = Default::default();
        Self { hour, now, steps, sources, sources_now }
    }
}

impl Hour {
    /// Sums the complete buckets of the hour before `until_unix_s`.
    pub(super) fn new<'b>(
        buckets: impl Iterator<Item = &'b FigureBucket>,
        instances: Vec<Instance>,
        bucket: Duration,
        until_unix_s: u64,
    ) -> Self {
        let bucket_s = bucket.as_secs().max(1);
        let until = until_unix_s / bucket_s * bucket_s;
        let first_step = first_step(until);
        let mut gates: HashMap<&str, GateHour> = HashMap::new();
        let mut latency = vec![None; STEPS];
        let mut latency_now = None;
        for bucket in buckets {
            let start = bucket.start_unix_s;
            if start >= until || start < first_step {
                continue;
            }
            let step = usize::try_from((start - first_step) / STEP_S).unwrap_or(STEPS).min(STEPS - 1);
            let is_now = start + NOW_S >= until;
            for figures in &bucket.gates {
                let gate = gates.entry(&figures.gate).or_default();
                let totals = Totals {
                    allowed: figures.allowed,
                    denied: figures.denied,
                    near_limit: figures.near_limit,
                    shadow_denied: figures.shadow_denied,
                    errors: figures.errors,
                };
                gate.hour.add(&totals);
                gate.steps[step].add(&totals);
                if is_now {
                    gate.now.add(&totals);
                }
                for (source, decisions) in &figures.by_source {
                    add_source(&mut gate.sources, source, *decisions);
                    if is_now {
                        add_source(&mut gate.sources_now, source, *decisions);
                    }
                }
            }
            if bucket.latency_us.count > 0 {
                let new = Latency { p50_us: bucket.latency_us.p50_us, p99_us: bucket.latency_us.p99_us };
                raise(&mut latency[step], new);
                if is_now {
                    raise(&mut latency_now, new);
                }
            }
        }
        let gates = gates.into_iter().map(|(name, gate)| (name.to_owned(), gate)).collect();
        Self { gates, latency, latency_now, instances, bucket, until_unix_s: until, stale: None }
    }

    /// Returns the sums of all gates that decide: those of candidates do not, and the gate of the rule counts their requests, too.
    pub(super) fn total(&self) -> GateHour {
        self.sum(|name| !name.ends_with(Rule::CANDIDATE_SUFFIX))
    }

    /// Returns the sums of the gates that count for candidates.
    pub(super) fn candidates(&self) -> Totals {
        self.sum(|name| name.ends_with(Rule::CANDIDATE_SUFFIX)).hour
    }

    fn sum(&self, is_counted: impl Fn(&str) -> bool) -> GateHour {
        let mut total = GateHour::default();
        for (_, gate) in self.gates.iter().filter(|(name, _)| is_counted(name)) {
            total.hour.add(&gate.hour);
            total.now.add(&gate.now);
            total.steps.iter_mut().zip(&gate.steps).for_each(|(sum, step)| sum.add(step));
            gate.sources.iter().for_each(|(name, count)| add_source(&mut total.sources, name, *count));
            gate.sources_now
                .iter()
                .for_each(|(name, count)| add_source(&mut total.sources_now, name, *count));
        }
        total
    }

    /// Returns the sums of a gate in the last `span`, in whole steps.
    pub(super) fn newest(gate: &GateHour, span: Duration) -> Totals {
        let steps = usize::try_from(span.as_secs() / STEP_S).unwrap_or(STEPS).min(STEPS);
        let mut sum = Totals::default();
        gate.steps[STEPS - steps..].iter().for_each(|step| sum.add(step));
        sum
    }

    /// Returns since when a gate has denied more than half of its checks of the last `window`, at each moment up to now.
    /// `None` if it does not now. In seconds since 1970, and at most an hour ago.
    pub(super) fn denies_most_since(&self, gate: &GateHour, window: Duration) -> Option<u64> {
        let width = usize::try_from(window.as_secs() / STEP_S).unwrap_or(STEPS).clamp(1, STEPS);
        let denies_most = |end: &usize| {
            let mut sum = Totals::default();
            gate.steps[end.saturating_sub(width)..*end].iter().for_each(|step| sum.add(step));
            sum.denied.saturating_mul(2) > sum.decisions()
        };
        let end = (1..=STEPS).rev().take_while(denies_most).last()?;
        Some(first_step(self.until_unix_s) + (end as u64 - 1) * STEP_S)
    }

    /// Returns the values of a chart: a rate per second for each step, of which the last one may have just begun.
    pub(super) fn rates(&self, steps: &[Totals], value: impl Fn(&Totals) -> u64) -> Vec<Option<f64>> {
        let first = first_step(self.until_unix_s);
        let rate = |(at, step): (usize, &Totals)| {
            let start = first + at as u64 * STEP_S;
            let seconds = self.until_unix_s.saturating_sub(start).clamp(1, STEP_S);
            Some(value(step) as f64 / seconds as f64)
        };
        steps.iter().enumerate().map(rate).collect()
    }

    /// Returns a number of the last minute as a rate per second.
    pub(super) fn per_second_now(number: u64) -> f64 {
        number as f64 / NOW_S as f64
    }

    /// Returns the gates that denied in the last minute, those with the most denials first.
    pub(super) fn denying(&self) -> Vec<(&str, &GateHour)> {
        let denying = self.gates.iter().filter(|(_, gate)| gate.now.denied > 0);
        let mut denying: Vec<_> = denying.map(|(name, gate)| (&**name, gate)).collect();
        denying.sort_by_key(|(_, gate)| std::cmp::Reverse(gate.now.denied));
        denying
    }
}

/// Returns the start of the first step, whose bounds do not move from one reading to the next.
fn first_step(until_unix_s: u64) -> u64 {
    let end = until_unix_s.div_ceil(STEP_S) * STEP_S;
    end.saturating_sub(SPAN.as_secs())
}

fn add_source(sources: &mut BTreeMap<String, u64>, name: &str, decisions: u64) {
    match sources.get_mut(name) {
        Some(sum) => *sum = sum.saturating_add(decisions),
        None => drop(sources.insert(name.to_owned(), decisions)),
    }
}

fn raise(highest: &mut Option<Latency>, new: Latency) {
    let old = highest.unwrap_or_default();
    *highest = Some(Latency { p50_us: old.p50_us.max(new.p50_us), p99_us: old.p99_us.max(new.p99_us) });
}

#[cfg(test)]
mod tests {
    use tidegate::admin::{GateFigures, LatencyFigures};

    use super::*;

    const NOW: u64 = 1_800_000_012;

    fn bucket(start_unix_s: u64, allowed: u64, denied: u64) -> FigureBucket {
        let by_source = vec![("redis".to_owned(), allowed + denied)];
        let gate = GateFigures { gate: "g".to_owned(), allowed, denied, by_source, ..GateFigures::default() };
        let latency_us = LatencyFigures { count: 1, p50_us: 100, p99_us: denied };
        FigureBucket { start_unix_s, gates: vec![gate], latency_us }
    }

    fn hour(buckets: &[FigureBucket]) -> Hour {
        Hour::new(buckets.iter(), Vec::new(), Duration::from_secs(5), NOW - SETTLED.as_secs())
    }

    #[test]
    fn hour_ends_before_buckets_that_can_still_grow() {
        let until = 1_800_000_000;
        let buckets =
            [(until - 3_600, 1), (until - 60, 20), (until - 5, 300), (until, 4_000), (until - 3_605, 50_000)];
        let found = hour(&buckets.map(|(start, denied)| bucket(start, 1, denied)));
        assert_eq!(found.until_unix_s, until);
        let gate = &found.gates["g"];
        assert_eq!((gate.hour.denied, gate.hour.allowed), (321, 3));
        assert_eq!((gate.now.denied, gate.sources_now["redis"]), (320, 322), "the last minute");
        assert_eq!((gate.steps[0].denied, gate.steps[STEPS - 1].denied), (1, 300));
        assert_eq!(Hour::newest(gate, Duration::from_secs(60)).denied, 320);
        assert_eq!(found.latency_now, Some(Latency { p50_us: 100, p99_us: 300 }));
        assert_eq!(found.latency[1], None);
        assert_eq!(found.denying().len(), 1);
    }

    #[test]
    fn hour_without_buckets_and_with_odd_numbers_is_summed() {
        assert!(hour(&[]).gates.is_empty() && hour(&[]).latency_now.is_none());
        let found = hour(&[
            bucket(NOW - 20, u64::MAX / 2, u64::MAX / 2),
            bucket(NOW - 25, u64::MAX / 2, u64::MAX / 2),
        ]);
        assert_eq!(found.total().hour.decisions(), u64::MAX);
        let rates = found.rates(&found.gates["g"].steps, |step| step.denied);
        assert_eq!((rates.len(), rates.iter().flatten().all(|rate| rate.is_finite())), (STEPS, true));
    }
    #[test]
    fn candidates_are_in_no_sum_of_decisions() {
        let mut buckets = [bucket(NOW - 20, 10, 0)];
        let by_source = vec![("redis".to_owned(), 9)];
        let gate = "g..candidate".to_owned();
        let figures = GateFigures { gate, allowed: 2, shadow_denied: 7, by_source, ..GateFigures::default() };
        buckets[0].gates.push(figures);
        let found = hour(&buckets);
        let total = found.total();
        assert_eq!((total.hour.decisions(), total.now.shadow_denied, total.sources["redis"]), (10, 0, 10));
        assert_eq!((found.candidates().decisions(), found.candidates().shadow_denied), (9, 7));
    }
}
