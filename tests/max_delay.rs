//! The maximum delay affects only leaky buckets. Checks of other algorithms are merged and use cached
//! denials, for every maximum delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{Decision, Event, Observer, Quota, Source};

use crate::support::fixture::{HOUR, builder, quotas};

/// Counts the requests to the store after equal checks were merged.
#[derive(Default)]
struct Requests(AtomicUsize);

impl Observer for Requests {
    fn on(&self, event: &Event<'_>) {
        if let Event::Called { groups: requests, .. } = *event {
            self.0.fetch_add(requests, Ordering::Relaxed);
        }
    }
}

#[tokio::test]
async fn equal_checks_merge_although_their_callers_wait_for_different_times() {
    const CALLERS: usize = 64;
    let server = tidegate_testkit::shared();
    for (name, quota) in quotas(1_000, HOUR).into_iter().filter(|(_, quota)| !quota.has_queue()) {
        let requests = Arc::new(Requests::default());
        let limiter = builder(server.url()).observer(requests.clone()).build().unwrap();
        let gate = limiter.gate(name, quota);
        // Connects, and loads the script into the server.
        assert!(gate.check("first").await.unwrap().is_allowed());
        requests.0.store(0, Ordering::Relaxed);
        let waiting = (1..=CALLERS).map(|wait| gate.until_allowed("key", Duration::from_millis(wait as u64)));
        let decisions = join_all(waiting).await;
        assert!(decisions.iter().all(|decision| decision.as_ref().is_ok_and(Decision::is_allowed)), "{name}");
        let requests = requests.0.load(Ordering::Relaxed);
        assert!(requests <= CALLERS / 2, "{name}: {CALLERS} equal checks were {requests} requests");
    }
}

#[tokio::test]
async fn a_denied_wait_answers_later_checks_from_the_deny_cache() {
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).deny_cache(HOUR).build().unwrap();
    for (name, quota) in quotas(1, HOUR).into_iter().filter(|(_, quota)| !quota.has_queue()) {
        let gate = limiter.gate(name, quota);
        assert!(gate.check("key").await.unwrap().is_allowed());
        let denied = gate.until_allowed("key", Duration::from_millis(1)).await.unwrap();
        assert_eq!((denied.is_allowed(), denied.source()), (false, Source::Redis), "{name}");
        let longer = gate.until_allowed("key", Duration::from_millis(500)).await.unwrap();
        assert_eq!((longer.is_allowed(), longer.source()), (false, Source::DenyCache), "{name}");
        let plain = gate.check("key").await.unwrap();
        assert_eq!((plain.is_allowed(), plain.source()), (false, Source::DenyCache), "{name}");
    }
}

#[tokio::test]
async fn a_shorter_accepted_delay_still_denies_at_a_leaky_bucket() {
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).build().unwrap();
    let queue = limiter.gate("queue", Quota::leaky_bucket(10, tidegate::Rate::per_hour(10)));
    assert!(queue.check("key").await.unwrap().is_allowed());
    let impatient = queue.key("key").max_delay(Duration::from_secs(1)).check().await.unwrap();
    assert!(!impatient.is_allowed());
    let patient = queue.key("key").check().await.unwrap();
    assert!(patient.is_allowed() && patient.delay() > Duration::from_secs(300));
}
