//! Tests which checks a lease decides, and which go to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{Event, Lease, Limiter, Observer, Quota, Rate, Source};
use tidegate_testkit::{Fault, Proxy};

use super::{HOLD, MINUTE, assert_adds_up, gates, get_lease, grow, lease};
use crate::support::behaviours;
use crate::support::fixture::{builder, soon};

behaviours! {
    async fn try_check_returns_none_without_a_lease(world) {
        let unleased = world.limiter.gate("unleased", Quota::fixed_window(9, MINUTE));
        for _ in 0..9 {
            assert!(unleased.try_check("x").is_none());
            assert_ne!(unleased.check("x").await.unwrap().source(), Source::Lease);
        }
        for gate in gates(&world.limiter, 1_000, lease()) {
            for _ in 0..3 {
                assert!(gate.try_check("x").is_none());
                assert_ne!(gate.check("x").await.unwrap().source(), Source::Lease);
            }
            assert_eq!(gate.lease_stats().keys, 0, "three checks are too few");
        }
    }

    async fn frequent_checks_are_spent_from_a_lease(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(2)) {
            let used = get_lease(&gate, "x").await;
            let before = gate.peek("x").await.unwrap();
            assert_eq!(before.remaining(), 1_000 - used - 2, "{gate:?}");
            let first = gate.try_check("x").unwrap();
            assert!(first.is_allowed());
            assert_eq!((first.source(), first.remaining(), first.limit()), (Source::Lease, 1, 1_000));
            assert_eq!(first.gate(), gate.name().unwrap());
            assert_eq!(first.retry_after(), Duration::ZERO);
            assert_eq!(first.reset_after(), before.reset_after(), "{gate:?}");
            assert_eq!(first.server_now_us(), before.server_now_us());
            assert!(gate.try_check("y").is_none(), "the lease belongs to another key");
            assert_adds_up(&gate);
        }
    }

    async fn a_partial_grant_within_the_lease_is_spent_from_it(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(2)) {
            get_lease(&gate, "x").await;
            let grant = gate.take_up_to("x", 2).await.unwrap();
            assert_eq!((grant.granted(), grant.decision().source()), (2, Source::Lease), "{gate:?}");
            assert_adds_up(&gate);
        }
    }

    async fn a_partial_grant_takes_the_rest_of_the_store_and_of_the_lease(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(2)) {
            let used = get_lease(&gate, "x").await;
            let grant = gate.take_up_to("x", u64::MAX).await.unwrap();
            assert_eq!(grant.granted(), 1_000 - used, "{gate:?}");
            assert_eq!(gate.take_up_to("x", 5).await.unwrap().granted(), 0, "{gate:?}");
            assert_adds_up(&gate);
        }
    }

    async fn a_clone_spends_from_the_same_lease_and_a_second_gate_does_not(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(2)) {
            get_lease(&gate, "x").await;
            assert!(gate.clone().try_check("x").is_some());
            assert!(gate.clone().leased(lease()).try_check("x").is_none());
        }
    }

    async fn a_lease_never_holds_more_than_max_units(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(10)) {
            let (mut from_lease, mut from_store) = (0, 0);
            for _ in 0..300 {
                match gate.check("x").await.unwrap() {
                    decision if decision.source() == Source::Lease => from_lease += 1,
                    _ => from_store += 1,
                }
                assert!(gate.lease_stats().held <= 10, "{:?}", gate.lease_stats());
                tokio::task::yield_now().await;
            }
            assert!(from_lease > 0, "{gate:?}");
            assert_eq!(gate.lease_stats().spent, from_lease);
            soon("the store has counted all units", async || {
                let taken = gate.lease_stats().taken;
                gate.peek("x").await.unwrap().remaining() == 1_000 - from_store - taken
            })
            .await;
            assert_adds_up(&gate);
        }
    }

    async fn a_block_grows_with_the_demand_up_to_max_units(world) {
        for gate in gates(&world.limiter, 10_000, lease().max_units(64)) {
            grow(&gate, "x", 40).await;
            assert!(gate.try_check_cost("x", 20).is_some(), "{:?}", gate.lease_stats());
        }
    }

    async fn a_cost_above_the_units_left_goes_to_the_store(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(8)) {
            get_lease(&gate, "x").await;
            assert!(gate.try_check_cost("x", 0).is_none(), "a peek");
            assert!(gate.try_check_cost("x", 3).is_none(), "the lease holds only two units");
            assert!(gate.try_check_cost("x", u64::MAX).is_none());
            let decision = gate.check_cost("x", 3).await.unwrap();
            assert!(decision.is_allowed() && decision.source() != Source::Lease);
            // This check makes the next block large enough.
            soon("a block large enough for that cost", async || gate.lease_stats().held >= 6).await;
            assert_eq!(gate.try_check_cost("x", 3).unwrap().source(), Source::Lease);
            assert!(gate.lease_stats().held <= 8);
            for _ in 0..6 {
                let large = gate.check_cost("x", 9).await.unwrap();
                assert!(large.is_allowed() && large.source() != Source::Lease, "a cost above max_units");
            }
            assert!(gate.check_cost("x", 1_001).await.unwrap_err().is_over_capacity());
            assert_adds_up(&gate);
        }
    }

    async fn settings_that_disable_leasing_behave_like_no_lease(world) {
        let none = [lease().max_units(0), lease().hold(Duration::ZERO), Lease::new().max_keys(0)];
        for gate in none.into_iter().flat_map(|lease| gates(&world.limiter, 1_000, lease)) {
            for _ in 0..10 {
                assert!(gate.try_check("x").is_none());
                assert_ne!(gate.check("x").await.unwrap().source(), Source::Lease);
            }
            assert_eq!(gate.lease_stats(), tidegate::LeaseStats::default());
        }
    }

    async fn every_check_of_a_quota_that_cannot_be_leased_is_a_config_error(world) {
        let quotas = [Quota::leaky_bucket(5, Rate::per_second(1)), Quota::sliding_log(5, MINUTE).count_denied()];
        for quota in quotas {
            let gate = world.limiter.gate("gate", quota).leased(lease());
            let error = gate.check("x").await.unwrap_err();
            assert!(error.is_config() && error.to_string().contains("cannot be leased"), "{error}");
            assert!(gate.peek("x").await.unwrap_err().is_config());
            assert!(gate.try_check("x").is_none());
        }
    }

    async fn hostile_keys_have_separate_leases(world) {
        let long = [vec![0; 24], vec![0; 25], vec![b'k'; 300], vec![b'k'; 301]];
        let keys: Vec<&[u8]> = [&b""[..], b"\0", b"{x}", b"*", b"a\r\nb", b"\xff\xfe"]
            .into_iter()
            .chain(long.iter().map(Vec::as_slice))
            .collect();
        for gate in gates(&world.limiter, 1_000, lease().max_units(2)) {
            for key in &keys {
                assert!(gate.try_check(key).is_none(), "{key:?} has the lease of another key");
                for _ in 0..4 {
                    assert!(gate.check(key).await.unwrap().is_allowed());
                }
                soon("a lease", async || gate.try_check(key).is_some()).await;
            }
            assert_eq!(gate.lease_stats().keys, keys.len());
        }
    }

    async fn the_number_of_leased_keys_is_bounded(world) {
        for gate in gates(&world.limiter, 1_000, Lease::new().max_keys(8).max_units(2)) {
            for key in 0..60 {
                for _ in 0..5 {
                    let _ = gate.check(key.to_string()).await.unwrap();
                }
                assert!(gate.lease_stats().keys <= 8);
            }
            soon("leases", async || gate.lease_stats().keys == 8).await;
            assert!(gate.lease_stats().held <= 16);
            // Unused leases end and make room for other keys.
            soon("the leases end", async || {
                world.advance(HOLD);
                gate.lease_stats().keys == 0
            })
            .await;
            get_lease(&gate, "another").await;
            assert_adds_up(&gate);
        }
    }

    async fn leases_do_not_exceed_an_exhausted_limit(world) {
        for gate in gates(&world.limiter, 40, lease().max_units(8)) {
            let mut admitted = 0;
            for _ in 0..200 {
                admitted += u64::from(gate.check("x").await.unwrap().is_allowed());
                tokio::task::yield_now().await;
            }
            soon("the leased units are spent", async || {
                admitted += u64::from(gate.try_check("x").is_some_and(|decision| decision.is_allowed()));
                gate.lease_stats().held == 0
            })
            .await;
            let peek = gate.peek("x").await.unwrap();
            assert_eq!((admitted, peek.remaining()), (40, 0), "{gate:?}");
            assert_adds_up(&gate);
        }
    }

    async fn a_reservation_of_leased_units_is_given_back_to_the_store(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(2)) {
            get_lease(&gate, "x").await;
            let before = gate.peek("x").await.unwrap().remaining();
            let reservation = gate.reserve("x", 2).await.unwrap();
            assert_eq!(reservation.decision().source(), Source::Lease);
            reservation.commit(1).await.unwrap();
            soon("the units that are not leased again are back", async || {
                let stats = gate.lease_stats();
                gate.peek("x").await.unwrap().remaining() == before + 1 + 2 - stats.taken
            })
            .await;
        }
    }

    async fn leased_units_survive_a_block_but_not_a_reset(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(2)) {
            get_lease(&gate, "x").await;
            get_lease(&gate, "y").await;
            gate.block("x", MINUTE).await.unwrap();
            assert!(gate.try_check("x").unwrap().is_allowed());
            gate.reset("y").await.unwrap();
            assert!(gate.try_check("y").is_none(), "{gate:?}");
            assert_adds_up(&gate);
            assert_eq!(gate.peek("y").await.unwrap().remaining(), 1_000);
        }
    }

    async fn until_allowed_spends_leased_units(world) {
        for gate in gates(&world.limiter, 1_000, lease().max_units(2)) {
            get_lease(&gate, "x").await;
            let decision = gate.until_allowed("x", Duration::ZERO).await.unwrap();
            assert_eq!(decision.source(), Source::Lease);
        }
    }
}

#[derive(Clone, Default)]
struct Events {
    decided: Arc<AtomicUsize>,
    called: Arc<AtomicUsize>,
    leased: Arc<AtomicUsize>,
    returned: Arc<AtomicUsize>,
}

impl Observer for Events {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Decided(decision) => {
                self.decided.fetch_add(usize::from(decision.source() == Source::Lease), Ordering::Relaxed);
            }
            Event::Called { .. } => {
                self.called.fetch_add(1, Ordering::Relaxed);
            }
            Event::Leased { gate, units } => {
                assert_eq!(gate, "gate");
                self.leased.fetch_add(units as usize, Ordering::Relaxed);
            }
            Event::Returned { units, .. } => {
                self.returned.fetch_add(units as usize, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn an_observer_is_notified_of_every_unit() {
    let events = Events::default();
    let limiter = Limiter::builder().in_memory().observer(events.clone()).build().unwrap();
    let lease = lease().max_units(2).hold(MINUTE);
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, MINUTE)).leased(lease);
    get_lease(&gate, "x").await;
    assert!(gate.try_check("x").is_some());
    limiter.shutdown().await;
    let stats = gate.lease_stats();
    assert_eq!(events.decided.load(Ordering::Relaxed), 1);
    assert_eq!(events.leased.load(Ordering::Relaxed) as u64, stats.taken);
    assert_eq!(events.returned.load(Ordering::Relaxed) as u64, stats.returned);
    assert_eq!((stats.spent, stats.held, stats.returned), (1, 0, stats.taken - 1));
}

#[tokio::test]
async fn a_denied_key_causes_no_extra_calls() {
    let events = Events::default();
    let limiter = Limiter::builder().in_memory().observer(events.clone()).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(20, MINUTE * 60)).leased(lease());
    for _ in 0..50 {
        let _ = gate.check("x").await.unwrap();
        tokio::task::yield_now().await;
    }
    let calls = events.called.swap(0, Ordering::Relaxed);
    assert!(calls < 60, "{calls}");
    for _ in 0..1_000 {
        assert!(!gate.check("x").await.unwrap().is_allowed());
        tokio::task::yield_now().await;
    }
    let calls = events.called.load(Ordering::Relaxed);
    assert!(calls < 1_020, "{calls} calls for 1000 checks");
}

/// A check that was sent before a refill arrived is answered after it, and must not request another refill.
#[tokio::test]
async fn a_block_grows_with_the_demand_while_replies_are_slow() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let limiter = builder(&proxy.url()).build().unwrap();
    proxy.set(Fault::Slow(Duration::from_millis(3)));
    for gate in gates(&limiter, 1_000, lease().max_units(64).hold(MINUTE)) {
        let spent = grow(&gate, "x", 40).await;
        assert!(spent < 300, "{gate:?}: {spent} units were spent");
    }
}
