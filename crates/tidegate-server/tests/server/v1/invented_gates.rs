//! Gates that clients invent: they bring a quota, and choose any name.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::Limiter;
use tidegate::admin::Inspector;
use tidegate_server::{Server, ServiceMetrics};

use super::fixture::{RULES, post, quota};
use crate::server::fixture::{Running, on};
use crate::support::fixture::{builder, soon};

const INVENTED: usize = 2_000;
/// The most checks of a request.
const EACH: usize = 100;
/// The most gates of a bucket of figures, and the sum of the others.
const MAX_IN_BUCKET: usize = 256 + 1;

/// Checks one unit of each invented gate.
async fn check_invented(server: &Running) {
    for first in (0..INVENTED).step_by(EACH) {
        let check = |number| json!({ "gate": format!("invented-{number}"), "key": "k", "quota": quota(1) });
        let checks: Vec<Value> = (first..first + EACH).map(check).collect();
        let reply = post(server, "check_all", &json!({ "checks": checks })).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

/// The table of metrics has some 16,000 names; its own test fills it.
#[tokio::test]
async fn each_invented_gate_has_one_series_of_an_outcome() {
    let metrics = ServiceMetrics::new();
    let limiter = Limiter::builder().in_memory().observer(metrics.observer()).build().unwrap();
    let server = Server::new(on(RULES, &limiter)).metrics(metrics.clone()).drain_notice(Duration::ZERO);
    let server = Running::of(server).await;
    for _ in 0..3 {
        let unknown = post(&server, "check", &json!({ "gate": "unknown", "key": "k" })).await;
        assert_eq!(unknown.status, 404);
    }
    check_invented(&server).await;
    let text = metrics.render();
    let decisions: Vec<&str> =
        text.lines().filter(|line| line.starts_with("tidegate_decisions_total{")).collect();
    assert_eq!(decisions.len(), INVENTED, "one series for each, and none of a gate without a decision");
    let of_requests =
        text.lines().filter(|line| line.starts_with("tidegate_server_requests_total{protocol=\"http\""));
    assert_eq!(of_requests.count(), 2, "the route is a label, and no gate");
    assert!(server.stop().await);
}

#[tokio::test]
async fn figures_of_invented_gates_are_summed_beyond_a_bound() {
    let redis = tidegate_testkit::shared();
    let limiter = builder(redis.url()).publish_figures(true).build().unwrap();
    let server = Running::start(on(RULES, &limiter)).await;
    check_invented(&server).await;
    let inspector = Inspector::new(&limiter).unwrap();
    soon("the figures are published", async || {
        let figures = inspector.figures(Duration::from_secs(600)).await.unwrap();
        let gates = figures.buckets.iter().flat_map(|bucket| &bucket.gates);
        let allowed: u64 = gates.clone().map(|gate| gate.allowed).sum();
        let most = figures.buckets.iter().map(|bucket| bucket.gates.len()).max().unwrap_or(0);
        assert!(most <= MAX_IN_BUCKET, "{most} gates");
        let names: BTreeSet<&str> = gates.map(|gate| &*gate.gate).collect();
        allowed == INVENTED as u64 && names.contains("(other)")
    })
    .await;
    assert!(server.stop().await);
}
