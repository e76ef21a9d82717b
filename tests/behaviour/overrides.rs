//! Overrides by an operator for the whole fleet: switches of gates, and quotas of keys.

use std::time::Duration;

use tidegate::{Override, Quota, Rate, Source, Switch};

use crate::support::behaviours;
use crate::support::world::passes;

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

behaviours! {
    async fn gate_switched_open_admits_all_and_charges_nothing(world) {
        let quota = Quota::fixed_window(2, HOUR);
        let (gate, other) = (world.gate("api", quota), world.gate("other", quota));
        world.limiter.control().switch("api", Switch::Open, None).await.unwrap();
        for _ in 0..5 {
            let decision = gate.check("x").await.unwrap();
            assert!(decision.is_allowed() && !decision.is_shadow());
            assert_eq!((decision.source(), decision.remaining(), decision.limit()), (Source::Switch, 2, 2));
        }
        assert_eq!(passes(&other, "x", 3).await, 2, "another gate is not switched");
        world.limiter.control().end_switch("api").await.unwrap();
        assert_eq!(passes(&gate, "x", 3).await, 2, "nothing was charged");
    }

    async fn gate_switched_closed_denies_all_and_keeps_the_units_used(world) {
        let gate = world.gate("api", Quota::fixed_window(2, HOUR));
        assert_eq!(passes(&gate, "x", 1).await, 1);
        world.limiter.control().switch("api", Switch::Closed, None).await.unwrap();
        let decision = gate.check("x").await.unwrap();
        assert_eq!((decision.is_allowed(), decision.source()), (false, Source::Switch));
        assert_eq!(decision.retry_after(), Duration::from_secs(1));
        assert!(!gate.check("unknown").await.unwrap().is_allowed());
        assert!(!gate.peek("x").await.unwrap().is_allowed());
        world.limiter.control().end_switch("api").await.unwrap();
        assert_eq!(passes(&gate, "x", 3).await, 1);
    }

    async fn gate_switched_to_shadow_counts_and_denies_nothing(world) {
        let gate = world.gate("api", Quota::fixed_window(2, HOUR));
        world.limiter.control().switch("api", Switch::Shadow, None).await.unwrap();
        let mut denied = 0;
        for _ in 0..5 {
            let decision = gate.check("x").await.unwrap();
            assert!(decision.is_allowed());
            denied += u32::from(decision.is_shadow());
        }
        assert_eq!(denied, 3);
        world.limiter.control().end_switch("api").await.unwrap();
        assert_eq!(passes(&gate, "x", 1).await, 0, "admitted checks were counted");
    }

    async fn switch_ends_to_the_microsecond_and_a_new_one_replaces_it(world) {
        let gate = world.gate("api", Quota::fixed_window(1, HOUR));
        let control = world.limiter.control();
        control.switch("api", Switch::Open, Some(HOUR)).await.unwrap();
        control.switch("api", Switch::Closed, Some(MINUTE)).await.unwrap();
        world.advance(MINUTE - Duration::from_micros(1));
        assert_eq!(gate.check("x").await.unwrap().source(), Source::Switch);
        assert_eq!(control.overrides().await.unwrap().len(), 1);
        world.advance(Duration::from_micros(1));
        let decision = gate.check("x").await.unwrap();
        assert!(decision.is_allowed() && decision.source() != Source::Switch);
        assert_eq!(control.overrides().await.unwrap(), []);
    }

    async fn open_gate_in_a_group_is_skipped(world) {
        let a = world.gate("a", Quota::fixed_window(2, HOUR));
        let b = world.gate("b", Quota::fixed_window(1, HOUR));
        world.limiter.control().switch("b", Switch::Open, None).await.unwrap();
        for remaining in [1, 0] {
            let all = world.limiter.check_all([a.key("x"), b.key("x")]).await.unwrap();
            assert!(all.is_allowed());
            assert_eq!((all.binding().gate(), all.binding().remaining()), ("a", remaining));
            assert_eq!(all.each_alone()[1].source(), Source::Switch);
        }
        let all = world.limiter.check_all([b.key("x"), a.key("x")]).await.unwrap();
        assert_eq!((all.is_allowed(), all.binding().gate()), (false, "a"));
        let all = world.limiter.check_all([b.key("x")]).await.unwrap();
        assert!(all.is_allowed() && all.binding().source() == Source::Switch);
        world.limiter.control().end_switch("b").await.unwrap();
        assert_eq!(passes(&b, "x", 2).await, 1);
    }

    async fn closed_gate_in_a_group_denies_it_and_nothing_is_charged(world) {
        let a = world.gate("a", Quota::fixed_window(2, HOUR));
        let b = world.gate("b", Quota::fixed_window(1, HOUR));
        world.limiter.control().switch("b", Switch::Closed, None).await.unwrap();
        let all = world.limiter.check_all([a.key("x"), b.key("x")]).await.unwrap();
        assert!(!all.is_allowed());
        assert_eq!((all.binding().gate(), all.retry_after()), ("b", Duration::from_secs(1)));
        assert!(all.each_alone()[0].is_allowed(), "that gate alone would admit the check");
        assert_eq!(a.peek("x").await.unwrap().remaining(), 2);
    }

    async fn closed_gate_denies_no_group_that_charges_it_nothing(world) {
        let a = world.gate("a", Quota::fixed_window(2, HOUR));
        let b = world.gate("b", Quota::fixed_window(1, HOUR));
        world.limiter.control().switch("b", Switch::Closed, None).await.unwrap();
        let all = world.limiter.check_all([a.key("x"), b.key("x").cost(0)]).await.unwrap();
        assert_eq!((all.is_allowed(), all.binding().gate()), (true, "a"));
        assert_eq!(a.peek("x").await.unwrap().remaining(), 1);
        assert!(!world.limiter.check_all([b.key("x").cost(0)]).await.unwrap().is_allowed());
    }

    async fn shadow_gate_in_a_group_is_charged_and_denies_nothing(world) {
        let a = world.gate("a", Quota::fixed_window(2, HOUR));
        let b = world.gate("b", Quota::fixed_window(1, HOUR));
        world.limiter.control().switch("b", Switch::Shadow, None).await.unwrap();
        let all = world.limiter.check_all([a.key("x"), b.key("x")]).await.unwrap();
        assert!(all.is_allowed() && !all.each_alone()[1].is_shadow());
        let all = world.limiter.check_all([a.key("x"), b.key("x")]).await.unwrap();
        assert!(all.is_allowed() && all.each_alone()[1].is_shadow());
        assert_eq!(all.binding().gate(), "a");
        let all = world.limiter.check_all([b.key("x"), a.key("x")]).await.unwrap();
        assert_eq!((all.is_allowed(), all.binding().gate()), (false, "a"));
    }

    async fn switch_applies_to_check_many(world) {
        let gate = world.gate("api", Quota::fixed_window(1, HOUR));
        let control = world.limiter.control();
        let sources = async || -> Vec<(bool, bool)> {
            let decisions = gate.check_many(["x", "y", "x"]).await.into_iter().map(Result::unwrap);
            decisions.map(|decision| (decision.is_allowed(), decision.source() == Source::Switch)).collect()
        };
        control.switch("api", Switch::Closed, None).await.unwrap();
        assert_eq!(sources().await, [(false, true); 3]);
        control.switch("api", Switch::Open, None).await.unwrap();
        assert_eq!(sources().await, [(true, true); 3]);
        control.switch("api", Switch::Shadow, None).await.unwrap();
        assert_eq!(sources().await, [(true, false); 3]);
        control.end_switch("api").await.unwrap();
        assert_eq!(sources().await, [(false, false); 3]);
    }

    async fn override_changes_the_limit_of_one_key_and_keeps_its_count(world) {
        let gate = world.gate("api", Quota::fixed_window(2, HOUR));
        assert_eq!(passes(&gate, "x", 3).await, 2);
        let control = world.limiter.control();
        control.set_override("api", "x", Quota::fixed_window(5, HOUR), 2 * HOUR).await.unwrap();
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 3, "2 of 5 units were used");
        let decision = gate.check_cost("x", 3).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.limit()), (true, 5));
        let error = gate.check_cost("y", 3).await.unwrap_err();
        assert!(error.is_over_capacity(), "another key keeps the limit of the gate: {error}");
        let all = world.limiter.check_all([gate.key("x"), gate.key("y").colocate_with("x")]).await.unwrap();
        assert_eq!((all.is_allowed(), all.each_alone()[0].limit(), all.each_alone()[1].limit()), (false, 5, 2));
        control.end_override("api", "x").await.unwrap();
        let decision = gate.peek("x").await.unwrap();
        assert_eq!((decision.limit(), decision.remaining()), (2, 0));
    }

    async fn override_ends_to_the_microsecond(world) {
        let gate = world.gate("api", Quota::token_bucket(1, Rate::per_hour(1)));
        let more = Quota::token_bucket(10, Rate::per_hour(10));
        world.limiter.control().set_override("api", "x", more, MINUTE).await.unwrap();
        world.advance(MINUTE - Duration::from_micros(1));
        assert_eq!(gate.peek("x").await.unwrap().limit(), 10);
        world.advance(Duration::from_micros(1));
        assert_eq!(gate.peek("x").await.unwrap().limit(), 1);
    }

    async fn override_with_another_algorithm_starts_untouched_and_blocks_outlast_it(world) {
        let gate = world.gate("api", Quota::fixed_window(2, HOUR));
        assert_eq!(passes(&gate, "x", 2).await, 2);
        let control = world.limiter.control();
        control.set_override("api", "x", Quota::sliding_log(1, HOUR), MINUTE).await.unwrap();
        assert_eq!(passes(&gate, "x", 2).await, 1);
        gate.refund("x", 1).await.unwrap();
        assert_eq!(passes(&gate, "x", 2).await, 1, "the refund applies to the active override");
        gate.reset("x").await.unwrap();
        gate.block("x", 2 * MINUTE).await.unwrap();
        assert_eq!(passes(&gate, "x", 1).await, 0);
        control.end_override("api", "x").await.unwrap();
        assert_eq!(passes(&gate, "x", 1).await, 0, "the block applies to the quota of the gate, too");
        gate.unblock("x").await.unwrap();
        assert_eq!(passes(&gate, "x", 3).await, 2, "the reset applies to the quota of the gate, too");
    }

    async fn reservation_under_an_override_is_settled_where_it_was_charged(world) {
        let gate = world.gate("api", Quota::fixed_window(2, HOUR));
        let control = world.limiter.control();
        control.set_override("api", "x", Quota::sliding_counter(9, HOUR), MINUTE).await.unwrap();
        let reservation = gate.reserve("x", 9).await.unwrap();
        assert!(reservation.decision().is_allowed());
        control.end_override("api", "x").await.unwrap();
        reservation.commit(4).await.unwrap();
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 2);
        control.set_override("api", "x", Quota::sliding_counter(9, HOUR), MINUTE).await.unwrap();
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 5);
        control.switch("api", Switch::Open, None).await.unwrap();
        gate.reserve("x", 1).await.unwrap().commit(3).await.unwrap();
        control.end_switch("api").await.unwrap();
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 5, "units admitted by an open gate are free");
    }

    async fn waits_follow_the_active_overrides(world) {
        let gate = world.gate("api", Quota::fixed_window(1, HOUR));
        assert_eq!(passes(&gate, "x", 2).await, 1);
        let control = world.limiter.control();
        control.switch("api", Switch::Open, None).await.unwrap();
        assert!(gate.until_allowed("x", MINUTE).await.unwrap().is_allowed());
        control.end_switch("api").await.unwrap();
        assert!(!gate.until_allowed("x", MINUTE).await.unwrap().is_allowed());
        control.set_override("api", "x", Quota::fixed_window(2, HOUR), MINUTE).await.unwrap();
        assert!(gate.until_allowed("x", MINUTE).await.unwrap().is_allowed());
    }

    async fn overrides_are_listed_with_their_remaining_time(world) {
        let control = world.limiter.control();
        let quota = Quota::token_bucket(100, Rate::per_minute(90));
        control.switch("b", Switch::Shadow, None).await.unwrap();
        control.switch("a", Switch::Closed, Some(HOUR)).await.unwrap();
        control.set_override("a", "tenant 7", quota, HOUR).await.unwrap();
        world.advance(MINUTE);
        let overrides = control.overrides().await.unwrap();
        let [Override::Quota { gate, key, quota: found, ends_in, .. }, first, second] = &*overrides else { panic!("{overrides:?}") };
        assert_eq!((&**gate, &**key, *found, *ends_in), ("a", "tenant%207", quota, Some(HOUR - MINUTE)));
        let Override::Switch { gate, switch, ends_in, .. } = first else { panic!("{first:?}") };
        assert_eq!((&**gate, *switch, *ends_in), ("a", Switch::Closed, Some(HOUR - MINUTE)));
        let Override::Switch { gate, switch, ends_in, .. } = second else { panic!("{second:?}") };
        assert_eq!((&**gate, *switch, *ends_in), ("b", Switch::Shadow, None));
    }
}
