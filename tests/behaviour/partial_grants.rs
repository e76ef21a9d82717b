//! A partial grant equals n checks at the same instant, of which the first are admitted.

use std::time::Duration;

use tidegate::{Gate, Quota, Rate, Source, Switch};

use crate::support::behaviours;
use crate::support::world::{World, passes};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

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

async fn granted(gate: &Gate, key: &str, n: u64) -> u64 {
    gate.take_up_to(key, n).await.unwrap().granted()
}

/// Returns the units left, the time until the next unit, and the time until the key is unused.
async fn state(gate: &Gate, key: &str) -> (u64, Duration, Duration) {
    let peek = gate.peek(key).await.unwrap();
    (peek.remaining(), peek.retry_after(), peek.reset_after())
}

behaviours! {
    async fn grant_takes_what_is_left_and_reports_the_wait_for_the_next_unit(world) {
        for gate in gates(world) {
            let full = gate.take_up_to("x", 4).await.unwrap();
            assert_eq!((full.granted(), full.wanted(), full.is_full()), (4, 4, true), "{gate:?}");
            assert!(full.decision().is_allowed());
            assert_eq!((full.decision().remaining(), full.decision().retry_after()), (2, Duration::ZERO));
            let part = gate.take_up_to("x", 5).await.unwrap();
            assert_eq!((part.granted(), part.wanted(), part.is_full()), (2, 5, false), "{gate:?}");
            assert!(part.decision().is_allowed(), "{gate:?}");
            assert_eq!(part.decision().remaining(), 0, "{gate:?}");
            assert!(!part.decision().retry_after().is_zero(), "{gate:?}");
            world.advance(part.decision().retry_after() - Duration::from_micros(1));
            assert!(!gate.peek("x").await.unwrap().is_allowed(), "{gate:?}");
            world.advance(Duration::from_micros(1));
            assert!(granted(&gate, "x", 1).await == 1, "{gate:?}");
        }
    }

    async fn grant_equals_as_many_checks(world) {
        if world.is_leased {
            return; // A peek reports leased units as used.
        }
        for gate in gates(world) {
            for (case, (used, n)) in [(0, 1), (0, 5), (0, 6), (0, 7), (2, 4), (2, 60), (6, 3)].iter().enumerate() {
                let [at_once, one_by_one] = ["a", "b"].map(|key| format!("{key}{case}"));
                for key in [&at_once, &one_by_one] {
                    assert_eq!(passes(&gate, key, *used).await, *used);
                }
                let grant = gate.take_up_to(&at_once, *n).await.unwrap();
                let admitted = passes(&gate, &one_by_one, *n as usize).await as u64;
                assert_eq!(grant.granted(), admitted, "{gate:?}, {used} used, {n} wanted");
                let expected = state(&gate, &one_by_one).await;
                assert_eq!(state(&gate, &at_once).await, expected, "{gate:?}, {used} used, {n} wanted");
                let decision = grant.decision();
                assert_eq!((decision.remaining(), decision.reset_after()), (expected.0, expected.2), "{gate:?}");
                assert_eq!(decision.retry_after(), expected.1, "{gate:?}, {used} used, {n} wanted");
            }
        }
    }

    async fn grant_of_more_than_the_limit_is_the_limit_and_no_error(world) {
        for gate in gates(world) {
            for (key, n) in [("a", 7), ("b", 1 << 53), ("c", u64::MAX)] {
                let grant = gate.take_up_to(key, n).await.unwrap();
                assert_eq!((grant.granted(), grant.wanted()), (6, n), "{gate:?}");
                assert_eq!(granted(&gate, key, n).await, 0, "{gate:?}");
            }
        }
    }

    async fn grant_of_0_peeks(world) {
        if world.is_leased {
            return; // A peek reports leased units as used.
        }
        for gate in gates(world) {
            let peek = gate.take_up_to("x", 0).await.unwrap();
            assert_eq!((peek.granted(), peek.is_full(), peek.decision().remaining()), (0, true, 6), "{gate:?}");
            assert!(peek.decision().is_allowed());
            let free = gate.key("x").cost(0).take_up_to(5).await.unwrap();
            assert_eq!((free.granted(), free.wanted(), free.decision().remaining()), (0, 5, 6), "{gate:?}");
            assert_eq!(granted(&gate, "x", 6).await, 6);
            let peek = gate.take_up_to("x", 0).await.unwrap();
            assert!(peek.granted() == 0 && !peek.decision().is_allowed(), "{gate:?}");
        }
    }

    async fn each_granted_check_has_the_cost(world) {
        for gate in gates(world) {
            let grant = gate.key("x").cost(4).take_up_to(3).await.unwrap();
            assert_eq!(grant.granted(), 1, "{gate:?}");
            if gate.name() != Some("strict") {
                assert_eq!(grant.decision().remaining(), 2, "{gate:?}");
                assert_eq!(gate.key("x").cost(2).take_up_to(3).await.unwrap().granted(), 1, "{gate:?}");
            }
            let error = gate.key("x").cost(7).take_up_to(1).await.unwrap_err();
            assert!(error.is_over_capacity(), "{gate:?}: {error}");
        }
    }

    async fn blocked_key_grants_nothing_until_the_end_of_the_block(world) {
        for gate in gates(world) {
            gate.block("x", MINUTE * 5).await.unwrap();
            let denied = gate.take_up_to("x", 3).await.unwrap();
            assert_eq!((denied.granted(), denied.decision().is_allowed()), (0, false), "{gate:?}");
            assert!(denied.decision().retry_after() >= MINUTE * 5, "{gate:?}");
        }
    }

    async fn debt_is_drained_before_units_are_granted(world) {
        for gate in gates(world) {
            gate.penalize("x", 9).await.unwrap();
            let denied = gate.take_up_to("x", 3).await.unwrap();
            assert_eq!((denied.granted(), denied.decision().remaining()), (0, 0), "{gate:?}");
            world.advance(denied.decision().retry_after());
            assert!(gate.peek("x").await.unwrap().is_allowed(), "{gate:?}");
        }
    }

    async fn delay_of_a_grant_is_that_of_its_last_unit(world) {
        let queue = world.gate("queue", Quota::leaky_bucket(6, Rate::per_minute(6)));
        let grant = queue.take_up_to("x", 3).await.unwrap();
        assert_eq!((grant.granted(), grant.decision().delay()), (3, SECOND * 20));
        let grant = queue.take_up_to("x", 9).await.unwrap();
        assert_eq!((grant.granted(), grant.decision().delay()), (3, SECOND * 50));
        assert_eq!(queue.take_up_to("x", 9).await.unwrap().decision().delay(), Duration::ZERO);
        // Units are queued at 0, 10 and 20 s; the next would wait 30 s, which is accepted in 5 s.
        let patient = queue.key("y").max_delay(SECOND * 25).take_up_to(6).await.unwrap();
        assert_eq!((patient.granted(), patient.decision().delay()), (3, SECOND * 20));
        assert_eq!(patient.decision().retry_after(), SECOND * 5);
        assert_eq!(patient.decision().remaining(), 3);
    }

    async fn several_gates_grant_the_fewest_and_are_charged_alike(world) {
        let [token, leaky, fixed, clock, log, _, counter] = gates(world);
        let large = world.gate("large", Quota::fixed_window(1_000, MINUTE));
        let all = [&token, &leaky, &fixed, &clock, &log, &counter, &large];
        let checks = || all.map(|gate| gate.key("x").cost(if gate.name() == Some("log") { 2 } else { 1 }));
        let grant = world.limiter.take_up_to(checks(), 2).await.unwrap();
        assert_eq!((grant.granted(), grant.is_full(), grant.decision().is_allowed()), (2, true, true));
        assert_eq!(grant.decision().retry_after(), Duration::ZERO);
        let remaining: Vec<u64> = grant.decision().each_alone().iter().map(|it| it.remaining()).collect();
        assert_eq!(remaining, [4, 4, 4, 4, 2, 4, 998]);

        let part = world.limiter.take_up_to(checks(), 9).await.unwrap();
        assert_eq!((part.granted(), part.is_full(), part.decision().is_allowed()), (1, false, true));
        assert_eq!(part.decision().binding().gate(), "log");
        assert_eq!(part.decision().binding().retry_after(), MINUTE);
        let remaining: Vec<u64> = part.decision().each_alone().iter().map(|it| it.remaining()).collect();
        assert_eq!(remaining, [3, 3, 3, 3, 0, 3, 997]);

        let none = world.limiter.take_up_to(checks(), u64::MAX).await.unwrap();
        assert_eq!((none.granted(), none.decision().is_allowed()), (0, false));
        assert_eq!(none.decision().binding().gate(), "log");
        let peek = world.limiter.take_up_to(checks(), 0).await.unwrap();
        assert_eq!((peek.granted(), peek.decision().is_allowed()), (0, false));
        assert_eq!(large.peek("x").await.unwrap().remaining(), 997, "a group that is granted nothing is free");
    }

    async fn cost_of_0_in_a_group_restricts_nothing(world) {
        let [token, _, fixed, ..] = gates(world);
        token.block("x", MINUTE).await.unwrap();
        let grant = world.limiter.take_up_to([token.key("x").cost(0), fixed.key("x")], 4).await.unwrap();
        assert_eq!((grant.granted(), grant.decision().binding().gate()), (4, "fixed"));
        let free = [token.key("y").cost(0), fixed.key("y").cost(0)];
        assert_eq!(world.limiter.take_up_to(free, 4).await.unwrap().granted(), 0);
        assert_eq!(fixed.peek("y").await.unwrap().remaining(), 6);
    }

    async fn costs_of_one_key_add_up_in_a_group(world) {
        let fixed = world.gate("fixed", Quota::fixed_window(7, MINUTE));
        let twice = || [fixed.key("x").cost(2), fixed.key("x")];
        assert_eq!(world.limiter.take_up_to(twice(), 9).await.unwrap().granted(), 2);
        assert_eq!(fixed.peek("x").await.unwrap().remaining(), 1);
    }

    async fn shadow_gate_grants_all_and_charges_what_it_has(world) {
        for gate in gates(world) {
            let shadow = gate.clone().shadow(true);
            let full = shadow.take_up_to("x", 4).await.unwrap();
            assert_eq!((full.granted(), full.decision().is_shadow()), (4, false), "{gate:?}");
            let over = shadow.take_up_to("x", 4).await.unwrap();
            assert_eq!((over.granted(), over.decision().is_shadow()), (4, true), "{gate:?}");
            assert!(over.is_full() && over.decision().is_allowed());
            assert_eq!(gate.peek("x").await.unwrap().remaining(), 0, "{gate:?}");
            let over_capacity = shadow.key("y").cost(7).take_up_to(2).await.unwrap();
            assert_eq!((over_capacity.granted(), over_capacity.decision().is_shadow()), (2, true), "{gate:?}");
        }
    }

    async fn shadow_gate_does_not_restrict_a_group(world) {
        let [_, _, fixed, _, log, ..] = gates(world);
        let small = world.gate("small", Quota::fixed_window(2, MINUTE)).shadow(true);
        let grant = world.limiter.take_up_to([small.key("x"), fixed.key("x"), log.key("x")], 5).await.unwrap();
        assert_eq!(grant.granted(), 5);
        assert!(grant.decision().each_alone()[0].is_shadow());
        assert_eq!(small.peek("x").await.unwrap().remaining(), 0);
        assert_eq!(fixed.peek("x").await.unwrap().remaining(), 1);
        let only_shadow = world.limiter.take_up_to([small.key("y")], 5).await.unwrap();
        assert_eq!(only_shadow.granted(), 5);
    }

    async fn switch_grants_all_or_nothing_and_charges_nothing(world) {
        let fixed = world.gate("fixed", Quota::fixed_window(6, MINUTE));
        let log = world.gate("log", Quota::sliding_log(4, MINUTE));
        let both = || [fixed.key("x"), log.key("x")];
        world.limiter.control().switch("fixed", Switch::Open, None).await.unwrap();
        let open = fixed.take_up_to("x", 50).await.unwrap();
        assert_eq!((open.granted(), open.decision().source()), (50, Source::Switch));
        assert_eq!(world.limiter.take_up_to(both(), 9).await.unwrap().granted(), 4);
        world.limiter.control().switch("fixed", Switch::Closed, None).await.unwrap();
        let closed = fixed.take_up_to("x", 50).await.unwrap();
        assert_eq!((closed.granted(), closed.decision().is_allowed()), (0, false));
        assert_eq!(world.limiter.take_up_to(both(), 9).await.unwrap().granted(), 0);
        world.limiter.control().end_switch("fixed").await.unwrap();
        assert_eq!(fixed.peek("x").await.unwrap().remaining(), 6);
    }

    async fn override_of_a_key_decides_its_grants(world) {
        let fixed = world.gate("fixed", Quota::fixed_window(6, MINUTE));
        let ten = Quota::fixed_window(10, MINUTE);
        world.limiter.control().set_override("fixed", "x", ten, MINUTE * 9).await.unwrap();
        assert_eq!(granted(&fixed, "x", 50).await, 10);
        assert_eq!(granted(&fixed, "y", 50).await, 6);
    }

    async fn units_of_open_reservations_are_not_granted(world) {
        for gate in gates(world) {
            let holding = gate.clone().holds();
            let reserved = world.limiter.reserve([holding.key("x").cost(4)]).ttl(MINUTE / 2).back().await.unwrap();
            assert_eq!(granted(&holding, "x", 9).await, 2, "{gate:?}");
            assert_eq!(granted(&holding, "x", 9).await, 0, "{gate:?}");
            world.limiter.cancel(reserved.token().unwrap()).await.unwrap();
            if gate.name() != Some("strict") {
                assert_eq!(granted(&holding, "x", 9).await, 4, "{gate:?}");
            }
        }
    }

    async fn colocated_keys_are_granted_together(world) {
        let [token, _, fixed, ..] = gates(world);
        let both = || [token.key("tenant"), fixed.key("user").colocate_with("tenant").cost(3)];
        assert_eq!(world.limiter.take_up_to(both(), 9).await.unwrap().granted(), 2);
    }

    async fn gate_of_another_limiter_and_no_check_are_errors(world) {
        let other = tidegate::Limiter::in_memory().gate("other", Quota::fixed_window(6, MINUTE));
        assert!(world.limiter.take_up_to([other.key("x")], 3).await.unwrap_err().is_config());
        let none: [tidegate::Check; 0] = [];
        assert!(world.limiter.take_up_to(none, 3).await.unwrap_err().is_config());
        let [token, ..] = gates(world);
        assert!(token.key("x").deadline(Duration::ZERO).take_up_to(3).await.unwrap_err().is_config());
    }

    async fn in_flight_limit_is_an_error_that_names_acquire(world) {
        let gate = world.limiter.gate("gate", Quota::in_flight(5));
        let error = gate.take_up_to("x", 3).await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains("acquire"), "{error}");
        let other = world.gate("other", Quota::fixed_window(6, MINUTE));
        let error = world.limiter.take_up_to([gate.key("x"), other.key("x")], 3).await.unwrap_err();
        assert!(error.is_config(), "{error}");
        assert_eq!(other.peek("x").await.unwrap().remaining(), 6);
    }
}
