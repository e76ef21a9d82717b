//! Charges of requests that were denied.

use std::time::Duration;

use tidegate::{Quota, Rate};
use tidegate_rules::{ChargedDenials, Descriptor, Mode, Rules, RulesDecision, RulesLimiter};
use tidegate_testkit::{Fault, Proxy};

use crate::support::fixture::{builder, namespace, soon};
use crate::support::world::World;

fn charging() -> Mode {
    Mode::check().deny_above_limit(true).charge_denied(ChargedDenials::All)
}

const LIMITS: &str = "
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: month, rate_limit: { every: month, requests_per_unit: 5 } }
  - { key: path, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: bucket, rate_limit: { unit: minute, requests_per_unit: 5, algorithm: token_bucket } }
  - { key: log, rate_limit: { unit: minute, requests_per_unit: 5, algorithm: sliding_log } }
  - { key: tried, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: quota, rate_limit: { unit: minute, requests_per_unit: 5 } }
";

fn limits(world: &World, settings: &str) -> RulesLimiter {
    let text = format!("domain: d\n{settings}\ndescriptors:{LIMITS}");
    Rules::parse("d.yaml", &text).unwrap().bind(&world.limiter)
}

fn worlds() -> [World; 2] {
    [World::memory(), World::redis()]
}

/// Other numbers for the same counts.
fn of_twelve(world: &World) -> RulesLimiter {
    let text = "{domain: d, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 12}}]}";
    Rules::parse("d.yaml", text).unwrap().bind(&world.limiter)
}

/// Checks with `hits` for each key, and charges the request if it is denied.
async fn check(limits: &RulesLimiter, keys: &[&str], hits: u64) -> RulesDecision {
    let descriptors: Vec<_> = keys.iter().map(|key| Descriptor::from([(*key, "x")]).hits(hits)).collect();
    limits.decide("d", &descriptors, &charging()).await.unwrap().decision
}

/// Decides a request of one unit. A charge at the very instant of its denial would end the cached denial.
async fn decide_while_time_passes(world: &World, limits: &RulesLimiter, mode: Mode) -> RulesDecision {
    let pass_time = async {
        loop {
            world.advance(Duration::from_micros(1));
            tokio::task::yield_now().await;
        }
    };
    let descriptors = [Descriptor::from([("user", "x")])];
    tokio::select! {
        decided = limits.decide("d", &descriptors, &mode) => decided.unwrap().decision,
        () = pass_time => unreachable!("time does not end"),
    }
}

/// Returns the units left of each key.
async fn left<const N: usize>(limits: &RulesLimiter, keys: [&str; N]) -> [u64; N] {
    let peeked = check(limits, &keys, 0).await;
    std::array::from_fn(|at| peeked.outcomes()[at].decision().unwrap().remaining())
}

#[tokio::test]
async fn denied_request_takes_the_rest_of_fixed_windows_and_of_no_other_algorithm() {
    for world in worlds() {
        let limits = limits(&world, "");
        let keys = ["user", "month", "bucket", "log"];
        for key in keys {
            assert!(check(&limits, &[key], 3).await.is_allowed());
            assert!(!check(&limits, &[key], 3).await.is_allowed());
        }
        assert_eq!(left(&limits, keys).await, [0, 0, 2, 2]);
        // A cost above the limit, too.
        assert!(!check(&limits, &["path"], 6).await.is_allowed());
        assert_eq!(left(&limits, ["path"]).await, [0]);
    }
}

#[tokio::test]
async fn denied_requests_still_count_when_the_limit_is_raised() {
    for world in worlds() {
        let limits = limits(&world, "");
        for _ in 0..10 {
            let _ = check(&limits, &["user"], 1).await;
        }
        assert_eq!(left(&of_twelve(&world), ["user"]).await, [2]);
    }
}

#[tokio::test]
async fn denial_charges_the_rules_that_deny_and_those_that_each_admit() {
    for world in worlds() {
        for (settings, left_of_path) in [("", 4), ("charge: each", 3)] {
            let limits = limits(&world, settings);
            assert!(check(&limits, &["user", "path"], 1).await.is_allowed());
            assert!(check(&limits, &["user"], 4).await.is_allowed());
            assert_eq!(left(&limits, ["user", "path"]).await, [0, 4], "{settings}");
            assert!(!check(&limits, &["user", "path"], 1).await.is_allowed());
            assert_eq!(left(&limits, ["path"]).await, [left_of_path], "{settings}");
            assert_eq!(left(&of_twelve(&world), ["user"]).await, [6], "{settings}");
            // The next settings begin anew.
            world.advance(Duration::from_secs(60));
        }
    }
}

/// As a rule of envoyproxy/ratelimit with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT.
#[tokio::test]
async fn rule_that_denies_a_large_cost_denies_small_ones_afterwards() {
    for world in worlds() {
        let limits = limits(&world, "");
        let mut decided = Vec::new();
        for hits in [4, 4, 1] {
            decided.push(check(&limits, &["user", "path"], hits).await.is_allowed());
        }
        assert_eq!(decided, [true, false, false]);
    }
}

#[tokio::test]
async fn rule_in_shadow_mode_is_charged_for_requests_it_would_deny() {
    for world in worlds() {
        let limits = limits(&world, "");
        assert!(check(&limits, &["tried"], 3).await.is_allowed());
        assert!(check(&limits, &["tried"], 3).await.is_allowed());
        assert_eq!(left(&limits, ["tried"]).await, [0]);
        // A rule that admits is charged once, also beside a denial.
        assert!(check(&limits, &["user"], 5).await.is_allowed());
        world.advance(Duration::from_secs(1));
        let descriptors = [Descriptor::from([("user", "x")]), Descriptor::from([("tried", "y")])];
        let denied = limits.decide("d", &descriptors, &charging()).await.unwrap().decision;
        assert!(!denied.is_allowed());
        let peek = [Descriptor::from([("tried", "y")]).hits(0)];
        let peeked = limits.check("d", &peek).await.unwrap();
        assert_eq!(peeked.outcomes()[0].decision().unwrap().remaining(), 4);
    }
}

#[tokio::test]
async fn override_of_the_key_decides_whether_a_denial_is_charged() {
    let world = World::redis();
    let limits = limits(&world, "");
    let control = world.limiter.control();
    let bucket = Quota::token_bucket(5, Rate::per_minute(5));
    control.set_override("d.user", "x", bucket, Duration::from_secs(3_600)).await.unwrap();
    let window = Quota::fixed_window(5, Duration::from_secs(60));
    control.set_override("d.bucket", "x", window, Duration::from_secs(3_600)).await.unwrap();
    for key in ["user", "bucket"] {
        assert!(check(&limits, &[key], 3).await.is_allowed());
        assert!(!check(&limits, &[key], 3).await.is_allowed());
    }
    assert_eq!(left(&limits, ["user", "bucket"]).await, [2, 0]);
}

#[tokio::test]
async fn cached_denials_charge_nothing_if_they_are_left_out() {
    let world = World::redis();
    let limits = limits(&world, "");
    assert!(check(&limits, &["user"], 5).await.is_allowed());
    let before = world.script_calls();
    for _ in 0..100 {
        let mode = charging().charge_denied(ChargedDenials::Uncached);
        assert!(!decide_while_time_passes(&world, &limits, mode).await.is_allowed());
    }
    let calls = world.script_calls() - before;
    assert!(calls <= 12, "{calls} calls for 100 denied requests");
    assert_eq!(left(&of_twelve(&world), ["user"]).await, [6]);
}

#[tokio::test]
async fn decision_shows_the_state_after_its_charge() {
    for world in worlds() {
        let limits = limits(&world, "");
        let shown = |decision: &RulesDecision| {
            let shown = decision.outcomes().iter().map(|outcome| {
                let decision = outcome.decision().unwrap();
                let times = (decision.retry_after().as_secs(), decision.reset_after().as_secs());
                (decision.is_allowed(), decision.remaining(), times)
            });
            shown.collect::<Vec<_>>()
        };
        // Above the limit. The charge begins the window.
        let denied = check(&limits, &["user"], 10).await;
        assert_eq!(shown(&denied), [(false, 0, (60, 60))]);
        // One rule denies, and it alone is charged.
        let denied = check(&limits, &["user", "path"], 2).await;
        assert_eq!(shown(&denied), [(false, 0, (60, 60)), (true, 5, (0, 0))]);
        assert_eq!(left(&limits, ["path"]).await, [5]);
        let binding = denied.binding().unwrap().decision().unwrap();
        assert_eq!((binding.gate(), binding.remaining()), ("d.user", 0));
        // Other algorithms are not charged.
        assert!(check(&limits, &["bucket"], 3).await.is_allowed());
        let denied = check(&limits, &["bucket"], 3).await;
        assert_eq!(shown(&denied), [(false, 2, (12, 36))]);
    }
}

/// The first denial is by Redis. The charges of the others keep it cached.
#[tokio::test]
async fn denied_request_calls_redis_once() {
    // Nothing else calls Redis meanwhile.
    let world = World::redis_with(|builder| builder.follow_overrides(false).instances(1));
    let limits = limits(&world, "");
    assert!(check(&limits, &["user"], 5).await.is_allowed());
    // Loads the script that charges.
    assert!(!check(&limits, &["user"], 1).await.is_allowed());
    let before = world.script_calls();
    for _ in 0..100 {
        assert!(!decide_while_time_passes(&world, &limits, charging()).await.is_allowed());
    }
    let calls = world.script_calls() - before;
    assert!(calls <= 110, "{calls} calls for 100 denied requests");
    let text = "{domain: d, descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 200}}]}";
    let raised = Rules::parse("d.yaml", text).unwrap().bind(&world.limiter);
    assert_eq!(left(&raised, ["user"]).await, [94], "all of them are charged");
}

#[tokio::test]
async fn each_denial_is_charged_with_the_deny_cache_and_no_peek_is() {
    let world = World::redis();
    let limits = limits(&world, "");
    assert!(check(&limits, &["user"], 5).await.is_allowed());
    for _ in 0..3 {
        assert!(!check(&limits, &["user"], 1).await.is_allowed());
        assert_eq!(left(&limits, ["user"]).await, [0]);
    }
    assert_eq!(left(&of_twelve(&world), ["user"]).await, [4]);
}

#[tokio::test]
async fn permit_of_a_denied_request_is_free_before_its_charge_is_answered() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let proxy = Proxy::start(server.url()).unwrap();
    let text = "
domain: d
charge: each
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: upload, rate_limit: { in_flight: 1 } }
";
    let [slow, fast] = [&*proxy.url(), server.url()].map(|url| {
        let limiter = builder(url).namespace(&namespace).build().unwrap();
        Rules::parse("d.yaml", text).unwrap().bind(&limiter)
    });
    assert!(check(&slow, &["user"], 1).await.is_allowed());
    proxy.set(Fault::Slow(Duration::from_secs(1)));
    let request = ["user", "upload"].map(|key| Descriptor::from([(key, "x")]));
    let mode = Mode::in_flight().charge_denied(ChargedDenials::All);
    let is_held = async || {
        let peeked = fast.decide("d", &request[1..], &Mode::peek()).await.unwrap();
        !peeked.decision.is_allowed()
    };
    let released = async {
        soon("the permit is held", &is_held).await;
        soon("the permit is free", async || !is_held().await).await;
    };
    tokio::select! {
        grant = slow.decide("d", &request, &mode) => panic!("the permit was held until {grant:?}"),
        () = released => {}
    }
}
