//! A sliding counter keeps every debt that can be charged, for every window length.

use std::time::Duration;

use tidegate::{Gate, Quota};

use crate::support::fixture::HOUR;
use crate::support::world::World;

const LIMIT: u64 = 100;
const KEY: &str = "user:42";
/// The store keeps at most 2^52 units.
const DEBTS: [u64; 7] = [1_637, 52_125, 52_126, 1_000_000, 1 << 44, (1 << 49) - 1, 1 << 49];

/// Returns the time from the start of the debt's window until `debt` counts as at most `LIMIT - 1` units, by
/// exact arithmetic. That is two windows minus the longest rest of the second one in which the debt counts as
/// less than `LIMIT`.
fn passes_after(debt: u64, window: Duration) -> Duration {
    let (debt, window) = (u128::from(debt), window.as_micros());
    // The largest rest of the next window in which debt * rest / window is below LIMIT.
    let rest = (u128::from(LIMIT) * window - 1) / debt;
    Duration::from_micros(u64::try_from(2 * window - rest).unwrap())
}

async fn check_debts(world: &World, days: u32) {
    let window = 24 * HOUR * days;
    for debt in DEBTS {
        let gate: Gate =
            world.limiter.gate(&format!("counter.{days}.{debt}"), Quota::sliding_counter(LIMIT, window));
        world.set(Duration::ZERO);
        let begun =
            gate.peek(KEY).await.unwrap().server_now_us() % u64::try_from(window.as_micros()).unwrap();
        let start = Duration::from_micros(begun);
        gate.penalize(KEY, debt).await.unwrap();
        let denied = gate.check(KEY).await.unwrap();
        let expected = passes_after(debt, window) - start;
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, expected), "{debt} of {days} days");
        world.set(expected - Duration::from_micros(1));
        assert!(!gate.peek(KEY).await.unwrap().is_allowed(), "{debt} of {days} days, 1 us before");
        world.set(expected);
        assert!(gate.check(KEY).await.unwrap().is_allowed(), "{debt} of {days} days");
    }
}

#[tokio::test]
async fn sliding_counter_keeps_a_debt_of_any_size_in_memory() {
    for days in [1, 30] {
        check_debts(&World::memory(), days).await;
    }
}

#[tokio::test]
async fn sliding_counter_keeps_a_debt_of_any_size_in_redis() {
    let world = World::redis_with(|builder| builder.deny_cache(Duration::ZERO));
    for days in [1, 30] {
        check_debts(&world, days).await;
    }
}
