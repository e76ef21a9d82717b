//! Stricter limits that rules try beside their own.

use std::sync::{Arc, Mutex};

use tidegate::{Decision, Event, Limiter, Observer, Quota, Switch};
use tidegate_rules::{Descriptor, RuleResult, Rules, RulesDecision, RulesLimiter};

use crate::support::acquired::AcquiredParts;
use crate::support::fixture::builder;

const LOGIN: &str = "
domain: auth
descriptors:
  - key: user
    rate_limit:
      unit: year
      requests_per_unit: 5
      tiers: { pro: { requests_per_unit: 50 } }
      candidate: { requests_per_unit: 2 }
  - key: all
    rate_limit: { unit: year, requests_per_unit: 9 }
  - key: slot
    rate_limit: { in_flight: 3, candidate: { in_flight: 1 } }
";

fn limits(limiter: &Limiter) -> RulesLimiter {
    Rules::parse("auth.yaml", LOGIN).unwrap().bind(limiter)
}

async fn check(limits: &RulesLimiter, descriptors: &[Descriptor<'_>]) -> RulesDecision {
    limits.check("auth", descriptors).await.unwrap()
}

fn user() -> Descriptor<'static> {
    Descriptor::from([("user", "ada")])
}

/// Returns whether the candidate of the first descriptor would have denied the request.
fn would_deny(decision: &RulesDecision) -> Option<bool> {
    decision.outcomes()[0].candidate().map(Decision::is_shadow)
}

#[tokio::test]
async fn candidate_counts_beside_the_rule_and_denies_nothing() {
    let server = tidegate_testkit::shared();
    for limiter in [Limiter::in_memory(), builder(server.url()).build().unwrap()] {
        let limits = limits(&limiter);
        let mut outcomes = Vec::new();
        for _ in 0..7 {
            let decision = check(&limits, &[user()]).await;
            outcomes.push((decision.is_allowed(), would_deny(&decision).unwrap()));
        }
        let mut expected = vec![(true, false); 2];
        expected.extend([(true, true); 3]);
        expected.extend([(false, true); 2]);
        assert_eq!(outcomes, expected);
    }
}

#[tokio::test]
async fn candidate_does_not_change_the_decision_of_the_rules() {
    let limits = limits(&Limiter::in_memory());
    let both = [user(), Descriptor::from([("all", "")])];
    for _ in 0..3 {
        let _ = check(&limits, &both).await;
    }
    let decision = check(&limits, &both).await;
    assert_eq!(would_deny(&decision), Some(true));
    assert!(decision.is_allowed() && decision.retry_after().is_zero() && decision.delay().is_zero());
    let binding = decision.binding().unwrap();
    assert_eq!((binding.rule().unwrap().path(), binding.decision().unwrap().remaining()), ("auth.user", 1));
    assert!(decision.outcomes()[1].candidate().is_none(), "a rule without a candidate");
}

#[tokio::test]
async fn only_requests_without_a_tier_of_the_rule_try_the_candidate() {
    let limits = limits(&Limiter::in_memory());
    for _ in 0..4 {
        assert_eq!(would_deny(&check(&limits, &[user().tier("pro")]).await), None);
    }
    assert_eq!(would_deny(&check(&limits, &[user().tier("unknown")]).await), Some(false));
}

#[tokio::test]
async fn candidate_of_a_limit_in_flight_holds_its_own_permits() {
    let limits = limits(&Limiter::in_memory());
    let slot = [Descriptor::from([("slot", "x")])];
    let mut held = Vec::new();
    for (would_be_denied, is_allowed) in [(false, true), (true, true), (true, true), (true, false)] {
        let acquired = limits.acquire("auth", &slot).await.unwrap();
        assert_eq!(
            (would_deny(acquired.decision()).unwrap(), acquired.is_allowed()),
            (would_be_denied, is_allowed)
        );
        held.push(acquired);
    }
    drop(held);
    let acquired = limits.acquire("auth", &slot).await.unwrap();
    assert_eq!(would_deny(acquired.decision()), Some(false), "the permits were released");
}

#[tokio::test]
async fn partial_grant_is_not_restricted_by_a_candidate() {
    let limits = limits(&Limiter::in_memory());
    let grant = limits.take_up_to("auth", &[user()], 4).await.unwrap();
    assert_eq!((grant.granted(), would_deny(grant.decision())), (4, Some(true)));
}

#[tokio::test]
async fn gate_of_a_candidate_can_be_switched_and_still_denies_no_request() {
    let limits = limits(&Limiter::in_memory());
    let rule = limits.rules().find("auth", &user()).unwrap().candidate_gate_name();
    assert_eq!(rule, "auth.user..candidate");
    limits.limiter().control().switch(&rule, Switch::Closed, None).await.unwrap();
    let decision = check(&limits, &[user()]).await;
    assert!(decision.is_allowed());
    assert!(matches!(decision.outcomes()[0].result(), RuleResult::Decided(decided) if decided.is_allowed()));
}

/// The gates and outcomes of all decisions.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Observer for Recorder {
    fn on(&self, event: &Event<'_>) {
        if let Event::Decided(decision) = event {
            self.0.lock().unwrap().push(format!("{} {}", decision.gate(), decision.outcome()));
        }
    }
}

#[tokio::test]
async fn denials_of_a_candidate_are_counted_by_its_gate() {
    let recorder = Recorder::default();
    let limits = limits(&Limiter::builder().in_memory().observer(recorder.clone()).build().unwrap());
    for _ in 0..3 {
        let _ = check(&limits, &[user()]).await;
    }
    let mut decisions = std::mem::take(&mut *recorder.0.lock().unwrap());
    decisions.sort();
    let expected = [
        "auth.user allowed",
        "auth.user allowed",
        "auth.user allowed",
        "auth.user..candidate allowed",
        "auth.user..candidate allowed",
        "auth.user..candidate shadow_denied",
    ];
    assert_eq!(decisions, expected);
}

#[test]
fn names_of_candidates_are_valid_and_distinct_also_if_they_are_long() {
    let mut names = std::collections::HashSet::new();
    for length in [1, 30, 46, 47, 53, 54, 57, 58, 64, 200] {
        for key in ["a".repeat(length), "a".repeat(length - 1) + "b"] {
            let text = format!(
                "{{domain: d, descriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 9, candidate: {{requests_per_unit: 1}}}}}}]}}"
            );
            let rules = Rules::parse("d.yaml", &text).unwrap();
            let rule = rules.iter().next().unwrap();
            assert_eq!(rule.candidate().map(|quota| quota.limit()), Some(1));
            let name = rule.candidate_gate_name();
            Limiter::in_memory()
                .try_gate(&name, Quota::fixed_window(1, std::time::Duration::from_secs(1)))
                .unwrap();
            assert!(names.insert(name.clone()) && names.insert(rule.gate_name()), "{name}");
        }
    }
}
