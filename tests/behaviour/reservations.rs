//! Reservations that any process can settle: reserve, commit, cancel, and the end of a hold.

use std::time::Duration;

use tidegate::{Gate, HeldReservation, Limiter, Quota, Rate, Settlement, Token};

use crate::support::behaviours;
use crate::support::world::World;

const DAY: Duration = Duration::from_secs(86_400);
const TTL: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

/// A quota of each algorithm of 1,000 units that none returns to within an hour.
fn gates(world: &World) -> [Gate; 5] {
    [
        world.gate("token", Quota::token_bucket(1_000, Rate::new(1, DAY))),
        world.gate("leaky", Quota::leaky_bucket(1_000, Rate::new(1, DAY))),
        world.gate("fixed", Quota::fixed_window(1_000, 30 * DAY)),
        world.gate("log", Quota::sliding_log(1_000, 30 * DAY)),
        world.gate("counter", Quota::sliding_counter(1_000, 30 * DAY)),
    ]
}

fn budget(world: &World) -> Gate {
    world.gate("budget", Quota::fixed_window(1_000, DAY))
}

async fn left(gate: &Gate, key: &str) -> u64 {
    gate.peek(key).await.unwrap().remaining()
}

async fn left_of_each(gates: &[Gate], key: &str) -> Vec<u64> {
    let mut all = Vec::new();
    for gate in gates {
        all.push(left(gate, key).await);
    }
    all
}

async fn reserve(world: &World, gate: &Gate, units: u64) -> HeldReservation {
    world.limiter.reserve([gate.key("acme").cost(units)]).ttl(TTL).await.unwrap()
}

/// Reserves units that return at the end of the hold. Returns the token.
async fn reserve_back(world: &World, gate: &Gate, units: u64) -> Token {
    let reserved = world.limiter.reserve([gate.key("acme").cost(units)]).ttl(TTL).back().await.unwrap();
    reserved.token().unwrap().clone()
}

async fn commit(limiter: &Limiter, token: &Token, actual: u64) -> Settlement {
    limiter.commit(token, [actual]).await.unwrap()[0]
}

behaviours! {
    async fn commit_returns_the_units_that_were_not_used(world) {
        let gates = gates(world);
        let checks = gates.iter().map(|gate| gate.key("acme").cost(400));
        let reserved = world.limiter.reserve(checks).await.unwrap();
        assert!(reserved.is_allowed() && reserved.decision().each_alone().len() == 5);
        assert_eq!(left_of_each(&gates, "acme").await, [600; 5]);
        let token = reserved.token().unwrap();
        assert_eq!(token.gates().collect::<Vec<_>>(), ["token", "leaky", "fixed", "log", "counter"]);
        let settled = world.limiter.commit(token, [120, 0, 400, 399, 1]).await.unwrap();
        assert_eq!(settled, [Settlement::Settled; 5]);
        assert_eq!(left_of_each(&gates, "acme").await, [880, 1_000, 600, 601, 999]);
    }

    async fn commit_of_more_than_reserved_is_charged_beyond_the_limit(world) {
        let gates = gates(world);
        let reserved = world.limiter.reserve(gates.iter().map(|gate| gate.key("acme").cost(900))).await.unwrap();
        let settled = world.limiter.commit(reserved.token().unwrap(), [1_500; 5]).await.unwrap();
        assert_eq!(settled, [Settlement::Settled; 5]);
        assert_eq!(left_of_each(&gates, "acme").await, [0; 5]);
        for gate in &gates {
            gate.refund("acme", 501).await.unwrap();
        }
        assert_eq!(left_of_each(&gates, "acme").await, [1; 5], "500 units of debt were repaid first");
    }

    async fn cancel_returns_all_units_and_only_the_first_settle_counts(world) {
        let gates = gates(world);
        let reserved = world.limiter.reserve(gates.iter().map(|gate| gate.key("acme").cost(250))).await.unwrap();
        let token = reserved.token().unwrap();
        assert_eq!(world.limiter.cancel(token).await.unwrap(), [Settlement::Settled; 5]);
        assert_eq!(left_of_each(&gates, "acme").await, [1_000; 5]);
        assert_eq!(world.limiter.cancel(token).await.unwrap(), [Settlement::Nothing; 5]);
        assert_eq!(world.limiter.commit(token, [250; 5]).await.unwrap(), [Settlement::Nothing; 5]);
        assert_eq!(left_of_each(&gates, "acme").await, [1_000; 5]);
    }

    async fn denied_reservation_has_no_token_and_charges_nothing(world) {
        let (requests, tokens) = (
            world.gate("requests", Quota::token_bucket(10, Rate::per_minute(1))),
            world.gate("tokens", Quota::token_bucket(1_000, Rate::per_minute(1))),
        );
        let checks = || [requests.key("acme"), tokens.key("acme").cost(600)];
        assert!(world.limiter.reserve(checks()).await.unwrap().is_allowed());
        let denied = world.limiter.reserve(checks()).await.unwrap();
        assert!(!denied.is_allowed() && denied.token().is_none());
        assert_eq!(denied.decision().binding().gate(), "tokens");
        assert_eq!(denied.decision().retry_after(), Duration::from_secs(200 * 60));
        assert_eq!((left(&requests, "acme").await, left(&tokens, "acme").await), (9, 400));
    }

    async fn kept_hold_ends_with_its_units_charged(world) {
        let budget = budget(world);
        let reserved = reserve(world, &budget, 700).await;
        let token = reserved.token().unwrap();
        world.advance(TTL);
        assert_eq!(commit(&world.limiter, token, 100).await, Settlement::Late);
        assert_eq!(left(&budget, "acme").await, 300);
    }

    async fn late_commit_of_a_kept_hold_charges_what_exceeds_its_units_once(world) {
        for gate in gates(world) {
            let reserved = reserve(world, &gate, 400).await;
            let token = reserved.token().unwrap();
            world.advance(2 * TTL - MS);
            assert_eq!(commit(&world.limiter, token, 700).await, Settlement::Late);
            assert_eq!(left(&gate, "acme").await, 300, "{gate:?}");
            assert_eq!(commit(&world.limiter, token, 700).await, Settlement::Nothing);
            assert_eq!(left(&gate, "acme").await, 300, "{gate:?}");
        }
    }

    async fn kept_hold_can_be_settled_up_to_its_end(world) {
        let budget = budget(world);
        let reserved = reserve(world, &budget, 700).await;
        world.advance(TTL - MS);
        assert_eq!(commit(&world.limiter, reserved.token().unwrap(), 100).await, Settlement::Settled);
        assert_eq!(left(&budget, "acme").await, 900);
    }

    /// As in Kuadrant's RFC 0021: reserve, then expire.
    async fn returned_units_are_free_at_the_end_of_the_hold_and_not_before(world) {
        let budget = budget(world);
        let _token = reserve_back(world, &budget, 700).await;
        world.advance(TTL - MS);
        assert!(!reserve(world, &budget, 301).await.is_allowed());
        world.advance(MS);
        assert!(reserve(world, &budget, 1_000).await.is_allowed());
    }

    async fn late_commit_charges_its_units_once(world) {
        let budget = budget(world);
        let token = reserve_back(world, &budget, 700).await;
        world.advance(TTL);
        assert_eq!(commit(&world.limiter, &token, 500).await, Settlement::Late);
        assert_eq!(left(&budget, "acme").await, 500);
        assert_eq!(commit(&world.limiter, &token, 500).await, Settlement::Nothing);
        assert_eq!(left(&budget, "acme").await, 500);
    }

    /// LiteLLM pull request 36541: a holder whose hold had ended decremented the count of a newer one.
    async fn settle_of_an_ended_hold_leaves_newer_holds(world) {
        let budget = budget(world);
        let ended = reserve_back(world, &budget, 1_000).await;
        world.advance(TTL);
        let newer = reserve_back(world, &budget, 600).await;
        assert_eq!(commit(&world.limiter, &ended, 0).await, Settlement::Late);
        assert_eq!(left(&budget, "acme").await, 400);
        assert_eq!(commit(&world.limiter, &newer, 100).await, Settlement::Settled);
        assert_eq!(left(&budget, "acme").await, 900);
    }

    /// LiteLLM pull request 27001 and issue 17323: denials leaked units, and counters stayed stuck.
    async fn neither_denied_nor_abandoned_reservations_leak_units(world) {
        let (budget, small) = (budget(world), world.gate("small", Quota::fixed_window(1, DAY)));
        let _abandoned = reserve_back(world, &budget, 900).await;
        assert!(small.check("acme").await.unwrap().is_allowed());
        for _ in 0..20 {
            let checks = [budget.key("acme").cost(5), small.key("acme")];
            assert!(!world.limiter.reserve(checks).ttl(TTL).back().await.unwrap().is_allowed());
        }
        assert_eq!(left(&budget, "acme").await, 100);
        world.advance(TTL);
        assert!(reserve(world, &budget, 1_000).await.is_allowed());
    }

    async fn commit_two_ttls_after_the_reservation_finds_nothing(world) {
        let budget = budget(world);
        let token = reserve_back(world, &budget, 700).await;
        world.advance(2 * TTL);
        assert_eq!(commit(&world.limiter, &token, 500).await, Settlement::Nothing);
        assert_eq!(left(&budget, "acme").await, 1_000, "the units have returned");
    }

    async fn abandoned_holds_end_at_all_keys_of_a_large_reservation(world) {
        let budget = budget(world);
        for _ in 0..4 {
            let checks = (0..100).map(|key| budget.key(key.to_string()).colocate_with("0").cost(600));
            assert!(world.limiter.reserve(checks).ttl(TTL).back().await.unwrap().is_allowed());
            world.advance(TTL);
        }
    }

    async fn check_of_a_gate_with_holds_ends_them(world) {
        let budget = budget(world);
        let _token = reserve_back(world, &budget, 1_000).await;
        let ending = budget.clone().holds();
        world.advance(TTL - MS);
        assert!(!ending.check("acme").await.unwrap().is_allowed());
        world.advance(MS);
        assert!(!budget.check("acme").await.unwrap().is_allowed(), "other checks do not see holds");
        // A denial may be cached for half a second.
        world.advance(Duration::from_secs(1));
        assert!(ending.check("acme").await.unwrap().is_allowed());
        assert_eq!(left(&budget, "acme").await, 999);
    }

    async fn checks_of_a_gate_with_holds_can_be_batched_and_grouped(world) {
        let budget = budget(world).holds();
        let plain = world.gate("plain", Quota::token_bucket(1_000, Rate::per_minute(1)));
        let _token = reserve_back(world, &budget, 1_000).await;
        world.advance(TTL + Duration::from_secs(1));
        let all = world.limiter.check_all([budget.key("acme").cost(10), plain.key("acme")]).await.unwrap();
        assert!(all.is_allowed());
        let each = budget.check_many(["acme", "acme", "other"]).await;
        assert!(each.into_iter().all(|decided| decided.unwrap().is_allowed()));
        assert_eq!((left(&budget, "acme").await, left(&plain, "acme").await), (988, 999));
    }

    async fn reservation_with_a_known_id_charges_nothing(world) {
        let budget = budget(world);
        let reserve = || world.limiter.reserve([budget.key("acme").cost(600)]).ttl(TTL).id("request-1");
        let first = reserve().await.unwrap();
        world.advance(MS);
        let again = reserve().await.unwrap();
        assert!(again.is_allowed() && again.decision().binding().is_allowed());
        assert_eq!(first.token(), again.token());
        assert_eq!(left(&budget, "acme").await, 400);
        assert_eq!(commit(&world.limiter, again.token().unwrap(), 1).await, Settlement::Settled);
        assert_eq!(commit(&world.limiter, first.token().unwrap(), 1).await, Settlement::Nothing);
        let after = reserve().await.unwrap();
        assert_eq!(left(&budget, "acme").await, 399, "a settled reservation is made again");
        assert_eq!(commit(&world.limiter, after.token().unwrap(), 0).await, Settlement::Settled);
    }

    async fn known_id_is_not_free_for_other_keys_costs_or_ttls(world) {
        let budget = budget(world);
        let reserve = |key: &str, units| world.limiter.reserve([budget.key(key).cost(units)]).ttl(TTL).id("a");
        assert!(reserve("acme", 100).await.unwrap().is_allowed());
        assert!(reserve("other", 100).await.unwrap().is_allowed());
        assert!(reserve("acme", 101).await.unwrap().is_allowed());
        assert!(reserve("acme", 100).ttl(2 * TTL).await.unwrap().is_allowed());
        assert!(reserve("acme", 100).back().await.unwrap().is_allowed());
        assert_eq!((left(&budget, "acme").await, left(&budget, "other").await), (1_000 - 401, 900));
    }

    async fn token_settles_as_text(world) {
        let budget = budget(world);
        let key = "ünïcode {key}%".repeat(20);
        let reserved = world.limiter.reserve([budget.key(&key).cost(600)]).await.unwrap();
        let text = reserved.token().unwrap().to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')));
        assert_eq!(commit(&world.limiter, &text.parse().unwrap(), 1).await, Settlement::Settled);
        assert_eq!(left(&budget, &key).await, 999);
    }

    async fn checks_of_one_key_are_one_hold(world) {
        let budget = budget(world);
        let checks = || [budget.key("acme").cost(300), budget.key("acme").cost(200)];
        let reserved = world.limiter.reserve(checks()).await.unwrap();
        let settled = world.limiter.commit(reserved.token().unwrap(), [300, 10]).await.unwrap();
        assert_eq!(settled, [Settlement::Settled; 2]);
        assert_eq!(left(&budget, "acme").await, 690);
        assert!(!world.limiter.reserve([checks(), checks()].concat()).await.unwrap().is_allowed());
    }

    async fn check_of_no_cost_holds_nothing(world) {
        let (budget, other) = (budget(world), world.gate("other", Quota::token_bucket(5, Rate::per_minute(5))));
        let checks = [budget.key("acme").cost(0), other.key("acme").cost(2)];
        let reserved = world.limiter.reserve(checks).await.unwrap();
        let settled = world.limiter.commit(reserved.token().unwrap(), [0, 1]).await.unwrap();
        assert_eq!(settled, [Settlement::Nothing, Settlement::Settled]);
        assert_eq!((left(&budget, "acme").await, left(&other, "acme").await), (1_000, 4));
    }

    async fn shadow_gate_denies_nothing_and_is_settled_with_the_others(world) {
        let budget = budget(world);
        let shadow = world.gate("shadow", Quota::fixed_window(100, DAY)).shadow(true);
        let checks = || [shadow.key("acme").cost(60), budget.key("acme").cost(60)];
        let first = world.limiter.reserve(checks()).await.unwrap();
        let second = world.limiter.reserve(checks()).await.unwrap();
        assert!(second.is_allowed() && second.decision().each_alone()[0].is_shadow());
        assert_eq!((left(&shadow, "acme").await, left(&budget, "acme").await), (40, 880));
        let settled = world.limiter.commit(first.token().unwrap(), [10, 10]).await.unwrap();
        assert_eq!(settled, [Settlement::Settled; 2]);
        assert_eq!((left(&shadow, "acme").await, left(&budget, "acme").await), (90, 930));
        // The denied check was not charged, so that a repeated settle does not charge it again.
        let settled = world.limiter.commit(second.token().unwrap(), [10, 10]).await.unwrap();
        assert_eq!(settled, [Settlement::Nothing, Settlement::Settled]);
        let settled = world.limiter.commit(second.token().unwrap(), [10, 10]).await.unwrap();
        assert_eq!(settled, [Settlement::Nothing; 2]);
        assert_eq!((left(&shadow, "acme").await, left(&budget, "acme").await), (90, 980));
    }

    async fn shadow_gate_holds_nothing_if_another_gate_denies(world) {
        let budget = budget(world);
        let shadow = world.gate("shadow", Quota::fixed_window(100, DAY)).shadow(true);
        assert!(reserve(world, &budget, 1_000).await.is_allowed());
        let denied = world.limiter.reserve([shadow.key("acme").cost(60), budget.key("acme")]).await.unwrap();
        assert!(denied.token().is_none());
        assert_eq!(left(&shadow, "acme").await, 100);
    }

    async fn shadow_gate_holds_nothing_if_the_reservation_is_an_error(world) {
        let budget = budget(world);
        let shadow = world.gate("shadow", Quota::fixed_window(100, DAY)).shadow(true);
        let checks = [shadow.key("acme").cost(60), budget.key("acme").cost(1_001)];
        assert!(world.limiter.reserve(checks).await.unwrap_err().is_over_capacity());
        assert_eq!(left(&shadow, "acme").await, 100);
    }

    async fn commit_lets_a_denied_key_pass_at_once(world) {
        let budget = budget(world);
        let reserved = reserve(world, &budget, 1_000).await;
        assert!(!budget.check("acme").await.unwrap().is_allowed());
        assert_eq!(commit(&world.limiter, reserved.token().unwrap(), 999).await, Settlement::Settled);
        assert!(budget.check("acme").await.unwrap().is_allowed());
    }

    async fn reset_removes_the_hold(world) {
        let budget = budget(world);
        let reserved = reserve(world, &budget, 700).await;
        budget.reset("acme").await.unwrap();
        budget.penalize("acme", 10).await.unwrap();
        assert_eq!(commit(&world.limiter, reserved.token().unwrap(), 0).await, Settlement::Nothing);
        assert_eq!(left(&budget, "acme").await, 990);
    }

    async fn units_of_a_past_window_are_not_returned(world) {
        let minute = world.gate("minute", Quota::fixed_window(1_000, TTL).aligned_to_clock());
        let reserved = world.limiter.reserve([minute.key("acme").cost(700)]).ttl(2 * TTL).await.unwrap();
        world.advance(TTL);
        assert!(minute.check_cost("acme", 900).await.unwrap().is_allowed());
        assert_eq!(commit(&world.limiter, reserved.token().unwrap(), 0).await, Settlement::Settled);
        assert_eq!(left(&minute, "acme").await, 100);
    }

    async fn colocated_keys_are_reserved_and_settled_together(world) {
        let budget = budget(world);
        let key = |key: &str| budget.key(key).cost(100).colocate_with("tenant:7");
        let checks: Vec<_> = (0..8).map(|user| key(&format!("user:{user}"))).collect();
        let reserved = world.limiter.reserve(&checks).await.unwrap();
        let token: Token = reserved.token().unwrap().to_string().parse().unwrap();
        assert_eq!(world.limiter.commit(&token, [1; 8]).await.unwrap(), [Settlement::Settled; 8]);
        for check in checks {
            assert_eq!(check.peek().await.unwrap().remaining(), 999);
        }
    }

    async fn cost_above_the_limit_is_an_error_and_charges_nothing(world) {
        let (budget, other) = (budget(world), world.gate("other", Quota::token_bucket(5, Rate::per_minute(5))));
        let checks = [other.key("acme"), budget.key("acme").cost(1_001)];
        let error = world.limiter.reserve(checks).await.unwrap_err();
        assert!(error.is_over_capacity() && error.gate() == Some("budget"), "{error}");
        assert_eq!(left(&other, "acme").await, 5);
    }
}
