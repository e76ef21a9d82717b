//! Reservations that any process can settle, under concurrency and faults. Their exact numbers are in
//! `behaviour/reservations.rs`.

mod lost_replies;
mod outage;
mod processes;
mod queued;
mod settings;
mod tokens;

use std::sync::Arc;

use rand::Rng;
use tidegate::{Limiter, Quota, Settlement};
use tokio::task::JoinSet;

use crate::support::fixture::{HOUR, PATIENCE, builder, namespace};

/// LiteLLM issue 18730: requests that are charged at their end race past the limit. Here each charges its estimate
/// before it runs.
#[tokio::test]
async fn thousand_concurrent_estimates_admit_no_unit_beyond_the_limit() {
    const LIMIT: u64 = 20_000;
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let limiter = || builder(server.url()).namespace(&namespace).deadline(3 * PATIENCE).build().unwrap();
    let instances: Vec<Arc<Limiter>> = (0..4).map(|_| Arc::new(limiter())).collect();
    let requests = Quota::fixed_window(600, HOUR);
    let tokens = Quota::fixed_window(LIMIT, HOUR);
    let mut tasks = JoinSet::new();
    for number in 0..1_000 {
        let limiter = instances[number % instances.len()].clone();
        tasks.spawn(async move {
            let estimate = rand::rng().random_range(20..100);
            let (requests, tokens) = (limiter.gate("requests", requests), limiter.gate("tokens", tokens));
            let checks = [requests.key("acme"), tokens.key("acme").cost(estimate)];
            let reserved = limiter.reserve(checks).await.unwrap();
            reserved.token().map(|token| (estimate, token.clone()))
        });
    }
    let admitted: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let (observer, count) = (limiter(), admitted.len() as u64);
    let used = async || {
        let (requests, tokens) = (observer.gate("requests", requests), observer.gate("tokens", tokens));
        let left = [requests.peek("acme").await.unwrap(), tokens.peek("acme").await.unwrap()];
        left.map(|decision| decision.limit() - decision.remaining())
    };
    let estimates: u64 = admitted.iter().map(|(estimate, _)| estimate).sum();
    assert!(count < 1_000 && estimates <= LIMIT && count <= 600, "{estimates} units of {count} requests");
    assert!(estimates + 100 > LIMIT || count == 600, "denied although there was room: {estimates}, {count}");
    assert_eq!(used().await, [count, estimates]);

    // Any instance settles, all at once.
    let mut tasks = JoinSet::new();
    for (number, (estimate, token)) in admitted.into_iter().enumerate() {
        let limiter = instances[(number + 1) % instances.len()].clone();
        tasks.spawn(async move {
            let actual = rand::rng().random_range(0..=estimate);
            let settled = limiter.commit(&token, [1, actual]).await.unwrap();
            assert_eq!(settled, [Settlement::Settled; 2]);
            actual
        });
    }
    let actuals: u64 = tasks.join_all().await.into_iter().sum();
    assert_eq!(used().await, [count, actuals]);
}
