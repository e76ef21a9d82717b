//! What operators order for the whole fleet: switches and overrides.

use std::time::Duration;

use tidegate::{Order, Quota, Rate, Source, Switch};

use crate::behaviours;
use crate::support::world::passes;

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

behaviours! {
    async fn a_gate_that_is_switched_open_passes_all_and_charges_nothing(world) {
        let (gate, other) = (world.gate("api", Quota::fixed_window(2, HOUR)), world.gate("other", Quota::fixed_window(2, HOUR)));
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

    async fn a_gate_that_is_switched_closed_denies_all_and_keeps_what_was_used(world) {
        let gate = world.gate("api", Quota::fixed_window(2, HOUR));
        assert_eq!(passes(&gate, "x", 1).await, 1);
        world.limiter.control().switch("api", Switch::Closed, None).await.unwrap();
        let decision = gate.check("x").await.unwrap();
        assert_eq!((decision.is_allowed(), decision.source()), (false, Source::Switch));
        assert_eq!(decision.retry_after(), Duration::from_secs(1));
        assert!(!gate.check("never seen").await.unwrap().is_allowed());
        assert!(!gate.peek("x").await.unwrap().is_allowed());
        world.limiter.control().end_switch("api").await.unwrap();
        assert_eq!(passes(&gate, "x", 3).await, 1);
    }

    async fn a_gate_that_is_switched_to_shadow_counts_and_denies_nobody(world) {
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
        assert_eq!(passes(&gate, "x", 1).await, 0, "what passed was counted");
    }

    async fn a_switch_ends_to_the_microsecond_and_a_new_one_takes_its_place(world) {
        let gate = world.gate("api", Quota::fixed_window(1, HOUR));
        let control = world.limiter.control();
        control.switch("api", Switch::Open, Some(HOUR)).await.unwrap();
        control.switch("api", Switch::Closed, Some(MINUTE)).await.unwrap();
        world.advance(MINUTE - Duration::from_micros(1));
        assert_eq!(gate.check("x").await.unwrap().source(), Source::Switch);
        assert_eq!(control.orders().await.unwrap().len(), 1);
        world.advance(Duration::from_micros(1));
        let decision = gate.check("x").await.unwrap();
        assert!(decision.is_allowed() && decision.source() != Source::Switch);
        assert_eq!(control.orders().await.unwrap(), []);
    }

    async fn in_a_group_an_open_gate_is_left_out(world) {
        let (a, b) = (world.gate("a", Quota::fixed_window(2, HOUR)), world.gate("b", Quota::fixed_window(1, HOUR)));
        world.limiter.control().switch("b", Switch::Open, None).await.unwrap();
        for left in [1, 0] {
            let all = world.limiter.check_all([a.ask("x"), b.ask("x")]).await.unwrap();
            assert!(all.is_allowed());
            assert_eq!((all.binding().gate(), all.binding().remaining()), ("a", left));
            assert_eq!(all.decisions()[1].source(), Source::Switch);
        }
        let all = world.limiter.check_all([b.ask("x"), a.ask("x")]).await.unwrap();
        assert_eq!((all.is_allowed(), all.binding().gate()), (false, "a"));
        let all = world.limiter.check_all([b.ask("x")]).await.unwrap();
        assert!(all.is_allowed() && all.binding().source() == Source::Switch);
        world.limiter.control().end_switch("b").await.unwrap();
        assert_eq!(passes(&b, "x", 2).await, 1);
    }

    async fn in_a_group_a_closed_gate_denies_all_and_nothing_is_charged(world) {
        let (a, b) = (world.gate("a", Quota::fixed_window(2, HOUR)), world.gate("b", Quota::fixed_window(1, HOUR)));
        world.limiter.control().switch("b", Switch::Closed, None).await.unwrap();
        let all = world.limiter.check_all([a.ask("x"), b.ask("x")]).await.unwrap();
        assert!(!all.is_allowed());
        assert_eq!((all.binding().gate(), all.retry_after()), ("b", Duration::from_secs(1)));
        assert!(all.decisions()[0].is_allowed(), "that gate alone would have let it pass");
        assert_eq!(a.peek("x").await.unwrap().remaining(), 2);
    }

    async fn in_a_group_a_shadow_gate_is_charged_beside_the_others_and_denies_nobody(world) {
        let (a, b) = (world.gate("a", Quota::fixed_window(2, HOUR)), world.gate("b", Quota::fixed_window(1, HOUR)));
        world.limiter.control().switch("b", Switch::Shadow, None).await.unwrap();
        let all = world.limiter.check_all([a.ask("x"), b.ask("x")]).await.unwrap();
        assert!(all.is_allowed() && !all.decisions()[1].is_shadow());
        let all = world.limiter.check_all([a.ask("x"), b.ask("x")]).await.unwrap();
        assert!(all.is_allowed() && all.decisions()[1].is_shadow());
        assert_eq!(all.binding().gate(), "a");
        let all = world.limiter.check_all([b.ask("x"), a.ask("x")]).await.unwrap();
        assert_eq!((all.is_allowed(), all.binding().gate()), (false, "a"));
    }

    async fn many_keys_are_asked_under_the_switch_too(world) {
        let gate = world.gate("api", Quota::fixed_window(1, HOUR));
        let control = world.limiter.control();
        let sources = async || -> Vec<(bool, bool)> {
            let decisions = gate.check_many(["x", "y", "x"]).await.into_iter().map(Result::unwrap);
            decisions.map(|it| (it.is_allowed(), it.source() == Source::Switch)).collect()
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

    async fn an_override_gives_one_key_another_limit_and_counts_go_on(world) {
        let gate = world.gate("api", Quota::fixed_window(2, HOUR));
        assert_eq!(passes(&gate, "x", 3).await, 2);
        let control = world.limiter.control();
        control.set_override("api", "x", Quota::fixed_window(5, HOUR), 2 * HOUR).await.unwrap();
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 3, "of 5, 2 were used");
        let decision = gate.check_cost("x", 3).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.limit()), (true, 5));
        assert!(gate.check_cost("y", 3).await.unwrap_err().is_over_capacity(), "another key has the gate's own");
        let all = world.limiter.check_all([gate.ask("x"), gate.ask("y").beside("x")]).await.unwrap();
        assert_eq!((all.is_allowed(), all.decisions()[0].limit(), all.decisions()[1].limit()), (false, 5, 2));
        control.end_override("api", "x").await.unwrap();
        let decision = gate.peek("x").await.unwrap();
        assert_eq!((decision.limit(), decision.remaining()), (2, 0));
    }

    async fn an_override_ends_to_the_microsecond(world) {
        let gate = world.gate("api", Quota::token_bucket(1, Rate::per_hour(1)));
        let more = Quota::token_bucket(10, Rate::per_hour(10));
        world.limiter.control().set_override("api", "x", more, MINUTE).await.unwrap();
        world.advance(MINUTE - Duration::from_micros(1));
        assert_eq!(gate.peek("x").await.unwrap().limit(), 10);
        world.advance(Duration::from_micros(1));
        assert_eq!(gate.peek("x").await.unwrap().limit(), 1);
    }

    async fn an_override_of_another_algorithm_begins_untouched_and_blocks_hold_after_it(world) {
        let gate = world.gate("api", Quota::fixed_window(2, HOUR));
        assert_eq!(passes(&gate, "x", 2).await, 2);
        let control = world.limiter.control();
        control.set_override("api", "x", Quota::sliding_log(1, HOUR), MINUTE).await.unwrap();
        assert_eq!(passes(&gate, "x", 2).await, 1);
        gate.refund("x", 1).await.unwrap();
        assert_eq!(passes(&gate, "x", 2).await, 1, "given back to the counts in force");
        gate.reset("x").await.unwrap();
        gate.block("x", 2 * MINUTE).await.unwrap();
        assert_eq!(passes(&gate, "x", 1).await, 0);
        control.end_override("api", "x").await.unwrap();
        assert_eq!(passes(&gate, "x", 1).await, 0, "blocked here too");
        gate.unblock("x").await.unwrap();
        assert_eq!(passes(&gate, "x", 3).await, 2, "reset here too");
    }

    async fn what_was_reserved_under_an_override_is_given_back_where_it_was_taken(world) {
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
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 5, "what an open gate let pass is free");
    }

    async fn waiting_goes_by_what_is_ordered(world) {
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

    async fn orders_are_listed_with_what_is_left_of_them(world) {
        let control = world.limiter.control();
        let quota = Quota::token_bucket(100, Rate::per_minute(90));
        control.switch("b", Switch::Shadow, None).await.unwrap();
        control.switch("a", Switch::Closed, Some(HOUR)).await.unwrap();
        control.set_override("a", "tenant 7", quota, HOUR).await.unwrap();
        world.advance(MINUTE);
        let orders = control.orders().await.unwrap();
        let [Order::Override { gate, key, quota: found, ends_in, .. }, first, second] = &*orders else { panic!("{orders:?}") };
        assert_eq!((&**gate, &**key, *found, *ends_in), ("a", "tenant%207", quota, Some(HOUR - MINUTE)));
        let Order::Switch { gate, switch, ends_in, .. } = first else { panic!("{first:?}") };
        assert_eq!((&**gate, *switch, *ends_in), ("a", Switch::Closed, Some(HOUR - MINUTE)));
        let Order::Switch { gate, switch, ends_in, .. } = second else { panic!("{second:?}") };
        assert_eq!((&**gate, *switch, *ends_in), ("b", Switch::Shadow, None));
    }
}
