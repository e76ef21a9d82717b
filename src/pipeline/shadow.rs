//! Shadow mode: gates that decide and charge as others do, and deny nothing.

use std::time::Duration;

use futures_util::future::join_all;

use super::acquire::Held;
use super::components::Pipeline;
use super::group::{GroupDecision, Verb};
use super::reserve::hold_of_item;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::pipeline::request::Request;
use crate::quota::reference::holds::NewHold;

impl Pipeline {
    /// Applies shadow mode to a decision of a gate in shadow mode.
    pub(super) fn admit_in_shadow(
        request: &Request<'_>,
        decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        Self::admit_undecided(request, decided).map(Decision::into_shadow)
    }

    /// Replaces the error of a check that could not be decided, because Redis is unavailable or the key's state
    /// is corrupt, by an admission. A cost above the limit is a denial. A limiter that was shut down and a wrong
    /// configuration stay errors.
    fn admit_undecided(request: &Request<'_>, decided: Result<Decision, Error>) -> Result<Decision, Error> {
        match decided {
            Err(error) if !error.is_shut_down() && !error.is_config() => {
                request.fixed_decision(!error.is_over_capacity(), Source::Open)
            }
            decided => decided,
        }
    }

    /// Decides those of a group's requests whose gates are in shadow mode, `shadow`: each on its own, so that it neither
    /// denies the others nor fails with them. Takes each up to `n` times, as the verb says.
    pub(super) async fn decide_in_shadow(
        &self,
        requests: &[Request<'_>],
        shadow: &[usize],
        n: u64,
        verb: Verb<'_>,
    ) -> Vec<Result<Decision, Error>> {
        let in_shadow = || shadow.iter().map(|&at| (at, &requests[at]));
        match (n, verb) {
            (0, _) => join_all(in_shadow().map(|(_, request)| self.peek_shadow(request))).await,
            (_, Verb::Reserve(hold)) => {
                join_all(in_shadow().map(|(at, request)| self.hold_shadow(request, at, hold))).await
            }
            (_, Verb::TakeUpTo) => {
                join_all(in_shadow().map(|(_, request)| self.take_shadow_up_to(request, n))).await
            }
            _ => self.decide_each(in_shadow().map(|(_, request)| request.borrowed()).collect()).await,
        }
    }

    /// Peeks at a gate in shadow mode, for the cost of the request.
    async fn peek_shadow(&self, request: &Request<'_>) -> Result<Decision, Error> {
        let taken = self.take_group(&[request], 0, Verb::Check).await;
        Self::admit_in_shadow(request, taken.map(GroupDecision::into_first))
    }

    /// Takes from a gate in shadow mode.
    async fn take_shadow_up_to(&self, request: &Request<'_>, n: u64) -> Result<Decision, Error> {
        let n = if request.cost > 0 { n } else { 0 };
        let granted = self.decide_up_to(request, n).await;
        self.report_up_to(request, n, granted).map(|(_, decision)| decision)
    }

    /// Decides one check of a gate in shadow mode, and makes a hold of its own of the charge: the others may be
    /// denied.
    async fn hold_shadow(
        &self,
        request: &Request<'_>,
        index: usize,
        hold: &NewHold,
    ) -> Result<Decision, Error> {
        let taken = self.take_group(&[request], 1, Verb::Reserve(&hold_of_item(hold, index))).await;
        self.report(request, taken.map(GroupDecision::into_first))
    }

    /// Acquires units of an in-flight limit in shadow mode. Peeks if the group acquires nothing.
    pub(super) async fn acquire_in_shadow(
        &self,
        request: &Request<'_>,
        is_acquired: bool,
    ) -> Result<Held, Error> {
        match is_acquired {
            true => self.acquire_in_time(request, Duration::ZERO).await,
            false => self.peek_shadow(request).await.map(|decision| (decision, None)),
        }
    }
}
