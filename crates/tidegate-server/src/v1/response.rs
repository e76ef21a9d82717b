//! The responses of the API.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};
use tidegate::{AllDecision, Decision, Settlement, Token};
use tidegate_rules::{RuleOutcome, RuleResult, RulesDecision};
use utoipa::ToSchema;

use crate::for_clients::shortened;

/// The maximum number of descriptors of a request whose outcome has a hint.
const MAX_HINTS: usize = 8;

/// The decision on a request. Times are whole microseconds from the moment of the decision.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DecisionResponse {
    /// Whether the request may pass. If not, nothing is charged, except by rules in a domain with `charge: each`. Always
    /// true in the service's shadow mode: `decision` and `outcomes` show the denials.
    pub(super) allowed: bool,
    /// Of a denial, the time until the same request would pass, if no other came; else 0.
    pub(super) retry_after_us: u64,
    /// How long the client waits before it goes on, at a leaky bucket.
    pub(super) delay_us: u64,
    /// The decision that binds: of a denial the one with the longest wait, else the one with the smallest share left.
    /// `null` if nothing limits the request.
    pub(super) decision: Option<DecisionBody>,
    /// The outcome of each check or descriptor, in the order of the request.
    pub(super) outcomes: Vec<CheckOutcome>,
    /// The `metadata` of the rules that let the request pass, if they have any.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Option<Object>)]
    pub(super) metadata: Map<String, Value>,
    /// Of an admitted `/v1/reserve`; `null` if nothing is held: there is nothing to settle.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ReservationBody>)]
    pub(super) reservation: Option<Option<ReservationBody>>,
    /// Of an admitted `/v1/acquire`; `null` if no unit is held: there is nothing to release.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PermitBody>)]
    pub(super) permit: Option<Option<PermitBody>>,
}

/// The decision of one gate.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DecisionBody {
    /// The name of the gate.
    gate: String,
    /// Whether the gate admits the check; of a peek, whether it would.
    allowed: bool,
    /// The quota's limit.
    limit: u64,
    /// The units left after the check.
    remaining: u64,
    /// The time until another check of this cost would be admitted, if no other came. Above 0 also for a check that took
    /// the last unit.
    retry_after_us: u64,
    /// The time until the key is unused again.
    reset_after_us: u64,
    /// How long an admitted check waits for its turn, at a leaky bucket.
    delay_us: u64,
    /// The component that decided: `redis`, `memory`, `deny_cache`, `lease`; `local`, `open` or `closed` by the failure
    /// policy while Redis is unavailable; `rule`, `switch`.
    source: &'static str,
    /// Whether the check would have been denied, and passed because of shadow mode.
    shadow: bool,
    /// The server's time of the decision, in microseconds since the Unix epoch; 0 if no clock was used.
    server_now_us: u64,
}

/// The outcome of one check or descriptor.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CheckOutcome {
    outcome: OutcomeKind,
    /// The path of the rule that matches, such as `api.user`; `null` if none does, or for a check of a gate.
    rule: Option<String>,
    /// The gate's own decision, if it made one. If another gate denies the request, nothing is charged.
    decision: Option<DecisionBody>,
    /// The decision of the rule's `candidate`, which denies nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    candidate: Option<DecisionBody>,
    /// Why no rule matches, with the names that are probably meant: of the first descriptors for which that holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// How a check or descriptor was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OutcomeKind {
    /// A gate decided.
    Decided,
    /// No rule file has the domain, so no rule matches, and the descriptor passes.
    NoDomain,
    /// No rule of the domain matches the descriptor, which passes.
    NoRule,
    /// The rule admits everything.
    Unlimited,
    /// Another rule of the request replaces the rule.
    Replaced,
    /// Another rule denied the request before.
    NotChecked,
    /// The check of a rule in shadow mode failed.
    Unanswered,
}

/// A reservation to settle.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReservationBody {
    /// The right to settle it, in any process of the namespace. It contains the keys, and is a secret.
    token: String,
    /// What it holds, in the order of the numbers that `/v1/commit` takes.
    holds: Vec<HoldBody>,
}

/// The charge of one check of a reservation.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HoldBody {
    /// The name of the gate.
    gate: String,
    /// The units that were reserved.
    units: u64,
}

/// Units in flight that this server holds for the client.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PermitBody {
    /// The right to release it, at any server.
    pub(super) id: String,
    /// The units of in-flight limits that it holds.
    pub(super) units: u64,
    /// The time until it is released automatically.
    pub(super) ttl_ms: u64,
}

/// What a settle found, for each hold of the reservation.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SettledResponse {
    /// `settled`; `late` if the hold had ended, and what was not charged is charged now; `nothing` if there was no hold;
    /// `queued` if Redis did not answer, and this server settles it in the background.
    settlements: Vec<&'static str>,
}

/// A permit that was released.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReleasedResponse {
    /// Whether Redis has confirmed it. If not, the server that holds the permit releases the units in the background.
    pub(super) confirmed: bool,
}

impl DecisionResponse {
    pub(super) fn of_gate(decision: &Decision) -> Self {
        Self {
            allowed: decision.is_allowed(),
            retry_after_us: wait_us(decision.is_allowed(), decision.retry_after()),
            delay_us: us(decision.delay()),
            decision: Some(DecisionBody::new(decision)),
            outcomes: vec![CheckOutcome::of_gate(decision)],
            metadata: Map::new(),
            reservation: None,
            permit: None,
        }
    }

    pub(super) fn of_gates(all: &AllDecision) -> Self {
        Self {
            allowed: all.is_allowed(),
            retry_after_us: wait_us(all.is_allowed(), all.retry_after()),
            delay_us: us(all.delay()),
            outcomes: all.each_alone().iter().map(CheckOutcome::of_gate).collect(),
            ..Self::of_gate(all.binding())
        }
    }

    /// `why_not`: why no rule matches the descriptor at an index.
    pub(super) fn of_rules(decision: &RulesDecision, why_not: impl Fn(usize) -> String) -> Self {
        let binding = decision.binding().and_then(RuleOutcome::decision);
        let mut outcomes: Vec<_> = decision.outcomes().iter().map(CheckOutcome::of_rule).collect();
        let unmatched = outcomes.iter_mut().enumerate().filter(|(_, it)| it.outcome == OutcomeKind::NoRule);
        for (number, (at, outcome)) in unmatched.enumerate() {
            // Without the domain, all have the same reason.
            let (kind, hints) = match decision.is_domain_known() {
                true => (OutcomeKind::NoRule, MAX_HINTS),
                false => (OutcomeKind::NoDomain, 1),
            };
            outcome.outcome = kind;
            outcome.hint = (number < hints).then(|| shortened(why_not(at)));
        }
        Self {
            allowed: decision.is_allowed(),
            retry_after_us: wait_us(decision.is_allowed(), decision.retry_after()),
            delay_us: us(decision.delay()),
            decision: binding.map(DecisionBody::new),
            outcomes,
            metadata: decision.metadata(),
            reservation: None,
            permit: None,
        }
    }

    /// Reports the gate that denied the checks as a group.
    pub(super) fn denied_by(self, all: &AllDecision) -> Self {
        let retry_after_us = us(all.retry_after());
        Self { allowed: false, retry_after_us, decision: Some(DecisionBody::new(all.binding())), ..self }
    }

    /// Admits the request, and keeps the denials of its parts.
    pub(super) fn admitted(self) -> Self {
        Self { allowed: true, retry_after_us: 0, ..self }
    }
}

impl DecisionBody {
    fn new(decision: &Decision) -> Self {
        Self {
            gate: decision.gate().to_owned(),
            allowed: decision.is_allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after_us: us(decision.retry_after()),
            reset_after_us: us(decision.reset_after()),
            delay_us: us(decision.delay()),
            source: decision.source().as_str(),
            shadow: decision.is_shadow(),
            server_now_us: decision.server_now_us(),
        }
    }
}

impl CheckOutcome {
    fn of_gate(decision: &Decision) -> Self {
        let decision = Some(DecisionBody::new(decision));
        Self { outcome: OutcomeKind::Decided, rule: None, decision, candidate: None, hint: None }
    }

    fn of_rule(outcome: &RuleOutcome) -> Self {
        let kind = match outcome.result() {
            RuleResult::Decided(_) => OutcomeKind::Decided,
            RuleResult::NoRule => OutcomeKind::NoRule,
            RuleResult::Unlimited => OutcomeKind::Unlimited,
            RuleResult::Replaced => OutcomeKind::Replaced,
            RuleResult::NotChecked => OutcomeKind::NotChecked,
            _ => OutcomeKind::Unanswered,
        };
        Self {
            outcome: kind,
            rule: outcome.rule().map(|rule| rule.path().to_owned()),
            decision: outcome.decision().map(DecisionBody::new),
            candidate: outcome.candidate().map(DecisionBody::new),
            hint: None,
        }
    }
}

impl ReservationBody {
    /// `units`: those of each check, in the order of the token's.
    pub(super) fn new(token: &Token, units: &[u64]) -> Self {
        let hold = |(gate, units): (&str, &u64)| HoldBody { gate: gate.to_owned(), units: *units };
        Self { token: token.to_string(), holds: token.gates().zip(units).map(hold).collect() }
    }
}

impl SettledResponse {
    pub(super) fn new(settlements: &[Settlement]) -> Self {
        Self { settlements: settlements.iter().map(|settlement| settlement.as_str()).collect() }
    }
}

/// Returns the wait of a denial; 0 for an admission.
fn wait_us(is_allowed: bool, retry_after: Duration) -> u64 {
    if is_allowed { 0 } else { us(retry_after) }
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
