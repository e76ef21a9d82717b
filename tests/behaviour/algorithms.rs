//! The worked examples of each algorithm.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tidegate::algorithm::{NAMES, Storage};
use tidegate::{Quota, Rate};

use crate::support::behaviours;
use crate::support::fixture::quotas;
use crate::support::plan::Family;
use crate::support::world::{allowed, check, passes};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

behaviours! {
    async fn token_bucket_of_5_refilled_1_a_second_gives_2_after_2_seconds(world) {
        let gate = world.gate("a1", Quota::token_bucket(5, Rate::per_second(1)));
        assert_eq!(passes(&gate, "one", 6).await, 5);
        world.advance(s(2));
        assert_eq!(passes(&gate, "one", 3).await, 2);
    }

    async fn token_bucket_of_each_key_is_independent(world) {
        let gate = world.gate("a1", Quota::token_bucket(5, Rate::per_second(1)));
        assert_eq!(passes(&gate, "one", 6).await, 5);
        assert_eq!(gate.peek("two").await.unwrap().remaining(), 5);
        assert_eq!(passes(&gate, "two", 6).await, 5);
    }

    async fn token_bucket_never_fills_above_its_capacity(world) {
        let gate = world.gate("a1", Quota::token_bucket(3, Rate::per_second(2)));
        assert_eq!(passes(&gate, "key", 4).await, 3);
        world.advance(s(3));
        assert_eq!(passes(&gate, "key", 10).await, 3);
    }

    async fn token_bucket_does_not_charge_denied_checks(world) {
        let gate = world.gate("a1", Quota::token_bucket(3, Rate::new(1, s(2))));
        assert_eq!(passes(&gate, "key", 4).await, 3);
        let peek = gate.peek("key").await.unwrap();
        assert_eq!(peek.remaining(), 0);
        // Three units must refill, at two seconds each. The denied fourth check was not charged.
        assert_eq!(peek.reset_after(), s(6));
    }

    async fn token_bucket_of_10_refilled_2_a_second_passes_12_of_15_each_100_ms(world) {
        let gate = world.gate("a1", Quota::token_bucket(10, Rate::per_second(2)));
        for request in 1..=15 {
            assert_eq!(allowed(&gate, "key").await, request <= 12, "request {request}");
            world.advance(ms(100));
        }
    }

    async fn token_bucket_of_10_refilled_2_a_second_passes_15_of_15_each_200_ms(world) {
        let gate = world.gate("a1", Quota::token_bucket(10, Rate::per_second(2)));
        for _ in 1..=15 {
            assert!(allowed(&gate, "key").await);
            world.advance(ms(200));
        }
    }

    async fn token_bucket_of_4_refilled_4_a_minute_gives_one_every_15_seconds(world) {
        let gate = world.gate("a1", Quota::token_bucket(4, Rate::per_minute(4)));
        assert_eq!(passes(&gate, "key", 5).await, 4);
        for _ in 0..8 {
            world.advance(s(15) - Duration::from_micros(1));
            assert!(!allowed(&gate, "key").await);
            world.advance(Duration::from_micros(1));
            assert_eq!(passes(&gate, "key", 2).await, 1);
        }
    }

    async fn token_bucket_reports_the_numbers_in_the_docs_of_decision(world) {
        let gate = world.gate("a1", Quota::token_bucket(5, Rate::per_second(1)));
        let mut reported = Vec::new();
        for _ in 0..6 {
            let decision = check(&gate, "key").await;
            let seconds = (decision.retry_after().as_secs(), decision.reset_after().as_secs());
            reported.push((decision.is_allowed(), decision.remaining(), seconds.0, seconds.1));
        }
        let passed = [(true, 4, 0, 1), (true, 3, 0, 2), (true, 2, 0, 3), (true, 1, 0, 4), (true, 0, 1, 5)];
        assert_eq!(reported, [&passed[..], &[(false, 0, 1, 5)]].concat());
    }

    async fn leaky_bucket_spaces_admitted_checks(world) {
        let gate = world.gate("a2", Quota::leaky_bucket(3, Rate::per_second(1)));
        for delay in [0, 1, 2] {
            let decision = check(&gate, "key").await;
            assert!(decision.is_allowed());
            assert_eq!(decision.delay(), s(delay));
        }
        let fourth = check(&gate, "key").await;
        assert!(!fourth.is_allowed());
        assert_eq!((fourth.retry_after(), fourth.delay()), (s(1), s(0)));
        world.advance(s(1));
        assert_eq!(check(&gate, "key").await.delay(), s(2));
    }

    async fn leaky_bucket_in_shadow_mode_delays_nothing(world) {
        let gate = world.gate("tried", Quota::leaky_bucket(3, Rate::per_second(1))).shadow(true);
        for remaining in [2, 1, 0, 0] {
            let decision = gate.check("x").await.unwrap();
            assert_eq!((decision.delay(), decision.remaining()), (Duration::ZERO, remaining));
        }
        let grant = gate.take_up_to("y", 3).await.unwrap();
        assert_eq!((grant.granted(), grant.decision().delay()), (3, Duration::ZERO));
    }

    async fn leaky_bucket_denies_checks_that_would_exceed_their_max_delay(world) {
        let gate = world.gate("a2", Quota::leaky_bucket(10, Rate::per_second(1)));
        assert_eq!(passes(&gate, "key", 3).await, 3);
        let late = gate.key("key").max_delay(s(2)).check().await.unwrap();
        assert!(!late.is_allowed());
        assert_eq!((late.retry_after(), late.remaining()), (s(1), 7));
        world.advance(s(1) - Duration::from_micros(1));
        assert!(!gate.key("key").max_delay(s(2)).check().await.unwrap().is_allowed());
        world.advance(Duration::from_micros(1));
        let in_time = gate.key("key").max_delay(s(2)).check().await.unwrap();
        assert_eq!((in_time.is_allowed(), in_time.delay()), (true, s(2)));
    }

    async fn fixed_window_of_3_a_second_denies_the_4th(world) {
        let gate = world.gate("a3", Quota::fixed_window(3, s(1)));
        assert_eq!(passes(&gate, "key", 4).await, 3);
        world.advance(s(1));
        assert_eq!(passes(&gate, "key", 4).await, 3);
    }

    async fn fixed_window_aligned_to_the_clock_admits_twice_its_limit_across_a_boundary(world) {
        let gate = world.gate("a3", Quota::fixed_window(5, s(60)).aligned_to_clock());
        world.set(s(59));
        assert_eq!(passes(&gate, "key", 6).await, 5);
        world.set(s(60));
        assert_eq!(passes(&gate, "key", 6).await, 5);
    }

    async fn fixed_window_starts_with_the_first_charge_and_not_with_a_peek(world) {
        let gate = world.gate("a3", Quota::fixed_window(5, s(60)));
        assert!(gate.peek("key").await.unwrap().is_allowed());
        world.set(s(59));
        assert_eq!(check(&gate, "key").await.reset_after(), s(60));
        assert_eq!(passes(&gate, "key", 5).await, 4);
        world.set(s(60));
        assert_eq!(check(&gate, "key").await.retry_after(), s(59));
        world.set(s(119));
        assert_eq!(passes(&gate, "key", 6).await, 5);
    }

    async fn fixed_window_of_a_week_starts_on_thursday_and_with_an_offset_on_monday(world) {
        const WEEK: Duration = Duration::from_secs(7 * 86_400);
        // 2020-01-01 was a Wednesday.
        let thursday = world.gate("thursday", Quota::fixed_window(1, WEEK).aligned_to_clock());
        assert_eq!(check(&thursday, "key").await.reset_after(), s(86_400));
        let monday = Quota::fixed_window(1, WEEK).aligned_to_clock_at(s(4 * 86_400));
        let monday = world.gate("monday", monday);
        assert_eq!(check(&monday, "key").await.reset_after(), s(5 * 86_400));
    }

    async fn sliding_log_matches_the_worked_timeline(world) {
        let gate = world.gate("a4", Quota::sliding_log(2, s(60)));
        // The times are seconds after the start of the hour.
        for (at, passes) in [(1, true), (30, true), (50, false), (100, true)] {
            world.set(s(at));
            assert_eq!(allowed(&gate, "key").await, passes, "at {at} s");
        }
    }

    async fn sliding_log_does_not_count_denied_checks(world) {
        let gate = world.gate("a4", Quota::sliding_log(2, s(60)));
        for (at, passes) in [(1, true), (30, true), (50, false), (80, true)] {
            world.set(s(at));
            assert_eq!(allowed(&gate, "key").await, passes, "at {at} s");
        }
    }

    async fn sliding_log_that_counts_denied_checks_denies_longer(world) {
        let gate = world.gate("a4", Quota::sliding_log(2, s(60)).count_denied());
        for (at, passes) in [(1, true), (30, true), (50, false), (80, false)] {
            world.set(s(at));
            assert_eq!(allowed(&gate, "key").await, passes, "at {at} s");
        }
    }

    async fn sliding_log_that_counts_denied_checks_matches_the_worked_timeline(world) {
        let gate = world.gate("a4", Quota::sliding_log(2, s(60)).count_denied());
        for (at, passes) in [(1, true), (30, true), (50, false), (100, true)] {
            world.set(s(at));
            assert_eq!(allowed(&gate, "key").await, passes, "at {at} s");
        }
    }

    async fn sliding_log_counts_every_charge_in_one_microsecond(world) {
        let gate = world.gate("a4", Quota::sliding_log(50, s(1)));
        assert_eq!(passes(&gate, "key", 51).await, 50);
        world.advance(s(1));
        assert_eq!(passes(&gate, "key", 51).await, 50);
    }

    async fn sliding_log_keeps_its_count_after_a_step_back_of_the_clock(world) {
        if world.is_leased {
            return; // A lease charges blocks of units, so that the log has few entries.
        }
        // Up to 256 entries are re-dated and older ones keep their time. Beyond that, all leave together.
        for (charges, oldest_leaves) in [(255, s(50)), (256, s(50)), (257, s(60))] {
            let key = &format!("key {charges}");
            let start = s(10_000 + 1_000 * charges);
            let gate = world.gate("a4", Quota::sliding_log(charges + 2, s(60)));
            world.set(start - s(10));
            assert_eq!(passes(&gate, key, 1).await, 1);
            world.set(start);
            for _ in 0..charges {
                world.advance(Duration::from_micros(1));
                assert_eq!(passes(&gate, key, 1).await, 1);
            }
            world.set(start);
            assert_eq!(passes(&gate, key, 2).await, 1, "{charges} charges in the future still count");
            let denied = gate.check(key).await.unwrap();
            assert_eq!((denied.is_allowed(), denied.retry_after()), (false, oldest_leaves));
            world.set(start + s(60) - Duration::from_micros(1));
            let left = usize::from(oldest_leaves < s(60));
            assert_eq!(passes(&gate, key, 2).await, left);
            world.set(start + s(60));
            assert_eq!(passes(&gate, key, charges as usize + 3).await, charges as usize + 2 - left);
        }
    }

    async fn sliding_counter_rounds_the_overlap_down(world) {
        if world.is_leased {
            return; // The unspent units of a lease count as used until the limiter returns them.
        }
        let gate = world.gate("a5", Quota::sliding_counter(7, s(60)));
        assert_eq!(passes(&gate, "key", 5).await, 5);
        // 30 % into the next window: 3 + 5 x 0.7 = 6.5, so 6.
        world.set(s(78));
        assert_eq!(passes(&gate, "key", 3).await, 3);
        assert_eq!(gate.peek("key").await.unwrap().remaining(), 1);
        assert_eq!(passes(&gate, "key", 2).await, 1);
    }
}

/// Most tests run with one of these lists.
#[test]
fn lists_of_quotas_have_each_algorithm_of_a_rate() {
    let of_rates: BTreeSet<_> = NAMES.into_iter().filter(|name| *name != "in_flight").collect();
    assert_eq!(quotas(1, s(1)).iter().map(|(_, quota)| quota.algorithm()).collect::<BTreeSet<_>>(), of_rates);
    let mut runner = TestRunner::deterministic();
    let generated = Family::ALL.map(|family| family.limits().new_tree(&mut runner).unwrap().current()[0]);
    assert_eq!(generated.iter().map(Quota::algorithm).collect::<BTreeSet<_>>(), of_rates);
}

/// Other tests look up these properties of a quota to select what they expect.
#[test]
fn each_algorithm_has_the_properties_of_its_definition() {
    let window = s(60);
    let counting = [("log.counts_denied", Quota::sliding_log(60, window).count_denied())];
    let properties: Vec<_> = quotas(60, window)
        .into_iter()
        .chain(counting)
        .map(|(name, quota)| {
            assert_eq!((quota.limit(), quota.window()), (60, window), "{name}");
            let algorithm = quota.kind().algorithm();
            assert_eq!(algorithm.has_queue(), quota.has_queue(), "{name}");
            let properties = [
                ("predicts", algorithm.predicts()),
                ("counts denied", algorithm.counts_denied()),
                ("is leasable", algorithm.unleasable().is_none()),
                ("has a queue", algorithm.has_queue()),
                ("is stamped with the end", algorithm.is_stamp_the_end()),
            ];
            let held = properties.into_iter().filter(|(_, holds)| *holds).map(|(property, _)| property);
            (name, quota.algorithm(), quota.kind().definition().storage, held.collect::<Vec<_>>().join(", "))
        })
        .collect();
    let window_properties = "predicts, is leasable, is stamped with the end";
    let expected = [
        ("token", "token_bucket", Storage::Text, "predicts, is leasable"),
        ("leaky", "leaky_bucket", Storage::Text, "predicts, has a queue"),
        ("fixed", "fixed_window", Storage::Count, window_properties),
        ("fixed.clock", "fixed_window", Storage::Count, window_properties),
        ("log", "sliding_log", Storage::Log, "is leasable"),
        ("counter", "sliding_counter", Storage::Text, "predicts, is leasable"),
        ("log.counts_denied", "sliding_log", Storage::Log, "counts denied"),
    ];
    let expected =
        expected.map(|(name, algorithm, storage, held)| (name, algorithm, storage, held.to_owned()));
    assert_eq!(properties, expected);
}
