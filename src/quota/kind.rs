//! The five algorithms with their validated numbers. Their arithmetic is in [`crate::algorithm`].

use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::invalid::Invalid;
use super::rate::{MAX_UNITS, Rate, whole_micros};

/// The maximum level in ticks. Below 2^48 every sum of levels is exact in a double.
pub(super) const MAX_TICKS: u64 = 1 << 48;
/// The maximum product of a counter's limit and window, so that the product is exact in a double.
const MAX_UNIT_MICROS: u64 = 1 << 52;
/// Redis expires keys by the millisecond.
const MIN_WINDOW_US: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingCounter(SlidingCounter),
}

/// A unit is `per` ticks, and `rate` ticks drain each microsecond. So a fraction in lowest terms holds the
/// rate, and all arithmetic is in integers.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    pub capacity: u64,
    pub rate: u64,
    pub per: u64,
    /// The rate as configured, for [`std::fmt::Display`].
    pub(super) configured_rate: Rate,
}

impl TokenBucket {
    /// Returns the numbers that define the bucket. Equal rates in different notation have equal numbers.
    pub(crate) const fn numbers(&self) -> [u64; 3] {
        [self.capacity, self.rate, self.per]
    }
}

impl PartialEq for TokenBucket {
    fn eq(&self, other: &Self) -> bool {
        self.numbers() == other.numbers()
    }
}

impl Eq for TokenBucket {}

impl Hash for TokenBucket {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.numbers().hash(state);
    }
}

/// A token bucket used as a queue: its capacity is the queue's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket(pub TokenBucket);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    pub limit: u64,
    pub window_us: u64,
    /// `Some(offset)`: windows begin at multiples of their length plus `offset`. `None`: a window begins with
    /// its first charge.
    pub aligned_us: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    pub limit: u64,
    pub window_us: u64,
    pub count_denied: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingCounter {
    pub limit: u64,
    pub window_us: u64,
}

impl TokenBucket {
    pub(super) const fn build(capacity: u64, configured_rate: Rate) -> Result<Self, Invalid> {
        if capacity == 0 || capacity > MAX_UNITS {
            return Err(Invalid::Capacity);
        }
        let (units, period_us) = (configured_rate.units(), configured_rate.period().as_micros() as u64);
        let (rate, per) = fraction_below(units, period_us, MAX_TICKS / capacity);
        // A rate of 0 means that the rate is below every representable fraction. It is then also too slow to
        // fill the capacity in time.
        if rate == 0 || (capacity * per).div_ceil(rate) > MAX_TICKS {
            return Err(Invalid::TooSlow);
        }
        Ok(Self { capacity, rate, per, configured_rate })
    }
}

impl FixedWindow {
    pub(super) const fn build(limit: u64, window: Duration) -> Result<Self, Invalid> {
        match limit_and_window(limit, window) {
            Ok(window_us) => Ok(Self { limit, window_us, aligned_us: None }),
            Err(invalid) => Err(invalid),
        }
    }
}

impl SlidingLog {
    pub(super) const fn build(limit: u64, window: Duration) -> Result<Self, Invalid> {
        match limit_and_window(limit, window) {
            Ok(window_us) => Ok(Self { limit, window_us, count_denied: false }),
            Err(invalid) => Err(invalid),
        }
    }
}

impl SlidingCounter {
    pub(super) const fn build(limit: u64, window: Duration) -> Result<Self, Invalid> {
        match limit_and_window(limit, window) {
            Ok(window_us) if limit > MAX_UNIT_MICROS / window_us => Err(Invalid::CounterRange),
            Ok(window_us) => Ok(Self { limit, window_us }),
            Err(invalid) => Err(invalid),
        }
    }
}

const fn limit_and_window(limit: u64, window: Duration) -> Result<u64, Invalid> {
    if limit == 0 || limit > MAX_UNITS {
        return Err(Invalid::Limit);
    }
    match whole_micros(window, MIN_WINDOW_US) {
        Some(window_us) => Ok(window_us),
        None => Err(Invalid::Window),
    }
}

/// Returns the largest fraction in lowest terms that is at most `n / d` and whose denominator is at most
/// `max_denominator`. This is `n / d` itself if its denominator fits.
///
/// Walks the Stern-Brocot tree between `low <= n/d < high`, many steps at a time.
pub(super) const fn fraction_below(n: u64, d: u64, max_denominator: u64) -> (u64, u64) {
    let (n, d, max_denominator) = (n as u128, d as u128, max_denominator as u128);
    let (mut low, mut high) = ((0u128, 1u128), (1u128, 0u128));
    loop {
        let over = high.0 * d - n * high.1;
        let under = n * low.1 - low.0 * d;
        let mut steps = under / over;
        if high.1 > 0 && steps > (max_denominator - low.1) / high.1 {
            steps = (max_denominator - low.1) / high.1;
        }
        low = (low.0 + steps * high.0, low.1 + steps * high.1);
        let under = n * low.1 - low.0 * d;
        if under == 0 || low.1 + high.1 > max_denominator {
            return (low.0 as u64, low.1 as u64);
        }
        let mut steps = (over - 1) / under;
        if steps > (max_denominator - high.1) / low.1 {
            steps = (max_denominator - high.1) / low.1;
        }
        high = (high.0 + steps * low.0, high.1 + steps * low.1);
        if low.1 + high.1 > max_denominator {
            return (low.0 as u64, low.1 as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_that_fits_is_kept_in_lowest_terms() {
        assert_eq!(fraction_below(5, 60_000_000, 1 << 40), (1, 12_000_000));
        assert_eq!(fraction_below(2_000_000, 1_000_000, 1), (2, 1));
    }

    #[test]
    fn a_fraction_that_does_not_fit_is_the_largest_one_below() {
        for n in 1..60 {
            for d in 1..60 {
                for max_denominator in 1..30 {
                    // Tries all candidates: the largest p/q <= n/d with q <= max_denominator.
                    let best = (1..=max_denominator).map(|q| (n * q / d, q)).fold((0, 1), |best, next| {
                        if next.0 * best.1 > best.0 * next.1 { next } else { best }
                    });
                    assert_eq!(
                        fraction_below(n, d, max_denominator),
                        best,
                        "{n}/{d} up to {max_denominator}"
                    );
                }
            }
        }
    }
}
