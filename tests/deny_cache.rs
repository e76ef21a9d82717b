//! A denial is remembered: never longer than it is true or than was chosen, and
//! never for an ask that it says nothing about.

use std::time::Duration;

use tidegate::{Decision, Gate, Quota, Rate, Source};

use crate::support::fixture::{HOUR, builder, quotas};
use crate::support::world::{World, check};

const CAP: Duration = Duration::from_millis(500);
const MICRO: Duration = Duration::from_micros(1);

/// 2 at once, one more after each 100 ms.
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
async fn what_was_denied_is_denied_again_without_asking() {
    let world = World::redis();
    for (name, quota) in quotas(5, HOUR) {
        let gate = world.limiter.gate(name, quota);
        let denied = exhaust(&gate, "key").await;
        world.advance(CAP / 2);
        let again = check(&gate, "key").await;
        assert_eq!((again.is_allowed(), again.source()), (false, Source::DenyCache), "{name}");
        // As Redis would say it now.
        assert_eq!(again.retry_after(), denied.retry_after() - CAP / 2, "{name}");
        assert_eq!(again.reset_after(), denied.reset_after() - CAP / 2, "{name}");
        assert_eq!((again.remaining(), again.limit()), (denied.remaining(), denied.limit()), "{name}");
        let many = gate.check_many(["key", "other"]).await;
        let sources: Vec<Source> = many.iter().map(|decision| decision.as_ref().unwrap().source()).collect();
        assert_eq!(sources, [Source::DenyCache, Source::Redis], "{name}");
    }
}

#[tokio::test]
async fn it_is_remembered_until_it_could_pass_and_no_microsecond_longer() {
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
async fn it_is_remembered_for_the_cap_at_most() {
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
async fn a_smaller_cost_or_a_longer_patience_asks_redis() {
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
    let patient = |delay| queue.ask("key").max_delay(Duration::from_secs(delay)).check();
    assert!(patient(0).await.unwrap().is_allowed());
    assert_eq!(patient(0).await.unwrap().source(), Source::Redis);
    assert_eq!(patient(0).await.unwrap().source(), Source::DenyCache);
    assert!(patient(1).await.unwrap().is_allowed());
}

/// Told without Redis, it is what Redis tells.
#[tokio::test]
async fn a_larger_cost_is_told_how_long_it_takes() {
    let world = World::redis();
    for (name, quota) in quotas(5, HOUR) {
        let [first, second] = ["first", "second"].map(|key| (world.limiter.gate(name, quota), key));
        for (gate, key) in [&first, &second] {
            assert!(gate.check_cost(key, 4).await.unwrap().is_allowed());
        }
        assert!(!first.0.check_cost(first.1, 2).await.unwrap().is_allowed());
        let told = first.0.check_cost(first.1, 5).await.unwrap();
        let asked = second.0.check_cost(second.1, 5).await.unwrap();
        let answer = |it: &Decision| (it.is_allowed(), it.remaining(), it.retry_after(), it.reset_after());
        assert_eq!(answer(&told), answer(&asked), "{name}");
        // What a log tells holds for one cost.
        assert_eq!(told.source() == Source::DenyCache, name != "log", "{name}");
    }
}

#[tokio::test]
async fn a_peek_and_a_gate_that_counts_denied_always_ask() {
    let world = World::redis();
    let gate = world.limiter.gate("window", Quota::fixed_window(1, HOUR));
    let _ = exhaust(&gate, "key").await;
    assert_eq!(gate.peek("key").await.unwrap().source(), Source::Redis);
    let counts = world.limiter.gate("log", Quota::sliding_log(1, HOUR).count_denied());
    let _ = exhaust(&counts, "key").await;
    assert_eq!(source(&counts, "key").await, Source::Redis);
}

#[tokio::test]
async fn what_this_process_gives_back_is_seen_at_once() {
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
async fn what_another_process_gives_back_is_seen_when_the_cap_has_passed() {
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
async fn a_limit_that_was_changed_is_asked_for() {
    let world = World::redis();
    let _ = exhaust(&world.limiter.gate("window", Quota::fixed_window(1, HOUR)), "key").await;
    let raised = world.limiter.gate("window", Quota::fixed_window(2, HOUR));
    assert!(check(&raised, "key").await.is_allowed());
}

#[tokio::test]
async fn a_limiter_that_was_shut_down_remembers_nothing() {
    let world = World::redis();
    let gate = world.limiter.gate("window", Quota::fixed_window(1, HOUR));
    let _ = exhaust(&gate, "key").await;
    world.limiter.shutdown().await;
    assert!(gate.check("key").await.unwrap_err().is_shut_down());
}

/// Nothing is awaited for a remembered denial, so it has to give way by itself.
#[tokio::test]
async fn who_asks_in_a_loop_lets_others_run() {
    let server = harness::shared();
    let limiter = builder(server.url()).build().unwrap();
    let gate = limiter.gate("window", Quota::fixed_window(1, HOUR));
    let _ = exhaust(&gate, "key").await;
    let other = tokio::spawn(async {});
    while !other.is_finished() {
        assert!(!check(&gate, "key").await.is_allowed());
    }
}
