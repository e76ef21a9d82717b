//! Figures in a cluster and behind sentinels.

use std::time::Duration;

use tidegate::admin::Inspector;
use tidegate::{Limiter, OnFailure};
use tidegate_testkit::Sentinels;

use super::TEN;
use crate::support::acl::{self, PASSWORD, USER};
use crate::support::fixture::{HOUR, PATIENCE, soon};

/// Returns the number of admitted checks of a gate in the figures of the fleet.
async fn allowed(reader: &Limiter, gate: &str) -> u64 {
    let found = Inspector::new(reader).unwrap().figures(HOUR).await.unwrap();
    let gates = found.buckets.iter().flat_map(|bucket| &bucket.gates);
    gates.filter(|found| found.gate == gate).map(|gate| gate.allowed).sum()
}

#[tokio::test]
async fn instances_on_a_cluster_publish_with_the_permissions_of_a_single_server() {
    let cluster = tidegate_testkit::shared_cluster();
    cluster.nodes().for_each(acl::create_user);
    let builder = || {
        let builder =
            Limiter::builder().cluster(cluster.urls()).publish_figures(true).credentials(USER, PASSWORD);
        builder.deadline(PATIENCE).stderr_warnings(false)
    };
    for _ in 0..2 {
        let limiter = builder().on_failure(OnFailure::Error).build().unwrap();
        let gate = limiter.gate("figures.cluster", TEN);
        for number in 0..10 {
            let _ = gate.check(number).await.unwrap();
        }
        limiter.shutdown().await;
    }
    assert_eq!(allowed(&builder().build().unwrap(), "figures.cluster").await, 20);
}

#[tokio::test]
async fn figures_continue_after_a_failover() {
    let mut sentinels = Sentinels::start().unwrap();
    let urls = sentinels.urls();
    let builder = || {
        let builder = Limiter::builder()
            .publish_figures(true)
            .sentinel(urls.iter().map(String::as_str), sentinels.name());
        builder.deadline(Duration::from_secs(2)).stderr_warnings(false)
    };
    let (limiter, reader) = (builder().build().unwrap(), builder().build().unwrap());
    let login = limiter.gate("login", TEN);
    assert!(login.key("a").deadline(PATIENCE).check().await.unwrap().is_allowed());
    sentinels.kill_primary();
    soon("Redis decides again", async || {
        let decision = login.check("b").await.unwrap();
        decision.source() == tidegate::Source::Redis
    })
    .await;
    limiter.shutdown().await;
    soon("figures are read", async || {
        let found = Inspector::new(&reader).unwrap().figures(HOUR).await;
        found.is_ok_and(|found| !found.buckets.is_empty())
    })
    .await;
    assert!(allowed(&reader, "login").await >= 1);
}
