//! Charges requests that were denied.

use std::pin::pin;

use futures_util::future::{Either, join_all, select};
use tidegate::{Decision, Source, Stopwatch};

use super::RulesLimiter;
use super::mode::{ChargedDenials, Mode};
use super::plan::{Plan, PlannedCheck};
use crate::decision::{RuleOutcome, RulesDecision};
use crate::rule::Rule;

/// The algorithm whose debt ends with its window, also while the client goes on.
const CHARGED: &str = "fixed_window";

impl RulesLimiter {
    /// Charges the fixed windows that deny a request, which began at `began`: see [`Mode::charge_denied`]. Of a charge
    /// that fails, or that is too late, the decision shows nothing.
    pub(super) async fn charge_denied(
        &self,
        plan: &Plan<'_>,
        decision: &mut RulesDecision,
        mode: &Mode,
        began: &Stopwatch,
    ) {
        let shadow_checks = plan.shadow_checks().iter().filter(|check| !check.is_candidate);
        let checks = plan.checks().iter().chain(plan.uncharged()).chain(shadow_checks);
        let is_charged = |check: &&PlannedCheck<'_>| is_charged(check, &decision.outcomes()[check.at], mode);
        let charged: Vec<_> = checks.filter(is_charged).collect();
        let penalties = charged.iter().map(|check| check.gate().penalize(check.key(), check.cost()));
        let penalties = pin!(join_all(penalties));
        let left = self.limiter().deadline().saturating_sub(began.elapsed());
        let Either::Left((results, _)) = select(penalties, pin!(self.limiter().sleep(left))).await else {
            return;
        };
        let charged: Vec<_> = charged
            .into_iter()
            .zip(results)
            .filter_map(|(check, result)| result.ok().map(|()| check))
            .collect();
        // Several descriptors can have one key.
        let units = |check: &PlannedCheck<'_>| {
            let of_key = charged.iter().filter(|other| other.is_of_same_key(check));
            of_key.fold(0_u64, |units, other| units.saturating_add(other.cost()))
        };
        decision.show_window_charges(charged.iter().map(|check| (check.at, units(check))));
    }
}

fn is_charged(check: &PlannedCheck<'_>, outcome: &RuleOutcome, mode: &Mode) -> bool {
    let is_uncharged = |decided: &Decision| match decided.source() {
        Source::DenyCache => mode.charged_denials == ChargedDenials::All,
        source => matches!(source, Source::Redis | Source::Memory),
    };
    check.cost() > 0
        && outcome.is_denial_alone()
        && outcome.decision().is_some_and(is_uncharged)
        && !outcome.rule().is_some_and(Rule::charges_used)
        && check.quota().is_some_and(|quota| quota.algorithm() == CHARGED)
}
