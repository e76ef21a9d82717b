//! Charges of units that were used: rules with `charge_used`.

use std::time::Duration;

use tidegate::Switch;
use tidegate::algorithm::NAMES;
use tidegate_rules::{Descriptor, Mode, Rules, RulesDecision, RulesLimiter};

use crate::support::world::World;

fn denying() -> Mode {
    Mode::check().deny_above_limit(true)
}

fn algorithms() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().filter(|name| *name != "in_flight")
}

const RULES: &str = "
  - { key: asked, rate_limit: { unit: hour, requests_per_unit: 20 } }
  - { key: used, rate_limit: { unit: hour, requests_per_unit: 20 }, charge_used: true }
  - { key: tried, rate_limit: { unit: hour, requests_per_unit: 20 }, charge_used: true, shadow_mode: true }
  - { key: closed, rate_limit: { unit: hour, requests_per_unit: 0 } }
";

fn worlds() -> [World; 2] {
    [World::memory(), World::redis()]
}

fn limits(world: &World, settings: &str) -> RulesLimiter {
    let of = |algorithm| {
        format!(
            "  - {{ key: {algorithm}, rate_limit: {{ unit: hour, requests_per_unit: 20, algorithm: {algorithm} }}, \
             charge_used: true }}\n"
        )
    };
    let text =
        format!("domain: d\n{settings}\ndescriptors:{RULES}{}", algorithms().map(of).collect::<String>());
    Rules::parse("d.yaml", &text).unwrap().bind(&world.limiter)
}

async fn check(limits: &RulesLimiter, keys: &[&str], hits: u64) -> RulesDecision {
    let descriptors: Vec<_> = keys.iter().map(|key| Descriptor::from([(*key, "x")]).hits(hits)).collect();
    limits.decide("d", &descriptors, &denying()).await.unwrap().decision
}

/// Returns the units left of each key.
async fn left<const N: usize>(limits: &RulesLimiter, keys: [&str; N]) -> [u64; N] {
    let peeked = check(limits, &keys, 0).await;
    std::array::from_fn(|at| peeked.outcomes()[at].decision().unwrap().remaining())
}

#[tokio::test]
async fn units_used_are_not_denied_after_they_were_charged() {
    for world in worlds() {
        let limits = limits(&world, "");
        let asked = Descriptor::from([("asked", "x")]).hits(21);
        let used = Descriptor::from([("used", "x")]).hits(12);
        let decision = limits.decide("d", &[asked, used], &denying()).await.unwrap().decision;
        let allowed = |at: usize| decision.outcomes()[at].decision().unwrap().is_allowed();
        assert_eq!((decision.is_allowed(), allowed(0), allowed(1)), (false, false, true));
        assert_eq!(left(&limits, ["asked", "used"]).await, [20, 8]);
    }
}

/// Returns the units left of the rule in shadow mode.
async fn left_of_tried(limits: &RulesLimiter) -> u64 {
    left(limits, ["tried"]).await[0]
}

#[tokio::test]
async fn units_used_are_charged_in_shadow_mode_too_beside_a_descriptor_without_hits_that_denies() {
    for world in worlds() {
        let limits = limits(&world, "");
        assert!(check(&limits, &["asked"], 20).await.is_allowed());
        let asked = Descriptor::from([("asked", "x")]).hits(0);
        let tried = Descriptor::from([("tried", "x")]).hits(7);
        assert!(!limits.check("d", &[asked, tried]).await.unwrap().is_allowed());
        assert_eq!(left_of_tried(&limits).await, 13);
    }
}

#[tokio::test]
async fn partial_grant_of_nothing_charges_no_units_used() {
    for world in worlds() {
        let limits = limits(&world, "");
        assert!(check(&limits, &["asked"], 20).await.is_allowed());
        for denies in ["asked", "closed"] {
            let denies = Descriptor::from([(denies, "x")]).hits(u64::from(denies == "closed"));
            let used = Descriptor::from([("used", "x")]).hits(1);
            let grant = limits.take_up_to("d", &[denies, used], 3).await.unwrap();
            assert_eq!((grant.granted(), left(&limits, ["used"]).await), (0, [20]));
        }
    }
}

#[tokio::test]
async fn units_used_deny_once_they_are_above_the_limit() {
    for world in worlds() {
        let limits = limits(&world, "");
        for algorithm in algorithms() {
            let mut codes = Vec::new();
            for _ in 0..10 {
                if check(&limits, &[algorithm], 0).await.is_allowed() {
                    codes.push(check(&limits, &[algorithm], 9).await.is_allowed());
                }
            }
            // The third charge is above the limit, and is charged nevertheless.
            assert_eq!(codes, [true, true, false], "{algorithm}");
            assert_eq!(left(&limits, [algorithm]).await, [0]);
        }
    }
}

#[tokio::test]
async fn more_units_than_the_limit_are_charged_up_to_ten_limits_of_debt() {
    for world in worlds() {
        let limits = limits(&world, "");
        for (hits, hours) in [(50, 2), (1_000_000, 10)] {
            world.advance(Duration::from_secs(100 * 3_600));
            assert!(!check(&limits, &["token_bucket"], hits).await.is_allowed());
            // A bucket drains 20 units an hour. Of the debt, as many limits are left as hours until the first unit.
            let peeked = check(&limits, &["token_bucket"], 0).await;
            let wait = peeked.outcomes()[0].decision().unwrap().retry_after();
            assert_eq!(wait.as_secs() / 3_600, if hits == 50 { 1 } else { hours }, "{hits}: {wait:?}");
        }
    }
}

#[tokio::test]
async fn all_rules_of_a_request_are_charged_beside_a_charge_of_used_units() {
    for world in worlds() {
        for settings in ["", "charge: each"] {
            let limits = limits(&world, settings);
            // The used units are above their limit; the rule of units that are asked for is charged too.
            let denied = check(&limits, &["used", "asked", "sliding_log"], 12).await;
            assert!(denied.is_allowed());
            let denied = check(&limits, &["used", "sliding_log"], 9).await;
            assert!(!denied.is_allowed(), "{settings}");
            assert_eq!(left(&limits, ["used", "asked", "sliding_log"]).await, [0, 8, 0], "{settings}");
            // A rule that denies, or an amount above its limit, charges nothing itself, and prevents no charge.
            for (other, hits) in [("asked", 9), ("asked", 21), ("closed", 1)] {
                let denied = check(&limits, &["token_bucket", other], hits).await;
                assert!(!denied.is_allowed(), "{other} {hits}");
            }
            assert_eq!(left(&limits, ["token_bucket", "asked"]).await, [0, 8], "{settings}");
            // The next settings begin anew.
            world.advance(Duration::from_secs(1_000 * 3_600));
        }
    }
}

#[tokio::test]
async fn shadow_mode_and_switches_apply_to_charges_of_used_units() {
    for world in worlds() {
        let limits = limits(&world, "");
        let tried = check(&limits, &["tried"], 21).await;
        assert!(tried.is_allowed() && tried.outcomes()[0].decision().unwrap().is_shadow());
        assert_eq!(left(&limits, ["tried"]).await, [0]);
        let control = world.limiter.control();
        for (switch, is_allowed) in [(Switch::Open, true), (Switch::Closed, false)] {
            control.switch("d.used", switch, None).await.unwrap();
            assert_eq!(check(&limits, &["used"], 9).await.is_allowed(), is_allowed);
        }
        control.end_switch("d.used").await.unwrap();
        assert_eq!(left(&limits, ["used"]).await, [20]);
    }
}

#[tokio::test]
async fn blocked_key_is_charged_units_that_were_used() {
    for world in worlds() {
        let limits = limits(&world, "");
        for algorithm in algorithms() {
            let (_, gate) = limits.find_gate(&format!("d.{algorithm}")).unwrap();
            let gate = gate.unwrap();
            gate.block("x", Duration::from_secs(1)).await.unwrap();
            assert!(!check(&limits, &[algorithm], 9).await.is_allowed());
            gate.unblock("x").await.unwrap();
            assert_eq!(left(&limits, [algorithm]).await, [11], "{algorithm}");
        }
    }
}

#[test]
fn settings_that_decide_before_units_are_used_are_errors() {
    let ban = "{ unit: hour, requests_per_unit: 20, ban: { after: 2, within: 1m, for: 1h } }";
    for limit in [ban, "{ unit: hour, requests_per_unit: 20, lease: {} }", "{ in_flight: 2 }"] {
        let text =
            format!("domain: d\ndescriptors: [{{ key: used, rate_limit: {limit}, charge_used: true }}]");
        let error = Rules::parse("d.yaml", &text).unwrap_err().to_string();
        assert!(error.contains("`charge_used` cannot be combined with"), "{error}");
    }
}
