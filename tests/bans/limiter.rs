//! Bans on every store, with exact times.

use std::time::Duration;

use tidegate::{Ban, Gate, Limiter, ManualClock, OnFailure, Quota, Rate, Source, Switch};

use crate::support::acquired::AcquiredParts;
use crate::support::behaviours;
use crate::support::fixture::{builder, closed_port, quotas};
use crate::support::world::{World, check, passes};

const SECOND: Duration = Duration::from_secs(1);
const MICRO: Duration = Duration::from_micros(1);
const HOUR: Duration = Duration::from_secs(3_600);

const BAN: Ban = Ban::after(3, Duration::from_secs(600)).lasting(Duration::from_secs(7_200));

/// Returns a ban that differs from [`BAN`] in the number of denials.
fn ban_after(denials: u64) -> Ban {
    Ban::after(denials, BAN.within()).lasting(BAN.lasts())
}

/// Returns a gate that admits one unit per hour.
fn gate(world: &World, ban: Ban) -> Gate {
    world.limiter.gate("login", Quota::fixed_window(1, HOUR)).ban(ban)
}

/// Makes checks that the gate denies. Returns whether the last one began a ban that lasts for `lasts`.
async fn denied(gate: &Gate, key: &str, checks: usize, lasts: Duration) -> bool {
    let mut retry_after = Duration::ZERO;
    for _ in 0..checks {
        let decision = check(gate, key).await;
        assert!(!decision.is_allowed(), "{decision:?}");
        retry_after = decision.retry_after();
    }
    retry_after == lasts
}

behaviours! {
    async fn last_denial_bans_the_key_and_reports_the_end_of_the_ban(world) {
        for (name, quota) in quotas(1, HOUR) {
            for after in [1, 2, 3, 20] {
                world.set(Duration::ZERO);
                let ban = ban_after(after);
                let gate = world.limiter.gate(&format!("{name}.{after}"), quota).ban(ban);
                assert_eq!(passes(&gate, "x", 1).await, 1);
                let before = after as usize - 1;
                assert!(!denied(&gate, "x", before, BAN.lasts()).await, "{quota}, {after}");
                let last = check(&gate, "x").await;
                assert!(!last.is_allowed());
                assert_eq!((last.retry_after(), last.remaining()), (BAN.lasts(), 0), "{quota}, {after}");
                assert!(last.reset_after() >= BAN.lasts());
                // Another key is not banned, and denials by the ban do not prolong it.
                assert_eq!(passes(&gate, "y", 1).await, 1, "{quota}");
                world.advance(BAN.lasts() - MICRO);
                assert!(denied(&gate, "x", 30, MICRO).await, "{quota}, {after}");
                world.advance(MICRO);
                assert_eq!(passes(&gate, "x", 1).await, 1, "{quota}, {after}");
                // The count has started anew.
                assert!(!denied(&gate, "x", before, BAN.lasts()).await, "{quota}, {after}");
                assert!(denied(&gate, "x", 1, BAN.lasts()).await, "{quota}, {after}");
            }
        }
    }

    async fn denials_count_until_a_microsecond_before_their_time_ends(world) {
        let ban = Ban::after(2, 10 * SECOND).lasting(BAN.lasts());
        let gate = gate(world, ban);
        for (key, first, second, is_banned) in [
            ("a", Duration::ZERO, 10 * SECOND - MICRO, true),
            ("b", Duration::ZERO, 10 * SECOND, false),
            // The time ends with a millisecond.
            ("c", MICRO, 10 * SECOND + 999 * MICRO, true),
            ("d", MICRO, 10 * SECOND + 1_000 * MICRO, false),
        ] {
            world.set(Duration::ZERO);
            assert_eq!(passes(&gate, key, 1).await, 1);
            world.set(first);
            assert!(!denied(&gate, key, 1, ban.lasts()).await);
            world.set(second);
            assert_eq!(denied(&gate, key, 1, ban.lasts()).await, is_banned, "{key}");
            // Otherwise this was the first denial of the next time.
            assert!(denied(&gate, key, 1, ban.lasts()).await, "{key}");
        }
    }

    async fn denials_do_not_prolong_the_time_in_which_they_count(world) {
        let ban = Ban::after(3, 10 * SECOND).lasting(BAN.lasts());
        let gate = gate(world, ban);
        assert_eq!(passes(&gate, "x", 1).await, 1);
        for second in [0, 9, 18, 27, 36] {
            world.set(second * SECOND);
            assert!(!denied(&gate, "x", 1, ban.lasts()).await, "at {second} s");
        }
    }

    async fn unblock_ends_the_ban_and_forgets_the_denials(world) {
        let gate = gate(world, BAN);
        assert_eq!(passes(&gate, "x", 1).await, 1);
        assert!(denied(&gate, "x", 3, BAN.lasts()).await);
        gate.unblock("x").await.unwrap();
        assert!(!denied(&gate, "x", 2, BAN.lasts()).await);
        // Also of a key that is not banned yet.
        gate.unblock("x").await.unwrap();
        assert!(!denied(&gate, "x", 2, BAN.lasts()).await);
        assert!(denied(&gate, "x", 1, BAN.lasts()).await);
    }

    async fn reset_ends_the_ban_and_forgets_the_denials(world) {
        let gate = gate(world, BAN);
        for _ in 0..2 {
            assert_eq!(passes(&gate, "x", 1).await, 1);
            assert!(!denied(&gate, "x", 2, BAN.lasts()).await);
            gate.reset("x").await.unwrap();
        }
        assert_eq!(passes(&gate, "x", 1).await, 1);
        assert!(denied(&gate, "x", 3, BAN.lasts()).await);
        gate.reset("x").await.unwrap();
        assert_eq!(passes(&gate, "x", 1).await, 1);
    }

    async fn denials_by_a_block_are_not_counted(world) {
        let gate = gate(world, BAN);
        gate.block("x", HOUR).await.unwrap();
        assert!(denied(&gate, "x", 30, HOUR).await);
        world.advance(HOUR);
        assert_eq!(passes(&gate, "x", 1).await, 1);
        assert!(!denied(&gate, "x", 2, BAN.lasts()).await);
    }

    async fn only_the_gate_that_denies_a_group_counts(world) {
        let gate = gate(world, BAN);
        let other = world.limiter.gate("other", Quota::fixed_window(1, HOUR));
        assert_eq!(passes(&other, "x", 1).await, 1);
        for _ in 0..10 {
            let denied = world.limiter.check_all([other.key("x"), gate.key("x")]).await.unwrap();
            assert!(!denied.is_allowed());
            assert_eq!(denied.each_alone()[1].retry_after(), Duration::ZERO);
        }
        assert_eq!(passes(&gate, "x", 1).await, 1);
        // Now it denies, too.
        for denial in 1..=4 {
            let denied = world.limiter.check_all([other.key("x"), gate.key("x")]).await.unwrap();
            assert!(!denied.is_allowed());
            assert_eq!(denied.retry_after() == BAN.lasts(), denial >= 3, "denial {denial}");
        }
    }

    async fn peeks_and_checks_in_shadow_mode_are_not_counted(world) {
        let gate = gate(world, BAN);
        assert_eq!(passes(&gate, "x", 1).await, 1);
        let shadow = gate.clone().shadow(true);
        for _ in 0..10 {
            assert!(!gate.peek("x").await.unwrap().is_allowed());
            assert!(shadow.check("x").await.unwrap().is_shadow());
        }
        assert!(!denied(&gate, "x", 2, BAN.lasts()).await);
        assert!(denied(&gate, "x", 1, BAN.lasts()).await);
        assert!(shadow.check("x").await.unwrap().is_shadow(), "the ban denies in shadow mode, too");
    }

    async fn partial_grant_counts_as_one_denial_if_it_grants_nothing(world) {
        let gate = world.limiter.gate("mail", Quota::fixed_window(5, HOUR)).ban(BAN);
        for _ in 0..5 {
            // Admits one unit and denies 8 others.
            assert_eq!(gate.take_up_to("x", 4).await.unwrap().granted(), 4);
            let grant = gate.take_up_to("x", 9).await.unwrap();
            assert_eq!(grant.granted(), 1);
            assert!(grant.decision().retry_after() <= HOUR);
            gate.refund("x", 5).await.unwrap();
        }
        assert_eq!(gate.take_up_to("x", 9).await.unwrap().granted(), 5);
        for denial in 1..=3 {
            let grant = gate.take_up_to("x", 9).await.unwrap();
            assert_eq!(grant.granted(), 0);
            assert_eq!(grant.decision().retry_after() == BAN.lasts(), denial == 3, "denial {denial}");
        }
        // The same for a group, and for a grant of one.
        let group = world.limiter.gate("group", Quota::fixed_window(5, HOUR)).ban(BAN);
        assert_eq!(world.limiter.take_up_to([group.key("x")], 9).await.unwrap().granted(), 5);
        for denial in 1..=3 {
            let n = if denial == 2 { 1 } else { 9 };
            let grant = world.limiter.take_up_to([group.key("x")], n).await.unwrap();
            assert_eq!(grant.decision().retry_after() == BAN.lasts(), denial == 3, "denial {denial}");
        }
    }

    async fn each_check_of_many_is_counted(world) {
        let gate = gate(world, ban_after(7));
        assert_eq!(passes(&gate, "x", 1).await, 1);
        let _ = gate.check_many(["x", "y", "x", "x"]).await;
        let checks = (0..3).map(|_| gate.key("x"));
        let _ = world.limiter.check_each(checks.collect::<Vec<_>>()).await;
        assert!(denied(&gate, "x", 1, BAN.lasts()).await);
        assert!(!denied(&gate, "y", 1, BAN.lasts()).await);
    }

    async fn waiting_checks_and_impatient_ones_are_counted(world) {
        let queue = world.limiter.gate("queue", Quota::leaky_bucket(5, Rate::per_minute(1))).ban(BAN);
        assert!(queue.until_allowed("x", Duration::ZERO).await.unwrap().is_allowed());
        for denial in 1..=3 {
            let decision = queue.until_allowed("x", SECOND).await.unwrap();
            assert!(!decision.is_allowed());
            assert_eq!(decision.retry_after() == BAN.lasts(), denial == 3, "denial {denial}");
        }
        let gate = gate(world, BAN);
        assert_eq!(passes(&gate, "x", 1).await, 1);
        for denial in 1..=3 {
            let denied = gate.reserve("x", 1).await.unwrap();
            assert_eq!(denied.decision().retry_after() == BAN.lasts(), denial == 3, "denial {denial}");
        }
    }

    async fn gate_without_the_ban_is_denied_by_it_and_counts_nothing(world) {
        let with = gate(world, BAN);
        let without = world.limiter.gate("login", Quota::fixed_window(1, HOUR));
        assert_eq!(passes(&without, "x", 1).await, 1);
        for denial in 1..=3 {
            // A denial that this gate has cached is counted nevertheless.
            assert!(!denied(&without, "x", 9, BAN.lasts()).await);
            assert_eq!(denied(&with, "x", 1, BAN.lasts()).await, denial == 3, "denial {denial}");
        }
        world.advance(HOUR);
        assert!(denied(&without, "x", 1, BAN.lasts() - HOUR).await);
    }

    async fn bans_of_two_versions_share_the_count(world) {
        let (strict, mild) = (gate(world, ban_after(2)), gate(world, ban_after(9)));
        assert_eq!(passes(&mild, "x", 1).await, 1);
        assert!(!denied(&mild, "x", 5, BAN.lasts()).await);
        assert!(denied(&strict, "x", 1, BAN.lasts()).await);
        // A shorter time ends the count earlier.
        strict.unblock("x").await.unwrap();
        let short = gate(world, Ban::after(9, SECOND).lasting(BAN.lasts()));
        assert!(!denied(&mild, "x", 3, BAN.lasts()).await);
        assert!(!denied(&short, "x", 4, BAN.lasts()).await);
        world.advance(SECOND);
        assert!(!denied(&mild, "x", 8, BAN.lasts()).await);
        assert!(denied(&mild, "x", 1, BAN.lasts()).await);
    }

    async fn keys_of_any_bytes_are_counted_apart(world) {
        let gate = gate(world, BAN);
        let keys = ["", "x", "denials/", "{a}", "a:{b}*?[", "a b\n", "%", &"k".repeat(500), &"k".repeat(501)];
        for key in keys {
            assert_eq!(passes(&gate, key, 1).await, 1);
            assert!(!denied(&gate, key, 2, BAN.lasts()).await);
        }
        for key in keys {
            assert!(denied(&gate, key, 1, BAN.lasts()).await, "{key:?}");
        }
    }

    async fn calendar_window_and_counted_denials_can_have_a_ban(world) {
        for quota in [
            Quota::calendar_window(1, "day@Europe/Berlin".parse().unwrap()),
            Quota::sliding_log(1, HOUR).count_denied(),
        ] {
            let lasts = 48 * HOUR;
            let gate = world.limiter.gate("daily", quota).ban(BAN.lasting(lasts));
            assert_eq!(passes(&gate, "x", 1).await, 1);
            assert!(!denied(&gate, "x", 2, lasts).await, "{quota}");
            assert!(denied(&gate, "x", 1, lasts).await, "{quota}");
            world.advance(lasts);
            assert_eq!(passes(&gate, "x", 1).await, 1, "{quota}");
            world.set(Duration::ZERO);
        }
    }

    async fn overrides_replace_the_quota_and_keep_the_ban(world) {
        let gate = gate(world, BAN);
        let control = world.limiter.control();
        control.set_override("login", "x", Quota::fixed_window(2, HOUR), 9 * HOUR).await.unwrap();
        assert_eq!(passes(&gate, "x", 2).await, 2);
        assert!(!denied(&gate, "x", 2, BAN.lasts()).await);
        // A switch decides without the store.
        control.switch("login", Switch::Closed, None).await.unwrap();
        assert!(!denied(&gate, "x", 9, BAN.lasts()).await);
        control.end_switch("login").await.unwrap();
        assert!(denied(&gate, "x", 1, BAN.lasts()).await);
        control.end_override("login", "x").await.unwrap();
    }
}

#[tokio::test]
async fn settings_that_contradict_a_ban_are_config_errors() {
    let limiter = Limiter::in_memory_with(ManualClock::new());
    let quota = Quota::token_bucket(5, Rate::per_minute(5));
    let gate = |ban| limiter.gate("login", quota).ban(ban);
    let in_flight = limiter.gate("jobs", Quota::in_flight(5)).ban(BAN);
    assert_eq!(Ban::after(3, HOUR).lasts(), HOUR, "by default, a ban lasts as long as its period");
    for (gate, named) in [
        (gate(ban_after(0)), "`after`"),
        (gate(ban_after(1_000_000_001)), "`after`"),
        (gate(Ban::after(3, Duration::ZERO)), "`within`"),
        (gate(Ban::after(3, Duration::from_nanos(1_000_001))), "`within`"),
        (gate(Ban::after(3, 11 * 8_766 * HOUR)), "`within`"),
        (gate(BAN.lasting(Duration::ZERO)), "`lasting`"),
        (gate(BAN.lasting(Duration::MAX)), "`lasting`"),
        (gate(BAN).holds(), "`holds`"),
        (limiter.gate("login", quota).holds().ban(BAN), "`holds`"),
        (gate(BAN).leased(tidegate::Lease::new()), "leases"),
        (limiter.gate("login", quota).leased(tidegate::Lease::new()).ban(BAN), "leases"),
        (in_flight, "in-flight"),
    ] {
        let error = gate.check("x").await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains(named), "{error}");
    }
    let gate = gate(BAN);
    let error = limiter.reserve([gate.key("x")]).await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("Gate::reserve"), "{error}");
    let jobs = limiter.gate("jobs", Quota::in_flight(5));
    let error = limiter.acquire_all([jobs.key("x"), gate.key("x")]).await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("in-flight"), "{error}");
    assert!(limiter.acquire_all([gate.key("x")]).await.unwrap().is_allowed());
}

#[tokio::test]
async fn failure_policy_counts_no_denials() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = builder(&url).on_failure(OnFailure::Local).build().unwrap();
    let gate = limiter.gate("login", Quota::fixed_window(1, HOUR)).ban(BAN);
    assert!(check(&gate, "x").await.is_allowed());
    for _ in 0..9 {
        let denied = check(&gate, "x").await;
        assert_eq!((denied.is_allowed(), denied.source()), (false, Source::Local));
        assert!(denied.retry_after() <= HOUR);
    }
}
