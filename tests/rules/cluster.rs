//! Rules over a Redis Cluster.

use harness::Cluster;
use tidegate::rules::{Descriptor, Rules};
use tidegate::{Limiter, OnFailure};

use crate::support::fixture::{PATIENCE, namespace};

/// 2 of a user and 3 of a key, whose counts lie on different nodes as a rule.
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
async fn rules_that_charge_each_reach_all_nodes_in_one_request() {
    let cluster = harness::shared_cluster();
    let limits = rules("each").bind(&limiter(&cluster));
    for user in 0..20 {
        let user = format!("u{user}");
        let request = [("user", &*user), ("api_key", &*format!("k{user}")), ("all", "")];
        let request = request.map(|entry| Descriptor::from([entry]));
        for (is_allowed, left) in [(true, [1, 2]), (true, [0, 1]), (false, [0, 0]), (false, [0, 0])] {
            let ruling = limits.check("d", &request).await.unwrap();
            assert_eq!(ruling.is_allowed(), is_allowed);
            let remaining = |at: usize| ruling.verdicts()[at].decision().unwrap().remaining();
            assert_eq!([remaining(0), remaining(1)], left);
        }
    }
}

#[tokio::test]
async fn all_or_nothing_over_several_slots_says_what_to_do() {
    // Nobody listens there: what is sent would be an error of another kind.
    let builder = Limiter::builder().cluster(["redis://127.0.0.1:1"]);
    let limits = rules("all").bind(&builder.on_failure(OnFailure::Error).build().unwrap());
    let request = [("user", "ann"), ("api_key", "k1")].map(|entry| Descriptor::from([entry]));
    let error = limits.check("d", &request).await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("`charge: each`"), "{error}");
    // Of one value all rules lie in one slot.
    let same = [("user", "ann"), ("api_key", "ann")].map(|entry| Descriptor::from([entry]));
    assert!(limits.check("d", &same).await.unwrap_err().is_unavailable());
}
