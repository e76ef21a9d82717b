//! Partial grants: n equal checks in one take, of which as many are admitted as there are units for.

use std::sync::Arc;

use super::components::Pipeline;
use super::group::{DecidedGroup, Verb, most, sent};
use super::overrides::Resolved;
use super::send::without_waiting;
use crate::decision::{AllDecision, Decision, Grant, Source};
use crate::error::Error;
use crate::observe::observer::Event;
use crate::observe::trace::Span;
use crate::pipeline::request::Request;
use crate::store::{Group, GroupItem};

/// # One key
impl Pipeline {
    /// Stages 1 to 8 of `n` checks of one key.
    pub(crate) async fn take_up_to(self: &Arc<Self>, request: &Request<'_>, n: u64) -> Result<Grant, Error> {
        let taken = if request.cost > 0 { n } else { 0 };
        let span = Span::of_check(request.cost.saturating_mul(n));
        let granted = match self.resolve(self.follow(request.borrowed()).await) {
            Resolved::Switched(request, decided) => {
                let granted =
                    decided.map(|decision| (if decision.is_allowed() { taken } else { 0 }, decision));
                self.report_up_to(&request, taken, without_waiting(granted).await)
            }
            Resolved::Check(request) => {
                let granted = match self.spend_lease_up_to(&request, taken) {
                    Some(decision) => without_waiting(Ok((taken, decision))).await,
                    None => {
                        let granted = self.decide_up_to(&request, taken).await;
                        self.complete_from_lease(&request, taken, granted)
                    }
                };
                self.report_up_to(&request, taken, granted)
            }
        };
        span.decided(granted.as_ref().map(|(_, decision)| decision));
        granted.map(|(granted, decision)| Grant::new(granted, n, decision))
    }

    /// Stages 3 to 7. Returns how many checks were admitted.
    pub(super) async fn decide_up_to(&self, request: &Request<'_>, n: u64) -> Result<(u64, Decision), Error> {
        let item = request.item().map_err(|error| request.with_context(error))?;
        let sent = sent(&item.target.gate.quota, request.cost, n);
        if n > 0
            && let Some(decision) = self.find_denial(&item)
        {
            return without_waiting(Ok((0, decision))).await;
        }
        let snapshot = self.deny_cache.as_ref().map(|deny_cache| deny_cache.snapshot(&item));
        // A single check is merged with equal checks, each of which counts.
        let item = if sent > 1 { item.of_grant() } else { item };
        let items = [GroupItem { cost: item.cost.max(1), ..item }].into_iter().collect();
        match self.take(Group { items, n: sent }, self.deadline_of(request.deadline)).await {
            Ok(share) => self.conclude(request, sent, snapshot, Ok(share)),
            Err(error) => self.fall_back(request, n, None, error),
        }
    }

    /// Stage 8. Returns how many checks the caller may pass: in shadow mode all.
    pub(super) fn report_up_to(
        &self,
        request: &Request<'_>,
        n: u64,
        granted: Result<(u64, Decision), Error>,
    ) -> Result<(u64, Decision), Error> {
        if let Ok((granted, decision)) = &granted {
            self.notify_granted(request, n, *granted, decision);
        }
        let (granted, decision) = match (request.gate.is_shadow, granted) {
            (false, granted) => granted?,
            (true, Ok((granted, decision))) => {
                let shadow = granted < n || !decision.allowed;
                (n, Decision { shadow, allowed: true, delay_us: 0, ..decision })
            }
            (true, Err(error)) => (n, Self::admit_in_shadow(request, Err(error))?),
        };
        if n > 0 {
            self.notify(request, &decision);
        }
        Ok((granted, decision))
    }

    /// Notifies the observer of the units that a gate granted and denied, of at most its limit.
    fn notify_granted(&self, request: &Request<'_>, n: u64, granted: u64, decision: &Decision) {
        let Ok(info) = request.gate.info() else { return };
        if n == 0 || request.cost == 0 || decision.source == Source::Switch {
            return;
        }
        let most = most(&info.quota, request.cost, n);
        let granted = granted.min(most);
        // Without a wait for more, another gate of the group has restricted the grant.
        let denied = if decision.retry_after_us > 0 { most - granted } else { 0 };
        let (granted, denied) = (granted * request.cost, denied * request.cost);
        self.events.notify(&Event::Granted { gate: &info.name, granted, denied });
    }
}

/// # Several gates in one step
impl Pipeline {
    /// Takes a group of checks up to `n` times.
    pub(crate) async fn take_up_to_all(
        &self,
        requests: Vec<Request<'_>>,
        n: u64,
    ) -> Result<Grant<AllDecision>, Error> {
        let span = Span::of_all(requests.len());
        let decided = self.decide_all(requests, n, Verb::TakeUpTo).await;
        span.all_decided(decided.as_ref().map(|decided| &decided.decision));
        let DecidedGroup { granted, decision, requests, .. } = decided?;
        for (request, decision) in requests.iter().zip(decision.each_alone()) {
            if !request.gate.is_shadow {
                self.notify_granted(request, n, granted, decision);
            }
        }
        Ok(Grant::new(granted, n, decision))
    }
}
