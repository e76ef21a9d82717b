//! The cases: keys, access pattern, number of tasks, and limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::measure::cores;

/// The number of distinct keys in cases with more than one key.
pub(crate) const KEYS: usize = 100_000;

/// One access pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// 512 tasks. Each check is for a random one of 100,000 keys.
    Unlike,
    /// 512 tasks, 100,000 keys. The nth key is checked in proportion to 1/n.
    Zipf,
    /// 512 tasks, one key, all admitted.
    Hot,
    /// 512 tasks, one key far over its limit.
    HotDenied,
    /// One task, 100,000 keys.
    Alone,
    /// A thread per core, 100,000 keys, decided in process.
    Lease100k,
    /// A thread per core, one key, decided in process.
    LeaseOne,
    /// One thread, one key, the limiter in memory.
    MemoryOne,
    /// One thread, 1,000 keys, the limiter in memory.
    Memory1k,
    /// One thread, 100,000 keys, the limiter in memory.
    Memory100k,
    /// 512 tasks, 100,000 keys, Redis unreachable: decided in process.
    BreakerOpen,
    /// 512 tasks, each key checked once. Runs only with `scripts/bench keys`.
    Keys,
}

impl Case {
    /// Returns the name that `--cases` and the JSON use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unlike => "unlike",
            Self::Zipf => "zipf",
            Self::Hot => "hot",
            Self::HotDenied => "hot_denied",
            Self::Alone => "alone",
            Self::Lease100k => "lease_100k",
            Self::LeaseOne => "lease_one",
            Self::MemoryOne => "memory_one",
            Self::Memory1k => "memory_1k",
            Self::Memory100k => "memory_100k",
            Self::BreakerOpen => "breaker_open",
            Self::Keys => "keys",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Unlike => "100,000 unlike keys, 512 tasks",
            Self::Zipf => "100,000 keys by Zipf's law (s = 1), 512 tasks",
            Self::Hot => "one hot key, all admitted, 512 tasks",
            Self::HotDenied => "one hot key far over its limit, 512 tasks",
            Self::Alone => "one task alone, 100,000 keys",
            Self::Lease100k => "in this process, 100,000 keys, a thread per core",
            Self::LeaseOne => "in this process, one key, a thread per core",
            Self::MemoryOne => "in memory, one key, one thread",
            Self::Memory1k => "in memory, 1,000 keys, one thread",
            Self::Memory100k => "in memory, 100,000 keys, one thread",
            Self::BreakerOpen => "no Redis answers, 100,000 keys, 512 tasks",
            Self::Keys => "distinct keys, 512 tasks",
        }
    }

    /// The cases that run in rounds.
    pub(crate) const ALL: [Self; 11] = [
        Self::Unlike,
        Self::Zipf,
        Self::Hot,
        Self::HotDenied,
        Self::Alone,
        Self::Lease100k,
        Self::LeaseOne,
        Self::MemoryOne,
        Self::Memory1k,
        Self::Memory100k,
        Self::BreakerOpen,
    ];

    pub(crate) fn is_in_memory(self) -> bool {
        matches!(self, Self::MemoryOne | Self::Memory1k | Self::Memory100k)
    }

    /// Returns the number of threads of a subject that decides in process.
    pub(crate) fn threads(self) -> usize {
        if self.is_in_memory() { 1 } else { cores() }
    }

    pub(crate) fn tasks(self) -> usize {
        if self == Self::Alone { 1 } else { 512 }
    }

    /// Returns the number of turns that a round is cut into.
    ///
    /// With a single task, a check takes about 30 us or about 60 us, depending on the system's scheduling,
    /// which changes from time to time. With several turns per round, the medians of all subjects contain
    /// both.
    pub(crate) fn turns(self) -> u32 {
        if self == Self::Alone { 5 } else { 1 }
    }

    /// Returns n, where every nth check is timed. Under load, n is large enough to make the cost of the clock
    /// negligible. With a single task, every check is timed.
    pub(crate) fn timed_every(self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Lease100k | Self::LeaseOne | Self::BreakerOpen => 256,
            _ if self.is_in_memory() => 256,
            _ => 16,
        }
    }

    /// Returns the limit. It admits all checks, except in the denial case. It refills slowly, so that keys
    /// stay in Redis between checks, as in a busy service.
    pub(crate) fn limit(self) -> Limit {
        match self {
            Self::Unlike | Self::Zipf | Self::Alone => Limit { capacity: 1_000_000, refill_s: 60 },
            Self::Hot => Limit { capacity: 200_000_000, refill_s: 1 },
            Self::HotDenied => Limit { capacity: 100, refill_s: 1 },
            // One check keeps a key for an hour, so that no key expires during the run.
            Self::Keys => Limit { capacity: 10_000, refill_s: 3600 },
            Self::Lease100k
            | Self::LeaseOne
            | Self::MemoryOne
            | Self::Memory1k
            | Self::Memory100k
            | Self::BreakerOpen => Limit { capacity: 100_000_000_000, refill_s: 0 },
        }
    }

    pub(crate) fn keys(self) -> usize {
        match self {
            Self::Hot | Self::HotDenied | Self::LeaseOne | Self::MemoryOne => 1,
            Self::Memory1k => 1_000,
            _ => KEYS,
        }
    }

    /// Returns whether the keys have to be in Redis before the first round.
    pub(crate) fn is_filled(self) -> bool {
        self == Self::Unlike
    }

    /// Returns the part of the key that separates cases. Cases that check the same keys share it.
    pub(crate) fn family(self) -> &'static str {
        match self {
            Self::Unlike | Self::Zipf | Self::Alone => "unlike",
            other => other.name(),
        }
    }
}

/// The limit that each subject gets, as far as it supports it: a bucket of `capacity` units that refills one
/// unit every `refill_s` seconds. 0 means a million units per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) capacity: u64,
    pub(crate) refill_s: u64,
}

/// The keys of one subject in one case, and the order of checks.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) names: Vec<String>,
    order: Order,
}

#[derive(Debug)]
enum Order {
    Any,
    /// Indices, repeated in proportion to their share.
    Listed(Vec<u32>),
    /// One key at a time. A task moves to the next key after `checks` checks. Used for a hot key if the
    /// subject's largest limit cannot admit all checks.
    Moving {
        checks: usize,
        reached: AtomicUsize,
    },
}

impl Keys {
    /// Builds the keys. `max_capacity` is the largest capacity that the subject supports.
    pub(crate) fn new(case: Case, name: impl Fn(usize) -> String, max_capacity: u64) -> Arc<Self> {
        let moves = case == Case::Hot && max_capacity < case.limit().capacity;
        let order = match case {
            Case::Zipf => Order::Listed(zipf(KEYS)),
            _ if moves => Order::Moving {
                // 90 % of the capacity, since tasks do not switch keys at the same instant.
                checks: (max_capacity as usize * 9 / 10 / case.tasks()).max(1),
                reached: AtomicUsize::new(0),
            },
            _ => Order::Any,
        };
        let count = if moves { 10_000 } else { case.keys() };
        Arc::new(Self { names: (0..count).map(name).collect(), order })
    }

    pub(crate) fn picker(self: &Arc<Self>) -> Picker {
        let at = match &self.order {
            Order::Any => 0,
            Order::Listed(list) => fastrand::usize(..list.len()),
            Order::Moving { checks, reached } => reached.load(Ordering::Relaxed) * checks,
        };
        Picker { keys: self.clone(), rng: fastrand::Rng::new(), at }
    }
}

/// One task's position in the keys.
#[derive(Debug)]
pub(crate) struct Picker {
    keys: Arc<Keys>,
    rng: fastrand::Rng,
    at: usize,
}

impl Picker {
    #[inline]
    pub(crate) fn next_index(&mut self) -> usize {
        let count = self.keys.names.len();
        match &self.keys.order {
            Order::Any if count == 1 => 0,
            Order::Any => self.rng.usize(..count),
            Order::Listed(list) => {
                self.at = (self.at + 1) % list.len();
                list[self.at] as usize
            }
            Order::Moving { checks, .. } => {
                self.at += 1;
                self.at / checks % count
            }
        }
    }

    #[inline]
    pub(crate) fn next_key(&mut self) -> &str {
        let index = self.next_index();
        &self.keys.names[index]
    }
}

impl Drop for Picker {
    fn drop(&mut self) {
        // The next round must not reuse keys that this round used up.
        if let Order::Moving { checks, reached } = &self.keys.order {
            reached.fetch_max(self.at / checks + 1, Ordering::Relaxed);
        }
    }
}

/// Returns a long list of indices below `count`, drawn in proportion to 1/(index + 1).
fn zipf(count: usize) -> Vec<u32> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=count)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut draw = || {
        let at = rng.f64() * sum;
        sums.partition_point(|&below| below <= at) as u32
    };
    (0..1 << 20).map(|_| draw()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_zipf_key_is_drawn_twice_as_often_as_second() {
        let list = zipf(KEYS);
        let count = |index| list.iter().filter(|&&drawn| drawn == index).count() as f64;
        let twice = count(0) / count(1);
        assert!((1.9..2.1).contains(&twice), "{twice}");
        assert!(list.iter().all(|&index| (index as usize) < KEYS));
    }

    #[test]
    fn moving_key_is_left_before_its_limit_and_not_reused() {
        let max_capacity = 65_535;
        let keys = Keys::new(Case::Hot, |index| index.to_string(), max_capacity);
        let checks = max_capacity as usize * 9 / 10 / Case::Hot.tasks();
        let mut picker = keys.picker();
        let first: Vec<usize> = (0..checks * 2).map(|_| picker.next_index()).collect();
        assert!(first.iter().filter(|&&index| index == 0).count() <= checks);
        assert_eq!(first.last(), Some(&2));
        drop(picker);
        assert_eq!(keys.picker().next_index(), 3);
    }
}
