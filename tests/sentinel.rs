//! The limiter gets the address of the primary from the sentinels, and follows a failover.

use std::time::Duration;

use tidegate::{Limiter, Quota};
use tidegate_testkit::Sentinels;

use crate::support::fixture::{HOUR, PATIENCE, calls, soon};

const PLENTY: Quota = Quota::fixed_window(1_000_000, HOUR);

fn limiter(sentinels: &Sentinels, name: &str) -> Limiter {
    let urls = sentinels.urls();
    let builder = Limiter::builder().sentinel(urls.iter().map(String::as_str), name);
    let builder = builder.on_failure(tidegate::OnFailure::Error).breaker(false);
    builder.deadline(Duration::from_secs(2)).stderr_warnings(false).build().unwrap()
}

#[tokio::test]
async fn limiter_follows_the_failover_after_its_primary_dies() {
    let mut sentinels = Sentinels::start().unwrap();
    let gate = limiter(&sentinels, sentinels.name()).gate("gate", PLENTY);
    assert!(gate.key("key").deadline(PATIENCE).check().await.unwrap().is_allowed());
    sentinels.kill_primary();
    soon("Redis decides again", async || gate.check("key").await.is_ok()).await;
    assert_eq!(sentinels.replica().cli(&["ROLE"]).unwrap().lines().next(), Some("1) \"master\""));
}

#[tokio::test]
async fn limiter_leaves_a_primary_that_is_demoted_alive() {
    let sentinels = Sentinels::start().unwrap();
    let gate = limiter(&sentinels, sentinels.name()).gate("gate", PLENTY);
    assert!(gate.key("key").deadline(PATIENCE).check().await.unwrap().is_allowed());
    sentinels.exchange().unwrap();
    let (old, new) = (sentinels.primary().unwrap(), sentinels.replica());
    // A server that is promoted closes its client connections.
    let promoted = || new.cli(&["ROLE"]).is_ok_and(|role| role.contains("master"));
    soon("the replica is promoted", async || promoted()).await;
    // The sentinels would demote the old primary, too, but only after 8 s.
    let port = new.url().rsplit(':').next().unwrap();
    old.cli(&["REPLICAOF", "127.0.0.1", port]).unwrap();
    soon("Redis decides again", async || gate.check("key").await.is_ok()).await;
    assert!(calls(new, "evalsha") > 0, "the old primary still decides");
}

#[tokio::test]
async fn primary_unknown_to_the_sentinels_is_an_error_that_states_the_cause() {
    let sentinels = Sentinels::start().unwrap();
    let error = limiter(&sentinels, "nobody").ready().await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(error.to_string().contains("knows no primary of this name"), "{error}");

    let url = sentinels.replica().url();
    let error = Limiter::builder().sentinel([url], "any").deadline(PATIENCE).build().unwrap();
    let error = error.ready().await.unwrap_err();
    assert!(
        error.is_unavailable()
            && error.to_string().contains("is a Redis, not a sentinel: give the addresses of sentinels"),
        "{error}"
    );

    let error = Limiter::builder().sentinel([], "any").build().unwrap_err();
    assert!(error.is_config(), "{error}");
}
