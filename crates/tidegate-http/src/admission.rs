//! Admission: determines from the decisions on a request's checks whether it enters the service.

use std::time::Duration;

use tidegate::{AllDecision, Check, Decision, Error, Permit};
#[cfg(feature = "rules")]
use tidegate_rules::RulesDecision;

use super::admitted::Admitted;
use super::charge::Charge;
use super::check_group::{CheckGroup, Checks};
use super::headers::Headers;
use super::in_flight::needs_permit;
use super::pending_charge::PendingCharge;
use super::rejection::Rejection;
use super::request_checks::RequestChecks;
use super::request_permits::RequestPermits;
use super::settings::{LayerSettings, OnError};
use super::straight::Straight;
use super::wait_queue::GroupResult;
use crate::policy::Policy;

/// The result of admission. Boxed, since it passes through several futures, which each have room for it.
pub(super) enum Admission {
    /// The request enters without a decision: it is skipped, no rule applies, or the limiter failed under
    /// [`OnError::Admit`].
    Undecided,
    Straight(Box<Straight>),
    Admitted(Box<Admitted>),
    Rejected(Box<Rejection>),
}

impl Admission {
    /// Builds the admission from the decision on `group` and the decisions on the checks in shadow mode, which hold
    /// `shadow_permits`.
    pub(super) fn new(
        settings: &LayerSettings,
        checks: RequestChecks,
        mut group: Option<CheckGroup>,
        result: GroupResult,
        shadow_decisions: &[Result<Decision, Error>],
        shadow_permits: Vec<Permit>,
    ) -> Self {
        let RequestChecks { mut policies, charges, static_denials, shadow_checks, .. } = checks;
        policies.extend(static_denials.into_iter().map(|(_, policy)| policy));
        let (decision, delay_permit) = match result {
            Ok((Some(decision), _)) if !decision.is_allowed() => {
                settings.warnings.decided();
                let shadow_limits = shadow_limits(&settings.headers, &policies, &decision);
                let mut rejection = match decision.each_alone().iter().any(Rejection::is_closed) {
                    true => Rejection::closed(decision, policies, &settings.headers, settings.on_closed),
                    false => Rejection::denied(decision, policies, &settings.headers),
                };
                rejection.shadow_limits = shadow_limits;
                return Self::rejected(rejection);
            }
            Ok(admitted) => admitted,
            // Admits a request only if the store is unavailable. Other errors, such as a cost above the
            // capacity or a misconfigured gate, must not bypass the limit.
            Err(error) if settings.on_error == OnError::Admit && error.is_unavailable() => {
                return Self::Undecided;
            }
            Err(error) => {
                let checks = group.as_ref().map_or(&[] as &[Check], |group| &*group.checks);
                settings.warnings.failed(checks, &error);
                let failed = checks.iter().position(|check| check.gate() == error.gate());
                let policy = failed.and_then(|at| policies.into_iter().nth(at));
                return Self::rejected(Rejection::error(error, policy, &settings.headers));
            }
        };
        let shadow_limits = decision.as_ref().map_or(String::new(), |decision| {
            settings.warnings.decided();
            shadow_limits(&settings.headers, &policies, decision)
        });
        let mut permits = group.as_mut().map_or_else(Vec::new, CheckGroup::take_permits);
        permits.extend(shadow_permits);
        let waits =
            settings.wait_queue.is_some() || decision.as_ref().is_some_and(|it| !it.delay().is_zero());
        let checks = group.map_or_else(Checks::new, |group| group.checks);
        let is_settled = !waits
            && shadow_checks.is_empty()
            && charges.iter().all(Charge::is_final)
            && !checks.iter().any(needs_permit)
            && !policies.iter().any(|policy| policy.is_shadow)
            && !settings.headers.reports_shadow();
        let decision = match decision {
            Some(decision) if is_settled => {
                return Self::Straight(Box::new(Straight::new(checks, policies, decision)));
            }
            decision => decision,
        };
        let decisions = decision.iter().flat_map(AllDecision::each_alone);
        let taken = checks.into_iter().zip(decisions).zip(&charges);
        let taken = taken.map(|((check, decision), charge)| (check, decision, charge));
        let shadow_taken = shadow_checks
            .into_iter()
            .zip(shadow_decisions)
            .filter_map(|(check, decision)| Some((check, decision.as_ref().ok()?, &settings.charge)));
        let pending_charge = PendingCharge::new(taken.chain(shadow_taken), waits);
        Self::Admitted(Box::new(Admitted {
            decision,
            policies,
            shadow_limits,
            pending_charge,
            permits: RequestPermits::new(permits),
            delay_permit,
            is_nested: false,
            #[cfg(feature = "rules")]
            rules_decision: None,
        }))
    }

    pub(super) fn rejected(rejection: Rejection) -> Self {
        Self::Rejected(Box::new(rejection))
    }
}

impl Admission {
    /// Returns how long the request waits before it enters.
    pub(super) fn delay(&self) -> Duration {
        match self {
            Self::Admitted(admitted) => admitted.decision.as_ref().map_or(Duration::ZERO, AllDecision::delay),
            _ => Duration::ZERO,
        }
    }

    /// Waits for the delay. Rejects the request and refunds its units if it loses its permit to wait.
    pub(super) async fn after_delay(self, headers: &Headers) -> Self {
        let delay = self.delay();
        match self {
            // Boxed, so that requests without a delay have a small future.
            Self::Admitted(admitted) if delay > Duration::ZERO => {
                Box::pin(admitted.wait(delay, headers)).await
            }
            admission => admission,
        }
    }
}

impl Admitted {
    async fn wait(mut self: Box<Self>, delay: Duration, headers: &Headers) -> Admission {
        if let (Some(limiter), Some(decision)) = (self.pending_charge.limiter(), &self.decision) {
            let sleep = limiter.sleep(delay);
            let has_slept = match self.delay_permit.take() {
                Some(permit) => permit.sleep(sleep).await,
                None => {
                    sleep.await;
                    true
                }
            };
            if !has_slept {
                let mut rejection = Rejection::denied(decision.clone().denied(), self.policies, headers);
                rejection.shadow_limits = self.shadow_limits;
                #[cfg(feature = "rules")]
                let rejection = rejection.with_rules_decision(self.rules_decision.map(RulesDecision::denied));
                return Admission::rejected(rejection);
            }
        }
        Admission::Admitted(self)
    }
}

/// Returns the value of the header that reports limits in shadow mode.
fn shadow_limits(headers: &Headers, policies: &[Policy], decision: &AllDecision) -> String {
    let mut value = String::new();
    let gates = policies.iter().zip(decision.each_alone());
    for (policy, gate) in gates.filter(|(policy, _)| policy.is_shadow) {
        headers.append_shadow(&mut value, policy.name(gate), gate, policy.window_s.is_some());
    }
    value
}
