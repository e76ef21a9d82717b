//! Admission: checks a request's gates and determines whether it enters the service.

use std::sync::Arc;

use http::request::Parts;

use super::charge::PendingCharge;
use super::checks::{CheckGroup, RequestChecks};
use super::policy::Policy;
use super::rejection::Rejection;
use super::settings::{LayerSettings, OnError};
use super::wait_queue::WaitPermit;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;
use crate::limiter::Core;
#[cfg(feature = "rules")]
use crate::rules::RulesDecision;

/// The result of admission.
pub(super) enum Admission {
    /// The request enters without a decision: it is skipped, no rule applies, or the limiter failed under
    /// [`OnError::Pass`].
    Undecided,
    Admitted(Admitted),
    Rejected(Rejection),
}

/// An admitted request.
pub(super) struct Admitted {
    /// `None` if no check can deny the request.
    pub(super) decision: Option<AllDecision>,
    pub(super) policies: Vec<Policy>,
    pub(super) pending_charge: PendingCharge,
    /// The request's permit to wait, held until the decision's delay is over.
    pub(super) permit: Option<WaitPermit>,
    pub(super) core: Option<Arc<Core>>,
    #[cfg(feature = "rules")]
    pub(super) rules_decision: Option<RulesDecision>,
}

impl LayerSettings {
    /// Checks the gates of a request and determines whether it is admitted.
    pub(super) async fn decide(&self, parts: &Parts) -> Admission {
        if self.skip.as_ref().is_some_and(|skip| skip(parts)) {
            return Admission::Undecided;
        }
        #[cfg(feature = "rules")]
        if let Some(file_rules) = &self.file_rules {
            return file_rules.decide(self, parts).await;
        }
        let mut checks = RequestChecks::default();
        match checks.add_rules(self, parts).await {
            None => Admission::Rejected(Rejection::missing_key()),
            Some(()) if checks.checks.is_empty() => Admission::Undecided,
            Some(()) => {
                let mut group = checks.group();
                let result = match (&mut group, &self.wait_queue) {
                    (None, _) => Ok((None, None)),
                    (Some(group), Some(wait_queue)) => wait_queue.decide(group).await,
                    (Some(group), None) => group.decide().await.map(|decision| (Some(decision), None)),
                };
                self.admission(checks, group, result, &[])
            }
        }
    }

    /// Builds the admission from the decision on `group` and the decisions on the checks in shadow mode.
    pub(super) fn admission(
        &self,
        checks: RequestChecks,
        group: Option<CheckGroup>,
        result: GroupResult,
        shadow_decisions: &[Result<Decision, Error>],
    ) -> Admission {
        let RequestChecks { mut policies, charges, static_denials, shadow_checks, .. } = checks;
        policies.extend(static_denials.into_iter().map(|(_, policy)| policy));
        let (decision, permit) = match result {
            Ok((Some(decision), _)) if !decision.is_allowed() => {
                return Admission::Rejected(Rejection::denied(decision, policies, &self.headers));
            }
            Ok(admitted) => admitted,
            // Admits a request only if the store is unavailable. Other errors, such as a cost above the
            // capacity or a misconfigured gate, must not bypass the limit.
            Err(error) if self.on_error == OnError::Pass && error.is_unavailable() => {
                return Admission::Undecided;
            }
            Err(error) => return Admission::Rejected(Rejection::error(error, &self.headers)),
        };
        let checks = group.map_or(Vec::new(), |group| group.checks);
        let core = checks.first().map(|check| check.gate.core.clone());
        let decisions = decision.iter().flat_map(AllDecision::decisions).cloned();
        let taken = checks.into_iter().zip(decisions).zip(charges);
        let shadow_taken = shadow_checks
            .into_iter()
            .zip(shadow_decisions)
            .filter_map(|(check, decision)| Some((check, decision.clone().ok()?)));
        let shadow_taken = shadow_taken.map(|taken| (taken, self.charge.clone()));
        let pending_charge = PendingCharge::new(taken.chain(shadow_taken));
        Admission::Admitted(Admitted {
            decision,
            policies,
            pending_charge,
            permit,
            core,
            #[cfg(feature = "rules")]
            rules_decision: None,
        })
    }
}

/// The decision on a [`CheckGroup`] and the request's permit to wait. The decision is `None` if no check can
/// deny the request.
pub(super) type GroupResult = Result<(Option<AllDecision>, Option<WaitPermit>), Error>;
