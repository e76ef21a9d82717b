//! A group with a gate that is decided apart, such as one in shadow mode, is decided as the others would be alone.

use std::time::Duration;

use tidegate::{AllDecision, Check, Limiter, ManualClock, Quota, Rate};

/// The gate of a group that is decided separately.
const APART: &str = "apart";

/// Returns checks of up to three gates, drawn by the generator.
fn drawn(limiter: &Limiter, draws: &mut fastrand::Rng) -> Vec<Check> {
    let quotas = [
        ("tokens", Quota::token_bucket(6, Rate::per_second(1))),
        ("window", Quota::fixed_window(4, Duration::from_secs(5))),
        ("queue", Quota::leaky_bucket(3, Rate::per_second(1))),
    ];
    let checks = draws.usize(1..=3);
    let draw = |_| {
        let (name, quota) = quotas[draws.usize(..quotas.len())];
        let check = limiter.gate(name, quota).key("k");
        check.cost(draws.u64(0..=3)).max_delay(Duration::from_millis(draws.u64(..2_000)))
    };
    (0..checks).map(draw).collect()
}

#[tokio::test]
async fn groups_are_decided_alike_whether_or_not_a_gate_is_decided_apart() {
    let clock = ManualClock::new();
    let limiter = || Limiter::in_memory_with(clock.clone());
    let (together, apart) = (limiter(), limiter());
    let wide = apart.gate(APART, Quota::token_bucket(1 << 20, Rate::per_second(1))).shadow(true);
    let mut draws = fastrand::Rng::with_seed(39);
    let (mut admitted, mut denied) = (0, 0);
    for _ in 0..2_000 {
        let (one, mut other) = (drawn(&together, &mut draws.clone()), drawn(&apart, &mut draws));
        other.push(wide.key("k").cost(u64::from(one.iter().any(|check| check.units() > 0))));
        let peeks = draws.bool();
        let (one, other): (Result<AllDecision, _>, Result<AllDecision, _>) = match peeks {
            true => (together.peek_all(&one).await, apart.peek_all(&other).await),
            false => (together.check_all(&one).await, apart.check_all(&other).await),
        };
        match (one, other) {
            (Ok(one), Ok(other)) => {
                (admitted, denied) = match one.is_allowed() {
                    true => (admitted + 1, denied),
                    false => (admitted, denied + 1),
                };
                let seen = |all: &AllDecision, alone: usize| {
                    let binding = (all.binding_index(), all.binding_key());
                    (all.is_allowed(), binding, all.retry_after(), all.each_alone()[..alone].to_vec())
                };
                let alone = one.each_alone().len();
                assert_eq!(seen(&one, alone), seen(&other, alone));
            }
            (one, other) => {
                assert_eq!(one.err().map(|it| it.to_string()), other.err().map(|it| it.to_string()))
            }
        }
        clock.advance(Duration::from_millis(draws.u64(..1_500)));
    }
    assert!(admitted > 200 && denied > 200, "{admitted} admitted, {denied} denied");
}
