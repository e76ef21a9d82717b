//! One leased key in one cache line: its units, which all threads spend without a lock, and the key.
//!
//! Spenders only decrease the units; the worker, a single task, writes everything else. The units share a
//! word with a generation, which every change by the worker increments. Race: a spender reads the word, then
//! the other fields; the worker changes the fields; the spender's compare-and-swap then fails, because the
//! generation differs. So a unit is never spent after the worker has taken it back, nor for another key.
//!
//! The units come from up to two blocks, and the older ones are spent first. While there are more units than
//! the newer block had, the next unit belongs to the older block and has its end.

use super::packed_key::{PackedKey, WORDS};
use crate::runtime::sync::atomic::{AtomicU64, Ordering};

/// In `about`, above the key's length: a refill was requested or is in flight.
const WANTED: u64 = 1 << 8;
/// The length field of a slot without a key.
const VACANT: u64 = 0xfe;
/// Masks the key's length in `about`; `WANTED` and the newest block's size are above it.
const WHOSE: u64 = 0xff;
const LOW: u64 = u32::MAX as u64;

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// Generation and units left, 32 bits each.
    word: AtomicU64,
    /// Local time in ms from which on the units may not be spent, wrapped to 32 bits. Low half: the newest
    /// block; high half: the block before it.
    ends: AtomicU64,
    /// The stamp of the take that charged the oldest units.
    stamp_us: AtomicU64,
    /// Local time at which the key would be unused.
    reset_us: AtomicU64,
    /// The newest block's size (32 bits), whether a refill is wanted, and the key's length.
    about: AtomicU64,
    key: [AtomicU64; WORDS],
}

/// The fields written when units are opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// How many of the units belong to the newest block.
    pub(super) newest: u32,
    pub(super) newest_ends_us: u64,
    pub(super) older_ends_us: u64,
    pub(super) stamp_us: u64,
    pub(super) reset_us: u64,
}

/// The result of an attempt to spend.
#[derive(Debug)]
pub(super) enum Spend {
    /// The slot belongs to another key.
    Another,
    /// The unexpired units do not suffice.
    Nothing,
    Units(Spent),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) left: u32,
    pub(super) stamp_us: u64,
    pub(super) reset_us: u64,
    /// A refill is due, and no other caller has requested it.
    pub(super) is_low: bool,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            word: AtomicU64::new(0),
            ends: AtomicU64::new(0),
            stamp_us: AtomicU64::new(0),
            reset_us: AtomicU64::new(0),
            about: AtomicU64::new(VACANT),
            key: Default::default(),
        }
    }
}

/// # For spenders
impl Slot {
    #[inline]
    pub(super) fn spend(&self, key: &PackedKey, cost: u32, now_us: u64) -> Spend {
        // Reads the word first: if it changes after the other fields were read, the swap fails.
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if !self.is_of(key) {
                return Spend::Another;
            }
            let newest = self.about.load(Ordering::Acquire) >> 32;
            let ends = self.ends.load(Ordering::Acquire);
            let stamp_us = self.stamp_us.load(Ordering::Acquire);
            let reset_us = self.reset_us.load(Ordering::Acquire);
            let generation = word >> 32;
            // While only other spenders changed the word, the fields that were read stay valid.
            while word >> 32 == generation {
                let units = word & LOW;
                if units < u64::from(cost) || !is_before(now_us, ends_ms(units, newest, ends)) {
                    return Spend::Nothing;
                }
                let after = word - u64::from(cost);
                match self.word.compare_exchange_weak(word, after, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        let left = (after & LOW) as u32;
                        let is_low = u64::from(left) * 2 <= newest && self.want();
                        return Spend::Units(Spent { left, stamp_us, reset_us, is_low });
                    }
                    Err(other) => word = other,
                }
            }
        }
    }

    #[inline]
    pub(super) fn is_of(&self, key: &PackedKey) -> bool {
        // Acquire: a reader of a new key or length also observes the generation that it belongs to.
        self.about.load(Ordering::Acquire) & WHOSE == u64::from(key.len)
            && self.key.iter().zip(&key.words).all(|(own, word)| own.load(Ordering::Acquire) == *word)
    }

    /// Returns whether the slot has `cost` units that have not ended. The fields are read without a check
    /// that they belong together, so this only serves to decide on a refill.
    pub(super) fn has(&self, cost: u32, now_us: u64) -> bool {
        let units = self.word.load(Ordering::Relaxed) & LOW;
        let newest = self.about.load(Ordering::Relaxed) >> 32;
        units >= u64::from(cost)
            && is_before(now_us, ends_ms(units, newest, self.ends.load(Ordering::Relaxed)))
    }

    /// Returns whether this caller has to request the refill.
    pub(super) fn want(&self) -> bool {
        self.about.load(Ordering::Relaxed) & WANTED == 0
            && self.about.fetch_or(WANTED, Ordering::AcqRel) & WANTED == 0
    }

    pub(super) fn no_longer_wanted(&self) {
        self.about.fetch_and(!WANTED, Ordering::AcqRel);
    }

    /// Discards the units of this key. Returns their number.
    pub(super) fn forget(&self, key: &PackedKey) -> u64 {
        loop {
            let word = self.word.load(Ordering::Acquire);
            if !self.is_of(key) || word & LOW == 0 {
                return 0;
            }
            if self.word.compare_exchange(word, word & !LOW, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return word & LOW;
            }
        }
    }

    pub(super) fn left(&self) -> u32 {
        (self.word.load(Ordering::Acquire) & LOW) as u32
    }
}

/// # For the worker
impl Slot {
    pub(super) fn is_vacant(&self) -> bool {
        self.about.load(Ordering::Relaxed) & WHOSE == VACANT
    }

    /// Assigns the slot to a key. A refill is wanted from the start.
    pub(super) fn assign(&self, key: &PackedKey) {
        for (own, word) in self.key.iter().zip(key.words) {
            own.store(word, Ordering::Release);
        }
        self.about.store(u64::from(key.len) | WANTED, Ordering::Release);
    }

    /// Removes the key. The slot must be closed.
    pub(super) fn vacate(&self) {
        self.about.store(VACANT, Ordering::Release);
    }

    /// Takes all units back: no spender succeeds afterwards.
    pub(super) fn close(&self) -> u32 {
        let generation = next_generation(self.word.load(Ordering::Relaxed));
        (self.word.swap(generation, Ordering::AcqRel) & LOW) as u32
    }

    /// Makes units available. The slot must be closed.
    pub(super) fn open(&self, units: u32, term: Term) {
        let ends = (term.newest_ends_us / 1_000) & LOW | (term.older_ends_us / 1_000) << 32;
        self.ends.store(ends, Ordering::Release);
        self.stamp_us.store(term.stamp_us, Ordering::Release);
        self.reset_us.store(term.reset_us, Ordering::Release);
        // Updates atomically, since spenders may set `WANTED` at the same time.
        let size = u64::from(term.newest) << 32;
        let _ =
            self.about.fetch_update(Ordering::AcqRel, Ordering::Acquire, |about| Some(about & LOW | size));
        let closed = self.word.load(Ordering::Relaxed);
        self.word.store(next_generation(closed) | u64::from(units), Ordering::Release);
    }
}

/// Returns the end of the next unit. While there are more units than the newest block had, it belongs to the
/// older one.
#[inline]
fn ends_ms(units: u64, newest: u64, ends: u64) -> u32 {
    (if units > newest { ends >> 32 } else { ends & LOW }) as u32
}

/// Ends are truncated to ms, so that no unit is held too long. The comparison wraps at 32 bits: it is correct
/// for 24 days, and the worker closes ended blocks as soon as it runs.
#[inline]
fn is_before(now_us: u64, ends_ms: u32) -> bool {
    ends_ms.wrapping_sub((now_us / 1_000) as u32).cast_signed() > 0
}

fn next_generation(word: u64) -> u64 {
    (word & !LOW).wrapping_add(LOW + 1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use super::{PackedKey, Slot, Spend, Term};

    fn term(newest: u32, ends_us: u64, stamp_us: u64) -> Term {
        Term { newest, newest_ends_us: ends_us, older_ends_us: ends_us / 2, stamp_us, reset_us: ends_us }
    }

    #[test]
    fn a_slot_is_one_cache_line() {
        assert_eq!(size_of::<Slot>(), 64);
    }

    #[test]
    fn units_are_spent_or_taken_back_and_never_both() {
        const ROUNDS: u64 = 6_000;
        let (keys, slot) = ([PackedKey::of(b"a"), PackedKey::of(b"b")], Slot::default());
        let (done, spent) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
        let mut opened = [0, 0];
        let mut left = [0, 0];
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        for (at, key) in keys.iter().enumerate() {
                            if let Spend::Units(units) = slot.spend(key, 1, 1) {
                                spent[at].fetch_add(1, Ordering::Relaxed);
                                // The stamp identifies the key of the units.
                                assert_eq!(units.stamp_us % 2, at as u64);
                            }
                        }
                    }
                });
            }
            for round in 0..ROUNDS {
                let whose = (round % 2) as usize;
                slot.assign(&keys[whose]);
                slot.open(50, term(50, 2_000, round));
                opened[whose] += 50;
                if round % 8 == 0 {
                    std::thread::yield_now();
                }
                left[whose] += u64::from(slot.close());
                slot.vacate();
            }
            done.store(true, Ordering::Relaxed);
        });
        for whose in [0, 1] {
            assert_eq!(spent[whose].load(Ordering::Relaxed) + left[whose], opened[whose]);
        }
        assert!(spent[0].load(Ordering::Relaxed) > 0, "nobody spent anything");
    }

    #[test]
    fn the_older_units_go_first_and_each_ends_with_its_block() {
        let (key, slot) = (PackedKey::of(b"key"), Slot::default());
        slot.assign(&key);
        // 2 units until 10 ms, 3 until 20 ms.
        slot.open(5, term(3, 20_000, 7));
        let left = |cost, now_us| match slot.spend(&key, cost, now_us) {
            Spend::Units(spent) => Some(spent.left),
            _ => None,
        };
        assert_eq!(left(1, 9_999), Some(4));
        assert_eq!(left(1, 10_000), None, "the next one has ended");
        assert_eq!(left(1, 9_999), Some(3));
        assert_eq!(left(1, 10_000), Some(2));
        assert_eq!(left(3, 10_000), None);
        assert_eq!(left(1, 20_000), None);
        assert!(matches!(slot.spend(&PackedKey::of(b"other"), 1, 0), Spend::Another));
        assert_eq!(slot.close(), 2);
        assert_eq!(left(1, 0), None);
    }
}
