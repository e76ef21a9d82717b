//! Settings that Envoy's format does not have, and the names of counts.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Acquired, Event, Limiter, ManualClock, Observer, OnFailure, Source, Stub, Switch};
use tidegate_rules::{Descriptor, Mode, RuleResult, Rules, RulesLimiter};

use crate::support::fixture::builder_as_is;
use crate::support::world::{START, World};

/// Returns rules of the domain `d` for the key `k`, with these fields in the `rate_limit`.
fn rules(rate_limit: &str) -> Rules {
    Rules::parse(
        "d.yaml",
        &format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{ {rate_limit} }}\n"),
    )
    .unwrap()
}

fn quota(rate_limit: &str) -> String {
    rules(rate_limit).iter().next().unwrap().quota().unwrap().to_string()
}

async fn passes(limits: &RulesLimiter, descriptor: &Descriptor<'_>, checks: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..checks {
        allowed +=
            usize::from(limits.check("d", std::slice::from_ref(descriptor)).await.unwrap().is_allowed());
    }
    allowed
}

#[test]
fn rule_can_select_each_algorithm() {
    for (rate_limit, expected) in [
        ("unit: minute, requests_per_unit: 5", "5/min"),
        ("every: 15m, requests_per_unit: 5", "5/15min"),
        ("every: 1s, requests_per_unit: 5, algorithm: token_bucket", "5/s burst 5"),
        ("unit: second, requests_per_unit: 5, algorithm: token_bucket, burst: 9", "5/s burst 9"),
        ("unit: minute, requests_per_unit: 5, algorithm: leaky_bucket, burst: 2", "5/min queue 2"),
        ("unit: hour, requests_per_unit: 5, algorithm: sliding_log", "5/h sliding log"),
        ("unit: hour, requests_per_unit: 5, algorithm: sliding_counter", "5/h sliding counter"),
    ] {
        assert_eq!(quota(rate_limit), expected);
    }
}

#[test]
fn limit_can_be_a_text() {
    for (text, expected) in [
        ("100/day", "100/d"),
        ("5/min burst 20", "5/min burst 20"),
        ("20 per 3h sliding log", "20/3h sliding log"),
        ("10 in flight", "10 in flight"),
    ] {
        let rules = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {text}\n");
        let rules = Rules::parse("d.yaml", &rules).unwrap();
        let rule = rules.iter().next().unwrap();
        assert_eq!(rule.quota().unwrap().to_string(), expected);
        assert_eq!(rule.is_in_flight(), text == "10 in flight");
    }
    let as_fields = quota("unit: day, requests_per_unit: 100");
    assert_eq!(as_fields, "100/d", "a text without an algorithm means what the fields mean");
    let error =
        Rules::parse("d.yaml", "domain: d\ndescriptors:\n  - key: k\n    rate_limit: 100/fortnight\n");
    let error = error.unwrap_err().to_string();
    assert!(error.contains("d.yaml:4:17") && error.contains("`fortnight` is no unit of time"), "{error}");
}

#[tokio::test]
async fn cost_is_charged_for_each_hit() {
    let limits = rules("unit: hour, requests_per_unit: 10, cost: 3").bind(&Limiter::in_memory());
    let decision = limits.check("d", &[Descriptor::from([("k", "v")]).hits(2)]).await.unwrap();
    assert_eq!(decision.binding().unwrap().decision().unwrap().remaining(), 4);
    let decision = limits.check("d", &[Descriptor::from([("k", "v")]).hits(0)]).await.unwrap();
    assert_eq!(decision.binding().unwrap().decision().unwrap().remaining(), 4);
    assert!(
        limits.check("d", &[Descriptor::from([("k", "v")]).hits(4)]).await.unwrap_err().is_over_capacity()
    );
}

/// Notes the decisions of gates, and the denied keys.
#[derive(Clone, Default)]
struct Decisions(Arc<Mutex<Vec<String>>>);

impl Observer for Decisions {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Decided(decision) => {
                let text = format!(
                    "{} {}",
                    decision.gate(),
                    if decision.is_allowed() { "allowed" } else { "denied" }
                );
                self.0.lock().unwrap().push(text);
            }
            Event::Denied { gate, .. } => {
                self.0.lock().unwrap().push(format!("{gate} denied a key"));
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn denial_of_more_units_than_the_limit_is_a_decision_of_its_gate() {
    for (charge, other) in [("all", None), ("each", Some("d.other allowed"))] {
        let observed = Decisions::default();
        let limiter = Limiter::builder().in_memory().observer(observed.clone()).build().unwrap();
        let rules = format!(
            "{{ domain: d, charge: {charge}, descriptors: [{{ key: k, rate_limit: {{ unit: year, requests_per_unit: 3 }} }}, \
             {{ key: other, rate_limit: {{ unit: year, requests_per_unit: 9 }} }}] }}"
        );
        let limits = Rules::parse("d.yaml", &rules).unwrap().bind(&limiter);
        let costly = Descriptor::from([("k", "v")]).hits(4);
        let denied = ["d.k denied", "d.k denied a key"];
        for (descriptors, expected) in [
            (vec![costly.clone()], denied.to_vec()),
            (vec![Descriptor::from([("other", "v")]), costly], other.into_iter().chain(denied).collect()),
        ] {
            let mode = Mode::check().deny_above_limit(true);
            let decision = limits.decide("d", &descriptors, &mode).await.unwrap().decision;
            assert!(!decision.is_allowed());
            assert_eq!(std::mem::take(&mut *observed.0.lock().unwrap()), expected, "{charge}");
        }
    }
}

#[tokio::test]
async fn changing_the_tier_keeps_the_count() {
    let limits = rules(
        "unit: hour, requests_per_unit: 2, tiers: { pro: { requests_per_unit: 5 }, staff: { unlimited: true }, none: { requests_per_unit: 0 } }",
    );
    let limits = limits.bind(&Limiter::in_memory_with(ManualClock::at(START)));
    let ada = Descriptor::from([("k", "ada")]);
    assert_eq!(passes(&limits, &ada, 3).await, 2);
    assert_eq!(passes(&limits, &ada.clone().tier("pro"), 9).await, 3);
    assert_eq!(passes(&limits, &ada.clone().tier("staff"), 9).await, 9);
    assert_eq!(passes(&limits, &ada.clone().tier("none"), 9).await, 0);
    assert_eq!(passes(&limits, &ada.tier("another"), 9).await, 0);
}

#[tokio::test]
async fn rule_can_set_its_own_failure_policy() {
    let limiter = builder_as_is("redis://127.0.0.1:1").on_failure(OnFailure::Error).build().unwrap();
    for (policy, expected) in
        [("open", Some((true, Source::Open))), ("closed", Some((false, Source::Closed))), ("error", None)]
    {
        let limits = rules(&format!("unit: hour, requests_per_unit: 2, on_failure: {policy}")).bind(&limiter);
        let decision = limits.check("d", &[Descriptor::from([("k", "v")])]).await;
        let actual = decision.ok().map(|decision| {
            let decision = decision.outcomes()[0].decision().unwrap();
            (decision.is_allowed(), decision.source())
        });
        assert_eq!(actual, expected, "{policy}");
    }
}

#[tokio::test]
async fn rule_in_shadow_mode_never_fails_a_request() {
    let text = "domain: d\ndescriptors: [{ key: k, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 2 } }]";
    let limiter = Limiter::stub(Stub::Fail);
    let limits = Rules::parse("d.yaml", text).unwrap().bind(&limiter);
    let decision = limits.check("d", &[Descriptor::from([("k", "v")])]).await.unwrap();
    assert!(decision.is_allowed() && decision.binding().is_none());
    assert_eq!(decision.outcomes()[0].decision().unwrap().source(), Source::Open);

    limiter.shutdown().await;
    let decision = limits.check("d", &[Descriptor::from([("k", "v")])]).await.unwrap();
    assert!(decision.is_allowed() && decision.binding().is_none());
    assert_eq!(*decision.outcomes()[0].result(), RuleResult::Unanswered);
}

#[tokio::test]
async fn rule_can_lease() {
    let limits = rules("unit: hour, requests_per_unit: 1000, lease: { max_units: 100, hold: 1m }");
    let world = World::redis();
    let limits = limits.bind(&world.limiter);
    let mut is_leased = false;
    for _ in 0..900 {
        let decision = limits.check("d", &[Descriptor::from([("k", "v")])]).await.unwrap();
        is_leased |= decision.binding().unwrap().decision().unwrap().source() == Source::Lease;
    }
    assert!(is_leased);
}

#[tokio::test]
async fn acquire_spends_the_lease_of_a_rule_that_is_not_in_flight() {
    let limits = rules("unit: hour, requests_per_unit: 1000, lease: { max_units: 100, hold: 1m }");
    let world = World::redis();
    let limits = limits.bind(&world.limiter);
    let mut is_leased = false;
    for _ in 0..900 {
        let acquired = limits.acquire("d", &[Descriptor::from([("k", "v")])]).await.unwrap();
        let (Acquired::Admitted(_, decision) | Acquired::Denied(decision)) = acquired;
        is_leased |= decision.binding().unwrap().decision().unwrap().source() == Source::Lease;
    }
    assert!(is_leased);
}

#[tokio::test]
async fn denied_request_charges_no_rule_and_reports_the_binding_rule() {
    let text = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 3 } }
  - { key: all, rate_limit: { unit: minute, requests_per_unit: 1 } }
";
    let world = World::redis();
    let limits = Rules::parse("d.yaml", text).unwrap().bind(&world.limiter);
    let both = [Descriptor::from([("user", "ada")]), Descriptor::from([("all", "")])];
    assert!(limits.check("d", &both).await.unwrap().is_allowed());
    for _ in 0..5 {
        let decision = limits.check("d", &both).await.unwrap();
        assert!(!decision.is_allowed());
        assert_eq!(decision.retry_after(), Duration::from_secs(60));
        assert_eq!(decision.binding().unwrap().rule().unwrap().path(), "d.all");
    }
    assert_eq!(passes(&limits, &both[0], 9).await, 2);
}

#[test]
fn gate_name_follows_from_the_path_to_its_rule() {
    let text = "
domain: auth
descriptors:
  - key: auth_type
    value: login
    rate_limit: { unit: day, requests_per_unit: 1 }
    descriptors:
      - { key: user, rate_limit: { unit: day, requests_per_unit: 1 } }
      - { key: user, value: 'Ada*', rate_limit: { unit: day, requests_per_unit: 1 } }
";
    let rules = Rules::parse("auth.yaml", text).unwrap();
    let names: Vec<_> = rules.iter().map(|rule| (rule.path().to_owned(), rule.gate_name())).collect();
    assert_eq!(names[0], ("auth.auth_type_login".to_owned(), "auth.auth_type-login".to_owned()));
    assert_eq!(names[1], ("auth.auth_type_login.user".to_owned(), "auth.auth_type-login.user".to_owned()));
    assert_eq!(names[2].0, "auth.auth_type_login.user_Ada*");
    assert!(names[2].1.starts_with("auth.auth_type-login.user-ada.-"), "{}", names[2].1);
}

#[test]
fn gate_is_found_by_each_of_its_names_and_shown_by_its_rule() {
    let text = "
domain: api
descriptors:
  - { key: path, value: /login, descriptors: [{ key: user, rate_limit: 5/min }] }
  - { key: path, value: '/v1/*', rate_limit: { name: Versioned, unit: day, requests_per_unit: 9, candidate: { requests_per_unit: 3 } } }
  - { key: path, value: \"a\\u202e\", rate_limit: 1/day }
  - { key: ip, networks: [10.0.0.0/8], rate_limit: 1/day }
";
    let rules = Rules::parse("api.yaml", text).unwrap();
    let names: Vec<String> = rules.gates().map(|gate| gate.readable_name()).collect();
    let expected = [
        "api / path=/login / user",
        "api / path=/v1/*",
        "api / path=/v1/* (candidate)",
        "api / path=a\\u{202e}",
        "api / ip=10.0.0.0/8",
    ];
    assert_eq!(names, expected);
    for gate in rules.gates() {
        for name in [gate.name(), &gate.readable_name()] {
            let found = rules.gates_named(name);
            assert_eq!(found.len(), 1, "{name}");
            assert_eq!((found[0].name(), found[0].quota()), (gate.name(), gate.quota()));
        }
    }
    for name in ["Versioned", "api.path_/v1/*"] {
        let found = rules.gates_named(name);
        assert_eq!(found.len(), 1, "the candidate is not meant: {name}");
        assert_eq!(found[0].readable_name(), "api / path=/v1/*");
    }
}

/// The names that observers are told.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<Vec<(String, String)>>>);

impl Observer for Names {
    fn on(&self, event: &Event<'_>) {
        if let Event::GateNamed { gate, readable } = *event {
            self.0.lock().unwrap().push((gate.to_owned(), readable.to_owned()));
        }
    }
}

#[test]
fn bound_rules_tell_the_observer_readable_names_that_are_unique() {
    let text = "{ domain: d, descriptors: [{ key: user, rate_limit: 1/day }, { key: 'a=b', rate_limit: 1/day }, { key: a, \
                value: b, rate_limit: 1/day }] }";
    let names = Names::default();
    let limiter = Limiter::builder().in_memory().observer(names.clone()).build().unwrap();
    let _limits = Rules::parse("d.yaml", text).unwrap().bind(&limiter);
    assert_eq!(*names.0.lock().unwrap(), [("d.user".to_owned(), "d / user".to_owned())]);
}

#[test]
fn readable_name_of_two_rules_finds_both() {
    let text = "{ domain: d, descriptors: [{ key: 'a=b', rate_limit: 1/day }, { key: a, value: b, rate_limit: 1/day }] }";
    let rules = Rules::parse("d.yaml", text).unwrap();
    let found: Vec<String> = rules.gates_named("d / a=b").iter().map(|gate| gate.name().to_owned()).collect();
    assert_eq!(found.len(), 2);
    assert_ne!(found[0], found[1]);
}

#[test]
fn different_rules_have_different_gate_names() {
    let parts = ["a", "b", "a-b", "a_b", "a.b", "A", "ä", "a*", "-", ".", "a.-b", ".-", "_", "b-"];
    let long = "l".repeat(70);
    let mut names = HashSet::new();
    let mut count = 0;
    for domain in ["a", "a-b", "a.b", "a_b", &long] {
        for key in parts {
            for value in parts.iter().copied().chain(["", "*", "a*b", "*a", "a*b*", &long]) {
                if key.contains('*') {
                    continue;
                }
                for below in
                    ["", "\n    descriptors: [{ key: x, rate_limit: { unit: day, requests_per_unit: 1 } }]"]
                {
                    let limit = if below.is_empty() {
                        "\n    rate_limit: { unit: day, requests_per_unit: 1 }"
                    } else {
                        ""
                    };
                    let text = format!(
                        "domain: '{domain}'\ndescriptors:\n  - key: '{key}'\n    value: '{value}'{limit}{below}\n"
                    );
                    for rule in Rules::parse("x", &text).unwrap().iter() {
                        let name = rule.gate_name();
                        assert!(
                            Limiter::in_memory().try_gate(&name, rule.quota().unwrap()).is_ok(),
                            "{name}"
                        );
                        assert!(names.insert(name.clone()), "{name}: {text}");
                        count += 1;
                    }
                }
            }
        }
    }
    assert!(count > 2_000, "{count}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With a limit of 1, the second check passes only if its key differs from the first.
    #[test]
    fn descriptors_share_a_count_only_if_they_are_equal(
        a in proptest::collection::vec(proptest::collection::vec(proptest::sample::select(vec![b'|', b'\\', b'a', 0, 0xff]), 0..4), 3),
        b in proptest::collection::vec(proptest::collection::vec(proptest::sample::select(vec![b'|', b'\\', b'a', 0, 0xff]), 0..4), 3),
    ) {
        let text = "domain: d\ndescriptors: [{ key: x, descriptors: [{ key: y, descriptors: [{ key: z, rate_limit: { unit: day, requests_per_unit: 1 } }] }] }]";
        let limits = Rules::parse("d.yaml", text).unwrap().bind(&Limiter::in_memory_with(ManualClock::at(START)));
        let descriptor = |values: &[Vec<u8>]| {
            let [x, y, z] = [0, 1, 2].map(|at| values[at].clone());
            [x, y, z]
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let check = |values: &[Vec<u8>]| {
            let [x, y, z] = descriptor(values);
            let descriptor = Descriptor::new().entry("x", &x).entry("y", &y).entry("z", &z);
            runtime.block_on(limits.check("d", &[descriptor])).unwrap().is_allowed()
        };
        prop_assert!(check(&a));
        prop_assert_eq!(check(&b), a != b);
    }
}

#[tokio::test]
async fn closed_gate_denies_also_a_rule_in_shadow_mode_that_needs_no_check() {
    for limit in ["unlimited: true", "unit: day, requests_per_unit: 0"] {
        let text = format!(
            "domain: d\ndescriptors:\n  - {{ key: k, shadow_mode: true, rate_limit: {{ name: it, {limit} }} }}\n"
        );
        let limits = Rules::parse("d.yaml", &text).unwrap().bind(&Limiter::in_memory());
        let request = [Descriptor::from([("k", "x")])];
        assert!(limits.check("d", &request).await.unwrap().is_allowed());
        let gate = limits.rules().find("d", &request[0]).unwrap().gate_name();
        limits.limiter().control().switch(&gate, Switch::Closed, None).await.unwrap();
        assert!(!limits.check("d", &request).await.unwrap().is_allowed(), "{limit}");
    }
}

#[tokio::test]
async fn peek_of_a_tier_passes_at_its_limit_if_peeks_do() {
    let tiers = "unit: day, requests_per_unit: 0, tiers: { pro: { requests_per_unit: 2 } }";
    let limits = rules(tiers).bind(&Limiter::in_memory());
    let pro = Descriptor::from([("k", "x")]).or_tier("pro".into());
    assert!(limits.check("d", &[pro.clone().hits(2)]).await.unwrap().is_allowed());
    let mode = Mode::check().peeks_pass_at_limit(true);
    assert!(limits.decide("d", &[pro.hits(0)], &mode).await.unwrap().decision.is_allowed());
}
