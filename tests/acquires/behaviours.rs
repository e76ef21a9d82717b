//! The behavior of permits, with exact numbers, on every store.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use tidegate::{Quota, Rate, Source, Switch};

use super::{acquire_until_denied, remaining};
use crate::support::acquired::AcquiredParts;
use crate::support::behaviours;
use crate::support::fixture::HOUR;
use crate::support::world::World;

/// Moves the world's clock while a future waits: at most a second.
async fn while_time_passes<F: Future>(world: &World, future: F) -> F::Output {
    let mut future = pin!(future);
    for _ in 0..200 {
        match select(future.as_mut(), pin!(tokio::time::sleep(Duration::from_millis(5)))).await {
            Either::Left((output, _)) => return output,
            Either::Right(_) => world.advance(Duration::from_millis(5)),
        }
    }
    future.await
}

behaviours! {
    async fn as_many_units_are_admitted_as_the_limit_and_again_after_a_release(world) {
        let gate = world.gate("gate", Quota::in_flight(3));
        let peek = gate.peek("x").await.unwrap();
        assert_eq!((peek.limit(), peek.remaining(), peek.reset_after()), (3, 3, Duration::ZERO));
        let mut permits = Vec::new();
        for remaining in [2, 1, 0] {
            let (decision, permit) = gate.acquire("x").await.unwrap().into_parts();
            assert!(decision.is_allowed());
            assert_eq!((decision.limit(), decision.remaining()), (3, remaining));
            assert!(decision.reset_after() > Duration::ZERO);
            permits.push(permit.unwrap());
        }
        let (decision, permit) = gate.acquire("x").await.unwrap().into_parts();
        assert!(!decision.is_allowed() && permit.is_none());
        assert!(decision.remaining() == 0 && decision.retry_after() > Duration::ZERO);
        assert!(gate.try_acquire("y").await.unwrap().permit().is_some(), "another key");
        assert!(permits.iter().all(|permit| permit.is_held() && permit.units() == 1));
        permits.pop().unwrap().release().await.unwrap();
        assert_eq!(remaining(&gate, "x").await, 1);
        assert_eq!(acquire_until_denied(&gate, "x").await.len(), 1);
    }

    async fn peek_is_for_the_cost_of_the_check_and_acquires_nothing(world) {
        let gate = world.gate("gate", Quota::in_flight(3));
        let peek = async || gate.key("x").cost(2).peek().await.unwrap();
        assert!(peek().await.is_allowed());
        let permit = gate.try_acquire("x").await.unwrap().permit().unwrap();
        assert!(peek().await.is_allowed());
        let second = gate.try_acquire("x").await.unwrap().permit().unwrap();
        let denied = peek().await;
        assert!(!denied.is_allowed() && denied.retry_after() > Duration::ZERO);
        assert_eq!((denied.limit(), denied.remaining()), (3, 1));
        assert!(gate.peek("x").await.unwrap().is_allowed(), "one unit is left");
        assert!(gate.key("x").cost(2).check().await.unwrap_err().is_config(), "a charge needs an owner");
        drop((permit, second));
    }

    async fn cost_is_acquired_whole_or_not_at_all(world) {
        let gate = world.gate("gate", Quota::in_flight(5));
        let large = gate.acquire("x").cost(4).await.unwrap().permit().unwrap();
        assert_eq!(large.units(), 4);
        assert!(!gate.acquire("x").cost(2).await.unwrap().is_allowed());
        let small = gate.key("x").acquire().await.unwrap().permit().unwrap();
        large.release().await.unwrap();
        assert_eq!(remaining(&gate, "x").await, 4);
        let error = gate.acquire("x").cost(6).await.unwrap_err();
        assert!(error.is_over_capacity() && error.gate() == Some("gate"), "{error}");
        assert!(gate.acquire("x").cost(0).await.unwrap_err().is_config());
        small.release().await.unwrap();
        assert_eq!(remaining(&gate, "x").await, 5);
    }

    async fn dropped_permit_frees_its_units_for_this_process_at_once(world) {
        let gate = world.gate("gate", Quota::in_flight(1));
        for _ in 0..5 {
            let permit = gate.try_acquire("x").await.unwrap().permit().expect("the last permit was dropped");
            assert!(gate.try_acquire("x").await.unwrap().permit().is_none());
            drop(permit);
        }
    }

    async fn checks_and_charges_of_an_in_flight_limit_are_mistakes(world) {
        let gate = world.gate("gate", Quota::in_flight(2));
        let errors = [
            gate.check("x").await.unwrap_err(),
            gate.check_many(["x"]).await.swap_remove(0).unwrap_err(),
            gate.until_allowed("x", HOUR).await.unwrap_err(),
            gate.reserve("x", 1).await.unwrap_err(),
            gate.refund("x", 1).await.unwrap_err(),
            gate.penalize("x", 1).await.unwrap_err(),
            world.limiter.check_all([gate.key("x")]).await.unwrap_err(),
        ];
        for error in errors {
            assert!(error.is_config() && error.to_string().contains("acquire"), "{error}");
        }
        assert_eq!(remaining(&gate, "x").await, 2);
        let rate = world.gate("rate", Quota::token_bucket(2, Rate::per_second(1)));
        let error = rate.acquire("x").await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains("check"), "{error}");
    }

    async fn waiting_callers_are_admitted_in_order_of_arrival(world) {
        let gate = world.gate("gate", Quota::in_flight(2));
        let permits = acquire_until_denied(&gate, "x").await;
        let order = std::sync::Mutex::new(Vec::new());
        let wait = async |caller: usize, cost: u64| {
            let permit = gate.acquire("x").cost(cost).max_wait(HOUR).await.unwrap().permit().unwrap();
            order.lock().unwrap().push(caller);
            permit.release().await.unwrap();
        };
        let release = async {
            tokio::task::yield_now().await;
            for permit in permits {
                permit.release().await.unwrap();
            }
        };
        let all = async {
            futures_util::join!(wait(0, 1), wait(1, 2), wait(2, 1), wait(3, 1), release);
        };
        while_time_passes(world, all).await;
        assert_eq!(order.into_inner().unwrap()[..2], [0, 1]);
        assert_eq!(remaining(&gate, "x").await, 2);
    }

    async fn caller_that_waits_in_vain_gets_the_denial(world) {
        let gate = world.gate("gate", Quota::in_flight(1));
        let _permit = gate.try_acquire("x").await.unwrap().permit().unwrap();
        let acquired = gate.acquire_timeout("x", Duration::from_millis(60));
        let acquired = while_time_passes(world, acquired.into_future()).await.unwrap();
        assert!(!acquired.is_allowed());
        assert!(matches!(acquired.decision().source(), Source::Redis | Source::Memory));
        let acquires = (0..20).map(|_| gate.acquire_timeout("x", Duration::from_millis(40)).into_future());
        for acquired in while_time_passes(world, join_all(acquires)).await {
            assert!(acquired.unwrap().permit().is_none());
        }
    }

    async fn cancelled_acquires_leave_nothing_behind(world) {
        let gate = world.gate("gate", Quota::in_flight(4));
        for round in 0..40_u64 {
            let acquires = (0..6).map(|_| gate.acquire("x").max_wait(HOUR).into_future());
            let acquires = pin!(join_all(acquires));
            // Drops all of them after some steps of their drivers.
            let steps = pin!(async {
                for _ in 0..round % 13 {
                    tokio::task::yield_now().await;
                }
                if round % 5 == 0 {
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
            });
            drop(select(acquires, steps).await);
        }
        let permits = while_time_passes(world, async {
            let all = gate.acquire("x").cost(4).max_wait(HOUR);
            all.await.unwrap().permit().unwrap()
        });
        assert_eq!(permits.await.units(), 4);
    }

    async fn blocked_key_admits_nothing_until_it_is_unblocked(world) {
        let gate = world.gate("gate", Quota::in_flight(2));
        let permit = gate.try_acquire("x").await.unwrap().permit().unwrap();
        gate.block("x", HOUR).await.unwrap();
        let denied = gate.acquire("x").await.unwrap();
        assert!(!denied.is_allowed());
        assert!(gate.try_acquire("y").await.unwrap().permit().is_some());
        gate.unblock("x").await.unwrap();
        assert_eq!(acquire_until_denied(&gate, "x").await.len(), 1);
        permit.release().await.unwrap();
    }

    async fn shadow_gate_counts_and_admits_what_it_would_deny(world) {
        let gate = world.gate("gate", Quota::in_flight(1));
        let shadow = gate.clone().shadow(true);
        let first = shadow.acquire("x").await.unwrap();
        assert!(first.is_allowed() && !first.decision().is_shadow());
        let (decision, second) = shadow.acquire("x").max_wait(HOUR).await.unwrap().into_parts();
        assert!(decision.is_allowed() && decision.is_shadow());
        let second = second.unwrap();
        assert!(second.is_held() && second.units() == 1);
        assert!(gate.try_acquire("x").await.unwrap().permit().is_none());
        second.release().await.unwrap();
        assert!(gate.try_acquire("x").await.unwrap().permit().is_none(), "it held nothing");
        first.permit().unwrap().release().await.unwrap();
        assert!(gate.try_acquire("x").await.unwrap().permit().is_some());
    }

    async fn switched_gate_decides_without_counting(world) {
        let gate = world.gate("gate", Quota::in_flight(1));
        let control = world.limiter.control();
        control.switch("gate", Switch::Open, None).await.unwrap();
        let mut permits = Vec::new();
        for _ in 0..3 {
            let (decision, permit) = gate.acquire("x").await.unwrap().into_parts();
            assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Switch));
            permits.push(permit.unwrap());
        }
        assert!(permits.iter().all(tidegate::Permit::is_held));
        control.switch("gate", Switch::Closed, None).await.unwrap();
        let denied = gate.acquire("x").await.unwrap();
        assert_eq!((denied.is_allowed(), denied.decision().source()), (false, Source::Switch));
        control.end_switch("gate").await.unwrap();
        assert_eq!(acquire_until_denied(&gate, "x").await.len(), 1, "no unit was counted");
    }

    async fn quota_of_a_key_is_overridden_in_place(world) {
        let gate = world.gate("gate", Quota::in_flight(2));
        let mut permits = acquire_until_denied(&gate, "x").await;
        world.limiter.control().set_override("gate", "x", Quota::in_flight(3), HOUR).await.unwrap();
        permits.extend(acquire_until_denied(&gate, "x").await);
        assert_eq!(permits.len(), 3, "the units held before count");
        world.limiter.control().set_override("gate", "x", Quota::in_flight(1), HOUR).await.unwrap();
        assert!(gate.try_acquire("x").await.unwrap().permit().is_none());
        for permit in permits.drain(1..) {
            permit.release().await.unwrap();
        }
        assert!(gate.try_acquire("x").await.unwrap().permit().is_none(), "one unit is still held");
        world.limiter.control().end_override("gate", "x").await.unwrap();
        assert_eq!(acquire_until_denied(&gate, "x").await.len(), 1);
    }

    async fn waiting_caller_follows_a_raised_limit(world) {
        let gate = world.gate("gate", Quota::in_flight(1));
        let _permit = gate.try_acquire("x").await.unwrap().permit().unwrap();
        let waiting = async { gate.acquire("x").max_wait(HOUR).await.unwrap() };
        let raise = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            world.limiter.control().set_override("gate", "x", Quota::in_flight(2), HOUR).await.unwrap();
        };
        let (acquired, ()) = while_time_passes(world, async { futures_util::join!(waiting, raise) }).await;
        assert!(acquired.is_allowed());
        assert_eq!(acquired.decision().limit(), 2);
    }
}
