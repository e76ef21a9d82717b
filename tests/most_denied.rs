//! `MostDenied` reports the keys with the most denials.

use std::time::Duration;

use tidegate::{KeyMode, MostDenied, Quota};

use crate::support::fixture::{HOUR, builder};

const QUOTA: Quota = Quota::fixed_window(1, HOUR);

#[tokio::test]
async fn most_denied_keys_are_sorted_by_denials_and_named_as_in_redis() {
    let (server, most_denied) = (tidegate_testkit::shared(), MostDenied::new(10).one_in(1));
    let limiter = builder(server.url()).observer(most_denied.clone()).build().unwrap();
    let [a, b] = ["a", "b"].map(|name| limiter.gate(name, QUOTA));
    for (key, checks) in [("often", 6), ("now and then", 3), ("never", 1)] {
        for _ in 0..checks {
            let _ = a.check(key).await.unwrap();
        }
    }
    // Only the key of the gate that denied is counted.
    let _ = limiter.check_all([a.key("often"), b.key("other")]).await.unwrap();
    let top: Vec<_> =
        most_denied.top(9).into_iter().map(|entry| (entry.key, entry.denials, entry.error)).collect();
    let key = |key: &str| a.redis_key(key).unwrap();
    assert_eq!(top, [(key("often"), 6, 0), (key("now and then"), 2, 0)]);
    assert_eq!(most_denied.top(1).len(), 1);
}

#[tokio::test]
async fn private_keys_are_reported_as_their_hashes() {
    let (server, most_denied) = (tidegate_testkit::shared(), MostDenied::new(10).one_in(1));
    let secret = KeyMode::Hmac(b"a secret of 32 bytes, at the least".to_vec());
    let limiter = builder(server.url()).key_mode(secret).observer(most_denied.clone()).build().unwrap();
    let gate = limiter.gate("gate", QUOTA);
    for _ in 0..2 {
        let _ = gate.check("ada@example.com").await.unwrap();
    }
    let entry = most_denied.top(9).remove(0);
    assert_eq!(entry.key, gate.redis_key("ada@example.com").unwrap());
    assert!(!entry.to_string().contains("ada") && !format!("{most_denied:?}").contains("gate"), "{entry}");
}

#[tokio::test]
async fn sampled_counts_are_scaled_and_fade() {
    let server = tidegate_testkit::shared();
    let most_denied = MostDenied::new(10).one_in(8).period(Duration::from_millis(200));
    let limiter = builder(server.url()).observer(most_denied.clone()).build().unwrap();
    let gate = limiter.gate("gate", QUOTA);
    let denials = || most_denied.top(1).first().map_or(0, |key| key.denials);
    let start = std::time::Instant::now();
    while denials() == 0 || start.elapsed() < Duration::from_millis(10) {
        let _ = gate.check("key").await.unwrap();
    }
    assert_eq!(denials() % 8, 0, "each sampled denial counts as eight");
    let before = denials();
    crate::support::fixture::soon("the count fades", async || {
        let _ = gate.check("another").await.unwrap();
        let entries = most_denied.top(10);
        entries.iter().find(|entry| entry.key.ends_with("key")).is_none_or(|entry| entry.denials < before)
    })
    .await;
}
