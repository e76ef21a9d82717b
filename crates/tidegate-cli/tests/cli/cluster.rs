//! Commands with a Redis Cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use tidegate::{Limiter, Quota, Rate};

use super::program::Program;
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{HOUR, PATIENCE};

#[tokio::test]
async fn keys_of_all_nodes_are_found_exactly_once() {
    let cluster = tidegate_testkit::shared_cluster();
    let urls = cluster.urls();
    let program = Program::at(&urls[..2].join(" "));
    let limiter = Limiter::builder().cluster(&urls).namespace(&program.namespace).deadline(PATIENCE);
    let limiter = limiter.deny_cache(Duration::ZERO).build().unwrap();
    let users = limiter.gate("users", Quota::token_bucket(9, Rate::per_hour(9)));
    let log = limiter.gate("log", Quota::sliding_log(9, HOUR));
    for user in 0..200 {
        users.penalize(format!("user:{user}"), 1).await.unwrap();
    }
    users.penalize("user:7", 5).await.unwrap();
    log.penalize("user:7", 1).await.unwrap();
    // With the hash tag of another key.
    let both = limiter
        .check_all([users.key("tenant:1"), log.key("user:7").colocate_with("tenant:1")])
        .await
        .unwrap();
    assert!(both.is_allowed());

    let reply = program.json(0, &["inspect", "--cluster"]);
    assert_eq!(reply["keys"], 203, "{reply}");
    let reply = program.json(0, &["top", "--once", "--cluster", "--limit", "300"]);
    let keys: BTreeSet<String> =
        reply["states"].as_array().unwrap().iter().map(|state| state["redis_key"].to_string()).collect();
    assert_eq!(keys.len(), 203);
    assert_eq!(
        (&reply["states"][0]["key"], &reply["states"][0]["gate"]),
        (&json!("user:7"), &json!("users"))
    );

    let block = ["block", "user:7", "--gate", "users", "--for", "1h", "--yes", "--cluster"];
    program.run(block).assert(0, &[]);
    assert!(!users.peek("user:7").await.unwrap().is_allowed());
    assert_eq!(program.json(0, &["inspect", "user:7", "--cluster"])["states"].as_array().unwrap().len(), 3);
    assert_eq!(program.json(0, &["forget", "user:7", "--yes", "--cluster"])["removed"], 3);
    assert!(users.peek("user:7").await.unwrap().is_allowed());
    assert_eq!(program.json(0, &["inspect", "--cluster"])["keys"], 200);

    // Without --cluster, one node's keys would look like all keys.
    let single = Program::of(&urls[0], &program.namespace);
    single.run(["inspect"]).assert(3, &["MOVED", "add --cluster"]);
    single.run(["forget", "user:8", "--yes"]).assert(3, &["add --cluster"]);
}

#[tokio::test]
async fn holders_of_a_key_are_read_with_the_leases_of_its_hash_tag() {
    let cluster = tidegate_testkit::shared_cluster();
    let urls = cluster.urls();
    let program = Program::at(&urls.join(" "));
    let limiter = Limiter::builder().cluster(&urls).namespace(&program.namespace).deadline(PATIENCE);
    let limiter = limiter.permit_ttl(HOUR / 60).build().unwrap();
    let uploads = limiter.gate("uploads", Quota::in_flight(9));
    let mut held = Vec::new();
    // Keys of several hash tags, each with a lease of its own.
    for (user, units) in (1..4).map(|number| (format!("user:{number}"), number)) {
        held.push(uploads.key(&user).cost(units).acquire().await.unwrap().permit().unwrap());
        let states = program.json(0, &["inspect", &user, "--cluster"])["states"].clone();
        let holders = states[0]["holders"].as_array().unwrap();
        assert_eq!((holders.len(), &holders[0]["units"]), (1, &json!(units)), "{states}");
        assert!(holders[0]["lease_ends_in_us"].as_u64().unwrap() > 0, "{states}");
    }
    let reply = program.json(0, &["inspect", "--cluster"]);
    assert_eq!((&reply["keys"], &reply["notes"]), (&json!(3), &json!([])), "leases are not foreign keys");
}
