//! Limits that a request's descriptor brings itself.

use std::time::Duration;

use tidegate::{Limiter, Source};
use tidegate_rules::{Descriptor, RuleResult, Rules, RulesLimiter};

use crate::support::world::World;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// As the basic configuration for tests of Envoy's service: the rule has another limit.
const BASIC: &str = "
domain: test-domain
descriptors:
  - key: key1
    value: value1
    descriptors:
      - { key: subkey1, shadow_mode: true, rate_limit: { unit: second, requests_per_unit: 5 } }
";

fn limits(limiter: &Limiter) -> RulesLimiter {
    Rules::parse("basic.yaml", BASIC).unwrap().bind(limiter)
}

fn subkey(value: &str) -> Descriptor<'_> {
    Descriptor::from([("key1", "value1"), ("subkey1", value)])
}

/// Returns whether a request with this descriptor passes, and the limit and the remaining units.
async fn check(limits: &RulesLimiter, domain: &str, descriptor: &Descriptor<'_>) -> (bool, u64, u64) {
    let decided = limits.check(domain, std::slice::from_ref(descriptor)).await.unwrap();
    let outcome = &decided.outcomes()[0];
    assert!(outcome.rule().is_none());
    assert_eq!(outcome.metric(), Some("descriptor-limit"));
    let decision = outcome.decision().unwrap();
    assert_eq!(decided.binding().unwrap().decision(), Some(decision));
    (decided.is_allowed(), decision.limit(), decision.remaining())
}

async fn assert_limits_of_descriptors(world: World) {
    let limits = limits(&world.limiter);
    // Instead of the file's, and never in shadow mode.
    let own = subkey("something").limit(2, DAY).unwrap();
    assert_eq!(check(&limits, "test-domain", &own).await, (true, 2, 1));
    assert_eq!(check(&limits, "test-domain", &own).await, (true, 2, 0));
    assert_eq!(check(&limits, "test-domain", &own).await, (false, 2, 0));
    // Another number applies to the same count.
    let raised = subkey("something").limit(42, DAY).unwrap();
    assert_eq!(check(&limits, "test-domain", &raised).await, (true, 42, 39));
    assert_eq!(check(&limits, "test-domain", &own).await, (false, 2, 0));
    // Another window has a count of its own, and neither begins the other anew.
    let hourly = subkey("something").limit(42, HOUR).unwrap();
    assert_eq!(check(&limits, "test-domain", &hourly).await, (true, 42, 41));
    assert_eq!(check(&limits, "test-domain", &own).await, (false, 2, 0));
    assert_eq!(check(&limits, "test-domain", &hourly).await, (true, 42, 40));
    // Another value, another order and another domain have counts of their own.
    let other = subkey("something_else").limit(42, HOUR).unwrap();
    assert_eq!(check(&limits, "test-domain", &other).await, (true, 42, 41));
    let turned = Descriptor::from([("subkey1", "something"), ("key1", "value1")]).limit(2, DAY).unwrap();
    assert_eq!(check(&limits, "test-domain", &turned).await, (true, 2, 1));
    assert_eq!(check(&limits, "foo_domain", &own).await, (true, 2, 1));
    let unruled = Descriptor::from([("no", "rule")]).hits(2).limit(3, HOUR).unwrap();
    assert_eq!(check(&limits, "test-domain", &unruled).await, (true, 3, 1));
    // The window ends by the clock.
    world.advance(DAY);
    assert_eq!(check(&limits, "test-domain", &own).await, (true, 2, 1));
}

#[tokio::test]
async fn limit_of_a_descriptor_replaces_the_files_in_memory() {
    assert_limits_of_descriptors(World::memory()).await;
}

#[tokio::test]
async fn limit_of_a_descriptor_replaces_the_files_with_redis() {
    assert_limits_of_descriptors(World::redis()).await;
}

/// The text of each descriptor would be the same without separators.
#[tokio::test]
async fn limits_of_different_descriptors_have_different_counts() {
    let world = World::memory();
    let limits = limits(&world.limiter);
    for entries in [
        &[("a", "b|c")][..],
        &[("a", "b"), ("c", "")],
        &[("a|b", "c")],
        &[("a", "b\\|c")],
        &[("a", "b"), ("c", "|")],
    ] {
        let descriptor =
            entries.iter().fold(Descriptor::new(), |descriptor, (key, value)| descriptor.entry(key, *value));
        let descriptor = descriptor.limit(1, HOUR).unwrap();
        assert_eq!(check(&limits, "d", &descriptor).await, (true, 1, 0), "{entries:?}");
        assert_eq!(check(&limits, "d", &descriptor).await, (false, 1, 0), "{entries:?}");
    }
}

#[tokio::test]
async fn rules_and_limits_of_descriptors_are_charged_together_or_not_at_all() {
    let text = "{domain: d, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]}";
    let world = World::redis();
    let limits = Rules::parse("d.yaml", text).unwrap().bind(&world.limiter);
    let user = Descriptor::from([("user", "ada")]);
    let both = [user.clone(), Descriptor::from([("path", "/")]).limit(1, HOUR).unwrap()];
    assert!(limits.check("d", &both).await.unwrap().is_allowed());
    for _ in 0..3 {
        let denied = limits.check("d", &both).await.unwrap();
        assert!(!denied.is_allowed());
        assert_eq!(denied.retry_after(), HOUR);
        assert!(denied.binding().unwrap().rule().is_none());
    }
    let left = limits.check("d", &[user.hits(0)]).await.unwrap();
    assert_eq!(left.outcomes()[0].decision().unwrap().remaining(), 8);
}

#[tokio::test]
async fn limit_of_zero_denies_without_a_check() {
    let limits = limits(&Limiter::in_memory());
    let none = Descriptor::from([("k", "v")]).limit(0, HOUR).unwrap();
    let denied = limits.check("d", &[none.clone(), subkey("x").limit(1, HOUR).unwrap()]).await.unwrap();
    assert!(!denied.is_allowed());
    let decision = denied.outcomes()[0].decision().unwrap();
    assert_eq!((decision.source(), decision.retry_after()), (Source::Rule, HOUR));
    assert_eq!(*denied.outcomes()[1].result(), RuleResult::NotChecked);
    let explained = limits.rules().explain("d", &none);
    assert_eq!(explained.why_not(), Some("the descriptor brings its own limit, so no rule applies"));
}

#[tokio::test]
async fn invalid_limits_of_descriptors_are_errors() {
    let descriptor = || Descriptor::from([("k", "v")]);
    for (requests, window) in [(1, Duration::ZERO), (0, Duration::ZERO), (1 << 49, HOUR), (1, 4_000 * DAY)] {
        assert!(descriptor().limit(requests, window).unwrap_err().is_config(), "{requests} in {window:?}");
    }
    let limits = limits(&Limiter::in_memory());
    let two = [descriptor().limit(1, HOUR).unwrap(), descriptor().limit(2, HOUR).unwrap()];
    assert!(limits.check("d", &two).await.unwrap_err().is_config());
}
