//! Charges requests that were denied.

use futures_util::future::try_join_all;
use tidegate::{Decision, Error, Source};

use super::plan::{Plan, PlannedCheck};
use super::{RulesLimiter, RulesLimiterInner};
use crate::decision::{RuleOutcome, RulesDecision};
use crate::descriptor::Descriptor;
use crate::rule::Rule;

/// The algorithm whose debt ends with its window, also while the client goes on.
const CHARGED: &str = "fixed_window";

/// # Charging denied requests
impl RulesLimiter {
    /// Charges the fixed windows that deny a request with these descriptors. For services whose clients expect denied
    /// requests to count, as in envoyproxy/ratelimit: a denied request of several units then leaves none to smaller ones,
    /// and still counts if the limit is raised before its window ends.
    ///
    /// Charges the rules that deny, also in shadow mode and in quota mode. Rules that admit a request that another one denies
    /// are charged by the check itself in a domain with `charge: each`, else not at all. Calendar windows are fixed
    /// windows. All other algorithms are left as they are: their debt would deny a client for longer than a window.
    ///
    /// Charges in a call after that of the decision. Requests between the two can be admitted, within the limit. Then
    /// the decision shows the state after the charge. Denials by the deny cache are charged as well if
    /// `charges_cached`, so that each denial calls Redis. Denials by the failure policy, by a switch, or by a rule with
    /// `requests_per_unit: 0` are not charged. Rules with `charge_used` have charged the request already. The quota of
    /// a key with an override decides whether it is a fixed window.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate::Limiter;
    /// use tidegate_rules::{Descriptor, Rules};
    ///
    /// let text = "{domain: api, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]}";
    /// let limits = Rules::parse("api.yaml", text)?.bind(&Limiter::in_memory());
    /// let of_hits = |hits| [Descriptor::new().entry("user", "ada").hits(hits)];
    /// assert!(limits.check("api", &of_hits(3)).await?.is_allowed());
    /// let mut denied = limits.check("api", &of_hits(4)).await?;
    /// assert!(!denied.is_allowed());
    /// limits.charge_denied("api", &of_hits(4), &mut denied, true).await?;
    /// assert!(!limits.check("api", &of_hits(1)).await?.is_allowed());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Gate::penalize`](tidegate::Gate::penalize). Some rules can be charged nevertheless. The decision stays as it is.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, each rule is charged or not, and the decision stays as it is.
    pub async fn charge_denied(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        decision: &mut RulesDecision,
        charges_cached: bool,
    ) -> Result<(), Error> {
        // Nearly all requests end here.
        if decision.outcomes().iter().filter_map(RuleOutcome::decision).all(admits) {
            return Ok(());
        }
        // Not `self.plan`, which notifies the observer of denials a second time.
        let RulesLimiterInner { limiter, rules, gates, .. } = &*self.0;
        let plan = Plan::new(rules, gates, limiter, domain, descriptors);
        let shadow_checks = plan.shadow_checks().iter().filter(|check| !check.is_candidate);
        let charges = plan.checks().iter().chain(plan.uncharged()).chain(shadow_checks).filter(|check| {
            let decided = decision.outcomes().get(check.at).and_then(RuleOutcome::decision);
            let is_uncharged =
                decided.filter(|decided| !admits(decided)).is_some_and(|decided| match decided.source() {
                    Source::DenyCache => charges_cached,
                    source => matches!(source, Source::Redis | Source::Memory),
                });
            let quota = check.gate().effective_quota(check.key());
            let is_window = quota.is_some_and(|quota| quota.algorithm() == CHARGED);
            let is_charged = plan.rule(check).is_some_and(Rule::charges_used);
            is_uncharged && !is_charged && is_window && check.cost() > 0
        });
        let charged: Vec<_> = charges.collect();
        let penalties = charged.iter().map(|check| check.gate().penalize(check.key(), check.cost()));
        try_join_all(penalties).await?;
        // Several descriptors can have one key.
        let units = |check: &PlannedCheck<'_>| {
            let of_key = charged
                .iter()
                .filter(|other| (other.gate().name(), other.key()) == (check.gate().name(), check.key()));
            of_key.fold(0_u64, |units, other| units.saturating_add(other.cost()))
        };
        decision.show_window_charges(charged.iter().map(|check| (check.at, units(check))));
        Ok(())
    }
}

fn admits(decision: &Decision) -> bool {
    decision.is_allowed() && !decision.is_shadow()
}
