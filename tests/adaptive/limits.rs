//! Adaptive limits in memory, with a clock that the test moves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{Adaptive, Event, Gate, Limiter, ManualClock, Observer, Quota, Rate};

use super::load::{fill, release, saturate, saturate_with, settle};
use crate::support::acquired::AcquiredParts;
use crate::support::world::World;

const MS_20: Duration = Duration::from_millis(20);

fn gate(world: &World) -> Gate {
    world.gate("gate", Quota::in_flight(40)).adaptive(Adaptive::new())
}

#[tokio::test]
async fn limit_grows_while_it_is_used_and_shrinks_when_the_latency_rises() {
    let world = World::memory();
    let gate = gate(&world);
    saturate(&world, &gate, "x", MS_20).await;
    // 1.5 * 8 + sqrt(8)
    assert_eq!(gate.adaptive_limit("x"), Some(14));
    for _ in 0..3 {
        saturate(&world, &gate, "x", MS_20).await;
    }
    assert_eq!(gate.adaptive_limit("x"), Some(40), "no higher than the quota");
    let permits = fill(&gate, "x").await;
    assert_eq!(permits.len(), 40);
    release(permits).await;
    for _ in 0..2 {
        saturate(&world, &gate, "x", 2 * MS_20).await;
    }
    let limit = gate.adaptive_limit("x").unwrap();
    assert!((20..40).contains(&limit), "{limit}");
}

#[tokio::test]
async fn decision_has_the_adaptive_limit() {
    let world = World::memory();
    let gate = gate(&world);
    assert_eq!(gate.adaptive_limit("x"), None, "not known yet");
    let acquired = gate.acquire("x").cost(3).await.unwrap();
    assert_eq!((acquired.decision().limit(), acquired.decision().remaining()), (8, 5));
    assert_eq!(gate.adaptive_limit("x"), Some(8));
    assert_eq!(gate.adaptive_limit("y"), None);
    assert_eq!(world.gate("other", Quota::in_flight(40)).adaptive_limit("x"), None);
    let denied = gate.acquire("x").cost(6).await.unwrap();
    assert_eq!((denied.decision().is_allowed(), denied.decision().limit()), (false, 8));
}

#[tokio::test]
async fn unused_limit_does_not_grow() {
    let world = World::memory();
    let gate = gate(&world);
    for _ in 0..200 {
        let permit = gate.acquire("x").cost(5).await.unwrap().permit().unwrap();
        world.advance(MS_20);
        release(vec![permit]).await;
    }
    assert_eq!(gate.adaptive_limit("x"), Some(8));
}

#[tokio::test]
async fn acquire_above_the_adaptive_limit_is_admitted_alone() {
    let world = World::memory();
    let gate = gate(&world);
    let one = gate.try_acquire("x").await.unwrap().permit().unwrap();
    for cost in [8, 9, 40] {
        assert!(!gate.acquire("x").cost(cost).await.unwrap().is_allowed(), "{cost}");
    }
    release(vec![one]).await;
    for cost in [8, 9, 40] {
        let acquired = gate.acquire("x").cost(cost).await.unwrap();
        assert!(acquired.is_allowed(), "{cost}");
        assert!(!gate.acquire("x").await.unwrap().is_allowed(), "{cost}");
        release(acquired.permit().into_iter().collect()).await;
    }
    assert!(gate.acquire("x").cost(41).await.unwrap_err().is_over_capacity());
}

#[tokio::test]
async fn restricted_acquires_keep_their_part_of_the_limit() {
    let world = World::memory();
    let gate = gate(&world);
    // A quarter of the quota, so a quarter of 8.
    let restricted = async || gate.key("x").at_most(10).acquire().await.unwrap().permit();
    let permits = [restricted().await.unwrap(), restricted().await.unwrap()];
    assert!(restricted().await.is_none());
    assert_eq!(fill(&gate, "x").await.len(), 6);
    drop(permits);
    // A part of less than a unit still admits one unit alone.
    settle().await;
    world.advance(MS_20);
    let acquired = gate.key("y").at_most(1).acquire().await.unwrap();
    assert_eq!((acquired.is_allowed(), acquired.decision().limit()), (true, 1));
    assert!(gate.key("y").at_most(10).cost(11).acquire().await.unwrap_err().is_over_capacity());
}

#[tokio::test]
async fn limits_of_one_unit_and_below_the_lower_bound_are_the_quota() {
    let world = World::memory();
    for limit in [1, 7, 8] {
        let gate = world.gate("gate", Quota::in_flight(limit)).adaptive(Adaptive::new());
        let key = limit.to_string();
        saturate(&world, &gate, &key, MS_20).await;
        assert_eq!(fill(&gate, &key).await.len() as u64, limit);
        assert_eq!(gate.adaptive_limit(&*key), Some(limit));
    }
    let gate = world.gate("gate", Quota::in_flight(40)).adaptive(Adaptive::new().min(1));
    assert_eq!(fill(&gate, "one").await.len(), 1);
}

#[tokio::test]
async fn limit_of_one_unit_grows() {
    let world = World::memory();
    let gate = world.gate("gate", Quota::in_flight(40)).adaptive(Adaptive::new().min(1));
    for _ in 0..6 {
        saturate(&world, &gate, "x", MS_20).await;
    }
    assert!(gate.adaptive_limit("x").unwrap() > 2, "{:?}", gate.adaptive_limit("x"));
}

#[tokio::test]
async fn override_of_a_key_is_its_highest_limit() {
    let world = World::memory();
    let gate = gate(&world);
    world
        .limiter
        .control()
        .set_override("gate", "x", Quota::in_flight(5), Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(fill(&gate, "x").await.len(), 5);
    assert_eq!(fill(&gate, "y").await.len(), 8);
}

#[tokio::test]
async fn overloads_shrink_the_limit() {
    let world = World::memory();
    let gate = gate(&world);
    for _ in 0..4 {
        saturate(&world, &gate, "x", MS_20).await;
    }
    assert_eq!(gate.adaptive_limit("x"), Some(40));
    saturate_with(&world, &gate, "x", MS_20, |permit| permit.overloaded()).await;
    let limit = gate.adaptive_limit("x").unwrap();
    assert!((20..39).contains(&limit), "{limit}");
}

#[tokio::test]
async fn disregarded_operations_and_dropped_futures_are_no_samples() {
    let world = World::memory();
    let gate = gate(&world);
    saturate(&world, &gate, "x", MS_20).await;
    let disregard = async || saturate_with(&world, &gate, "x", 50 * MS_20, |permit| permit.disregard()).await;
    // Ends the window that has begun.
    disregard().await;
    let limit = gate.adaptive_limit("x").unwrap();
    assert!(limit >= 14, "{limit}");
    for _ in 0..10 {
        disregard().await;
    }
    let held = fill(&gate, "x").await;
    for _ in 0..100 {
        let waiting = gate.acquire_timeout("x", Duration::from_secs(3_600)).into_future();
        assert!(futures_util::poll!(Box::pin(waiting)).is_pending());
    }
    held.iter().for_each(|permit| permit.disregard());
    world.advance(50 * MS_20);
    release(held).await;
    disregard().await;
    assert_eq!(gate.adaptive_limit("x"), Some(limit));
    saturate(&world, &gate, "x", MS_20).await;
    assert!(gate.adaptive_limit("x").unwrap() > limit, "the latency has not risen");
}

#[tokio::test]
async fn shadow_mode_neither_lowers_the_limit_nor_gives_samples() {
    let world = World::memory();
    let gate = gate(&world).shadow(true);
    let permits = join_all((0..50).map(|_| gate.acquire("x").into_future())).await;
    let shadow = permits.iter().filter(|acquired| acquired.as_ref().unwrap().decision().is_shadow());
    assert_eq!(shadow.count(), 10);
    assert_eq!(gate.adaptive_limit("x"), None);
}

#[tokio::test]
async fn waiting_callers_are_admitted_in_order_while_the_limit_changes() {
    let world = World::memory();
    let gate = world.gate("gate", Quota::in_flight(40)).adaptive(Adaptive::new().min(2));
    let order = Arc::new(AtomicU64::new(0));
    let mut callers = Vec::new();
    for number in 0..400 {
        let (gate, order) = (gate.clone(), order.clone());
        callers.push(tokio::spawn(async move {
            let permit = gate.acquire_timeout("x", Duration::from_secs(3_600)).await.unwrap().permit();
            (number, order.fetch_add(1, Ordering::SeqCst), permit.unwrap())
        }));
        settle().await;
    }
    let mut most = 0;
    let mut ended = 0;
    while ended < 400 {
        let mut done = Vec::new();
        let mut index = 0;
        while index < callers.len() {
            match callers[index].is_finished() {
                true => done.push(callers.swap_remove(index)),
                false => index += 1,
            }
        }
        let mut permits = Vec::new();
        for caller in done {
            let (number, order, permit) = caller.await.unwrap();
            assert_eq!(number, order);
            permits.push(permit);
        }
        ended += permits.len();
        most = most.max(permits.len());
        world.advance(MS_20);
        release(permits).await;
        settle().await;
    }
    assert!(most > 4, "the limit grew to {most}");
}

#[tokio::test]
async fn group_is_decided_by_the_adaptive_limit() {
    let world = World::memory();
    let gate = gate(&world);
    let rate = world.gate("rate", Quota::token_bucket(100, Rate::per_hour(100)));
    let acquire = async |cost| {
        let checks = [gate.key("x").cost(cost), rate.key("x")];
        world.limiter.acquire_all(checks).await.unwrap()
    };
    let first = acquire(5).await;
    assert!(first.is_allowed());
    let denied = acquire(4).await;
    assert!(!denied.is_allowed());
    assert_eq!((denied.decision().binding().gate(), denied.decision().binding().limit()), ("gate", 8));
    release(first.permit().unwrap().into_each()).await;
    // More than the limit, alone; as the sum of two checks, too.
    let alone = acquire(20).await;
    assert!(alone.is_allowed());
    release(alone.permit().unwrap().into_each()).await;
    let twice = world.limiter.acquire_all([gate.key("x").cost(5), gate.key("x").cost(5)]).await.unwrap();
    assert!(twice.is_allowed());
    release(twice.permit().unwrap().into_each()).await;
}

#[tokio::test]
async fn operations_of_groups_are_samples() {
    let world = World::memory();
    let gate = gate(&world);
    for _ in 0..60 {
        let mut held = Vec::new();
        while let Some(permits) = world.limiter.acquire_all([gate.key("x")]).await.unwrap().permit() {
            held.extend(permits.into_each());
        }
        world.advance(MS_20);
        release(held).await;
    }
    assert_eq!(gate.adaptive_limit("x"), Some(14));
}

#[tokio::test]
async fn reset_starts_the_limit_again() {
    let world = World::memory();
    let gate = gate(&world);
    saturate(&world, &gate, "x", MS_20).await;
    assert_eq!(gate.adaptive_limit("x"), Some(14));
    gate.reset("x").await.unwrap();
    world.advance(Duration::from_secs(1));
    release(fill(&gate, "x").await).await;
    assert_eq!(gate.adaptive_limit("x"), Some(8));
}

#[tokio::test]
async fn idle_key_starts_again_after_ten_minutes() {
    let world = World::memory();
    let gate = gate(&world);
    saturate(&world, &gate, "x", MS_20).await;
    for (idle_s, starts_again) in [(599, false), (601, true)] {
        world.advance(Duration::from_secs(idle_s));
        release(vec![gate.try_acquire("x").await.unwrap().permit().unwrap()]).await;
        assert_eq!(gate.adaptive_limit("x") == Some(8), starts_again, "after {idle_s} s");
    }
}

#[derive(Default)]
struct Limits(AtomicU64);

impl Observer for Limits {
    fn on(&self, event: &Event<'_>) {
        if let Event::LimitAdapted { gate, limit } = *event {
            assert_eq!(gate, "gate");
            self.0.store(limit, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn observer_is_notified_of_each_limit() {
    let limits = Arc::new(Limits::default());
    let builder = Limiter::builder().in_memory().manual_clock(ManualClock::new());
    let limiter = builder.observer(limits.clone()).build().unwrap();
    let gate = limiter.gate("gate", Quota::in_flight(40)).adaptive(Adaptive::new());
    drop(gate.acquire("x").await.unwrap());
    assert_eq!(limits.0.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn wrong_settings_are_config_errors() {
    let limiter = Limiter::in_memory();
    let quota = Quota::in_flight(40);
    for (settings, word) in [
        (Adaptive::new().min(0), "min"),
        (Adaptive::new().tolerance(1.0), "tolerance"),
        (Adaptive::new().tolerance(f64::NAN), "tolerance"),
        (Adaptive::new().tolerance(f64::INFINITY), "tolerance"),
    ] {
        let error = limiter.gate("gate", quota).adaptive(settings).acquire("x").await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains(word), "{error}");
    }
    for tolerance in [1.1, 10.0] {
        let gate = limiter.gate("gate", quota).adaptive(Adaptive::new().tolerance(tolerance));
        assert!(gate.acquire("x").await.unwrap().is_allowed());
    }
    let rate = Quota::token_bucket(1, Rate::per_hour(1));
    let error = limiter.gate("rate", rate).adaptive(Adaptive::new()).check("x").await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("in_flight"), "{error}");
}
