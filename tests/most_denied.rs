//! The most denied keys are those that are denied most.

use std::time::Duration;

use tidegate::{KeyMode, MostDenied, Quota};

use crate::support::fixture::{HOUR, builder};

const QUOTA: Quota = Quota::fixed_window(1, HOUR);

#[tokio::test]
async fn they_come_in_order_with_their_counts_and_as_they_stand_in_redis() {
    let (server, most_denied) = (harness::shared(), MostDenied::new(10).one_in(1));
    let limiter = builder(server.url()).observer(most_denied.clone()).build().unwrap();
    let [a, b] = ["a", "b"].map(|name| limiter.gate(name, QUOTA));
    for (key, asks) in [("often", 6), ("now and then", 3), ("never", 1)] {
        for _ in 0..asks {
            let _ = a.check(key).await.unwrap();
        }
    }
    // Only who denied is named.
    let _ = limiter.check_all([a.ask("often"), b.ask("other")]).await.unwrap();
    let told: Vec<_> = most_denied.top(9).into_iter().map(|it| (it.key, it.denials, it.error)).collect();
    let key = |key: &str| a.redis_key(key).unwrap();
    assert_eq!(told, [(key("often"), 6, 0), (key("now and then"), 2, 0)]);
    assert_eq!(most_denied.top(1).len(), 1);
}

#[tokio::test]
async fn private_keys_stay_private() {
    let (server, most_denied) = (harness::shared(), MostDenied::new(10).one_in(1));
    let secret = KeyMode::Hmac(b"a secret of 32 bytes, at the least".to_vec());
    let limiter = builder(server.url()).key_mode(secret).observer(most_denied.clone()).build().unwrap();
    let gate = limiter.gate("gate", QUOTA);
    for _ in 0..2 {
        let _ = gate.check("ada@example.com").await.unwrap();
    }
    let told = most_denied.top(9).remove(0);
    assert_eq!(told.key, gate.redis_key("ada@example.com").unwrap());
    assert!(!told.to_string().contains("ada") && !format!("{most_denied:?}").contains("gate"), "{told}");
}

#[tokio::test]
async fn sampled_they_are_near_the_truth_and_what_is_past_fades() {
    let server = harness::shared();
    let most_denied = MostDenied::new(10).one_in(8).period(Duration::from_millis(200));
    let limiter = builder(server.url()).observer(most_denied.clone()).build().unwrap();
    let gate = limiter.gate("gate", QUOTA);
    let denials = || most_denied.top(1).first().map_or(0, |key| key.denials);
    let start = std::time::Instant::now();
    while denials() == 0 || start.elapsed() < Duration::from_millis(10) {
        let _ = gate.check("key").await.unwrap();
    }
    assert_eq!(denials() % 8, 0, "each stands for eight");
    let most = denials();
    crate::support::fixture::soon("it fades", async || {
        let _ = gate.check("another").await.unwrap();
        most_denied.top(10).iter().find(|it| it.key.ends_with("key")).is_none_or(|it| it.denials < most)
    })
    .await;
}
