//! Permits on a Redis Cluster and behind sentinels.

use tidegate::{Limiter, OnFailure, Permit, Quota};
use tidegate_testkit::{Cluster, Sentinels};

use super::{TTL, remaining};
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{PATIENCE, calls, soon};

#[tokio::test]
async fn heartbeats_of_a_cluster_are_one_per_hash_tag_in_use() {
    let cluster = Cluster::start().unwrap();
    let builder = Limiter::builder().cluster(cluster.urls()).permit_ttl(TTL).deadline(PATIENCE);
    let limiter = builder.follow_overrides(false).instances(1).publish_figures(false).build().unwrap();
    let gate = limiter.gate("gate", Quota::in_flight(10));
    let mut permits = Vec::new();
    for key in 0..200 {
        permits.push(gate.key(key.to_string()).colocate_with((key % 3).to_string()).acquire().await.unwrap());
    }
    // Connections to further nodes have the keys reported once more.
    tokio::time::sleep(2 * TTL).await;
    let sent = || cluster.nodes().map(|node| calls(node, "evalsha")).sum::<u64>();
    let (before, since) = (sent(), std::time::Instant::now());
    tokio::time::sleep(2 * TTL).await;
    let (sent, intervals) = (sent() - before, since.elapsed().as_secs_f64() / (TTL.as_secs_f64() / 3.0));
    let most = 3 * ((intervals / 0.9).ceil() as u64 + 1);
    assert!((3..=most).contains(&sent), "{sent} calls in {intervals:.1} intervals");
    let permits: Vec<Permit> = permits.into_iter().filter_map(AcquiredParts::permit).collect();
    assert_eq!(permits.len(), 200);
    assert!(permits.iter().all(Permit::is_held));
    drop(permits);
    soon("all units are released", async || {
        let peek = gate.key("7").colocate_with("1").peek().await.unwrap();
        peek.remaining() == 10
    })
    .await;
    limiter.shutdown().await;
}

#[tokio::test]
async fn units_are_counted_again_after_a_failover() {
    let mut sentinels = Sentinels::start().unwrap();
    let connect = || {
        let urls = sentinels.urls();
        let builder = Limiter::builder().sentinel(urls.iter().map(String::as_str), sentinels.name());
        let builder = builder.on_failure(OnFailure::Error).permit_ttl(TTL).stderr_warnings(false);
        builder.deadline(std::time::Duration::from_secs(2)).build().unwrap()
    };
    let (one, other) = (connect(), connect());
    let gate = one.gate("gate", Quota::in_flight(5));
    let permit = gate.acquire("x").cost(3).await.unwrap().permit().unwrap();
    let seen = other.gate("gate", Quota::in_flight(5));
    assert_eq!(remaining(&seen, "x").await, 2);
    sentinels.kill_primary();
    soon("the units are counted again", async || {
        seen.peek("x").await.is_ok_and(|peek| peek.remaining() == 2) && permit.is_held()
    })
    .await;
    permit.release().await.unwrap();
    assert_eq!(remaining(&seen, "x").await, 5);
}
