//! Charges of units that were used already: whatever the state, with a cap on the debt.

use futures_util::future::{join, join_all};

use super::components::Pipeline;
use super::conclude::decision;
use super::overrides::Resolved;
use crate::connection::Deadline;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::local::on_failure::OnFailure;
use crate::observe::observer::Event;
use crate::observe::trace::Span;
use crate::pipeline::request::{Request, check_is_charged};
use crate::quota::Quota;
use crate::quota::algorithm::MAX_DEBT;
use crate::store::{Store, Target, UsedCharge};

/// More units than any state holds.
const MAX_USED: u64 = 1 << 52;

impl Pipeline {
    /// Charges the cost of a check whose units were used. Decides whether they were within the limit.
    pub(super) async fn charge_used(&self, request: &Request<'_>) -> Result<Decision, Error> {
        let span = Span::of_check(request.cost);
        let decided = self.report(request, self.decide_used(request).await);
        span.decided(decided.as_ref());
        decided
    }

    async fn decide_used(&self, request: &Request<'_>) -> Result<Decision, Error> {
        let info = request.gate.info().map_err(|error| request.with_context(error))?;
        let (target, deadline) = (request.target()?, self.deadline_of(request.deadline));
        let charged = match self.store.fixed_decision() {
            None => self.send_used(&target, request.cost, deadline).await,
            Some(_) => Err(Error::unavailable("a stub decides")),
        };
        match charged {
            Ok(UsedCharge { charged, before, now_us }) => {
                let answer = before.answer_to_used(&info.quota, request.cost, charged, now_us);
                let source =
                    if matches!(*self.store, Store::Redis(_)) { Source::Redis } else { Source::Memory };
                let stamp_us = info.quota.kind().algorithm().stamp(before.raw, now_us);
                let decision = Decision { stamp_us, ..decision(info, answer, source, now_us) };
                if let Some(fallback) = &self.fallback {
                    fallback.note(&target, &decision, &before);
                }
                Ok(decision)
            }
            Err(error) => {
                match (self.policy(request, error)?, self.charge_used_locally(&target, request.cost)) {
                    (OnFailure::Local, Some((share, UsedCharge { charged, before, now_us }))) => {
                        let answer = before.answer_to_used(&share, request.cost, charged, now_us);
                        let stamp_us = share.kind().algorithm().stamp(before.raw, now_us);
                        Ok(Decision { stamp_us, ..decision(info, answer, Source::Local, now_us) })
                    }
                    (OnFailure::Open, _) => request.fixed_decision(true, Source::Open),
                    _ => request.fixed_decision(false, Source::Closed),
                }
            }
        }
    }

    /// Charges units that were used to this target; `key` is for errors. Without Redis, this process charges them to its
    /// share, and to Redis once that answers.
    pub(crate) async fn charge_used_units(
        &self,
        target: &Target,
        key: &[u8],
        units: u64,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let Err(error) = self.send_used(target, units, deadline).await else { return Ok(()) };
        let error = error.with_context(target.gate.name, key);
        self.notify_failed(&target.gate, || error.clone());
        let is_charged = error.is_unavailable() && self.charge_used_locally(target, units).is_some();
        if is_charged { Ok(()) } else { Err(error) }
    }

    /// Charges units, at least 1. Reports those that the cap of the debt cuts off.
    async fn send_used(&self, target: &Target, units: u64, deadline: Deadline) -> Result<UsedCharge, Error> {
        self.ensure_open()?;
        let quota = &target.gate.quota;
        check_is_charged(quota)?;
        let units = units.min(MAX_DEBT);
        let charging = self.store.charge_used(target, units, self.most_used(quota), deadline);
        let charged = self.send_write(target, deadline, charging, |_, _| false).await?;
        self.report_cut_off(target, units - charged.charged);
        Ok(charged)
    }

    /// Charges units to this process's share of the quota, which it also returns.
    fn charge_used_locally(&self, target: &Target, units: u64) -> Option<(Quota, UsedCharge)> {
        let units = units.min(MAX_DEBT);
        let (share, charged) =
            self.fallback.as_ref()?.charge_used(target, units, |share| self.most_used(share));
        self.report_cut_off(target, units - charged.charged);
        Some((share, charged))
    }

    /// Returns the most units of a quota that may be used after a charge.
    fn most_used(&self, quota: &Quota) -> u64 {
        quota.limit().saturating_mul(self.debt_cap.saturating_add(1)).min(MAX_USED)
    }

    fn report_cut_off(&self, target: &Target, units: u64) {
        if units > 0 {
            self.events.notify(&Event::DebtCapped { gate: &target.gate.name, units });
        }
    }

    /// Decides each of these checks on its own. Those of units that were used are charged whatever the state.
    pub(super) async fn decide_or_charge_each(
        &self,
        requests: Vec<Request<'_>>,
    ) -> Vec<Result<Decision, Error>> {
        if !requests.iter().any(Request::charges_used) {
            return self.decide_each(requests).await;
        }
        let is_used: Vec<bool> = requests.iter().map(Request::charges_used).collect();
        let (used, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(Request::charges_used);
        let charges = used.into_iter().map(async |request| match self.resolve(request) {
            Resolved::Check(request) => self.charge_used(&request).await,
            Resolved::Switched(request, decided) => self.report_immediate(&request, decided),
        });
        let (charged, decided) = Box::pin(join(join_all(charges), self.decide_each(others))).await;
        let (mut charged, mut decided) = (charged.into_iter(), decided.into_iter());
        let in_order =
            is_used.into_iter().map(|is_used| if is_used { charged.next() } else { decided.next() });
        in_order.flatten().collect()
    }
}
