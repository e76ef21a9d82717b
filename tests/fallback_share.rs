//! While Redis is unavailable, a process decides within its share of the quota. These tests check the share
//! at the same boundaries as the quota: one unit below it, exactly it, one unit above it.

use std::time::Duration;

use tidegate::{Decision, Gate, Limiter, ManualClock, Quota, Source};
use tidegate_testkit::{Fault, Proxy};

use crate::support::fixture::{HOUR, builder_as_is, closed_port, quotas};

const US: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Returns a limiter, one of `instances` processes, whose Redis refuses every connection.
fn without_redis(clock: &ManualClock, instances: u64) -> Limiter {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    builder_as_is(&url).manual_clock(clock.clone()).instances(instances).build().unwrap()
}

/// Returns a quota of every algorithm, and a log that counts denied checks.
fn all_quotas(limit: u64) -> Vec<(&'static str, Quota)> {
    let counts_denied = Quota::sliding_log(limit, DAY).count_denied();
    quotas(limit, DAY).into_iter().chain([("log.counts_denied", counts_denied)]).collect()
}

async fn decide(gate: &Gate, key: &str, cost: u64) -> Decision {
    let decision = gate.check_cost(key, cost).await.unwrap();
    assert_eq!(decision.source(), Source::Local);
    decision
}

#[tokio::test]
async fn a_cost_up_to_the_share_passes_and_a_larger_one_is_denied_with_a_wait() {
    let mut keys = 0..;
    for instances in [1, 2, 4, 1_000, 65_535] {
        let limiter = without_redis(&ManualClock::new(), instances);
        for limit in [1_u64, 2, 3, 7, 20, 21, 1_000] {
            let share = limit.div_ceil(instances);
            for (name, quota) in all_quotas(limit) {
                let gate = limiter.gate(name, quota);
                for used in [0, share / 2, share] {
                    for cost in [share - 1, share, share + 1, limit] {
                        if cost == 0 || cost > limit {
                            continue;
                        }
                        let case = format!("{quota} of {instances}, {used} used, cost {cost}");
                        let key = keys.next().unwrap().to_string();
                        if used > 0 {
                            assert!(decide(&gate, &key, used).await.is_allowed(), "{case}");
                        }
                        let decision = decide(&gate, &key, cost).await;
                        assert_eq!(decision.is_allowed(), used + cost <= share, "{case}");
                        assert!(decision.is_allowed() || !decision.retry_after().is_zero(), "{case}");
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn a_denied_cost_up_to_the_share_passes_after_its_wait_and_not_a_microsecond_earlier() {
    let clock = ManualClock::new();
    let limiter = without_redis(&clock, 4);
    for (name, quota) in quotas(20, DAY) {
        let gate = limiter.gate(name, quota);
        for (used, cost) in [(2, 4), (2, 5), (5, 4), (5, 5), (5, 1)] {
            let key = format!("{used}:{cost}");
            assert!(decide(&gate, &key, used).await.is_allowed());
            let denied = decide(&gate, &key, cost).await;
            assert!(!denied.is_allowed(), "{quota}: {used} used, cost {cost}");
            clock.advance(denied.retry_after() - US);
            assert!(!decide(&gate, &key, cost).await.is_allowed(), "{quota}: {used} used, cost {cost}");
            clock.advance(US);
            assert!(decide(&gate, &key, cost).await.is_allowed(), "{quota}: {used} used, cost {cost}");
        }
    }
}

/// The in-memory limiter applies the whole quota, of which four processes have used equal parts.
#[tokio::test]
async fn a_cost_above_the_share_waits_as_the_whole_quota_does_and_at_least_a_second() {
    const INSTANCES: u64 = 4;
    let clock = ManualClock::new();
    let limiter = without_redis(&clock, INSTANCES);
    let whole_limiter = Limiter::in_memory_with(clock.clone());
    for (name, quota) in quotas(20, DAY) {
        let (gate, whole) = (limiter.gate(name, quota), whole_limiter.gate(name, quota));
        for used in [0, 1, 2, 5] {
            for cost in [6_u64, 8, 19, 20] {
                let case = format!("{quota}: {used} used, cost {cost}");
                let key = format!("{used}:{cost}");
                if used > 0 {
                    assert!(decide(&gate, &key, used).await.is_allowed(), "{case}");
                    assert!(whole.check_cost(&key, INSTANCES * used).await.unwrap().is_allowed(), "{case}");
                }
                // One unit of the share is four of the quota. A counter also rounds its estimate down.
                let rounded = cost.next_multiple_of(INSTANCES);
                let rounded = if name == "counter" { rounded - (INSTANCES - 1) } else { rounded };
                let by_quota = whole.check_cost(&key, rounded).await.unwrap();
                let wait = if by_quota.is_allowed() { Duration::ZERO } else { by_quota.retry_after() };
                let denied = decide(&gate, &key, cost).await;
                assert!(!denied.is_allowed(), "{case}");
                assert_eq!(denied.retry_after(), wait.max(SECOND), "{case}");
                assert_eq!(denied.remaining(), 5 - used, "{case}");
                clock.advance(denied.retry_after());
                let later = decide(&gate, &key, cost).await;
                assert_eq!((later.is_allowed(), later.retry_after()), (false, SECOND), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn a_blocked_key_denies_a_cost_above_the_share_until_the_block_ends() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let limiter = builder_as_is(&proxy.url()).instances(4).deny_cache(Duration::ZERO).build().unwrap();
    for (name, quota) in quotas(20, DAY) {
        let gate = limiter.gate(name, quota);
        assert!(gate.check("key").await.unwrap().is_allowed());
        gate.block("key", HOUR).await.unwrap();
        let blocked = gate.check("key").await.unwrap();
        assert_eq!((blocked.is_allowed(), blocked.source()), (false, Source::Redis));
    }
    proxy.set(Fault::Refuse);
    for (name, quota) in quotas(20, DAY) {
        let denied = decide(&limiter.gate(name, quota), "key", 6).await;
        assert!(!denied.is_allowed() && denied.retry_after() > HOUR / 2, "{quota}: {denied}");
    }
}

#[tokio::test]
async fn a_group_with_a_cost_above_its_share_is_denied_whole_and_charges_nothing() {
    let limiter = without_redis(&ManualClock::new(), 4);
    for (name, quota) in all_quotas(20) {
        let (gate, other) = (limiter.gate(name, quota), limiter.gate("other", Quota::fixed_window(20, DAY)));
        let decision = limiter.check_all([other.key(name), gate.key("x").cost(6)]).await.unwrap();
        assert!(!decision.is_allowed(), "{quota}");
        assert_eq!((decision.binding().gate(), decision.retry_after()), (name, SECOND), "{quota}");
        assert!(decision.each_alone()[0].is_allowed(), "{quota}: that gate alone would admit it");
        assert!(!decision.each_alone()[1].is_allowed(), "{quota}");
        assert_eq!(other.peek(name).await.unwrap().remaining(), 5, "{quota}");
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 5, "{quota}");
    }
}
