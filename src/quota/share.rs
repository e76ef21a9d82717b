//! One process's part of a quota, for when it decides alone.

use super::kind::{MOST_TICKS, fraction_below};
use super::{Kind, LeakyBucket, Quota, TokenBucket};

/// More processes than this count as so many.
const MOST_INSTANCES: u64 = 65_535;

impl Quota {
    /// What one of `instances` processes may admit by itself: a level of the
    /// capacity's part, at least 1, that drains at the rate's part; of windows
    /// the limit's part, rounded up. So all together exceed the quota by less
    /// than a unit each.
    pub(crate) fn share(&self, instances: u64) -> Self {
        let instances = instances.clamp(1, MOST_INSTANCES);
        let part = |limit: u64| limit.div_ceil(instances);
        let mut share = *self;
        match &mut share.kind {
            Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket)) => {
                *bucket = bucket.share(part(bucket.capacity), instances);
            }
            Kind::FixedWindow(fixed) => fixed.limit = part(fixed.limit),
            Kind::SlidingLog(log) => log.limit = part(log.limit),
            Kind::SlidingCounter(counter) => counter.limit = part(counter.limit),
        }
        share
    }
}

impl TokenBucket {
    fn share(&self, capacity: u64, instances: u64) -> Self {
        let most_per = MOST_TICKS / capacity;
        let (rate, per) = match fraction_below(self.rate, self.per * instances, most_per) {
            // Slower than the slowest rate there is.
            (0, _) => (1, most_per),
            fraction => fraction,
        };
        Self { capacity, rate, per, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::quota::{Kind, Quota, Rate};

    #[test]
    fn all_shares_together_exceed_the_quota_by_less_than_a_unit_each() {
        for limit in [1, 2, 3, 10, 999, 1_000_000] {
            for instances in [1, 2, 3, 7, 64, 65_535] {
                let bucket = Quota::token_bucket(limit, Rate::new(limit, Duration::from_secs(60)));
                let window = Quota::fixed_window(limit, Duration::from_secs(60));
                for quota in [bucket, window] {
                    let share = quota.share(instances);
                    assert!(share.limit() >= 1, "{quota} {instances}");
                    assert!(share.limit() * instances < limit + instances, "{quota} {instances}");
                }
                let Kind::TokenBucket(whole) = *bucket.kind() else { unreachable!() };
                let Kind::TokenBucket(part) = *bucket.share(instances).kind() else { unreachable!() };
                let over = u128::from(part.rate) * u128::from(whole.per) * u128::from(instances);
                assert!(over <= u128::from(whole.rate) * u128::from(part.per), "{bucket} {instances}");
            }
        }
    }
}
