//! The pooled state: a single Redis that is charged with everything at the instant of its admission, in real time. It is
//! written from the definitions and shares no code with the model except the numbers of a quota.

use std::collections::BTreeMap;

use tidegate::Quota;
use tidegate::algorithm::{Kind, LeakyBucket};

/// Something that happened to the key, which every region must hear of.
#[derive(Clone, Debug)]
pub struct Charge {
    /// Real time, in µs.
    pub at_us: u64,
    pub region: usize,
    /// Below 0: given back.
    pub units: i64,
    pub window_us: u64,
    /// A bit for each region that has counted it.
    pub seen: u8,
    /// Whether the share policy admitted it too.
    pub is_shared: bool,
}

/// The usage of one key if there were one Redis.
#[derive(Clone, Debug)]
pub enum Pooled {
    /// Used ticks, the time at which that was true, the ticks that drain per µs, and those of a unit.
    Level { ticks: i128, at_us: u64, rate: i128, per: i128 },
    /// Units by the name of the window.
    Windows(BTreeMap<u64, i64>),
    /// Units by time, oldest first.
    Log(Vec<(u64, i64)>),
}

/// Ticks that drain per µs, and ticks per unit. Units of windows and logs are one tick.
pub fn rate_and_per(quota: &Quota) -> (i128, i128) {
    match quota.kind() {
        Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket)) => {
            (bucket.rate.into(), bucket.per.into())
        }
        _ => (0, 1),
    }
}

fn window_us(quota: &Quota) -> u64 {
    quota.window().as_micros() as u64
}

impl Pooled {
    /// Makes an unused state, in which a unit of a level is `per` ticks: a multiple of those of every quota in effect.
    pub fn new(quota: &Quota, per: i128) -> Self {
        match quota.kind() {
            Kind::TokenBucket(_) | Kind::LeakyBucket(_) => {
                let (rate, of) = rate_and_per(quota);
                Self::Level { ticks: 0, at_us: 0, rate: rate * (per / of), per }
            }
            Kind::SlidingLog(_) => Self::Log(Vec::new()),
            _ => Self::Windows(BTreeMap::new()),
        }
    }

    /// Returns the ticks that drain per µs, and the ticks of a unit.
    pub fn rate_and_per(&self) -> (i128, i128) {
        match self {
            Self::Level { rate, per, .. } => (*rate, *per),
            _ => (0, 1),
        }
    }

    /// An override: the largest rate in effect drains, also for the time `since_us` in which no charge was settled.
    pub fn override_rate(&mut self, quota: &Quota, since_us: u64, now: u64) {
        self.drain(quota, now);
        if let Self::Level { ticks, rate, per, .. } = self {
            let (of_quota, of) = rate_and_per(quota);
            let larger = (of_quota * (*per / of)).max(*rate);
            *ticks = (*ticks - (larger - *rate) * i128::from(since_us)).max(0);
            *rate = larger;
        }
    }

    /// Forgets all usage.
    pub fn clear(&mut self) {
        match self {
            Self::Level { ticks, .. } => *ticks = 0,
            Self::Windows(counts) => counts.clear(),
            Self::Log(entries) => entries.clear(),
        }
    }

    pub fn drain(&mut self, quota: &Quota, now: u64) {
        match self {
            Self::Level { ticks, at_us, rate, .. } => {
                *ticks = (*ticks - *rate * i128::from(now - *at_us)).max(0);
                *at_us = now;
            }
            Self::Log(entries) => entries.retain(|(at, _)| at + window_us(quota) > now),
            Self::Windows(_) => {}
        }
    }

    /// Adds units to the usage, at real time `now`.
    pub fn charge(&mut self, quota: &Quota, units: i64, window: u64, now: u64) {
        self.drain(quota, now);
        match self {
            Self::Level { ticks, per, .. } => *ticks += i128::from(units) * *per,
            Self::Windows(counts) => *counts.entry(window).or_default() += units,
            Self::Log(entries) => entries.push((now, units)),
        }
    }

    /// Gives back units that were charged at `charged_us` in the window `window`, at most those that are used. Returns how
    /// many; of a level or log, in which they leave with time, all.
    pub fn refund(&mut self, quota: &Quota, units: i64, window: u64, charged_us: u64, now: u64) -> i64 {
        self.drain(quota, now);
        match self {
            Self::Level { ticks, rate, per, .. } => {
                let left = (i128::from(units) * *per - *rate * i128::from(now - charged_us)).max(0);
                *ticks = (*ticks - left).max(0);
                units
            }
            Self::Windows(counts) => {
                let count = counts.entry(window).or_default();
                let gone = units.min(*count);
                *count -= gone;
                gone
            }
            Self::Log(entries) => {
                if charged_us + window_us(quota) <= now {
                    return units;
                }
                let mut left = units;
                for (_, of) in entries.iter_mut() {
                    let gone = left.min(*of);
                    *of -= gone;
                    left -= gone;
                }
                entries.retain(|(_, of)| *of > 0);
                units
            }
        }
    }

    /// Returns the used ticks at `now`, in the window `window` of which a region's clock shows `local`. With `carry`, a
    /// limit, units above it of earlier windows count too.
    pub fn used(&mut self, quota: &Quota, carry: Option<i64>, window: u64, local: u64, now: u64) -> i128 {
        self.drain(quota, now);
        let length = window_us(quota);
        match self {
            Self::Level { ticks, .. } => *ticks,
            Self::Log(entries) => entries.iter().map(|(_, units)| i128::from(*units)).sum(),
            Self::Windows(counts) => {
                let of = |name: u64| counts.get(&name).copied().unwrap_or(0);
                if matches!(quota.kind(), Kind::SlidingCounter(_)) {
                    let rest = length - local.max(window) % length;
                    let previous = i128::from(of(window - length)) * i128::from(rest) / i128::from(length);
                    return i128::from(of(window)) + previous;
                }
                let (mut debt, mut at) = (0, counts.keys().next().copied().unwrap_or(window));
                while let Some(limit) = carry.filter(|_| at < window) {
                    debt = (debt + of(at) - limit).max(0);
                    at += length;
                }
                i128::from(debt + of(window))
            }
        }
    }
}
