//! The verbs other than `check`, which behave the same for every algorithm.

use std::time::Duration;

use tidegate::{Gate, Quota, Rate};

use crate::support::behaviours;
use crate::support::world::{World, allowed, check, passes};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns one gate per algorithm. Each admits 6 units and then none for a while.
fn gates(world: &World) -> [Gate; 7] {
    [
        world.gate("token", Quota::token_bucket(6, Rate::per_minute(6))),
        world.gate("leaky", Quota::leaky_bucket(6, Rate::per_minute(6))),
        world.gate("fixed", Quota::fixed_window(6, MINUTE)),
        world.gate("clock", Quota::fixed_window(6, MINUTE).aligned_to_clock()),
        world.gate("log", Quota::sliding_log(6, MINUTE)),
        world.gate("strict", Quota::sliding_log(6, MINUTE).count_denied()),
        world.gate("counter", Quota::sliding_counter(6, MINUTE)),
    ]
}

async fn remaining(gate: &Gate, key: &str) -> u64 {
    gate.peek(key).await.unwrap().remaining()
}

behaviours! {
    async fn cost_is_admitted_whole_or_not_at_all(world) {
        for gate in gates(world).iter().filter(|gate| gate.name() != Some("strict")) {
            assert!(gate.check_cost("x", 4).await.unwrap().is_allowed(), "{gate:?}");
            assert!(!gate.check_cost("x", 3).await.unwrap().is_allowed(), "{gate:?}");
            assert_eq!(remaining(gate, "x").await, 2, "{gate:?}");
            assert!(gate.check_cost("x", 2).await.unwrap().is_allowed(), "{gate:?}");
            assert!(gate.check_cost("x", 7).await.unwrap_err().is_over_capacity(), "{gate:?}");
        }
    }

    async fn peek_reports_the_decision_of_a_check_and_changes_nothing(world) {
        if world.is_leased {
            return; // A peek reports leased units as used.
        }
        for gate in gates(world) {
            assert_eq!(passes(&gate, "x", 5).await, 5);
            for _ in 0..3 {
                let peek = gate.peek("x").await.unwrap();
                assert!(peek.is_allowed(), "{gate:?}");
                assert_eq!((peek.remaining(), peek.retry_after()), (1, Duration::ZERO), "{gate:?}");
            }
            assert_eq!(passes(&gate, "x", 1).await, 1);
            let peek = gate.peek("x").await.unwrap();
            assert!(!peek.is_allowed() && peek.remaining() == 0, "{gate:?}");
            assert!(peek.retry_after() > Duration::ZERO, "{gate:?}");
            assert_eq!(peek.retry_after(), gate.peek("x").await.unwrap().retry_after());
        }
    }

    async fn check_many_decides_each_key_separately_and_in_order(world) {
        for gate in gates(world) {
            let keys = ["a", "b", "a", "a", "a", "a", "a", "a", "b"];
            let decisions = gate.check_many(keys).await;
            let allowed: Vec<bool> =
                decisions.into_iter().map(|decision| decision.unwrap().is_allowed()).collect();
            assert_eq!(allowed, [true, true, true, true, true, true, true, false, true], "{gate:?}");
        }
    }

    async fn check_many_decides_more_keys_than_fit_in_one_call(world) {
        for gate in gates(world) {
            let keys: Vec<String> = (0..1_000).map(|key| (key % 150).to_string()).collect();
            let decisions = gate.check_many(&keys).await;
            let allowed =
                decisions.iter().filter(|decision| decision.as_ref().unwrap().is_allowed()).count();
            assert_eq!(allowed, 150 * 6, "{gate:?}");
        }
    }

    async fn refund_frees_units_up_to_the_limit(world) {
        if world.is_leased {
            return; // A peek reports leased units as used.
        }
        for gate in gates(world) {
            gate.refund("x", 3).await.unwrap();
            assert_eq!(passes(&gate, "x", 6).await, 6, "{gate:?}");
            gate.refund("x", 2).await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 2, "{gate:?}");
            gate.refund("x", 100).await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 6, "{gate:?}");
            assert_eq!(passes(&gate, "x", 7).await, 6, "{gate:?}");
        }
    }

    async fn penalty_denies_checks_until_the_debt_has_drained(world) {
        for gate in gates(world) {
            gate.penalize("x", 9).await.unwrap();
            let denied = check(&gate, "x").await;
            assert!(!denied.is_allowed(), "{gate:?}");
            assert_eq!(denied.remaining(), 0, "{gate:?}");
            world.advance(denied.retry_after() - Duration::from_micros(1));
            assert!(!gate.peek("x").await.unwrap().is_allowed(), "{gate:?}");
            world.advance(Duration::from_micros(1));
            assert!(gate.peek("x").await.unwrap().is_allowed(), "{gate:?}");
        }
    }

    async fn blocked_key_is_denied_until_exactly_the_end_of_the_block(world) {
        for gate in gates(world) {
            assert!(allowed(&gate, "x").await);
            gate.block("x", MINUTE * 5).await.unwrap();
            let denied = gate.peek("x").await.unwrap();
            assert!(!denied.is_allowed(), "{gate:?}");
            assert_eq!((denied.remaining(), denied.retry_after()), (0, MINUTE * 5), "{gate:?}");
            assert!(allowed(&gate, "y").await, "{gate:?}");
            world.advance(MINUTE * 5 - Duration::from_micros(1));
            assert!(!gate.peek("x").await.unwrap().is_allowed(), "{gate:?}");
            world.advance(Duration::from_micros(1));
            assert_eq!(passes(&gate, "x", 7).await, 6, "{gate:?}");
        }
    }

    async fn unblock_keeps_the_units_used(world) {
        if world.is_leased {
            return; // A peek reports leased units as used.
        }
        for gate in gates(world) {
            assert_eq!(passes(&gate, "x", 4).await, 4);
            gate.block("x", MINUTE * 5).await.unwrap();
            assert!(!gate.peek("x").await.unwrap().is_allowed());
            gate.unblock("x").await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 2, "{gate:?}");
            gate.unblock("unknown").await.unwrap();
        }
    }

    async fn reset_key_is_untouched(world) {
        for gate in gates(world) {
            assert_eq!(passes(&gate, "x", 7).await, 6);
            gate.block("x", MINUTE).await.unwrap();
            gate.reset("x").await.unwrap();
            let peek = gate.peek("x").await.unwrap();
            assert_eq!((peek.remaining(), peek.reset_after()), (6, Duration::ZERO), "{gate:?}");
            assert_eq!(passes(&gate, "x", 7).await, 6, "{gate:?}");
        }
    }

    async fn raised_limit_frees_units_at_once_and_lowered_limit_reports_none_left(world) {
        let quotas = |n: u64| [
            Quota::token_bucket(n, Rate::per_minute(6)),
            Quota::leaky_bucket(n, Rate::per_minute(6)),
            Quota::fixed_window(n, MINUTE),
            Quota::sliding_log(n, MINUTE),
            Quota::sliding_counter(n, MINUTE),
        ];
        for ((six, ten), two) in quotas(6).into_iter().zip(quotas(10)).zip(quotas(2)) {
            let gate = |quota| world.gate("gate", quota);
            assert_eq!(passes(&gate(six), "x", 7).await, 6, "{six}");
            assert_eq!(remaining(&gate(ten), "x").await, 4, "{ten}");
            assert_eq!(remaining(&gate(two), "x").await, 0, "{two}");
            assert!(!allowed(&gate(two), "x").await);
            assert_eq!(passes(&gate(ten), "x", 5).await, 4, "{ten}");
        }
    }

    async fn reservation_is_settled_to_its_final_cost(world) {
        for gate in gates(world) {
            gate.reserve("x", 4).await.unwrap().commit(1).await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 5, "{gate:?}");
            gate.reserve("x", 1).await.unwrap().commit(3).await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 2, "{gate:?}");
            gate.reserve("x", 2).await.unwrap().cancel().await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 2, "{gate:?}");
            drop(gate.reserve("x", 1).await.unwrap());
            assert_eq!(remaining(&gate, "x").await, 1, "{gate:?}");
        }
    }

    async fn cancel_does_not_refund_expired_units(world) {
        if world.is_leased {
            return; // A peek reports leased units as used.
        }
        for gate in gates(world) {
            let reservation = gate.reserve("x", 6).await.unwrap();
            assert!(reservation.decision().is_allowed());
            // The reserved units have drained, or their window has passed. Other checks use the quota now.
            world.advance(MINUTE * 2);
            assert_eq!(passes(&gate, "x", 6).await, 6, "{gate:?}");
            reservation.cancel().await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 0, "{gate:?}");
        }
    }
}
