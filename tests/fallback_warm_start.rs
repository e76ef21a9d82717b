//! The fallback starts from the last state that Redis reported, also if checks were merged.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{Event, Gate, Limiter, Observer, Quota, Source};
use tidegate_testkit::{Fault, Proxy};

use crate::support::fixture::{builder_as_is, quotas, soon};

const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Number of callers that send their check directly. Checks behind them are merged.
const DIRECT: usize = 4;

/// The largest number of checks that one call saved by merging.
#[derive(Clone, Default)]
struct Merged(Arc<AtomicUsize>);

impl Observer for Merged {
    fn on(&self, event: &Event<'_>) {
        if let Event::Called { checks, groups: sent, .. } = *event {
            self.0.fetch_max(checks - sent, Ordering::Relaxed);
        }
    }
}

#[tokio::test]
async fn fallback_starts_from_the_state_after_the_last_merged_check() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    // The share of a limit of 20 is 10. Of 15 units used, the share's part is 8, rounded up.
    for (checks, passes) in [(15, 2), (25, 0)] {
        for (name, quota) in quotas(20, DAY) {
            let merged = Merged::default();
            let limiter = builder_as_is(&proxy.url()).deny_cache(Duration::ZERO).instances(2);
            let limiter = limiter.observer(merged.clone()).build().unwrap();
            soon("Redis answers", async || limiter.ready().await.is_ok()).await;
            let gate = limiter.gate(name, quota);
            let keys = (0..DIRECT).map(|direct| format!("direct {direct}"));
            let keys = keys.chain((0..checks).map(|_| "key".to_owned()));
            let decisions = join_all(keys.map(|key| gate.check(key))).await;
            assert!(decisions.iter().all(|decision| decision.as_ref().unwrap().source() == Source::Redis));
            assert!(merged.0.load(Ordering::Relaxed) >= checks / 2, "{quota}: too few checks were merged");

            proxy.set(Fault::Refuse);
            let mut passed = 0;
            for _ in 0..20 {
                let decision = gate.check("key").await.unwrap();
                assert_eq!(decision.source(), Source::Local);
                passed += u64::from(decision.is_allowed());
            }
            assert_eq!(passed, passes, "{quota}: after {checks} checks");
            proxy.set(Fault::None);
        }
    }
}

/// Returns a limiter that decides alone in an outage, and a gate of it.
async fn alone(proxy: &Proxy, deny_cache: Duration) -> (Limiter, Gate) {
    let limiter = builder_as_is(&proxy.url()).instances(1).deny_cache(deny_cache).build().unwrap();
    soon("Redis answers", async || limiter.ready().await.is_ok()).await;
    let gate = limiter.gate("gate", Quota::fixed_window(20, DAY));
    (limiter, gate)
}

/// Makes a check in an outage. Returns the units that it leaves, or `None` if it was denied.
async fn left_in_outage(proxy: &Proxy, gate: &Gate) -> Option<u64> {
    proxy.set(Fault::Refuse);
    let decision = gate.check("key").await.unwrap();
    assert_eq!(decision.source(), Source::Local);
    proxy.set(Fault::None);
    decision.is_allowed().then(|| decision.remaining())
}

#[tokio::test]
async fn fallback_starts_from_the_last_state_also_if_that_is_nearly_unused() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    for deny_cache in [Duration::ZERO, DAY] {
        let (_limiter, gate) = alone(&proxy, deny_cache).await;
        let _ = gate.check_cost("key", 20).await.unwrap();
        gate.refund("key", 20).await.unwrap();
        assert_eq!(gate.check("key").await.unwrap().remaining(), 19);
        assert_eq!(left_in_outage(&proxy, &gate).await, Some(19));
    }
}

#[tokio::test]
async fn fallback_does_not_start_from_the_state_before_a_reset_or_an_unblock() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let (_limiter, gate) = alone(&proxy, DAY).await;
    let _ = gate.check_cost("key", 20).await.unwrap();
    gate.reset("key").await.unwrap();
    assert_eq!(left_in_outage(&proxy, &gate).await, Some(19));

    let (_limiter, gate) = alone(&proxy, DAY).await;
    gate.block("key", DAY).await.unwrap();
    assert!(!gate.check("key").await.unwrap().is_allowed());
    gate.unblock("key").await.unwrap();
    assert_eq!(left_in_outage(&proxy, &gate).await, Some(19));
}

#[tokio::test]
async fn fallback_starts_from_the_state_that_a_group_or_used_units_have_left() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let (limiter, gate) = alone(&proxy, DAY).await;
    let other = limiter.gate("other", Quota::fixed_window(20, DAY));
    let _ = limiter.check_all([other.key("key"), gate.key("key").cost(15)]).await.unwrap();
    assert_eq!(left_in_outage(&proxy, &gate).await, Some(4));
    assert_eq!(left_in_outage(&proxy, &other).await, Some(19));

    let (_limiter, gate) = alone(&proxy, DAY).await;
    let gate = gate.charge_used(true);
    let _ = gate.check_cost("key", 15).await.unwrap();
    assert_eq!(left_in_outage(&proxy, &gate).await, Some(4));
}

#[tokio::test]
async fn key_that_was_only_denied_in_an_outage_starts_the_next_one_from_the_last_state() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let (limiter, gate) = alone(&proxy, Duration::ZERO).await;
    let _ = gate.check_cost("key", 20).await.unwrap();
    assert_eq!(left_in_outage(&proxy, &gate).await, None);
    soon("Redis answers", async || limiter.ready().await.is_ok()).await;
    gate.reset("key").await.unwrap();
    soon("the fallback has forgotten its denial", async || {
        let left = left_in_outage(&proxy, &gate).await;
        soon("Redis answers", async || limiter.ready().await.is_ok()).await;
        left == Some(19)
    })
    .await;
}
