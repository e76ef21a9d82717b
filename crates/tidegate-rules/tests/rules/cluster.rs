//! Rules on a Redis Cluster.

use tidegate::{Limiter, OnFailure};
use tidegate_rules::{Descriptor, Rules};
use tidegate_testkit::Cluster;

use crate::support::fixture::{PATIENCE, namespace};

/// Returns rules that admit 2 requests per user and 3 per API key. The two counts are usually on different
/// nodes.
fn rules(charge: &str) -> Rules {
    let text = format!(
        "domain: d
charge: {charge}
descriptors:
  - {{ key: user, rate_limit: {{ unit: year, requests_per_unit: 2 }} }}
  - {{ key: api_key, rate_limit: {{ unit: year, requests_per_unit: 3 }} }}
  - {{ key: all, shadow_mode: true, rate_limit: {{ unit: year, requests_per_unit: 1 }} }}
"
    );
    Rules::parse("d.yaml", &text).unwrap()
}

fn limiter(cluster: &Cluster) -> Limiter {
    let builder = Limiter::builder().cluster(cluster.urls()).namespace(&namespace()).deadline(PATIENCE);
    builder.on_failure(OnFailure::Error).breaker(false).build().unwrap()
}

#[tokio::test]
async fn request_with_charge_each_can_use_several_nodes() {
    let cluster = tidegate_testkit::shared_cluster();
    let limits = rules("each").bind(&limiter(&cluster));
    for user in 0..20 {
        let user = format!("u{user}");
        let descriptors = [("user", &*user), ("api_key", &*format!("k{user}")), ("all", "")];
        let descriptors = descriptors.map(|entry| Descriptor::from([entry]));
        for (is_allowed, expected) in [(true, [1, 2]), (true, [0, 1]), (false, [0, 0]), (false, [0, 0])] {
            let decision = limits.check("d", &descriptors).await.unwrap();
            assert_eq!(decision.is_allowed(), is_allowed);
            let remaining = |at: usize| decision.outcomes()[at].decision().unwrap().remaining();
            assert_eq!([remaining(0), remaining(1)], expected);
        }
    }
}

#[tokio::test]
async fn all_or_nothing_across_slots_is_a_config_error() {
    // No server listens at this address. If the limiter sent the check, the error would be of another kind.
    let builder = Limiter::builder().cluster(["redis://127.0.0.1:1"]);
    let limits = rules("all").bind(&builder.on_failure(OnFailure::Error).build().unwrap());
    let descriptors = [("user", "ann"), ("api_key", "k1")].map(|entry| Descriptor::from([entry]));
    let error = limits.check("d", &descriptors).await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("`charge: each`"), "{error}");
    // With equal values, all keys are in one slot.
    let same_slot = [("user", "ann"), ("api_key", "ann")].map(|entry| Descriptor::from([entry]));
    assert!(limits.check("d", &same_slot).await.unwrap_err().is_unavailable());
}
