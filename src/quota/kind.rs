//! The five algorithms with their numbers, checked. Arithmetic on them is in
//! [`crate::algorithm`].

use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::invalid::Invalid;
use super::rate::{MOST_UNITS, Rate, whole_micros};

/// Levels are counted in ticks; below 2^48 every sum of them is exact in a double.
pub(super) const MOST_TICKS: u64 = 1 << 48;
/// As for levels: a counter multiplies its counts with its window.
const MOST_UNIT_MICROS: u64 = 1 << 52;
/// Redis expires keys by the millisecond.
const SHORTEST_WINDOW_US: u64 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    TokenBucket(TokenBucket),
    LeakyBucket(LeakyBucket),
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingCounter(SlidingCounter),
}

/// A unit is `per` ticks and `rate` ticks drain each microsecond, so that one
/// fraction in lowest terms carries the rate and all arithmetic is in integers.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    pub capacity: u64,
    pub rate: u64,
    pub per: u64,
    /// As the user said it, for [`std::fmt::Display`].
    pub(super) said: Rate,
}

impl TokenBucket {
    /// What makes it what it is, however its rate was said.
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

/// A token bucket seen as a queue: its capacity is the queue's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket(pub TokenBucket);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    pub limit: u64,
    pub window_us: u64,
    /// `Some(offset)`: windows begin at multiples of their length plus this.
    /// `None`: with the first charge.
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
    pub(super) const fn build(capacity: u64, said: Rate) -> Result<Self, Invalid> {
        if capacity == 0 || capacity > MOST_UNITS {
            return Err(Invalid::Capacity);
        }
        let (units, period_us) = (said.units(), said.period().as_micros() as u64);
        let (rate, per) = fraction_below(units, period_us, MOST_TICKS / capacity);
        // Slower than any fraction that fits is also slower than the bound on filling.
        if rate == 0 || (capacity * per).div_ceil(rate) > MOST_TICKS {
            return Err(Invalid::TooSlow);
        }
        Ok(Self { capacity, rate, per, said })
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
            Ok(window_us) if limit > MOST_UNIT_MICROS / window_us => Err(Invalid::CounterRange),
            Ok(window_us) => Ok(Self { limit, window_us }),
            Err(invalid) => Err(invalid),
        }
    }
}

const fn limit_and_window(limit: u64, window: Duration) -> Result<u64, Invalid> {
    if limit == 0 || limit > MOST_UNITS {
        return Err(Invalid::Limit);
    }
    match whole_micros(window, SHORTEST_WINDOW_US) {
        Some(window_us) => Ok(window_us),
        None => Err(Invalid::Window),
    }
}

/// The largest fraction that is at most `n / d` and whose denominator is at
/// most `most`, in lowest terms; `n / d` itself where that fits.
///
/// Walks the Stern-Brocot tree between `low <= n/d < high`, many steps at once.
pub(super) const fn fraction_below(n: u64, d: u64, most: u64) -> (u64, u64) {
    let (n, d, most) = (n as u128, d as u128, most as u128);
    let (mut low, mut high) = ((0u128, 1u128), (1u128, 0u128));
    loop {
        let over = high.0 * d - n * high.1;
        let under = n * low.1 - low.0 * d;
        let mut steps = under / over;
        if high.1 > 0 && steps > (most - low.1) / high.1 {
            steps = (most - low.1) / high.1;
        }
        low = (low.0 + steps * high.0, low.1 + steps * high.1);
        let under = n * low.1 - low.0 * d;
        if under == 0 || low.1 + high.1 > most {
            return (low.0 as u64, low.1 as u64);
        }
        let mut steps = (over - 1) / under;
        if steps > (most - high.1) / low.1 {
            steps = (most - high.1) / low.1;
        }
        high = (high.0 + steps * low.0, high.1 + steps * low.1);
        if low.1 + high.1 > most {
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
                for most in 1..30 {
                    // All candidates, by hand: the largest p/q <= n/d with q <= most.
                    let best = (1..=most)
                        .map(|q| (n * q / d, q))
                        .fold((0, 1), |best, it| if it.0 * best.1 > best.0 * it.1 { it } else { best });
                    assert_eq!(fraction_below(n, d, most), best, "{n}/{d} up to {most}");
                }
            }
        }
    }
}
