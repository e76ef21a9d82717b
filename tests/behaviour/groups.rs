//! Several limits for one request are charged all or nothing.

use std::time::Duration;

use tidegate::{Gate, Quota, Rate};

use crate::support::behaviours;
use crate::support::world::{World, passes};

const DAY: Duration = Duration::from_secs(86_400);

async fn remaining(gate: &Gate, key: &str) -> u64 {
    gate.peek(key).await.unwrap().remaining()
}

fn mixed(world: &World) -> [Gate; 5] {
    [
        world.gate("user.posts", Quota::token_bucket(1, Rate::per_second(1))),
        world.gate("user.friends", Quota::fixed_window(150, DAY).aligned_to_clock()),
        world.gate("ip.signups", Quota::sliding_log(10, DAY)),
        world.gate("device.rewards", Quota::sliding_counter(5, DAY * 7)),
        world.gate("all", Quota::leaky_bucket(10_000, Rate::per_second(10_000))),
    ]
}

behaviours! {
    async fn denial_by_one_gate_charges_no_gate(world) {
        let gates = mixed(world);
        let checks = || gates.iter().map(|gate| gate.key("x"));
        assert!(world.limiter.check_all(checks()).await.unwrap().is_allowed());
        for _ in 0..3 {
            let denied = world.limiter.check_all(checks()).await.unwrap();
            assert!(!denied.is_allowed());
            assert_eq!(denied.binding().gate(), "user.posts");
            assert_eq!(denied.binding().retry_after(), Duration::from_secs(1));
            let by_gate: Vec<bool> =
                denied.each_alone().iter().map(|decision| decision.is_allowed()).collect();
            assert_eq!(by_gate, [false, true, true, true, true]);
        }
        let mut left = Vec::new();
        for gate in &gates {
            left.push(remaining(gate, "x").await);
        }
        assert_eq!(left, [0, 149, 9, 4, 9_999]);
        world.advance(Duration::from_secs(1));
        assert!(world.limiter.check_all(checks()).await.unwrap().is_allowed());
    }

    async fn longest_wait_binds_a_denial_and_smallest_share_left_binds_an_admission(world) {
        let fast = world.gate("fast", Quota::token_bucket(1, Rate::per_second(1)));
        let slow = world.gate("slow", Quota::token_bucket(2, Rate::per_minute(1)));
        let checks = || [fast.key("x"), slow.key("x").cost(2)];
        let allowed = world.limiter.check_all(checks()).await.unwrap();
        // Both gates have no units left. Of equal gates, the first binds.
        assert_eq!(allowed.binding().gate(), "fast");
        let denied = world.limiter.check_all(checks()).await.unwrap();
        assert_eq!(denied.binding().gate(), "slow");
        assert_eq!(denied.binding().retry_after(), Duration::from_secs(120));
    }

    async fn costs_of_the_same_key_and_gate_add_up(world) {
        let gate = world.gate("gate", Quota::sliding_log(5, DAY));
        let checks = || [gate.key("x").cost(2), gate.key("y").colocate_with("x"), gate.key("x")];
        let decision = world.limiter.check_all(checks()).await.unwrap();
        let remaining_units: Vec<u64> = decision.each_alone().iter().map(|decision| decision.remaining()).collect();
        assert_eq!(remaining_units, [2, 4, 2]);
        assert!(!world.limiter.check_all(checks()).await.unwrap().is_allowed());
        assert_eq!(remaining(&gate, "x").await, 2);
        let error = world.limiter.check_all([gate.key("z").cost(3), gate.key("z").cost(3)]).await.unwrap_err();
        assert!(error.is_over_capacity());
    }

    async fn cost_of_0_in_a_group_charges_nothing_and_denies_nothing(world) {
        let full = world.gate("full", Quota::fixed_window(1, DAY));
        let free = world.gate("free", Quota::fixed_window(5, DAY));
        assert_eq!(passes(&full, "x", 2).await, 1);
        let decision = world.limiter.check_all([full.key("x").cost(0), free.key("x")]).await.unwrap();
        assert!(decision.is_allowed());
        assert!(!decision.each_alone()[0].is_allowed());
        assert_eq!(remaining(&free, "x").await, 4);
        let peek = world.limiter.check_all([full.key("x").cost(0), free.key("x").cost(0)]).await.unwrap();
        assert!(!peek.is_allowed());
        assert_eq!(remaining(&free, "x").await, 4);
    }

    async fn peek_of_a_group_admits_what_its_check_admits(world) {
        let full = world.gate("full", Quota::fixed_window(1, DAY));
        let free = world.gate("free", Quota::fixed_window(5, DAY));
        assert_eq!(passes(&full, "x", 2).await, 1);
        for is_allowed in [true, true, false] {
            let checks = || [full.key("x").cost(0), free.key("x").cost(2)];
            let peeked = world.limiter.peek_all(checks()).await.unwrap();
            assert_eq!((peeked.is_allowed(), peeked.binding().gate()), (is_allowed, "free"));
            assert_eq!(world.limiter.check_all(checks()).await.unwrap().is_allowed(), is_allowed);
        }
    }

    async fn group_has_at_most_128_keys(world) {
        let gate = world.gate("gate", Quota::fixed_window(5, DAY));
        let checks = |n: usize| (0..n).map(|key| gate.key(key.to_string()).colocate_with("0")).collect::<Vec<_>>();
        assert!(world.limiter.check_all(checks(128)).await.unwrap().is_allowed());
        assert!(world.limiter.check_all(checks(129)).await.unwrap_err().is_config());
        assert_eq!(remaining(&gate, "0").await, 4);
    }

    async fn equal_rates_in_different_units_are_one_quota(world) {
        let a = world.gate("gate", Quota::token_bucket(5, Rate::per_second(1)));
        let b = world.gate("gate", Quota::token_bucket(5, Rate::per_minute(60)));
        assert!(world.limiter.check_all([a.key("x"), b.key("x")]).await.unwrap().is_allowed());
        assert_eq!(remaining(&a, "x").await, 3);
    }

    async fn check_of_cost_0_does_not_bind_a_group(world) {
        let free = world.gate("free", Quota::fixed_window(5, DAY));
        let full = world.gate("full", Quota::token_bucket(1, Rate::per_second(1)));
        free.block("x", DAY).await.unwrap();
        let checks = || [free.key("x").cost(0), full.key("x")];
        let allowed = world.limiter.check_all(checks()).await.unwrap();
        assert!(allowed.is_allowed());
        assert_eq!(allowed.binding().gate(), "full");
        let denied = world.limiter.check_all(checks()).await.unwrap();
        assert!(!denied.is_allowed());
        assert_eq!(denied.binding().gate(), "full");
        assert_eq!(denied.retry_after(), Duration::from_secs(1));
    }

    async fn denied_checks_are_counted_only_if_the_log_itself_denies(world) {
        let log = world.gate("log", Quota::sliding_log(2, DAY).count_denied());
        let other = world.gate("other", Quota::fixed_window(1, DAY));
        let checks = || [log.key("x"), other.key("x")];
        assert!(world.limiter.check_all(checks()).await.unwrap().is_allowed());
        for _ in 0..5 {
            assert!(!world.limiter.check_all(checks()).await.unwrap().is_allowed());
        }
        assert_eq!(remaining(&log, "x").await, 1);
    }

    async fn group_reports_the_delay_of_its_leaky_bucket(world) {
        let queue = world.gate("queue", Quota::leaky_bucket(5, Rate::per_second(1)));
        let bucket = world.gate("bucket", Quota::token_bucket(5, Rate::per_second(1)));
        for delay in [0, 1, 2] {
            let decision = world.limiter.check_all([bucket.key("x"), queue.key("x")]).await.unwrap();
            assert_eq!(decision.delay(), Duration::from_secs(delay));
        }
    }
}
