//! A histogram of latencies. Each bucket ends at a power of two, so a quantile is right within a factor of two.

/// The bits of the first bound: the first bucket holds latencies of at most 16 µs.
const FIRST_BITS: u32 = 4;
/// The last bucket ends at 2^24 µs, 17 s, and also holds all longer latencies.
pub(super) const BUCKETS: usize = 21;

/// The number of latencies in each bucket.
#[cfg(any(feature = "admin", test))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    counts: [u64; BUCKETS],
}

#[cfg(any(feature = "admin", test))]
impl Histogram {
    /// Adds `count` latencies of `latency_us`.
    pub(crate) fn add(&mut self, latency_us: u64, count: u64) {
        let bucket = &mut self.counts[bucket_of(latency_us)];
        *bucket = bucket.saturating_add(count);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the latency in µs that `percent` of all latencies do not exceed; 0 if there is none. Assumes that
    /// the latencies of a bucket lie evenly between its bounds.
    pub(crate) fn percentile_us(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.count()) * u128::from(percent)).div_ceil(100);
        let mut before = 0_u128;
        for (bucket, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let rank = wanted.saturating_sub(before);
            if rank <= u128::from(count) {
                let lower = if bucket == 0 { 0 } else { bound_us(bucket - 1) };
                let width = u128::from(bound_us(bucket) - lower);
                return lower + (width * rank / u128::from(count)) as u64;
            }
            before += u128::from(count);
        }
        0
    }
}

/// Returns the bucket of a latency.
#[inline]
pub(super) fn bucket_of(latency_us: u64) -> usize {
    let bits = u64::BITS - latency_us.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(FIRST_BITS) as usize).min(BUCKETS - 1)
}

/// Returns the longest latency of a bucket, in µs.
pub(super) fn bound_us(bucket: usize) -> u64 {
    1 << (FIRST_BITS as usize + bucket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_is_the_last_latency_of_its_bucket() {
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(bound_us(bucket)), bucket);
            assert_eq!(bucket_of(bound_us(bucket) + 1), (bucket + 1).min(BUCKETS - 1));
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn percentiles_are_within_the_bucket_of_their_rank() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.count(), histogram.percentile_us(50)), (0, 0));
        histogram.add(100, 98);
        histogram.add(5_000, 2);
        assert_eq!(histogram.count(), 100);
        let (p50, p98, p99) =
            (histogram.percentile_us(50), histogram.percentile_us(98), histogram.percentile_us(99));
        assert!((64..=128).contains(&p50), "{p50}");
        assert_eq!(p98, 128);
        assert!((4_096..=8_192).contains(&p99), "{p99}");
    }

    #[test]
    fn counts_saturate() {
        let mut histogram = Histogram::default();
        histogram.add(1, u64::MAX);
        histogram.add(1, 1);
        histogram.add(1_000, u64::MAX);
        assert_eq!(histogram.count(), u64::MAX);
        assert_eq!(histogram.percentile_us(50), 8);
    }
}
