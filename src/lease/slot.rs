//! One leased key in one cache line: units that all threads spend from without
//! a lock, and the key that they are for.
//!
//! Spenders only ever lower the units; all else is written by the one keeper.
//! The units share a word with a generation, which every change by the keeper
//! raises: a spender's compare-and-swap succeeds only if nothing that it has read
//! since (the key, the ends, the stamp) has been written anew. So a unit is never
//! spent after the keeper has taken it back, nor for another key.
//!
//! The units are of up to two blocks, and the older ones are spent first. So as
//! long as there are more of them than the newer block had, the next one is of
//! the older block, and has its end.

use std::sync::atomic::{AtomicU64, Ordering};

use super::packed_key::{PackedKey, WORDS};

/// In `about`, above the key's length: a refill is asked for or under way.
const WANTED: u64 = 1 << 8;
/// The length of no key.
const VACANT: u64 = 0xfe;
/// Who knows: length and `WANTED`, below the newest block's size.
const WHOSE: u64 = 0xff;
const LOW: u64 = u32::MAX as u64;

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    /// Generation and units left, 32 bits each.
    word: AtomicU64,
    /// Local ms from which on the units may not be spent, wrapped to 32 bits:
    /// those of the newest block, and above those of the one before it.
    ends: AtomicU64,
    /// The stamp of the take of the oldest units.
    stamp_us: AtomicU64,
    /// Local time at which the key would be untouched.
    reset_us: AtomicU64,
    /// What the newest block had (32 bits), whether a refill is wanted, and the
    /// key's length.
    about: AtomicU64,
    key: [AtomicU64; WORDS],
}

/// What units are opened with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// How many of the units are the newest block's.
    pub(super) newest: u32,
    pub(super) newest_ends_us: u64,
    pub(super) older_ends_us: u64,
    pub(super) stamp_us: u64,
    pub(super) reset_us: u64,
}

/// What became of a spender's ask.
#[derive(Debug)]
pub(super) enum Spend {
    /// The slot is another key's.
    Another,
    /// Nothing is left that has not ended, or too little.
    Nothing,
    Units(Spent),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) left: u32,
    pub(super) stamp_us: u64,
    pub(super) reset_us: u64,
    /// It is time for a refill, and nobody has asked for one.
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
        // First the word: whatever is read after it belongs to it, or the swap fails.
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
            // While only others' spending is in the way, what was read holds.
            while word >> 32 == generation {
                let units = word & LOW;
                let ends_ms = if units > newest { ends >> 32 } else { ends & LOW };
                if units < u64::from(cost) || !is_before(now_us, ends_ms as u32) {
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
        // Acquired, so that what was written anew shows the generation that it
        // belongs to.
        self.about.load(Ordering::Acquire) & WHOSE == u64::from(key.len)
            && self.key.iter().zip(&key.words).all(|(own, word)| own.load(Ordering::Acquire) == *word)
    }

    /// Whether the caller is the one to ask for a refill.
    pub(super) fn want(&self) -> bool {
        self.about.load(Ordering::Relaxed) & WANTED == 0
            && self.about.fetch_or(WANTED, Ordering::AcqRel) & WANTED == 0
    }

    pub(super) fn no_longer_wanted(&self) {
        self.about.fetch_and(!WANTED, Ordering::AcqRel);
    }

    /// Forgets the units of this key; how many there were.
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

/// # For the keeper
impl Slot {
    pub(super) fn is_vacant(&self) -> bool {
        self.about.load(Ordering::Relaxed) & WHOSE == VACANT
    }

    /// Is wanted from the start: a refill is what it is for.
    pub(super) fn assign(&self, key: &PackedKey) {
        for (own, word) in self.key.iter().zip(key.words) {
            own.store(word, Ordering::Release);
        }
        self.about.store(u64::from(key.len) | WANTED, Ordering::Release);
    }

    /// Must be closed.
    pub(super) fn vacate(&self) {
        self.about.store(VACANT, Ordering::Release);
    }

    /// Takes back what is left, to the unit: no spender succeeds after it.
    pub(super) fn close(&self) -> u32 {
        let generation = next_generation(self.word.load(Ordering::Relaxed));
        (self.word.swap(generation, Ordering::AcqRel) & LOW) as u32
    }

    /// Lets units be spent. Must be closed.
    pub(super) fn open(&self, units: u32, term: Term) {
        let ends = (term.newest_ends_us / 1_000) & LOW | (term.older_ends_us / 1_000) << 32;
        self.ends.store(ends, Ordering::Release);
        self.stamp_us.store(term.stamp_us, Ordering::Release);
        self.reset_us.store(term.reset_us, Ordering::Release);
        // Whether it is wanted may be changed by others at the same time.
        let size = u64::from(term.newest) << 32;
        let _ =
            self.about.fetch_update(Ordering::AcqRel, Ordering::Acquire, |about| Some(about & LOW | size));
        let closed = self.word.load(Ordering::Relaxed);
        self.word.store(next_generation(closed) | u64::from(units), Ordering::Release);
    }
}

/// Ends are cut to the ms, so that no unit is held for too long. They are
/// compared around the end of the 32 bits: right for 24 days, and what has ended
/// is closed as soon as the worker runs.
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
                                // The stamp tells whose units they were.
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
