//! A token bucket beside the in-flight limits of a group. Its level is counted in ticks.

use tidegate::Quota;
use tidegate::algorithm::Kind;

use super::state::{Kept, Level};

/// Returns the level at `now`. A level with a future date does not drain.
pub fn ticks(quota: &Quota, level: Option<&Kept<Level>>, now: u64) -> u64 {
    let (rate, _) = numbers(quota);
    let Some(Kept { value, .. }) = level else { return 0 };
    value.ticks.saturating_sub(now.saturating_sub(value.at_us) * rate)
}

/// Returns how many of `n` acquires of `cost` the bucket admits.
pub fn affordable(quota: &Quota, ticks: u64, n: u64, cost: u64) -> u64 {
    let (_, per) = numbers(quota);
    let free = (quota.limit() * per).saturating_sub(ticks);
    free.checked_div(cost * per).map_or(n, |most| n.min(most))
}

/// Returns the ticks of so many units.
pub fn ticks_of(quota: &Quota, units: u64) -> u64 {
    units * numbers(quota).1
}

/// Returns when the level is empty.
pub fn empty_us(quota: &Quota, level: &Level) -> u64 {
    level.at_us + level.ticks.div_ceil(numbers(quota).0)
}

/// Returns the ticks that drain per µs, and the ticks of a unit.
fn numbers(quota: &Quota) -> (u64, u64) {
    match quota.kind() {
        Kind::TokenBucket(bucket) => (bucket.rate, bucket.per),
        other => panic!("{other:?}"),
    }
}
