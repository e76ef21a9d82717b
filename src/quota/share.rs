//! One process's share of a quota, which it uses while Redis is unavailable.

use super::kind::{MAX_TICKS, fraction_below};
use super::{Kind, LeakyBucket, Quota, TokenBucket};

/// A larger number of instances is clamped to this.
const MAX_INSTANCES: u64 = 65_535;

/// Scales `units` of a quota to units of its share, rounded up.
pub(crate) fn units_of_share(units: u64, limit: u64, share: &Quota) -> u64 {
    (u128::from(units) * u128::from(share.limit())).div_ceil(u128::from(limit.max(1))) as u64
}

impl Quota {
    /// Returns the share of one of `instances` processes. The limit or capacity is divided by
    /// `instances` and rounded up; a level drains at `rate / instances`. So all shares together exceed
    /// the quota by less than one unit per instance.
    pub(crate) fn share(&self, instances: u64) -> Self {
        let instances = instances.clamp(1, MAX_INSTANCES);
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
        let max_per = MAX_TICKS / capacity;
        let (rate, per) = match fraction_below(self.rate, self.per * instances, max_per) {
            // Below the slowest rate that a bucket can have.
            (0, _) => (1, max_per),
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
