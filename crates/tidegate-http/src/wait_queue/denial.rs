//! A denial of a request that may wait, and what it tells other requests in the queue.

use std::time::Duration;

use tidegate::{AllDecision, Stopwatch};

use super::estimate::Estimate;
use super::queue_name::QueueName;
use crate::check_group::{CheckGroup, Wait};

/// A denial of a request that may wait.
pub(super) struct Denial {
    decision: AllDecision,
    pub(super) wait: Wait,
    /// The queue for this request: that of the check with the longest wait.
    pub(super) queue: QueueName,
    pub(super) cost: u64,
    estimate: Option<Estimate>,
    /// The names and costs of all checks.
    checks: Vec<(QueueName, u64)>,
    /// Started before the check was sent, so that estimates are never too long.
    sent: Stopwatch,
}

impl Denial {
    pub(super) fn new(group: &CheckGroup, decision: AllDecision, sent: Stopwatch) -> Self {
        let at = group.binding_index(&decision);
        let (check, denial) = (&group.checks[at], &decision.each_alone()[at]);
        Self {
            wait: group.wait(&decision),
            queue: QueueName::of(check),
            cost: check.units(),
            estimate: check.quota().and_then(|quota| Estimate::new(quota, check.units(), denial)),
            checks: checks_of(group),
            decision,
            sent,
        }
    }

    pub(super) fn decision(&self) -> AllDecision {
        self.decision.clone()
    }

    /// Returns the denial of another request, with its times counted from now, if that request has the same
    /// checks.
    pub(super) fn decision_for(&self, group: &CheckGroup) -> Option<AllDecision> {
        let decision = || self.decision.clone().aged(self.sent.elapsed()).denied();
        (self.checks == checks_of(group)).then(decision)
    }

    /// Returns a lower bound of the time from now until a request of `cost` enters the service, if `ahead`
    /// units are admitted before it. `smallest_cost`: of all these requests.
    pub(super) fn min_wait(&self, ahead: u128, cost: u64, smallest_cost: u64) -> Duration {
        let estimate = self.estimate.as_ref();
        let wait = estimate.map_or(Duration::ZERO, |it| it.min_wait(ahead, cost, smallest_cost));
        wait.saturating_sub(self.sent.elapsed())
    }
}

fn checks_of(group: &CheckGroup) -> Vec<(QueueName, u64)> {
    group.checks.iter().map(|check| (QueueName::of(check), check.units())).collect()
}
