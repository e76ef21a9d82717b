//! How many of several equal requests may pass.

use std::time::Duration;

use tidegate::Limiter;
use tidegate_rules::{Descriptor, Rules, RulesLimiter};

use crate::support::fixture::builder;

const MAIL: &str = "
domain: mail
descriptors:
  - key: tenant
    rate_limit: { unit: year, requests_per_unit: 10, cost: 2 }
  - key: all
    rate_limit: { unit: year, requests_per_unit: 8 }
  - key: tried
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 3 }
  - key: free
    rate_limit: { unlimited: true }
  - key: closed
    rate_limit: { unit: year, requests_per_unit: 0 }
  - key: slot
    rate_limit: { in_flight: 2 }
";

fn limits(text: &str) -> RulesLimiter {
    Rules::parse("mail.yaml", text).unwrap().bind(&Limiter::in_memory())
}

async fn granted(limits: &RulesLimiter, descriptors: &[(&'static str, &'static str)], n: u64) -> u64 {
    let descriptors: Vec<_> = descriptors.iter().map(|entry| Descriptor::from([*entry])).collect();
    limits.take_up_to("mail", &descriptors, n).await.unwrap().granted()
}

async fn left(limits: &RulesLimiter, entry: (&'static str, &'static str)) -> u64 {
    let plan = limits.plan("mail", &[Descriptor::from([entry])]);
    let check = plan.checks().iter().chain(plan.shadow_checks()).next().unwrap().check();
    check.cost(0).check().await.unwrap().remaining()
}

const TENANT: (&str, &str) = ("tenant", "acme");
const ALL: (&str, &str) = ("all", "");

#[tokio::test]
async fn the_rule_with_the_fewest_units_decides_and_all_are_charged_alike() {
    for limiter in [Limiter::in_memory(), builder(tidegate_testkit::shared().url()).build().unwrap()] {
        let limits = Rules::parse("mail.yaml", MAIL).unwrap().bind(&limiter);
        assert_eq!(granted(&limits, &[TENANT, ALL], 2).await, 2);
        assert_eq!((left(&limits, TENANT).await, left(&limits, ALL).await), (6, 6));
        let both = [TENANT, ALL].map(|entry| Descriptor::from([entry]));
        let grant = limits.take_up_to("mail", &both, 100).await.unwrap();
        assert_eq!((grant.granted(), grant.wanted(), grant.is_full()), (3, 100, false));
        assert!(grant.decision().is_allowed());
        assert_eq!((left(&limits, TENANT).await, left(&limits, ALL).await), (0, 3));
        let grant = limits.take_up_to("mail", &both, 1).await.unwrap();
        assert_eq!((grant.granted(), grant.decision().is_allowed()), (0, false));
        assert_eq!(grant.decision().binding().unwrap().rule().unwrap().path(), "mail.tenant");
        assert!(grant.decision().retry_after() > Duration::ZERO);
        assert_eq!(left(&limits, ALL).await, 3, "a request that does not pass is free");
        assert_eq!(granted(&limits, &[ALL], 100).await, 3);
    }
}

#[tokio::test]
async fn without_a_limit_all_requests_pass() {
    let limits = limits(MAIL);
    for descriptors in [&[("free", "x")][..], &[("unknown", "x")], &[]] {
        assert_eq!(granted(&limits, descriptors, 70).await, 70, "{descriptors:?}");
    }
    let unknown = limits.take_up_to("unknown", &[Descriptor::from([ALL])], 70).await.unwrap();
    assert_eq!((unknown.granted(), unknown.decision().is_domain_known()), (70, false));
}

#[tokio::test]
async fn a_rule_that_denies_everything_grants_nothing_and_charges_no_other() {
    let limits = limits(MAIL);
    assert_eq!(granted(&limits, &[("closed", "x"), ALL], 5).await, 0);
    assert_eq!(left(&limits, ALL).await, 8);
}

#[tokio::test]
async fn a_rule_in_shadow_mode_restricts_nothing_and_is_charged_what_it_has() {
    let limits = limits(MAIL);
    let tried = ("tried", "x");
    let descriptors = [ALL, tried].map(|entry| Descriptor::from([entry]));
    let grant = limits.take_up_to("mail", &descriptors, 5).await.unwrap();
    assert_eq!(grant.granted(), 5);
    assert!(grant.decision().outcomes()[1].decision().unwrap().is_shadow());
    assert_eq!((left(&limits, ALL).await, left(&limits, tried).await), (3, 0));
    assert_eq!(granted(&limits, &[tried], 9).await, 9);
}

#[tokio::test]
async fn hits_and_zero_requests_scale_the_charge() {
    let limits = limits(MAIL);
    let double = || [Descriptor::from([ALL]).hits(3)];
    assert_eq!(limits.take_up_to("mail", &double(), 9).await.unwrap().granted(), 2);
    assert_eq!(left(&limits, ALL).await, 2);
    assert_eq!(limits.take_up_to("mail", &[Descriptor::from([ALL])], 0).await.unwrap().granted(), 0);
    let peeks = [Descriptor::from([ALL]).hits(0), Descriptor::from([TENANT]).hits(0)];
    assert_eq!(limits.take_up_to("mail", &peeks, 9).await.unwrap().granted(), 0);
    assert_eq!(left(&limits, ALL).await, 2);
}

#[tokio::test]
async fn rules_charged_on_their_own_keep_what_they_admitted() {
    let limits = limits(&MAIL.replace("domain: mail", "domain: mail\ncharge: each"));
    assert_eq!(granted(&limits, &[TENANT, ALL], 7).await, 5);
    assert_eq!((left(&limits, TENANT).await, left(&limits, ALL).await), (0, 1));
    let peeked = [Descriptor::from([ALL]), Descriptor::from([("tenant", "other")]).hits(0)];
    assert_eq!(limits.take_up_to("mail", &peeked, 7).await.unwrap().granted(), 1, "0 hits are not charged");
}

#[tokio::test]
async fn of_rules_in_quota_mode_the_one_that_admits_most_decides() {
    let limits = limits(
        "domain: mail
charge: each
descriptors:
  - { key: small, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: large, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: all, rate_limit: { unit: year, requests_per_unit: 6 } }
",
    );
    let three = [("small", ""), ("large", ""), ALL];
    assert_eq!(granted(&limits, &three, 4).await, 4);
    assert_eq!(granted(&limits, &three, 4).await, 1);
    assert_eq!(granted(&limits, &three, 4).await, 0);
}

#[tokio::test]
async fn a_rule_in_flight_is_an_error_that_names_it() {
    let limits = limits(MAIL);
    let slot = [Descriptor::from([("slot", "x")])];
    let error = limits.take_up_to("mail", &slot, 2).await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("`mail.slot`"), "{error}");
}
