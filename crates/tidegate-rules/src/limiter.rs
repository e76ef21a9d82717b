//! Rules bound to a limiter: checks requests.

mod charge_denied;
mod decide;
mod gates;
mod mode;
mod plan;
#[cfg(doctest)]
mod refused_lines;
mod take;

use std::sync::{Arc, OnceLock};

use futures_util::future::try_join_all;
use tidegate::{Acquired, Error, Event, Gate, Grant, Limiter, Permits, RepeatedWarning};

pub use self::decide::RulesGrant;
use self::gates::RuleGates;
pub use self::mode::{ChargedDenials, Mode};
pub use self::plan::{Plan, PlannedCheck};
use super::decision::RulesDecision;
use super::descriptor::Descriptor;
use super::load::Rules;
use super::rule::Rule;
use super::rule_gate::RuleGate;
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
    /// The same, ordered by their readable names.
    by_readable_name: OnceLock<Box<[usize]>>,
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

    /// Reports the readable names of the gates, for labels. Two gates with one name keep those in Redis.
    fn report_names(&self, limiter: &Limiter) {
        let mut names: Vec<(String, RuleGate<'_>)> =
            self.gates().map(|gate| (gate.readable_name(), gate)).collect();
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for same in names.chunk_by(|(one, _), (other, _)| one == other) {
            if let [(readable, gate)] = same {
                limiter.notify(&Event::GateNamed { gate: gate.name(), readable });
            }
        }
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
        rules.report_names(limiter);
        let (limiter, rules) = (limiter.clone(), rules.clone());
        let (by_gate_name, by_readable_name) = Default::default();
        let inner =
            RulesLimiterInner { limiter, rules, gates, unknown_domain, by_gate_name, by_readable_name };
        Self(Arc::new(inner))
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

    /// Returns the rules with this [readable name](Rule::readable_name), such as `api / user`, and the gate of each for
    /// requests without a tier. Several rules can share one.
    #[must_use]
    pub fn find_readable(&self, name: &str) -> Vec<(&Rule, Option<&Gate>)> {
        let RulesLimiterInner { rules, gates, by_readable_name, .. } = &*self.0;
        let readable = |index: &usize| rules.shared(*index).readable_name();
        let by_name = by_readable_name.get_or_init(|| {
            let mut indices: Box<[usize]> = (0..gates.len()).collect();
            indices.sort_by_cached_key(readable);
            indices
        });
        let first = by_name.partition_point(|index| *readable(index) < *name);
        let same = by_name[first..].iter().take_while(|index| *readable(index) == *name);
        same.map(|index| (&**rules.shared(*index), gates[*index].get(0))).collect()
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
    /// As [`decide`](Self::decide).
    pub async fn check(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Result<RulesDecision, Error> {
        Ok(self.decide(domain, descriptors, &Mode::check()).await?.decision)
    }

    /// Checks a request as [`check`](Self::check) does, and acquires a permit of each matching rule with
    /// `in_flight`. Hold the permits until the request has ended: [`Acquired`] shows how. If no rule in flight
    /// matches an admitted request, they hold nothing.
    ///
    /// Permits and charges are one atomic step, as in [`check`](Self::check): a denied request holds nothing.
    /// With `charge: each` and in shadow mode, each permit is acquired on its own, and released if the request
    /// is denied.
    ///
    /// # Errors
    ///
    /// As [`decide`](Self::decide).
    ///
    /// # Cancel safety
    ///
    /// As [`decide`](Self::decide).
    pub async fn acquire(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) -> Result<Acquired<Permits, RulesDecision>, Error> {
        let RulesGrant { decision, permits, .. } =
            self.decide(domain, descriptors, &Mode::in_flight()).await?;
        Ok(match decision.is_allowed() {
            true => Acquired::Admitted(permits, decision),
            false => Acquired::Denied(decision),
        })
    }

    /// Decides how many of `n` requests with these descriptors may pass, and charges the matching rules for exactly
    /// those, in one atomic step. So the rule with the fewest units decides. For a batch whose size adapts to the limits.
    ///
    /// If no rule limits the request, all `n` pass. `n` = 0, and descriptors with 0 [hits](Descriptor::hits) alone, peek.
    /// As in [`check`](Self::check), rules in shadow mode restrict nothing, and in a domain with `charge: each` a rule is
    /// charged for the requests that it admits, also for those that another rule denies. Of the rules in quota mode, the
    /// one that admits most decides.
    ///
    /// # Errors
    ///
    /// As [`decide`](Self::decide).
    pub async fn take_up_to(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
        n: u64,
    ) -> Result<Grant<RulesDecision>, Error> {
        let RulesGrant { decision, granted, .. } = self.decide(domain, descriptors, &Mode::up_to(n)).await?;
        Ok(Grant::new(granted, n, decision))
    }

    /// Refunds the units that a check of these descriptors charges, each to its gate. A rule that another one of them
    /// replaces gets nothing back. The gates are independent: if one fails, others may have got their units.
    ///
    /// # Errors
    ///
    /// As [`Gate::refund`].
    pub async fn refund(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Result<(), Error> {
        let plan = self.planned(domain, descriptors, true);
        // Beside a rule that denies every request, a plan leaves the others out.
        let checks = plan.checks().iter().chain(plan.uncharged()).chain(plan.shadow_checks());
        let charged = checks.filter(|check| check.cost() > 0);
        let refunds = charged.map(|check| check.gate().refund(check.key(), check.cost()));
        try_join_all(refunds).await.map(drop)
    }

    /// Plans the checks of a request. Notifies the observer of rules that deny without a check, and warns of
    /// an unknown domain.
    #[must_use]
    pub fn plan(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> Plan<'_> {
        self.planned(domain, descriptors, false)
    }

    /// Plans a request. Of one that is silent, such as a peek, the observer is notified of nothing.
    fn planned(&self, domain: &str, descriptors: &[Descriptor<'_>], is_silent: bool) -> Plan<'_> {
        let RulesLimiterInner { limiter, rules, gates, unknown_domain, .. } = &*self.0;
        let plan = Plan::new(rules, gates, limiter, domain, descriptors);
        if !is_silent {
            plan.notify(limiter, descriptors);
        }
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
}
