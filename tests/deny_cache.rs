//! The deny cache decides a check only if Redis would deny it too, and for no longer than the configured cap.

use std::time::Duration;

use tidegate::{Decision, Gate, Quota, Rate, Source};

use crate::support::fixture::{HOUR, builder, quotas};
use crate::support::world::{World, check};

const CAP: Duration = Duration::from_millis(500);
const MICRO: Duration = Duration::from_micros(1);

/// Admits 2 units at once, and one more each 100 ms.
const BUCKET: Quota = Quota::token_bucket(2, Rate::per_second(10));

async fn exhaust(gate: &Gate, key: &str) -> Decision {
    for _ in 0..gate.peek(key).await.unwrap().remaining() {
        assert!(check(gate, key).await.is_allowed());
    }
    let denied = check(gate, key).await;
    assert_eq!((denied.is_allowed(), denied.source()), (false, Source::Redis));
    denied
}

async fn source(gate: &Gate, key: &str) -> Source {
    check(gate, key).await.source()
}

#[tokio::test]
async fn denied_key_is_not_sent_to_redis() {
    let world = World::redis();
    for (name, quota) in quotas(5, HOUR) {
        let gate = world.limiter.gate(name, quota);
        let denied = exhaust(&gate, "key").await;
        world.advance(CAP / 2);
        let again = check(&gate, "key").await;
        assert_eq!((again.is_allowed(), again.source()), (false, Source::DenyCache), "{name}");
        // The waits are those that Redis would report now.
        assert_eq!(again.retry_after(), denied.retry_after() - CAP / 2, "{name}");
        assert_eq!(again.reset_after(), denied.reset_after() - CAP / 2, "{name}");
        assert_eq!((again.remaining(), again.limit()), (denied.remaining(), denied.limit()), "{name}");
        let many = gate.check_many(["key", "other"]).await;
        let sources: Vec<Source> = many.iter().map(|decision| decision.as_ref().unwrap().source()).collect();
        assert_eq!(sources, [Source::DenyCache, Source::Redis], "{name}");
    }
}

#[tokio::test]
async fn denial_is_cached_until_exactly_when_the_check_could_pass() {
    let world = World::redis();
    let gate = world.limiter.gate("bucket", BUCKET);
    let denied = exhaust(&gate, "key").await;
    assert_eq!(denied.retry_after(), Duration::from_millis(100));
    world.advance(denied.retry_after() - MICRO);
    assert_eq!(source(&gate, "key").await, Source::DenyCache);
    world.advance(MICRO);
    let passes = check(&gate, "key").await;
    assert_eq!((passes.is_allowed(), passes.source()), (true, Source::Redis));
}

#[tokio::test]
async fn denial_is_cached_for_at_most_the_cap() {
    for cap in [CAP, Duration::from_secs(3)] {
        let world = World::redis_with(|builder| builder.deny_cache(cap));
        let gate = world.limiter.gate("window", Quota::fixed_window(1, HOUR));
        let _ = exhaust(&gate, "key").await;
        world.advance(cap - MICRO);
        assert_eq!(source(&gate, "key").await, Source::DenyCache);
        world.advance(MICRO);
        assert_eq!(source(&gate, "key").await, Source::Redis);
    }
    let world = World::redis_with(|builder| builder.deny_cache(Duration::ZERO));
    let gate = world.limiter.gate("window", Quota::fixed_window(1, HOUR));
    let _ = exhaust(&gate, "key").await;
    assert_eq!(source(&gate, "key").await, Source::Redis, "switched off");
}

#[tokio::test]
async fn smaller_cost_or_longer_max_delay_is_sent_to_redis() {
    let world = World::redis();
    for (name, quota) in quotas(5, HOUR) {
        let gate = world.limiter.gate(name, quota);
        assert!(gate.check_cost("key", 2).await.unwrap().is_allowed());
        let denied = gate.check_cost("key", 4).await.unwrap();
        assert_eq!((denied.is_allowed(), denied.remaining()), (false, 3), "{name}");
        assert_eq!(gate.check_cost("key", 4).await.unwrap().source(), Source::DenyCache, "{name}");
        let larger = gate.check_cost("key", 5).await.unwrap();
        assert!(!larger.is_allowed() && larger.retry_after() >= denied.retry_after(), "{name}");
        assert!(gate.check_cost("key", 3).await.unwrap().is_allowed(), "{name}");
    }
    let queue = world.limiter.gate("queue", Quota::leaky_bucket(5, Rate::per_second(1)));
    let patient = |delay| queue.key("key").max_delay(Duration::from_secs(delay)).check();
    assert!(patient(0).await.unwrap().is_allowed());
    assert_eq!(patient(0).await.unwrap().source(), Source::Redis);
    assert_eq!(patient(0).await.unwrap().source(), Source::DenyCache);
    assert!(patient(1).await.unwrap().is_allowed());
}

/// The cached decision equals the decision of Redis.
#[tokio::test]
async fn cached_denial_of_a_larger_cost_reports_the_wait_of_that_cost() {
    let world = World::redis();
    for (name, quota) in quotas(5, HOUR) {
        let [first, second] = ["first", "second"].map(|key| (world.limiter.gate(name, quota), key));
        for (gate, key) in [&first, &second] {
            assert!(gate.check_cost(key, 4).await.unwrap().is_allowed());
        }
        assert!(!first.0.check_cost(first.1, 2).await.unwrap().is_allowed());
        let cached = first.0.check_cost(first.1, 5).await.unwrap();
        let stored = second.0.check_cost(second.1, 5).await.unwrap();
        let fields = |decision: &Decision| {
            (decision.is_allowed(), decision.remaining(), decision.retry_after(), decision.reset_after())
        };
        assert_eq!(fields(&cached), fields(&stored), "{name}");
        // A cached denial of a sliding log is valid for its own cost only.
        let predicts = quota.kind().algorithm().predicts();
        assert_eq!(cached.source() == Source::DenyCache, predicts, "{name}");
    }
}

#[tokio::test]
async fn peeks_and_gates_that_count_denied_checks_bypass_the_cache() {
    let world = World::redis();
    let gate = world.limiter.gate("window", Quota::fixed_window(1, HOUR));
    let _ = exhaust(&gate, "key").await;
    assert_eq!(gate.peek("key").await.unwrap().source(), Source::Redis);
    let counting = world.limiter.gate("log", Quota::sliding_log(1, HOUR).count_denied());
    let _ = exhaust(&counting, "key").await;
    assert_eq!(source(&counting, "key").await, Source::Redis);
}

#[tokio::test]
async fn units_returned_by_this_process_can_be_used_at_once() {
    let world = World::redis();
    for (name, quota) in quotas(2, HOUR) {
        let gate = world.limiter.gate(name, quota);
        let _ = exhaust(&gate, "reset").await;
        gate.reset("reset").await.unwrap();
        assert!(check(&gate, "reset").await.is_allowed(), "{name}");

        let _ = exhaust(&gate, "refund").await;
        gate.refund("refund", 1).await.unwrap();
        assert!(check(&gate, "refund").await.is_allowed(), "{name}");

        gate.block("unblock", HOUR).await.unwrap();
        assert!(!check(&gate, "unblock").await.is_allowed(), "{name}");
        assert_eq!(source(&gate, "unblock").await, Source::DenyCache, "{name}");
        gate.unblock("unblock").await.unwrap();
        assert!(check(&gate, "unblock").await.is_allowed(), "{name}");

        let reserved = gate.reserve("cancel", 2).await.unwrap();
        assert!(!check(&gate, "cancel").await.is_allowed(), "{name}");
        reserved.cancel().await.unwrap();
        assert!(check(&gate, "cancel").await.is_allowed(), "{name}");
    }
}

#[tokio::test]
async fn units_returned_by_another_process_can_be_used_after_the_cap() {
    let world = World::redis();
    let gate = world.limiter.gate("window", Quota::fixed_window(1, HOUR));
    let _ = exhaust(&gate, "key").await;
    world.delete(&gate.redis_key("key").unwrap());
    world.advance(CAP - MICRO);
    assert_eq!(source(&gate, "key").await, Source::DenyCache);
    world.advance(MICRO);
    assert!(check(&gate, "key").await.is_allowed());
}

#[tokio::test]
async fn denial_under_another_limit_is_not_used() {
    let world = World::redis();
    let _ = exhaust(&world.limiter.gate("window", Quota::fixed_window(1, HOUR)), "key").await;
    let raised = world.limiter.gate("window", Quota::fixed_window(2, HOUR));
    assert!(check(&raised, "key").await.is_allowed());
}

#[tokio::test]
async fn cached_denial_is_not_used_after_shutdown() {
    let world = World::redis();
    let gate = world.limiter.gate("window", Quota::fixed_window(1, HOUR));
    let _ = exhaust(&gate, "key").await;
    world.limiter.shutdown().await;
    assert!(gate.check("key").await.unwrap_err().is_shut_down());
}

/// A cached denial awaits nothing, so the check must yield to the runtime explicitly.
#[tokio::test]
async fn loop_of_cached_denials_yields_to_other_tasks() {
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).build().unwrap();
    let gate = limiter.gate("window", Quota::fixed_window(1, HOUR));
    let _ = exhaust(&gate, "key").await;
    let other = tokio::spawn(async {});
    while !other.is_finished() {
        assert!(!check(&gate, "key").await.is_allowed());
    }
}
