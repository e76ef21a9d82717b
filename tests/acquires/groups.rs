//! Permits and charges of several gates in one step, on every store.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tidegate::{OnFailure, Quota, Rate, Source, Switch};
use tidegate_testkit::{Fault, Proxy, Server};

use super::{acquire_until_denied, remaining};
use crate::support::acquired::AcquiredParts;
use crate::support::behaviours;
use crate::support::fixture::{HOUR, builder, calls, soon};

const SLOW: Rate = Rate::new(1, HOUR);

behaviours! {
    async fn group_acquires_and_charges_all_or_nothing(world) {
        let calls = world.gate("calls", Quota::token_bucket(3, SLOW));
        let (users, exports) = (world.gate("users", Quota::in_flight(2)), world.gate("exports", Quota::in_flight(1)));
        let checks = || [calls.key("x"), users.key("x"), exports.key("x")];
        let acquired = world.limiter.acquire_all(checks()).await.unwrap();
        assert!(acquired.is_allowed());
        let permits = acquired.permit().unwrap();
        assert!(permits.is_held() && permits.units() == 2);
        let denied = world.limiter.acquire_all(checks()).await.unwrap();
        assert!(!denied.is_allowed());
        assert_eq!(denied.decision().binding().gate(), "exports");
        assert!(denied.permit().is_none());
        assert_eq!((remaining(&calls, "x").await, remaining(&users, "x").await), (2, 1));
        permits.release().await.unwrap();
        assert_eq!((remaining(&users, "x").await, remaining(&exports, "x").await), (2, 1));
        assert!(world.limiter.acquire_all(checks()).await.unwrap().is_allowed());
        assert!(world.limiter.acquire_all(checks()).await.unwrap().is_allowed(), "dropped permits are released");
        let denied = world.limiter.acquire_all(checks()).await.unwrap();
        assert_eq!(denied.decision().binding().gate(), "calls");
    }

    async fn two_checks_of_one_key_are_one_permit_with_the_sum_of_their_costs(world) {
        let gate = world.gate("gate", Quota::in_flight(5));
        let acquired = world.limiter.acquire_all([gate.key("x").cost(2), gate.key("x")]).await.unwrap();
        let permits = acquired.permit().unwrap().into_each();
        assert_eq!(permits.iter().map(tidegate::Permit::units).collect::<Vec<_>>(), [3]);
        assert_eq!(remaining(&gate, "x").await, 2);
        let error = world.limiter.acquire_all([gate.key("x").cost(4), gate.key("x").cost(2)]).await.unwrap_err();
        assert!(error.is_over_capacity(), "{error}");
    }

    async fn groups_of_the_same_keys_in_any_order_do_not_wait_for_each_other(world) {
        let gate = world.gate("gate", Quota::in_flight(3));
        let other = world.gate("other", Quota::in_flight(2));
        let groups = (0..40).map(|at| {
            let checks = [gate.key("x"), other.key("x")];
            let checks = if at % 2 == 0 { checks.to_vec() } else { checks.into_iter().rev().collect() };
            async move { world.limiter.acquire_all(checks).await.unwrap().permit() }
        });
        let permits: Vec<_> = join_all(groups).await.into_iter().flatten().collect();
        assert_eq!(permits.len(), 2, "as many as the smaller limit");
        assert_eq!((remaining(&gate, "x").await, remaining(&other, "x").await), (1, 0));
        drop(permits);
        assert_eq!(acquire_until_denied(&gate, "x").await.len(), 3);
        assert_eq!(acquire_until_denied(&other, "x").await.len(), 2);
    }

    async fn group_overtakes_no_waiting_caller(world) {
        let gate = world.gate("gate", Quota::in_flight(2));
        let held = gate.try_acquire("x").await.unwrap().permit().unwrap();
        let large = async { gate.acquire("x").cost(2).max_wait(HOUR).await.unwrap().permit().unwrap() };
        let group = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let acquired = world.limiter.acquire_all([gate.key("x")]).await.unwrap();
            assert!(!acquired.is_allowed());
            held.release().await.unwrap();
        };
        let (permit, ()) = futures_util::join!(large, group);
        assert_eq!(permit.units(), 2);
    }

    async fn gate_in_shadow_denies_no_group(world) {
        let calls = world.gate("calls", Quota::token_bucket(5, SLOW));
        let exports = world.gate("exports", Quota::in_flight(1));
        let shadow = exports.clone().shadow(true);
        let group = || world.limiter.acquire_all([calls.key("x"), shadow.key("x")]);
        let first = group().await.unwrap();
        assert_eq!(first.decision().each_alone()[1].outcome(), "allowed");
        let second = group().await.unwrap();
        assert!(second.is_allowed());
        assert_eq!(second.decision().each_alone()[1].outcome(), "shadow_denied");
        assert_eq!((first.permit().unwrap().units(), second.permit().unwrap().units()), (1, 0));
        assert_eq!(remaining(&calls, "x").await, 3);
    }

    async fn switched_gate_in_a_group_counts_nothing(world) {
        let (calls, exports) = (world.gate("calls", Quota::token_bucket(5, SLOW)), world.gate("exports", Quota::in_flight(1)));
        world.limiter.control().switch("exports", Switch::Open, None).await.unwrap();
        for _ in 0..2 {
            let acquired = world.limiter.acquire_all([calls.key("x"), exports.key("x")]).await.unwrap();
            assert_eq!(acquired.permit().unwrap().units(), 0);
        }
        world.limiter.control().switch("exports", Switch::Closed, None).await.unwrap();
        let denied = world.limiter.acquire_all([calls.key("x"), exports.key("x")]).await.unwrap();
        assert!(!denied.is_allowed());
        assert_eq!(remaining(&calls, "x").await, 3);
    }

    async fn check_of_cost_0_does_not_bind_a_group_that_a_switch_denies(world) {
        let (calls, exports) = (world.gate("calls", Quota::token_bucket(1, SLOW)), world.gate("exports", Quota::in_flight(1)));
        assert!(calls.check("x").await.unwrap().is_allowed());
        world.limiter.control().switch("exports", Switch::Closed, None).await.unwrap();
        let denied = world.limiter.acquire_all([calls.key("x").cost(0), exports.key("x")]).await.unwrap();
        assert_eq!(denied.decision().binding().gate(), "exports");
    }
}

#[tokio::test]
async fn group_without_an_in_flight_limit_is_not_decided_after_a_shutdown() {
    let limiter = tidegate::Limiter::in_memory();
    let calls = limiter.gate("calls", Quota::token_bucket(1, SLOW));
    limiter.shutdown().await;
    assert!(limiter.acquire_all([calls.key("x")]).await.unwrap_err().is_shut_down());
}

/// The groups of one message are decided together, so a slow Redis delays them by a round trip or two, and not each
/// by one more than that before it.
#[tokio::test]
async fn groups_that_share_a_key_of_an_in_flight_limit_share_a_message() {
    const GROUPS: u64 = 40;
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let settings = builder(&proxy.url()).follow_overrides(false).instances(1).publish_figures(false);
    let limiter = settings.deadline(Duration::from_secs(2)).on_failure(OnFailure::Local).build().unwrap();
    let calls_of_user = limiter.gate("calls", Quota::token_bucket(1_000, SLOW));
    let (tenant, user) =
        (limiter.gate("tenant", Quota::in_flight(30)), limiter.gate("user", Quota::in_flight(1)));
    let group = |number: u64| {
        let number = number.to_string();
        let checks = [calls_of_user.key("x"), tenant.key("x"), user.key(number)];
        async { limiter.acquire_all(checks).await.unwrap() }
    };
    soon("the process is connected", async || group(0).await.decision().binding().source() == Source::Redis)
        .await;
    proxy.set(Fault::Slow(Duration::from_millis(200)));
    let before = calls(&server, "evalsha");
    let acquired = join_all((1..=GROUPS).map(group)).await;
    let sent = calls(&server, "evalsha") - before;
    let sources = acquired.iter().flat_map(|group| group.decision().each_alone());
    assert!(
        sources.clone().all(|decision| decision.source() == Source::Redis),
        "{:?}",
        acquired[39].decision()
    );
    assert_eq!(acquired.iter().filter(|group| group.is_allowed()).count(), 30);
    assert!(sent <= 10, "{sent} calls");
    proxy.set(Fault::None);
    let remaining = async |gate, key| tidegate::Gate::peek(gate, key).await.unwrap().remaining();
    assert_eq!((remaining(&tenant, "x").await, remaining(&calls_of_user, "x").await), (0, 969));
    drop(acquired);
    soon("all units are released", async || remaining(&tenant, "x").await == 30).await;
}

/// Prints the groups decided per second where a round trip takes 6 ms: by `check_all`, and by `acquire_all` with a key of
/// an in-flight limit that all groups share.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of 12 s"]
async fn long_form_rates_at_3_ms_each_way() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let settings = builder(&proxy.url()).deadline(Duration::from_millis(100)).on_failure(OnFailure::Local);
    let limiter = settings.build().unwrap();
    let rates = ["one", "two"]
        .map(|name| limiter.gate(name, Quota::token_bucket(1_000_000, Rate::per_second(1_000_000))));
    let held = limiter.gate("held", Quota::in_flight(1_000_000));
    soon("the process is connected", async || limiter.ready().await.is_ok()).await;
    proxy.set(Fault::Slow(Duration::from_millis(6)));
    for callers in [1, 20, 100] {
        let mut counts = Vec::new();
        for acquires in [false, true] {
            let until = Instant::now() + Duration::from_secs(2);
            let caller = async || {
                let (mut decided, mut denied) = (0, 0);
                while Instant::now() < until {
                    let is_allowed = if acquires {
                        limiter.acquire_all([rates[0].key("x"), held.key("x")]).await.unwrap().is_allowed()
                    } else {
                        limiter.check_all([rates[0].key("x"), rates[1].key("x")]).await.unwrap().is_allowed()
                    };
                    decided += 1;
                    denied += u32::from(!is_allowed);
                }
                (decided, denied)
            };
            let all = join_all((0..callers).map(|_| caller())).await;
            let sum = all.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            counts.push((sum.0 / 2, sum.1));
        }
        eprintln!(
            "{callers} callers: check_all {}/s, acquire_all {}/s, denied {}",
            counts[0].0, counts[1].0, counts[1].1
        );
    }
}
