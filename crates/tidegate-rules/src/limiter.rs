//! Rules bound to a limiter: checks requests.

mod acquire;
mod charge_denied;
mod check_or_deny;
mod gates;
mod plan;
mod take_up_to;

use std::sync::{Arc, OnceLock};

use futures_util::future::join;
use tidegate::{Decision, Error, Gate, Limiter, RepeatedWarning};

use self::gates::RuleGates;
pub use self::plan::{Plan, PlannedCheck};
use super::decision::RulesDecision;
use super::descriptor::Descriptor;
use super::load::Rules;
use super::rule::Rule;
use crate::tree::available;

/// The maximum number of characters of an unknown domain that a warning shows.
const MAX_DOMAIN_CHARS: usize = 64;

/// Rules and their gates, from [`Rules::bind`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RulesLimiter(Arc<RulesLimiterInner>);

#[derive(Debug)]
struct RulesLimiterInner {
    limiter: Limiter,
    rules: Rules,
    gates: Vec<RuleGates>,
    unknown_domain: Arc<RepeatedWarning>,
    /// The indices of the rules, ordered by the names of their gates. Made when a gate is first looked up by name,
    /// which most services never do.
    by_gate_name: OnceLock<Box<[usize]>>,
}

/// # Checking requests
impl Rules {
    /// Creates a gate on `limiter` for each rule and each of its tiers. Instances that bind the same rules
    /// share their counts. Reports the [warnings](Self::warnings) to the limiter.
    #[must_use]
    pub fn bind(&self, limiter: &Limiter) -> RulesLimiter {
        let unknown_domain = Arc::new(RepeatedWarning::new("rules-domain-unknown"));
        RulesLimiter::new(limiter, self, RuleGates::of_rules(self, limiter, None), unknown_domain)
    }

    /// Reports the warnings of these files as one, since each code is reported at most once a second.
    fn report_warnings(&self, limiter: &Limiter) {
        let [first, others @ ..] = self.warnings() else { return };
        // Each version of the files is reported.
        limiter.warn(&RepeatedWarning::new("rules-file"), || {
            let (file, line, column) = first.position();
            let hint = first.suggestion().map(|hint| format!("; {hint}")).unwrap_or_default();
            let more = match others.len() {
                0 => String::new(),
                more => format!(" (and {more} more: `tidegate rules validate` lists them)"),
            };
            let text = format!("{file}:{line}:{column}: {}{hint}{more}", first.message());
            text.replace(char::is_control, "\u{fffd}")
        });
    }
}

impl RulesLimiter {
    fn new(
        limiter: &Limiter,
        rules: &Rules,
        gates: Vec<RuleGates>,
        unknown_domain: Arc<RepeatedWarning>,
    ) -> Self {
        rules.report_warnings(limiter);
        let (limiter, rules) = (limiter.clone(), rules.clone());
        let by_gate_name = OnceLock::new();
        Self(Arc::new(RulesLimiterInner { limiter, rules, gates, unknown_domain, by_gate_name }))
    }

    /// Binds the next version of the rules. Unchanged rules keep their gates, so their leases too.
    pub(super) fn rebind(&self, rules: &Rules) -> Self {
        let RulesLimiterInner { limiter, rules: previous, gates, unknown_domain, .. } = &*self.0;
        let gates = RuleGates::of_rules(rules, limiter, Some((previous, gates)));
        Self::new(limiter, rules, gates, unknown_domain.clone())
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// Returns the limiter of the rules' gates.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    /// Returns the rule whose [gate](Rule::gate_name) has this name, and that gate with all settings of the rule. Of a
    /// rule with tiers, it is the gate of requests without a tier. The gate is `None` for a rule that admits or denies
    /// every request.
    ///
    /// For services whose callers name a gate and a key instead of a domain and descriptors. The key of a rule that
    /// leaves one value open is that value.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate::Limiter;
    /// use tidegate_rules::{Descriptor, Rules};
    ///
    /// let text = "{domain: api, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]}";
    /// let limits = Rules::parse("api.yaml", text)?.bind(&Limiter::in_memory());
    /// let (rule, gate) = limits.find_gate("api.user").expect("the rules have this gate");
    /// assert_eq!(rule.path(), "api.user");
    /// assert!(gate.expect("the rule has a quota").check("ada").await?.is_allowed());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn find_gate(&self, name: &str) -> Option<(&Rule, Option<&Gate>)> {
        let RulesLimiterInner { rules, gates, by_gate_name, .. } = &*self.0;
        let by_name = by_gate_name.get_or_init(|| {
            let mut indices: Box<[usize]> = (0..gates.len()).collect();
            indices.sort_by_key(|index| rules.gate_name(*index));
            indices
        });
        let at = by_name.binary_search_by_key(&name, |index| rules.gate_name(*index)).ok()?;
        Some((rules.shared(by_name[at]), gates[by_name[at]].get(0)))
    }

    /// Checks whether a request with these descriptors may pass.
    ///
    /// At most one rule matches each descriptor. The request passes if none of them denies it, so it also
    /// passes if no rule matches, or if no file defines the domain ([`RulesDecision::is_domain_known`]).
    ///
    /// All matching rules are charged in one atomic step, or none is; those with `charge_used` are charged on their
    /// own. In a domain with `charge: each`, each rule is checked independently. A rule that admits is then charged
    /// even if another one denies. Rules in shadow mode are always checked independently, concurrently with the others.
    ///
    /// # Errors
    ///
    /// The same as [`Limiter::check_all`], and [`Error::is_config`] if a matching rule is in flight: call
    /// [`acquire`](Self::acquire).
    ///
    /// - [`Error::is_over_capacity`] if a descriptor's hits cost more than the limit.
    /// - [`Error::is_config`] on a Redis Cluster if the keys of a request are in different slots and its
    ///   domain does not use `charge: each`.
    ///
    /// Errors of rules in shadow mode are not returned.
    pub async fn check(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Result<RulesDecision, Error> {
        let plan = self.plan(domain, descriptors);
        ensure_no_permit(&plan)?;
        // The rare cases are boxed, here and below: a service allocates the future of each request.
        let (decided, shadow_results) = match plan.shadow_checks() {
            [] => (self.decide(&plan).await, Vec::new()),
            shadow => Box::pin(join(self.decide(&plan), self.decide_each(shadow))).await,
        };
        let (passes, decisions) = decided?;
        Ok(plan.decision(passes, decisions, shadow_results))
    }

    /// Plans the checks of a request. Notifies the observer of rules that deny without a check, and warns of
    /// an unknown domain.
    #[must_use]
    pub fn plan(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Plan<'_> {
        let RulesLimiterInner { limiter, rules, gates, unknown_domain, .. } = &*self.0;
        let plan = Plan::new(rules, gates, limiter, domain, descriptors);
        plan.notify(limiter, descriptors);
        if !plan.is_domain_known() {
            limiter.warn(unknown_domain, || {
                // The domain can come from a client.
                let shown: String = domain.chars().take(MAX_DOMAIN_CHARS).collect();
                let shown = shown.escape_debug().to_string();
                let known = available(&shown, &rules.domains());
                format!(
                    "a request names the domain `{shown}`, which no rule file has, so no rule applies{known}"
                )
            });
        }
        plan
    }

    /// Returns whether the checks pass together, and their decisions.
    async fn decide(&self, plan: &Plan<'_>) -> Result<(bool, Vec<Decision>), Error> {
        let decisions = match plan.checks() {
            [] => Vec::new(),
            // A separate case, because only a single check can spend from a lease.
            [check] => vec![check.gate().check_cost(check.key(), check.cost()).await?],
            checks if plan.charges_each() => {
                Box::pin(self.decide_each(checks)).await.into_iter().collect::<Result<_, _>>()?
            }
            checks => {
                let all = Box::pin(self.0.limiter.check_all(checks.iter().map(PlannedCheck::check))).await?;
                // Of peeks alone, each decides by itself.
                let passes = all.is_allowed() || checks.iter().all(|check| check.cost() == 0);
                return Ok((passes, all.each_alone().to_vec()));
            }
        };
        Ok((true, decisions))
    }

    async fn decide_each(&self, checks: &[PlannedCheck<'_>]) -> Vec<Result<Decision, Error>> {
        self.0.limiter.check_each(checks.iter().map(PlannedCheck::check)).await
    }
}

/// Fails if a rule limits requests in flight: a check would hold no permit.
fn ensure_no_permit(plan: &Plan<'_>) -> Result<(), Error> {
    let mut checks = plan.checks().iter().chain(plan.shadow_checks());
    checks.find(|check| check.is_in_flight()).map_or(Ok(()), |check| {
        let path = plan.rule(check).map(Rule::path).unwrap_or_default();
        Err(Error::config(format!(
            "the rule `{path}` limits requests in flight: call `RulesLimiter::acquire` instead of `check`, and hold \
             the permits until the request has ended"
        )))
    })
}
