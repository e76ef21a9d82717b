//! `quota_mode` and `metadata`.

use std::time::Duration;

use serde_json::json;
use tidegate_rules::{Descriptor, Rules, RulesLimiter};

use crate::support::world::World;

/// The example of Envoy's service in which quotas select a service, with longer windows for the first.
const SERVICES: &str = "
domain: services
charge: each
descriptors:
  - key: service
    value: service_1
    quota_mode: true
    metadata: { name: service_1, limits: { first: 1 } }
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: service
    value: service_2
    quota_mode: true
    metadata: { name: service_2, limits: { first: 0, second: [-2, 2.5, true, null] } }
    rate_limit: { unit: minute, requests_per_unit: 2 }
";

async fn check(limits: &RulesLimiter) -> tidegate_rules::RulesDecision {
    let both = ["service_1", "service_2"].map(|name| Descriptor::from([("service", name)]));
    limits.check("services", &both).await.unwrap()
}

#[tokio::test]
async fn request_is_denied_only_if_all_quotas_deny() {
    let world = World::redis();
    let limits = Rules::parse("s.yaml", SERVICES).unwrap().bind(&world.limiter);
    assert!(check(&limits).await.is_allowed());
    let second = check(&limits).await;
    assert!(second.is_allowed());
    assert_eq!(second.retry_after(), Duration::ZERO);
    // The quota that is used up does not bind, since it does not deny the request.
    assert_eq!(second.binding().unwrap().rule().unwrap().path(), "services.service_service_2");
    let third = check(&limits).await;
    assert!(!third.is_allowed());
    // The first quota that admits again is enough.
    assert_eq!(third.retry_after(), Duration::from_secs(60));
    world.advance(Duration::from_secs(60));
    assert!(check(&limits).await.is_allowed());
}

#[tokio::test]
async fn metadata_of_rules_that_pass_is_merged_and_the_first_value_is_kept() {
    let world = World::memory();
    let limits = Rules::parse("s.yaml", SERVICES).unwrap().bind(&world.limiter);
    let second = json!({ "name": "service_2", "limits": { "first": 0, "second": [-2, 2.5, true, null] } });
    let merged = json!({ "name": "service_1", "limits": { "first": 1, "second": [-2, 2.5, true, null] } });
    let decision = check(&limits).await;
    assert_eq!(json!(decision.metadata()), merged);
    assert_eq!(json!(decision.outcomes()[1].metadata()), second);
    assert_eq!(json!(check(&limits).await.metadata()), second);
    assert_eq!(json!(check(&limits).await.metadata()), json!({}));
}

/// As the configuration for testing metadata of Envoy's service.
#[test]
fn metadata_belongs_to_the_rule_at_whose_descriptor_it_stands() {
    let text = "
domain: test-domain
descriptors:
  - key: key1
    value: value1
    descriptors:
      - key: subkey1
        rate_limit: { unit: second, requests_per_unit: 5 }
        metadata:
          name: service_1
      - key: subkey1
        value: subvalue1
        rate_limit: { unit: second, requests_per_unit: 10 }
  - key: key2
    rate_limit: { unit: minute, requests_per_unit: 20 }
    metadata:
      service_with_quota:
        name: service_2
";
    let rules = Rules::parse("metadata.yaml", text).unwrap();
    let metadata =
        |descriptor: &Descriptor<'_>| json!(rules.find("test-domain", descriptor).unwrap().metadata());
    let below = |value| metadata(&Descriptor::from([("key1", "value1"), ("subkey1", value)]));
    assert_eq!(below("something"), json!({ "name": "service_1" }));
    assert_eq!(below("subvalue1"), json!(null));
    let other = metadata(&Descriptor::from([("key2", "something")]));
    assert_eq!(other, json!({ "service_with_quota": { "name": "service_2" } }));
}

#[tokio::test]
async fn denial_waits_for_a_rule_that_has_just_admitted_its_last_unit() {
    const RULES: &str = "
domain: d
charge: each
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: day, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: tried, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
";
    let world = World::memory();
    let limits = Rules::parse("d.yaml", RULES).unwrap().bind(&world.limiter);
    let request = ["user", "day", "tried"].map(|key| Descriptor::from([(key, "x")]));
    assert_eq!(limits.check("d", &request).await.unwrap().retry_after(), Duration::ZERO);
    let denied = limits.check("d", &request).await.unwrap();
    assert!(!denied.is_allowed() && denied.outcomes()[1].is_allowed());
    assert_eq!(denied.retry_after(), Duration::from_secs(24 * 3_600));
}
