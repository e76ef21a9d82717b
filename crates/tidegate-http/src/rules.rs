//! Admission under rules from files.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{BoxFuture, join, join_all};
use http::HeaderMap;
use http::request::Parts;
use tidegate::{AllDecision, Check, Decision, Error, Permit, Quota};
use tidegate_rules::{Plan, PlannedCheck, Rule, RuleOutcome, RulesDecision};

use super::admission::Admission;
use super::check_group::CheckGroup;
use super::descriptors::SetupMistake;
use super::headers::Headers;
use super::in_flight::{decide_each, in_order, needs_permit};
use super::missing_key::MissingKey;
use super::rejection::{Reason, Rejection};
use super::request_checks::RequestChecks;
use super::settings::{FileRules, LayerSettings};
use super::wait_queue::GroupResult;
use crate::policy::Policy;

/// Checks the rules that match the request. The future is boxed so that it does not enlarge the types of
/// the services around the layer.
pub(super) fn decide<'a>(
    file_rules: &'a FileRules,
    settings: &'a LayerSettings,
    parts: &'a Parts,
) -> BoxFuture<'a, Admission> {
    Box::pin(decide_now(file_rules, settings, parts))
}

async fn decide_now(file_rules: &FileRules, settings: &LayerSettings, parts: &Parts) -> Admission {
    // A reload during this request does not affect it: one version decides it entirely.
    let limits = file_rules.rules.limits();
    let hits = settings.cost.as_ref().map_or(1, |cost| cost(parts));
    let report = |mistake| match mistake {
        SetupMistake::Trust(mistake) => settings.warnings.trust(&file_rules.limiter, mistake),
        SetupMistake::Absent(absent) => {
            // A missing entry leaves a descriptor out, and rejects no request.
            settings.warnings.missing_part(&file_rules.limiter, parts, absent, MissingKey::Skip);
        }
    };
    let domain = file_rules.descriptors.domain();
    let is_read = hits > 0 || file_rules.descriptors.apply_without_cost(limits.rules());
    let descriptors = match is_read {
        false => Ok(Vec::new()),
        true => file_rules.descriptors.for_request(limits.rules(), parts, settings.missing_key, &report),
    };
    let descriptors = match descriptors {
        Ok(descriptors) => descriptors,
        Err(absent) => return Admission::rejected(Rejection::absent(absent, None)),
    };
    let descriptors: Vec<_> = match settings.cost {
        // Hits of 0 would ask whether a unit is left.
        Some(_) => descriptors.into_iter().map(|descriptor| descriptor.hits(hits.max(1))).collect(),
        None => descriptors,
    };
    let mut plan = limits.plan(domain, &descriptors);
    if hits == 0 {
        plan.leave_out_rates();
    }
    // The gates of the layer are decided together with the rules.
    let is_beside_gates = !plan.charges_each() && (settings.chooser.is_some() || !settings.rules.is_empty());
    let peeked = match is_beside_gates || plan.has_peeks_beside_charges() {
        true => Box::pin(plan.decide_peeks()).await,
        false => Ok(false),
    };
    let mut checks = RequestChecks::default();
    checks.add_plan(&plan, settings);
    if matches!(peeked, Ok(true)) {
        checks.shadow_checks = checks.shadow_checks.into_iter().map(|check| check.cost(0)).collect();
    }
    if let Err(rejection) = checks.add_rules(settings, parts).await {
        return Admission::rejected(*rejection);
    }
    let mut group = checks.group().await;
    let (result, (shadow_decisions, shadow_permits)) = {
        let result = pin!(async {
            peeked?;
            decide_group(settings, group.as_mut(), &checks.static_denials).await
        });
        // The futures of rare cases are boxed, so that the one of each request is small.
        match checks.shadow_checks.is_empty() {
            true => (result.await, Checked::default()),
            false => Box::pin(with_shadow(result, &checks.shadow_checks)).await,
        }
    };
    let mut admission = Admission::new(settings, checks, group, result, &shadow_decisions, shadow_permits);
    match &mut admission {
        Admission::Straight(admitted) => {
            let decisions = admitted.decision.each_alone().iter().cloned();
            admitted.rules_decision = Some(plan.decision(true, decisions, shadow_decisions));
        }
        Admission::Admitted(admitted) => {
            let decisions = admitted.decision.iter().flat_map(AllDecision::each_alone).cloned();
            let decision = plan.decision(true, decisions, shadow_decisions);
            append_shadow_rules(&settings.headers, &mut admitted.shadow_limits, &decision);
            admitted.rules_decision = Some(decision);
        }
        Admission::Rejected(rejection) => {
            if let Reason::Denied(decision) | Reason::Closed(decision) = rejection.reason() {
                let decisions = decision.each_alone().to_vec();
                let decision = plan.decision(false, decisions, shadow_decisions);
                append_shadow_rules(&settings.headers, &mut rejection.shadow_limits, &decision);
                rejection.rules_decision = Some(Box::new(decision));
            }
        }
        Admission::Undecided => {}
    }
    admission
}

impl RequestChecks {
    /// Adds the checks of a plan. The layer's cost does not count the slots of in-flight limits.
    fn add_plan(&mut self, plan: &Plan<'_>, settings: &LayerSettings) {
        let check_of = |planned: &PlannedCheck<'_>| match settings.cost {
            Some(_) if planned.is_in_flight() => {
                planned.check().cost(plan.rule(planned).map_or(1, Rule::cost))
            }
            _ => planned.check(),
        };
        self.charges_each = plan.charges_each();
        self.checks.reserve_exact(plan.checks().len());
        for check in plan.checks() {
            let name = plan.rule(check).map(|rule| settings.headers.name_of(rule, check.gate().quota()));
            self.checks.push(check_of(check));
            self.policies.push(Policy::new(check.gate(), name));
            self.charges.push(settings.charge.clone());
        }
        self.shadow_checks.extend(plan.shadow_checks().iter().map(check_of));
        self.static_denials.extend(plan.static_denials().map(|(outcome, decision)| {
            let rule = outcome.rule();
            let name = |rule| settings.headers.name_of(rule, outcome.quota());
            let name = rule.map_or_else(|| decision.gate().into(), name);
            let policy = match outcome.quota() {
                None if !rule.is_some_and(Rule::is_in_flight) => {
                    Policy::for_zero_limit(name, decision.retry_after())
                }
                quota => Policy::of_quota(quota, Some(name)),
            };
            (decision.clone(), policy)
        }));
    }
}

impl Headers {
    /// Does the same as [`of_quota`](Self::of_quota) for a decision by rules: the name of the limit is that of the rule, as
    /// in responses of [`RateLimitLayer::with_rules`](crate::RateLimitLayer::with_rules).
    #[must_use]
    pub fn of_rule(&self, outcome: &RuleOutcome, quota: &Quota, decision: &Decision) -> HeaderMap {
        let name = outcome.rule().map(|rule| self.name_of(rule, outcome.quota()));
        self.of_policy(Policy::of_quota(Some(*quota), name), decision)
    }

    /// Returns the name of a rule for clients. `quota`: that decided.
    fn name_of(&self, rule: &Rule, quota: Option<Quota>) -> Arc<str> {
        if self.rule_paths { rule.shown().clone() } else { rule.neutral_name(quota) }
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
            return Box::pin(wait_queue.decide(group)).await;
        }
        // The request is denied in any case, so it does not wait.
        (Some(group), _) => Some(group.decide().await?),
    };
    if static_denials.is_empty() {
        return Ok((decided, None));
    }
    let checked = decided.map_or(Vec::new(), AllDecision::into_each_alone);
    let denials = static_denials.iter().map(|(decision, _)| decision.clone());
    Ok((Some(AllDecision::of_each(checked.into_iter().chain(denials))), None))
}

/// The results of checks, in their order, and the permits that they hold.
type Checked = (Vec<Result<Decision, Error>>, Vec<Permit>);

/// Decides the request by `result` and makes its checks in shadow mode: of rates at the same time, and of in-flight
/// limits after the admission. A request that waits is not in flight.
async fn with_shadow(result: impl Future<Output = GroupResult>, checks: &[Check]) -> (GroupResult, Checked) {
    let (in_flight, rates): (Vec<&Check>, Vec<&Check>) = checks.iter().partition(|check| needs_permit(check));
    let (result, rates) = join(result, decide_each(&rates)).await;
    let is_admitted =
        matches!(&result, Ok((decision, _)) if decision.as_ref().is_none_or(|it| it.is_allowed()));
    let in_flight = match is_admitted {
        true => decide_each(&in_flight).await,
        false => {
            let peeks = in_flight.into_iter().map(|check| check.clone().peek());
            join_all(peeks).await.into_iter().map(|decision| Ok((decision?, Vec::new()))).collect()
        }
    };
    let mut permits = Vec::new();
    let decisions = in_order(checks, in_flight, rates).into_iter().map(|checked| {
        let (decision, acquired) = checked?;
        permits.extend(acquired);
        Ok(decision)
    });
    let decisions = decisions.collect();
    (result, (decisions, permits))
}

/// Adds the rules in shadow mode, and the candidates of rules, to the value of the header that reports them.
fn append_shadow_rules(headers: &Headers, value: &mut String, decision: &RulesDecision) {
    for outcome in decision.outcomes() {
        if let (Some(rule), Some(candidate)) = (outcome.rule(), outcome.candidate())
            && candidate.is_allowed()
        {
            let name = format!("{}.candidate", rule.shown());
            headers.append_shadow(value, &name, candidate, !rule.is_in_flight());
        }
        if let (Some(rule), Some(decision)) = (outcome.rule(), outcome.decision())
            && rule.is_shadow()
            && decision.is_allowed()
        {
            headers.append_shadow(value, rule.shown(), decision, !rule.is_in_flight());
        }
    }
}
