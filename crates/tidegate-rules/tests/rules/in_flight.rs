//! Rules that limit requests in flight.

use std::time::Duration;

use tidegate::{Limiter, Permits, Quota};
use tidegate_rules::{Descriptor, Limit, RuleResult, Rules, RulesLimiter};

use super::loading::Folder;
use super::reloading::Reloads;
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{builder, soon};

const UPLOADS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: { in_flight: 2, tiers: { pro: { in_flight: 4 }, all: { unlimited: true }, none: { in_flight: 0 } } }
  - key: pair
    rate_limit: { in_flight: 2, cost: 2 }
  - key: rate
    rate_limit: { unit: day, requests_per_unit: 3 }
";

fn user(name: &str) -> Descriptor<'_> {
    Descriptor::from([("user", name)])
}

/// Returns the permits of an admitted request, or `None` if it is denied.
async fn acquire(limits: &RulesLimiter, descriptors: &[Descriptor<'_>]) -> Option<Permits> {
    limits.acquire("api", descriptors).await.unwrap().permit()
}

/// Returns how many units of a key are left.
async fn left(limits: &RulesLimiter, key: &'static str) -> u64 {
    let plan = limits.plan("api", &[Descriptor::from([(key, "ada")])]);
    plan.checks()[0].check().peek().await.unwrap().remaining()
}

#[test]
fn rule_in_flight_is_an_in_flight_quota() {
    let rules = Rules::parse("u.yaml", UPLOADS).unwrap();
    let rule = rules.find("api", &user("ada")).unwrap();
    assert_eq!(rule.quota(), Some(Quota::in_flight(2)));
    assert_eq!(rule.limit(Some("pro")), Limit::Quota(Quota::in_flight(4)));
    assert_eq!(rule.limit(Some("all")), Limit::Unlimited);
    assert_eq!(rule.limit(Some("none")), Limit::DenyAll(Duration::from_secs(1)));
    let pair = rules.find("api", &Descriptor::from([("pair", "x")])).unwrap();
    assert_eq!(pair.quota(), Some(Quota::in_flight(2)));
}

#[tokio::test]
async fn requests_in_flight_are_limited_until_their_permits_are_released() {
    let server = tidegate_testkit::shared();
    for limiter in [Limiter::in_memory(), builder(server.url()).build().unwrap()] {
        let limits = Rules::parse("u.yaml", UPLOADS).unwrap().bind(&limiter);
        let request = [user("ada")];
        let first = acquire(&limits, &request).await.unwrap();
        let _second = acquire(&limits, &request).await.unwrap();
        assert!(acquire(&limits, &request).await.is_none());
        assert!(acquire(&limits, &[user("bob")]).await.is_some(), "another key has a count of its own");
        // A tier has the same count.
        let _pro = acquire(&limits, &[user("ada").tier("pro")]).await.unwrap();
        first.release().await.unwrap();
        assert!(acquire(&limits, &request).await.is_none(), "2 are in flight");
        assert!(acquire(&limits, &[user("ada").tier("none")]).await.is_none());
        assert!(acquire(&limits, &[user("ada").tier("all")]).await.is_some());
    }
}

#[tokio::test]
async fn check_refuses_a_request_that_needs_a_permit() {
    let text = UPLOADS.replace("tiers: { pro", "tiers: { free: { in_flight: 1 }, pro");
    for text in [text.clone(), text.replace("key: user", "key: user\n    shadow_mode: true")] {
        let limits = Rules::parse("u.yaml", &text).unwrap().bind(&Limiter::in_memory());
        let error = limits.check("api", &[user("ada")]).await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains("RulesLimiter::acquire"), "{error}");
        assert!(error.to_string().contains("`api.user`"), "{error}");
        assert_eq!(left(&limits, "rate").await, 3);
        let decision = limits.check("api", &[Descriptor::from([("rate", "ada")])]).await.unwrap();
        assert!(decision.is_allowed());
    }
}

#[tokio::test]
async fn permits_and_charges_are_one_step() {
    let limiter = Limiter::in_memory();
    let limits = Rules::parse("u.yaml", UPLOADS).unwrap().bind(&limiter);
    let both = [user("ada"), Descriptor::from([("rate", "ada")])];
    let held = [acquire(&limits, &both).await.unwrap(), acquire(&limits, &both).await.unwrap()];
    assert!(acquire(&limits, &both).await.is_none(), "in flight");
    assert_eq!(left(&limits, "rate").await, 1, "the denied request charges nothing");
    for permits in held {
        permits.release().await.unwrap();
    }
    let _third = acquire(&limits, &both).await.unwrap();
    assert!(acquire(&limits, &both).await.is_none(), "the rate");
    assert_eq!(left(&limits, "user").await, 1, "the denied request holds nothing");
}

#[tokio::test]
async fn request_that_one_of_independent_rules_denies_holds_nothing() {
    let text = UPLOADS.replace("domain: api", "domain: api\ncharge: each");
    let limits = Rules::parse("u.yaml", &text).unwrap().bind(&Limiter::in_memory());
    let both = [user("ada"), Descriptor::from([("rate", "ada")])];
    for _ in 0..3 {
        acquire(&limits, &both).await.unwrap().release().await.unwrap();
    }
    let (decision, permits) = limits.acquire("api", &both).await.unwrap().into_parts();
    assert!(permits.is_none() && decision.outcomes()[0].is_allowed());
    soon("the permit of the denied request is released", async || left(&limits, "user").await == 2).await;
}

#[tokio::test]
async fn rule_in_shadow_mode_admits_and_reports() {
    let text = UPLOADS.replace("key: user", "key: user\n    shadow_mode: true");
    let limits = Rules::parse("u.yaml", &text).unwrap().bind(&Limiter::in_memory());
    let mut held = Vec::new();
    for is_denied in [false, false, true] {
        let (decision, permits) = limits.acquire("api", &[user("ada")]).await.unwrap().into_parts();
        assert!(decision.is_allowed());
        let RuleResult::Decided(alone) = decision.outcomes()[0].result() else { panic!("{decision:?}") };
        assert_eq!(alone.is_shadow(), is_denied);
        held.push(permits);
    }
}

#[tokio::test]
async fn request_of_several_units_needs_room_for_all() {
    let limits = Rules::parse("u.yaml", UPLOADS).unwrap().bind(&Limiter::in_memory());
    let request = [Descriptor::from([("pair", "ada")])];
    let held = acquire(&limits, &request).await.unwrap();
    assert!(acquire(&limits, &request).await.is_none());
    held.release().await.unwrap();
    assert!(acquire(&limits, &request).await.is_some());
}

#[tokio::test]
async fn reload_changes_the_limit_and_keeps_the_permits() {
    let folder = Folder::new("in-flight");
    let rules = |limit: u64| {
        format!("{{domain: api, descriptors: [{{key: user, rate_limit: {{in_flight: {limit}}}}}]}}")
    };
    folder.write("a.yaml", rules(1));
    let reloads = Reloads::default();
    let limiter = Limiter::builder().in_memory().observer(reloads.clone()).build().unwrap();
    let watched = tidegate_rules::Loader::new().watch(&folder.0, &limiter).unwrap();
    let request = [user("ada")];
    let held = acquire(&watched.limits(), &request).await.unwrap();
    assert!(acquire(&watched.limits(), &request).await.is_none());
    folder.write("a.yaml", rules(2));
    reloads.wait_for(1).await;
    let second = acquire(&watched.limits(), &request).await.unwrap();
    assert!(acquire(&watched.limits(), &request).await.is_none(), "the first permit still counts");
    assert!(held.is_held() && second.is_held());
}
