//! Admission under rules from files.

use std::sync::Arc;

use futures_util::future::join;
use http::request::Parts;

use super::admission::{Admission, GroupResult};
use super::checks::{CheckGroup, RequestChecks};
use super::descriptors::Descriptors;
use super::policy::Policy;
use super::rejection::{Reason, Rejection};
use super::settings::{BoxFuture, LayerSettings};
use crate::check::Check;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;
use crate::limiter::Core;
use crate::rules::{Need, Plan, ReloadingRules};

/// Rules from files, and the mapping of a request to their descriptors.
#[derive(Clone)]
pub(super) struct FileRules {
    rules: ReloadingRules,
    descriptors: Arc<Descriptors>,
    /// Rejects a reload that lacks the domain or its extensions. The rules hold only a weak reference to it.
    _need: Arc<Need>,
    /// The limiter of the gates, the same for all versions of the rules.
    pub(super) core: Arc<Core>,
}

impl FileRules {
    pub(super) fn new(rules: ReloadingRules, descriptors: Descriptors) -> Result<Self, Error> {
        let descriptors = Arc::new(descriptors);
        let required = descriptors.clone();
        let need: Arc<Need> = Arc::new(move |rules| required.check(rules));
        rules.require(&need)?;
        let core = rules.limits().core().clone();
        Ok(Self { rules, descriptors, _need: need, core })
    }

    /// Checks the rules that match the request. The future is boxed so that it does not enlarge the types of
    /// the services around the layer.
    pub(super) fn decide<'a>(
        &'a self,
        settings: &'a LayerSettings,
        parts: &'a Parts,
    ) -> BoxFuture<'a, Admission> {
        Box::pin(self.decide_now(settings, parts))
    }

    async fn decide_now(&self, settings: &LayerSettings, parts: &Parts) -> Admission {
        // A reload during this request does not affect it: one version decides it entirely.
        let limits = self.rules.limits();
        let hits = settings.cost.as_ref().map_or(1, |cost| cost(parts));
        let descriptors = match hits {
            0 => Some(Vec::new()),
            _ => self.descriptors.for_request(limits.rules(), parts, settings.missing_key),
        };
        let Some(descriptors) = descriptors else {
            return Admission::Rejected(Rejection::missing_key());
        };
        let descriptors: Vec<_> = match settings.cost {
            Some(_) => descriptors.into_iter().map(|descriptor| descriptor.hits(hits)).collect(),
            None => descriptors,
        };
        let plan = limits.plan(self.descriptors.domain(), &descriptors);
        let mut checks = RequestChecks::default();
        checks.add_plan(&plan, settings);
        if checks.add_rules(settings, parts).await.is_none() {
            return Admission::Rejected(Rejection::missing_key());
        }
        let mut group = checks.group();
        let result = decide_group(settings, group.as_mut(), &checks.static_denials);
        let (result, shadow_decisions) = join(result, decide_shadow(&checks.shadow_checks)).await;
        let mut admission = settings.admission(checks, group, result, &shadow_decisions);
        match &mut admission {
            Admission::Admitted(admitted) => {
                let decisions = admitted.decision.iter().flat_map(AllDecision::decisions).cloned();
                admitted.rules_decision = Some(plan.decision(true, decisions, shadow_decisions));
            }
            Admission::Rejected(rejection) => {
                if let Reason::Denied(decision) = rejection.reason() {
                    let decisions = decision.decisions().to_vec();
                    rejection.rules_decision =
                        Some(Box::new(plan.decision(false, decisions, shadow_decisions)));
                }
            }
            Admission::Undecided => {}
        }
        admission
    }
}

impl RequestChecks {
    fn add_plan(&mut self, plan: &Plan<'_>, settings: &LayerSettings) {
        self.charges_each = plan.charges_each;
        for wanted in &plan.wanted {
            let name = plan.rule(wanted).map(|rule| rule.shown().clone());
            self.checks.push(wanted.gate.key(&wanted.key).cost(wanted.cost));
            self.policies.push(Policy::new(wanted.gate, name));
            self.charges.push(settings.charge.clone());
        }
        let shadow_checks = plan.watched.iter().map(|check| check.gate.key(&check.key).cost(check.cost));
        self.shadow_checks.extend(shadow_checks);
        self.static_denials.extend(plan.refused().map(|(rule, decision)| {
            let policy = Policy::for_zero_limit(rule.shown().clone(), decision.retry_after());
            (decision.clone(), policy)
        }));
    }
}

/// Decides the group, and adds the denials that need no check.
async fn decide_group(
    settings: &LayerSettings,
    group: Option<&mut CheckGroup>,
    static_denials: &[(Decision, Policy)],
) -> GroupResult {
    let decided = match (group, &settings.wait_queue) {
        (None, _) => None,
        (Some(group), Some(wait_queue)) if static_denials.is_empty() => {
            return wait_queue.decide(group).await;
        }
        // The request is denied in any case, so it does not wait.
        (Some(group), _) => Some(group.decide().await?),
    };
    if static_denials.is_empty() {
        return Ok((decided, None));
    }
    let checked = decided.map_or(Vec::new(), |decision| decision.decisions);
    let denials = static_denials.iter().map(|(decision, _)| decision.clone());
    Ok((Some(AllDecision::of_each(checked.into_iter().chain(denials).collect())), None))
}

/// Makes the checks in shadow mode, which do not affect whether the request is admitted.
async fn decide_shadow(checks: &[Check]) -> Vec<Result<Decision, Error>> {
    let Some(first) = checks.first() else { return Vec::new() };
    let refs: Vec<_> = checks.iter().map(Check::as_ref).collect();
    first.gate.core.check_each(&refs).await
}
