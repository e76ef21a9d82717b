//! What is asked for, by how many, and under which limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many different keys there are, where there is more than one.
pub(crate) const KEYS: usize = 100_000;

/// One pattern of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// 512 tasks, each ask for any of 100,000 keys.
    Unlike,
    /// 512 tasks, 100,000 keys, the nth of them asked for in proportion to 1/n.
    Zipf,
    /// 512 tasks, one key, all admitted.
    Hot,
    /// 512 tasks, one key that is far over its limit.
    HotDenied,
    /// One task, 100,000 keys.
    Alone,
    /// A thread per core, 100,000 keys, decided in this process.
    Lease100k,
    /// A thread per core, one key, decided in this process.
    LeaseOne,
    /// 512 tasks, 100,000 keys, while no Redis answers: decided in this process.
    BreakerOpen,
    /// 512 tasks, each key asked for once. Not among the others: `scripts/bench keys`.
    Keys,
}

impl Case {
    /// As `--cases` and the JSON call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unlike => "unlike",
            Self::Zipf => "zipf",
            Self::Hot => "hot",
            Self::HotDenied => "hot_denied",
            Self::Alone => "alone",
            Self::Lease100k => "lease_100k",
            Self::LeaseOne => "lease_one",
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
            Self::BreakerOpen => "no Redis answers, 100,000 keys, 512 tasks",
            Self::Keys => "distinct keys, 512 tasks",
        }
    }

    /// Those that are run in rounds.
    pub(crate) const ALL: [Self; 8] = [
        Self::Unlike,
        Self::Zipf,
        Self::Hot,
        Self::HotDenied,
        Self::Alone,
        Self::Lease100k,
        Self::LeaseOne,
        Self::BreakerOpen,
    ];

    pub(crate) fn tasks(self) -> usize {
        if self == Self::Alone { 1 } else { 512 }
    }

    /// Into how many turns a round is cut. One task alone wakes and sleeps as the system sees fit, now in
    /// 30 us and now in 60, for a while each: so many turns, and both are in all subjects' medians.
    pub(crate) fn turns(self) -> u32 {
        if self == Self::Alone { 5 } else { 1 }
    }

    /// Of many asks under load, so few are timed that the clock does not count; alone, all.
    pub(crate) fn timed_every(self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Lease100k | Self::LeaseOne | Self::BreakerOpen => 256,
            _ => 16,
        }
    }

    /// Wide enough that all is admitted, but for the case that is about denials; and slow to refill,
    /// so that keys stay in Redis from one ask to the next, as those of a busy service do.
    pub(crate) fn limit(self) -> Limit {
        match self {
            Self::Unlike | Self::Zipf | Self::Alone => Limit { capacity: 1_000_000, refill_s: 60 },
            Self::Hot => Limit { capacity: 200_000_000, refill_s: 1 },
            Self::HotDenied => Limit { capacity: 100, refill_s: 1 },
            // Used for an hour by a single ask, so that no key goes while others come.
            Self::Keys => Limit { capacity: 10_000, refill_s: 3600 },
            Self::Lease100k | Self::LeaseOne | Self::BreakerOpen => {
                Limit { capacity: 100_000_000_000, refill_s: 0 }
            }
        }
    }

    pub(crate) fn keys(self) -> usize {
        match self {
            Self::Hot | Self::HotDenied | Self::LeaseOne => 1,
            _ => KEYS,
        }
    }

    /// Whether a subject's keys are to be in Redis before the first round.
    pub(crate) fn is_filled(self) -> bool {
        self == Self::Unlike
    }

    /// The part of keys that tells cases apart. Those that ask for the same keys share them.
    pub(crate) fn family(self) -> &'static str {
        match self {
            Self::Unlike | Self::Zipf | Self::Alone => "unlike",
            other => other.name(),
        }
    }
}

/// The kind of limit that every subject is given as far as it can: a bucket that holds `capacity`
/// and gets one back every `refill_s` seconds (0: a million a second).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) capacity: u64,
    pub(crate) refill_s: u64,
}

/// The keys of one subject in one case, and in which order they are asked for.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) names: Vec<String>,
    order: Order,
}

#[derive(Debug)]
enum Order {
    Any,
    /// Indices, as often as their share.
    Listed(Vec<u32>),
    /// One at a time, the next one after so many asks of a task: for a hot key under a limit that is
    /// too small to admit all.
    Moving {
        asks: usize,
        reached: AtomicUsize,
    },
}

impl Keys {
    /// `most` is the largest capacity that the subject knows.
    pub(crate) fn new(case: Case, name: impl Fn(usize) -> String, most: u64) -> Arc<Self> {
        let moves = case == Case::Hot && most < case.limit().capacity;
        let order = match case {
            Case::Zipf => Order::Listed(zipf(KEYS)),
            _ if moves => Order::Moving {
                // Nine tenths, since tasks do not move on at the same instant.
                asks: (most as usize * 9 / 10 / case.tasks()).max(1),
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
            Order::Moving { asks, reached } => reached.load(Ordering::Relaxed) * asks,
        };
        Picker { keys: self.clone(), rng: fastrand::Rng::new(), at }
    }
}

/// One task's way through the keys.
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
            Order::Moving { asks, .. } => {
                self.at += 1;
                self.at / asks % count
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
        // What was used up in this round is not used in the next.
        if let Order::Moving { asks, reached } = &self.keys.order {
            reached.fetch_max(self.at / asks + 1, Ordering::Relaxed);
        }
    }
}

/// A long list of indices below `count`, drawn in proportion to 1/(index + 1).
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
    fn the_first_of_zipf_is_asked_for_twice_as_often_as_the_second() {
        let list = zipf(KEYS);
        let count = |index| list.iter().filter(|&&it| it == index).count() as f64;
        let twice = count(0) / count(1);
        assert!((1.9..2.1).contains(&twice), "{twice}");
        assert!(list.iter().all(|&index| (index as usize) < KEYS));
    }

    #[test]
    fn a_key_that_moves_is_left_before_its_limit_and_not_come_back_to() {
        let most = 65_535;
        let keys = Keys::new(Case::Hot, |index| index.to_string(), most);
        let asks = most as usize * 9 / 10 / Case::Hot.tasks();
        let mut picker = keys.picker();
        let first: Vec<usize> = (0..asks * 2).map(|_| picker.next_index()).collect();
        assert!(first.iter().filter(|&&index| index == 0).count() <= asks);
        assert_eq!(first.last(), Some(&2));
        drop(picker);
        assert_eq!(keys.picker().next_index(), 3);
    }
}
