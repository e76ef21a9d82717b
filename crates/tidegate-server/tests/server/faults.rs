//! The service while Redis is paused, full or killed, and while it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate::{Limiter, OnFailure};
use tidegate_server::Server as Service;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_testkit::Server;
use tokio::task::JoinSet;

use super::fixture::{Running, descriptor, on, request};
use crate::support::fixture::{namespace, soon};

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1000000 }
";
/// Long enough for a Redis of a loaded machine.
const DEADLINE: Duration = Duration::from_secs(1);
/// Above the deadline of a decision by what a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(5);

fn limiter(url: &str, policy: OnFailure) -> Limiter {
    let builder = Limiter::builder().url(url).namespace(&namespace()).on_failure(policy);
    builder.instances(1).deadline(DEADLINE).stderr_warnings(false).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_answers_within_the_deadline_while_redis_is_paused_full_or_killed() {
    let mut redis = Server::process(&[]).unwrap();
    let mut services = Vec::new();
    for (policy, expected) in [
        (OnFailure::Local, Some(Code::Ok)),
        (OnFailure::Open, Some(Code::Ok)),
        (OnFailure::Closed, Some(Code::OverLimit)),
        (OnFailure::Error, None),
    ] {
        let service = Running::start(on(RULES, &limiter(redis.url(), policy))).await;
        services.push((service.client().await, service, policy, expected));
    }
    let ask = async |client: &mut super::fixture::Client| {
        let asked = Instant::now();
        let decided = client.should_rate_limit(request([descriptor(&[("user", "ada")])])).await;
        assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
        decided.map(|response| response.into_inner().overall_code())
    };
    for (client, ..) in &mut services {
        assert_eq!(ask(client).await.unwrap(), Code::Ok);
    }
    let paused = redis.pause().unwrap();
    for (client, _, policy, expected) in &mut services {
        let decided = ask(client).await;
        assert_eq!(decided.as_ref().ok(), expected.as_ref(), "{policy:?}");
        assert!(decided.is_ok() || decided.unwrap_err().code() == tonic::Code::Unavailable);
    }
    drop(paused);
    for (client, ..) in &mut services {
        soon("Redis decides again", async || ask(client).await.is_ok_and(|code| code == Code::Ok)).await;
    }
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    for (client, _, policy, expected) in &mut services {
        let decided = ask(client).await;
        assert_eq!(decided.as_ref().ok(), expected.as_ref(), "{policy:?} while Redis is full");
        assert!(decided.is_ok() || decided.unwrap_err().code() == tonic::Code::Unavailable);
    }
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    for (client, ..) in &mut services {
        soon("Redis decides again", async || ask(client).await.is_ok_and(|code| code == Code::Ok)).await;
    }
    redis.kill();
    for (client, _, policy, expected) in &mut services {
        assert_eq!(ask(client).await.ok(), *expected, "{policy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_sent_until_the_health_ends_get_their_responses() {
    let redis = tidegate_testkit::shared();
    let service = on(RULES, &limiter(redis.url(), OnFailure::Error));
    let server = Running::of(Service::new(service).drain_notice(Duration::from_secs(3))).await;
    let is_serving = Arc::new(AtomicBool::new(true));
    let decided = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..16 {
        let mut client = server.client().await;
        let (is_serving, decided) = (is_serving.clone(), decided.clone());
        clients.spawn(async move {
            while is_serving.load(Ordering::Relaxed) {
                client.should_rate_limit(request([descriptor(&[("user", "ada")])])).await.unwrap();
                decided.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    soon("load", async || decided.load(Ordering::Relaxed) > 200).await;
    let readyz = server.url("/readyz");
    let stopping = tokio::spawn(server.stop());
    soon("not ready", async || reqwest::get(&readyz).await.unwrap().status() == 503).await;
    is_serving.store(false, Ordering::Relaxed);
    clients.join_all().await;
    assert!(stopping.await.unwrap());
}

#[tokio::test]
async fn end_gives_leases_back() {
    let redis = tidegate_testkit::shared();
    let rules = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1000, lease: { max_units: 100, hold: 10s } }
";
    let namespace = namespace();
    let limiter_of = || {
        let builder = Limiter::builder().url(redis.url()).namespace(&namespace).on_failure(OnFailure::Error);
        builder.deadline(DEADLINE).build().unwrap()
    };
    let server = Running::start(on(rules, &limiter_of())).await;
    let mut client = server.client().await;
    let ada = || request([descriptor(&[("user", "ada")])]);
    for _ in 0..50 {
        client.should_rate_limit(ada()).await.unwrap();
    }
    drop(client);
    assert!(server.stop().await);
    let service = on(rules, &limiter_of());
    let after = service.decide(&ada()).await.unwrap();
    assert_eq!(after.statuses[0].limit_remaining, 949, "only the spent units stay charged");
}
