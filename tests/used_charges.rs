//! Charges of units that were used: whatever the state, with a cap on the debt.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{Ban, Event, Gate, Lease, Limiter, ManualClock, Observer, OnFailure, Quota, Rate, Source};
use tidegate_testkit::{Fault, Proxy};

use crate::support::fixture::{HOUR, builder, builder_as_is, closed_port, namespace, soon};
use crate::support::world::World;

const MINUTE: Duration = Duration::from_secs(60);
/// The most units that are used: a limit, and two limits of debt.
const MOST: u64 = 18;

/// Counts the units that the cap cuts off.
#[derive(Clone, Default)]
struct CutOff(Arc<AtomicU64>);

impl CutOff {
    /// Returns the units since the last call.
    fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl Observer for CutOff {
    fn on(&self, event: &Event<'_>) {
        if let Event::DebtCapped { gate, units } = *event {
            assert!(!gate.is_empty());
            self.0.fetch_add(units, Ordering::Relaxed);
        }
    }
}

/// Returns limiters in memory and on Redis, whose debt is capped at two limits.
fn limiters() -> ([Limiter; 2], World, CutOff) {
    let cut_off = CutOff::default();
    let memory = Limiter::builder().in_memory().manual_clock(ManualClock::new()).debt_cap(2);
    let world = World::redis_with(|builder| builder.observer(cut_off.clone()).debt_cap(2));
    let memory = memory.observer(cut_off.clone()).build().unwrap();
    ([memory, world.limiter.clone()], world, cut_off)
}

fn gates(limiter: &Limiter) -> [Gate; 6] {
    [
        limiter.gate("token", Quota::token_bucket(6, Rate::per_minute(6))),
        limiter.gate("leaky", Quota::leaky_bucket(6, Rate::per_minute(6))),
        limiter.gate("fixed", Quota::fixed_window(6, MINUTE)),
        limiter.gate("clock", Quota::fixed_window(6, MINUTE).aligned_to_clock()),
        limiter.gate("log", Quota::sliding_log(6, MINUTE)),
        limiter.gate("counter", Quota::sliding_counter(6, MINUTE)),
    ]
}

#[tokio::test]
async fn debt_ends_at_the_cap_and_the_rest_is_reported() {
    let (limiters, _world, cut_off) = limiters();
    for gate in limiters.iter().flat_map(gates) {
        let used = gate.clone().charge_used(true);
        let admitted = used.check_cost("x", 5).await.unwrap();
        assert!(admitted.is_allowed() && admitted.remaining() == 1, "{gate:?}");
        assert!(matches!(admitted.source(), Source::Redis | Source::Memory));
        // More than the limit is neither an error nor cut off before the cap.
        let denied = used.check_cost("x", 8).await.unwrap();
        assert!(!denied.is_allowed() && denied.remaining() == 0, "{gate:?}");
        assert_eq!(cut_off.take(), 0, "{gate:?}");
        assert!(!gate.peek("x").await.unwrap().is_allowed(), "{gate:?}");
        let charges = join_all((0..20).map(|_| used.check_cost("x", 7))).await;
        assert!(charges.into_iter().all(|charge| !charge.unwrap().is_allowed()), "{gate:?}");
        assert_eq!(cut_off.take(), 13 + 20 * 7 - MOST, "{gate:?}");
    }
    let debt = gates(&limiters[0])[0].peek("x").await.unwrap().retry_after();
    assert_eq!(debt, Duration::from_secs(10 * (MOST - 6 + 1)));
}

#[tokio::test]
async fn commit_of_more_than_reserved_is_capped() {
    let (limiters, _world, cut_off) = limiters();
    for gate in limiters.iter().flat_map(gates) {
        // An estimate is decided as a check.
        let used = gate.clone().charge_used(true);
        assert!(used.reserve("x", 7).await.unwrap_err().is_over_capacity(), "{gate:?}");
        used.reserve("x", 2).await.unwrap().commit(100).await.unwrap();
        assert_eq!(cut_off.take(), 100 - MOST, "{gate:?}");
    }
}

#[tokio::test]
async fn each_way_to_check_charges_used_units_apart_from_the_others() {
    let (limiters, _world, _) = limiters();
    for limiter in &limiters {
        let [asked, used, ..] = gates(limiter);
        let used = used.charge_used(true);
        // The other check denies, and the used units are charged.
        let all = limiter.check_all([asked.key("x").cost(6), used.key("x").cost(4)]).await.unwrap();
        assert!(all.is_allowed());
        let all = limiter.check_all([asked.key("x").cost(1), used.key("x").cost(1)]).await.unwrap();
        assert!(!all.is_allowed() && all.each_alone()[1].remaining() == 1);
        let error = limiter.check_all([asked.key("y").cost(7), used.key("y").cost(7)]).await.unwrap_err();
        assert!(error.is_over_capacity());
        assert_eq!(used.peek("y").await.unwrap().remaining(), 0);
        // The used units are above their limit, and the other check is charged.
        let all = limiter.check_all([asked.key("z").cost(1), used.key("z").cost(7)]).await.unwrap();
        assert!(!all.is_allowed() && all.binding().gate() == "leaky");
        assert_eq!(asked.peek("z").await.unwrap().remaining(), 5);
        // A partial grant takes units before they are used, also one of a single request.
        let grant = limiter.take_up_to([used.key("z"), asked.key("z")], 1).await.unwrap();
        assert_eq!((grant.granted(), asked.peek("z").await.unwrap().remaining()), (0, 5));
        let each = limiter.check_each([used.key("a").cost(7), asked.key("a"), used.key("a")]).await;
        let each: Vec<bool> = each.into_iter().map(|decided| decided.unwrap().is_allowed()).collect();
        assert_eq!(each, [false, true, false]);
    }
}

#[tokio::test]
async fn used_units_are_charged_to_the_share_without_redis_and_capped() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let cut_off = CutOff::default();
    let builder = builder_as_is(&url).instances(2).debt_cap(2).observer(cut_off.clone());
    let limiter = builder.build().unwrap();
    for gate in gates(&limiter) {
        let used = gate.clone().charge_used(true);
        let admitted = used.check_cost("x", 3).await.unwrap();
        assert!(admitted.source() == Source::Local && admitted.is_allowed(), "{gate:?}");
        let denied = used.check_cost("x", 100).await.unwrap();
        assert!(!denied.is_allowed() && denied.remaining() == 0, "{gate:?}");
        assert_eq!(cut_off.take(), 100 + 3 - MOST / 2, "{gate:?}");
        assert!(!gate.peek("x").await.unwrap().is_allowed(), "{gate:?}");
    }
}

#[tokio::test]
async fn used_units_of_an_outage_are_charged_to_redis_after_it_under_each_policy_but_the_error() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    proxy.set(Fault::Refuse);
    let namespace = namespace();
    let service = builder_as_is(&proxy.url()).namespace(&namespace).instances(2).build().unwrap();
    let other = builder(server.url()).namespace(&namespace).build().unwrap();
    let policies = [OnFailure::Local, OnFailure::Open, OnFailure::Closed];
    let quota = Quota::fixed_window(20, 24 * HOUR);
    let name = |on_failure| match on_failure {
        OnFailure::Local => "local",
        OnFailure::Open => "open",
        _ => "closed",
    };
    for on_failure in policies {
        let used = service.gate(name(on_failure), quota).charge_used(true).on_failure(on_failure);
        // The share is 10.
        let decided = used.check_cost("x", 13).await.unwrap();
        assert_eq!(decided.is_allowed(), on_failure == OnFailure::Open, "{on_failure:?}");
    }
    let error = service.gate("error", quota).charge_used(true).on_failure(OnFailure::Error);
    assert!(error.check_cost("x", 13).await.unwrap_err().is_unavailable());
    proxy.set(Fault::None);
    for on_failure in policies {
        let observed = other.gate(name(on_failure), quota);
        soon(&format!("{on_failure:?}: 13 used"), async || {
            observed.peek("x").await.unwrap().remaining() == 7
        })
        .await;
    }
    assert_eq!(other.gate("error", quota).peek("x").await.unwrap().remaining(), 20);
}

#[tokio::test]
async fn settings_that_decide_before_units_are_used_are_errors() {
    let limiter = Limiter::in_memory();
    let gate = || limiter.gate("fixed", Quota::fixed_window(6, MINUTE)).charge_used(true);
    let ban = Ban::after(2, MINUTE);
    for gate in [gate().ban(ban), gate().leased(Lease::new())] {
        assert!(gate.check("x").await.unwrap_err().is_config());
    }
    assert!(gate().until_allowed("x", MINUTE).await.unwrap_err().is_config());
    assert!(gate().try_check("x").is_none());
}

#[tokio::test]
async fn used_units_are_charged_although_another_check_of_the_group_is_over_capacity() {
    let limiter = Limiter::in_memory();
    let quota = Quota::fixed_window(10, HOUR);
    let used = limiter.gate("used", quota).charge_used(true);
    let (asked, shadow) = (limiter.gate("asked", quota), limiter.gate("shadow", quota).shadow(true));
    let checks = [used.key("x").cost(3), asked.key("x").cost(99), shadow.key("x")];
    assert!(limiter.check_all(checks).await.unwrap_err().is_over_capacity());
    assert_eq!(used.peek("x").await.unwrap().remaining(), 7);
}

#[tokio::test]
async fn gate_that_charges_units_used_cannot_be_acquired_with_permits() {
    let limiter = Limiter::in_memory();
    let used = Quota::fixed_window(10, HOUR);
    let used = limiter.gate("used", used).charge_used(true);
    let jobs = limiter.gate("jobs", Quota::in_flight(2));
    let error = limiter.acquire_all([jobs.key("x"), used.key("x")]).await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("when the work has ended"), "{error}");
    assert!(used.charges_used() && !jobs.charges_used());
}
