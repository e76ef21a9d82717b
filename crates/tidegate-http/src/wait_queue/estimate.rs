//! Estimates how long a request waits behind others.

use std::time::Duration;

use tidegate::algorithm::Kind;
use tidegate::{Decision, Quota, Source};

/// Windows begin and end with a millisecond, so two of them can follow each other this much sooner.
const WINDOW_STEP_US: u128 = 1_000;

/// A lower bound for the waits behind a denied check. Refunds, resets and raised limits are not foreseen.
#[derive(Clone, Debug)]
pub(super) struct Estimate {
    quota: Quota,
    /// Of the denied check.
    cost: u64,
    retry_us: u128,
    reset_us: u128,
}

impl Estimate {
    /// Returns `None` if the decision does not tell the state of the key.
    pub(super) fn new(quota: Quota, cost: u64, denial: &Decision) -> Option<Self> {
        let is_of_store = matches!(denial.source(), Source::Redis | Source::Memory | Source::DenyCache);
        is_of_store.then(|| Self {
            quota,
            cost,
            retry_us: denial.retry_after().as_micros(),
            reset_us: denial.reset_after().as_micros(),
        })
    }

    /// Returns a lower bound of the time from the denial until a request of `cost` enters the service, if
    /// `ahead` units are admitted before it. `smallest_cost`: of all these requests.
    pub(super) fn min_wait(&self, ahead: u128, cost: u64, smallest_cost: u64) -> Duration {
        let limit = u128::from(self.quota.limit());
        let window_us = self.quota.window().as_micros();
        // The reset time and the time to fill are rounded up to whole microseconds.
        let (reset_us, fill_us) = (self.reset_us.saturating_sub(1), window_us.saturating_sub(1));
        let units = ahead + u128::from(cost);
        let whole_windows = || window_us.saturating_sub(WINDOW_STEP_US) * (units.saturating_sub(1) / limit);
        let wait_us = match self.quota.kind() {
            // The bucket is full at `reset_us`. Units before that leave it at the same rate.
            Kind::TokenBucket(_) if units >= limit => reset_us + fill_us * (units - limit) / limit,
            Kind::TokenBucket(_) => reset_us.saturating_sub((window_us * (limit - units)).div_ceil(limit)),
            // A request enters when all units before it have drained.
            Kind::LeakyBucket(_) => reset_us + fill_us * ahead / limit,
            // The time of a release is unknown.
            Kind::InFlight(_) => 0,
            // A smaller request may be admitted before `retry_us`. A denial without a wait tells nothing.
            _ if smallest_cost < self.cost || self.retry_us == 0 => 0,
            Kind::FixedWindow(fixed) if !fixed.has_calendar() => self.retry_us + whole_windows(),
            Kind::SlidingLog(_) => self.retry_us + whole_windows(),
            // Admits at most `limit * (1 + t / window) + 1` units in a time t.
            Kind::SlidingCounter(_) => self.retry_us + window_us * units.saturating_sub(limit + 1) / limit,
            // The window of a calendar after this one may be shorter than the mean.
            _ => self.retry_us,
        };
        Duration::from_micros(u64::try_from(wait_us).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate::{Limiter, ManualClock, Rate};

    use super::*;

    fn quotas(limit: u64, window: Duration) -> [Quota; 6] {
        let rate = Rate::new(limit, window);
        [
            Quota::token_bucket(limit, rate),
            Quota::leaky_bucket(limit, rate),
            Quota::fixed_window(limit, window),
            Quota::fixed_window(limit, window).aligned_to_clock(),
            Quota::sliding_log(limit, window),
            Quota::sliding_counter(limit, window),
        ]
    }

    /// Lets a queue of requests pass as early as possible. Returns the estimate for each request when the
    /// first one was denied, and its wait from then on.
    async fn waits(quota: Quota, history: &[(u64, u64)], costs: &[u64]) -> Vec<(Duration, Duration)> {
        let clock = ManualClock::new();
        let gate = Limiter::in_memory_with(clock.clone()).gate("api", quota);
        for &(pause_us, cost) in history {
            clock.advance(Duration::from_micros(pause_us));
            let _ = gate.check_cost("a", cost.min(quota.limit())).await.unwrap();
        }
        let (mut start, mut estimate, mut ahead, mut waits) = (clock.now(), None, 0, Vec::new());
        let smallest_cost = costs.iter().copied().min().unwrap_or(1);
        for &cost in costs {
            let decision = loop {
                let decision = gate.check_cost("a", cost).await.unwrap();
                if decision.is_allowed() {
                    break decision;
                }
                if estimate.is_none() {
                    estimate = Estimate::new(quota, cost, &decision);
                    (start, ahead) = (clock.now(), 0);
                }
                clock.advance(decision.retry_after().max(Duration::from_micros(1)));
            };
            if let Some(estimate) = &estimate {
                let wait = clock.now() + decision.delay() - start;
                waits.push((estimate.min_wait(ahead, cost, smallest_cost), wait));
                ahead += u128::from(cost);
            }
        }
        waits
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_request_enters_before_its_estimate(
            limit in 1_u64..20,
            window_us in 1_000_u64..5_000_000,
            history in prop::collection::vec((0_u64..2_000_000, 1_u64..20), 0..12),
            costs in prop::collection::vec(1_u64..20, 1..40),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            // February is shorter than the mean.
            let month = Quota::calendar_window(limit, "month".parse().unwrap());
            for quota in quotas(limit, Duration::from_micros(window_us)).into_iter().chain([month]) {
                let costs: Vec<_> = costs.iter().map(|&cost| cost.min(limit)).collect();
                for costs in [costs.clone(), vec![costs[0]; costs.len()]] {
                    for (estimate, wait) in runtime.block_on(waits(quota, &history, &costs)) {
                        prop_assert!(estimate <= wait, "{}: {:?} > {:?}", quota, estimate, wait);
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn estimates_of_equal_requests_are_close() {
        let second = Duration::from_secs(1);
        for quota in quotas(4, second) {
            let waits = waits(quota, &[], &[1; 40]).await;
            assert!(waits.len() >= 32, "{quota}: {waits:?}");
            // A sliding counter may admit its limit at once.
            let slack = match quota.kind() {
                Kind::SlidingCounter(_) => second * 3 / 2,
                Kind::SlidingLog(_) | Kind::FixedWindow(_) => Duration::from_millis(10),
                _ => Duration::from_micros(100),
            };
            for (estimate, wait) in waits {
                assert!(estimate + slack >= wait, "{quota}: {estimate:?}, {wait:?}");
            }
        }
    }
}
