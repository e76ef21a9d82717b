//! Discovery of cluster nodes, and connections to them.

use std::time::{Duration, Instant};

use tidegate::{Decision, Gate, Limiter, OnFailure, Quota};
use tidegate_testkit::Cluster;

use super::{MINUTE, builder};
use crate::support::acl::{self, PASSWORD, USER};
use crate::support::black_hole::black_hole;
use crate::support::fixture::{PATIENCE, soon};

/// Checks keys in all slots.
async fn all_are_decided(gate: &Gate) {
    let keys: Vec<String> = (0..300).map(|n| format!("user:{n}")).collect();
    for decision in gate.check_many(&keys).await {
        assert!(decision.unwrap().is_allowed());
    }
}

fn gate(limiter: &Limiter) -> Gate {
    limiter.gate("gate", Quota::fixed_window(1_000, 60 * MINUTE))
}

#[tokio::test]
async fn permissions_for_a_single_server_suffice() {
    let cluster = tidegate_testkit::shared_cluster();
    cluster.nodes().for_each(acl::create_user);
    let limiter = builder(&cluster).namespace("tidegate").credentials(USER, PASSWORD).build().unwrap();
    all_are_decided(&gate(&limiter)).await;
    limiter.ready().await.unwrap();
    for node in cluster.nodes() {
        assert_eq!(node.cli(&["ACL", "LOG"]).unwrap(), "(empty array)");
    }
}

#[tokio::test]
async fn node_without_a_host_uses_the_host_of_the_replying_node() {
    let cluster = Cluster::start().unwrap();
    cluster.prevent_failover().unwrap();
    let no_host = ["CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint"];
    cluster.nodes().for_each(|node| assert_eq!(node.cli(&no_host).unwrap(), "OK"));
    let first = cluster.nodes().next().unwrap();
    assert!(first.cli(&["GET", "foo"]).unwrap().contains(" :"), "the node sends a host in MOVED");
    all_are_decided(&gate(&builder(&cluster).cluster([first.url()]).build().unwrap())).await;
}

#[tokio::test]
async fn limiter_starts_with_silent_and_missing_seed_nodes() {
    let cluster = tidegate_testkit::shared_cluster();
    let hole = black_hole().await;
    let alive = cluster.nodes().next().unwrap().url();
    let urls = [&*hole.url, "redis://127.0.0.1:1", alive];
    let keys: Vec<String> = (0..300).map(|n| format!("user:{n}")).collect();
    // A busy machine may use up the short deadline, so one limiter of several suffices.
    soon("a new limiter decides all keys", async || {
        let limiter = builder(&cluster).cluster(urls).deadline(Duration::from_millis(500)).build().unwrap();
        let decisions = gate(&limiter).check_many(&keys).await;
        decisions.iter().all(|decision| decision.as_ref().is_ok_and(Decision::is_allowed))
    })
    .await;
}

#[tokio::test]
async fn checks_fail_at_once_while_no_node_is_reachable() {
    let limiter = Limiter::builder().cluster(["redis://127.0.0.1:1", "redis://127.0.0.1:2"]);
    let limiter =
        limiter.on_failure(OnFailure::Error).deadline(PATIENCE).stderr_warnings(false).build().unwrap();
    let gate = gate(&limiter);
    let start = Instant::now();
    for n in 0..1_000 {
        let error = gate.check(format!("user:{n}")).await.unwrap_err();
        assert!(error.is_unavailable() && !error.is_timeout(), "{error}");
    }
    assert!(start.elapsed() < PATIENCE / 2, "{:?}", start.elapsed());
}

#[tokio::test]
async fn refund_through_any_node_is_applied_once() {
    let cluster = tidegate_testkit::shared_cluster();
    let base = builder(&cluster).namespace("same").build().unwrap();
    assert!(gate(&base).check_cost("key", 10).await.unwrap().is_allowed());
    // Replicas work as seed nodes, too.
    for (url, left) in cluster.urls().iter().zip(991..) {
        // The limiter does not know the slots yet, so all nodes but one reply MOVED.
        let limiter = builder(&cluster).cluster([url]).namespace("same").build().unwrap();
        gate(&limiter).refund("key", 1).await.unwrap();
        assert_eq!(gate(&base).peek("key").await.unwrap().remaining(), left);
    }
}
