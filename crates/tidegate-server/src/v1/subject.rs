//! What a request asks about: descriptors of rules, or keys of gates.

use tidegate::{Check, Gate, Quota};
use tidegate_rules::{Descriptor, Explanation, Rule, RulesLimiter, similar_name};

use super::request::{GateCheck, RequestDescriptor};
use crate::problem::Problem;

/// The maximum number of descriptors or checks of a request. All are one atomic step in Redis, which serves no other
/// client meanwhile.
const MAX_CHECKS: usize = 100;
/// The maximum number of rules among which a similar name is searched.
const MAX_COMPARED_RULES: usize = 100;

/// The maximum number of gates that a problem lists.
const MAX_LISTED_GATES: usize = 8;

/// What a request asks about.
pub(super) enum Subject {
    Rules(String, Vec<RequestDescriptor>),
    Checks(Vec<GateCheck>),
}

impl Subject {
    /// Returns the subject of a request that has either `domain` and `descriptors`, or checks.
    pub(super) fn new(
        domain: Option<String>,
        descriptors: Option<Vec<RequestDescriptor>>,
        checks: Option<Vec<GateCheck>>,
        form_of_checks: &str,
    ) -> Result<Self, Problem> {
        match (domain, descriptors, checks) {
            (Some(domain), Some(descriptors), None) if !domain.is_empty() => {
                ensure_count("descriptors", descriptors.len())?;
                Ok(Self::Rules(domain, descriptors))
            }
            (Some(domain), _, None) if domain.is_empty() => {
                Err(Problem::invalid("the `domain` is empty: set the domain of the rules"))
            }
            (Some(_), None, None) => Err(Problem::invalid("`domain` needs `descriptors`: send at least one")),
            (None, Some(_), None) => {
                Err(Problem::invalid("`descriptors` need a `domain`: set the domain of the rules"))
            }
            (None, None, Some(checks)) => {
                ensure_count("checks", checks.len())?;
                Ok(Self::Checks(checks))
            }
            (None, None, None) => Err(Problem::invalid(format!(
                "the request names nothing to check: send `domain` and `descriptors`, or {form_of_checks}"
            ))),
            _ => Err(Problem::invalid(format!(
                "the request has both forms: send either `domain` and `descriptors`, or {form_of_checks}"
            ))),
        }
    }
}

fn ensure_count(what: &str, count: usize) -> Result<(), Problem> {
    match count {
        0 => Err(Problem::invalid(format!("`{what}` is empty: send at least one"))),
        1..=MAX_CHECKS => Ok(()),
        _ => Err(Problem::invalid(format!(
            "the request has {count} `{what}`: send at most {MAX_CHECKS}, in several requests"
        ))),
    }
}

/// Returns the descriptors, as rules match them.
pub(super) fn descriptors(descriptors: &[RequestDescriptor]) -> Vec<Descriptor<'_>> {
    descriptors.iter().map(read).collect()
}

fn read(descriptor: &RequestDescriptor) -> Descriptor<'_> {
    let entries = descriptor.entries.iter();
    let read = entries.fold(Descriptor::new(), |read, entry| read.entry(&entry.key, &entry.value));
    let read = read.hits(descriptor.hits.unwrap_or(1));
    match &descriptor.tier {
        Some(tier) => read.tier(&**tier),
        None => read,
    }
}

/// Returns why no rule matches the descriptor.
pub(super) fn why_not(rules: &RulesLimiter, domain: &str, descriptor: &RequestDescriptor) -> String {
    let rules = rules.rules();
    let has_few_rules = rules.iter().nth(MAX_COMPARED_RULES).is_none();
    let explanation = has_few_rules.then(|| rules.explain(domain, &read(descriptor)));
    let why_not = explanation.as_ref().and_then(Explanation::why_not);
    why_not.unwrap_or("no rule matches: `tidegate rules explain` shows why").to_owned()
}

/// The checks of gates, each with its gate.
pub(super) struct GateChecks(Vec<(Gate, Check)>);

impl GateChecks {
    pub(super) fn new(rules: &RulesLimiter, checks: &[GateCheck]) -> Result<Self, Problem> {
        let check = |check: &GateCheck| {
            let gate = gate(rules, check)?;
            let made = gate.key(&*check.key).cost(check.cost.unwrap_or(1));
            Ok((gate, made))
        };
        checks.iter().map(check).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn checks(&self) -> impl Iterator<Item = &Check> {
        self.0.iter().map(|(_, check)| check)
    }

    /// Returns the first check. There is one in each valid request.
    pub(super) fn first(&self) -> Check {
        self.0[0].1.clone()
    }

    /// Returns the quota that decides the check at an index.
    pub(super) fn quota(&self, index: usize) -> Option<Quota> {
        let (gate, check) = &self.0[index];
        gate.effective_quota(check.key())
    }
}

/// Returns the gate of a check: that of a rule, or one with the quota of the request.
fn gate(rules: &RulesLimiter, check: &GateCheck) -> Result<Gate, Problem> {
    let name = &*check.gate;
    let found = match rules.find_gate(name) {
        None => find_readable(rules, name)?,
        found => found,
    };
    match (found, &check.quota) {
        (Some(_), Some(_)) => Err(Problem::invalid(format!(
            "the rules have the gate `{name}` and its quota: remove `quota`, or choose another gate"
        ))),
        (Some((_, Some(gate))), None) => Ok(gate.clone()),
        (Some((rule, None)), None) => Err(Problem::invalid(format!(
            "the rule `{}` of gate `{name}` has no quota, it admits or denies every request: send its `domain` and \
             `descriptors`",
            rule.path()
        ))),
        (None, Some(quota)) => Ok(rules.limiter().try_gate(name, quota.quota(name)?)?),
        (None, None) => Err(unknown(rules, name)),
    }
}

/// Returns the only rule with this readable name, and its gate.
fn find_readable<'r>(
    rules: &'r RulesLimiter,
    name: &str,
) -> Result<Option<(&'r Rule, Option<&'r Gate>)>, Problem> {
    let mut found = rules.find_readable(name);
    if found.len() < 2 {
        return Ok(found.pop());
    }
    let gates = found.iter().take(MAX_LISTED_GATES).map(|(rule, _)| format!("`{}`", rule.gate_name()));
    let gates = gates.collect::<Vec<_>>().join(", ");
    Err(Problem::unknown_gate(
        name,
        format!("{} rules have the readable name `{name}`: send one of their gates, {gates}", found.len()),
    ))
}

fn unknown(rules: &RulesLimiter, name: &str) -> Problem {
    let compared = rules.rules().iter().take(MAX_COMPARED_RULES);
    let known: Vec<String> = compared.flat_map(|rule| [rule.gate_name(), rule.readable_name()]).collect();
    let near = similar_name(name, known.iter().map(String::as_str));
    let is_valid = rules.limiter().try_gate(name, Quota::in_flight(1));
    match (is_valid, near) {
        (Err(error), None) => error.into(),
        (_, near) => {
            let near = near.map_or_else(|| ".".to_owned(), |near| format!("; did you mean `{near}`?"));
            Problem::unknown_gate(
                name,
                format!(
                    "no rule has the gate `{name}`{near} Send its `quota`, or the `domain` and `descriptors` of a rule"
                ),
            )
        }
    }
}
