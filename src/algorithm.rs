//! The five algorithms as pure arithmetic on integers: state, now and an ask in,
//! state and answer out. The scripts in `lua/` do the same on the server; tests
//! hold the two against each other.
//!
//! The script reports how many it admitted, the state before, and now; all that
//! a client is told (remaining, when to retry) follows from these three, and is
//! computed here for either store.

mod fixed_window;
mod leaky_bucket;
mod sliding_counter;
mod sliding_log;
mod token_bucket;

pub use self::sliding_log::{Entry, Log};
use smallvec::SmallVec;

use crate::quota::{Kind, Quota};

/// What a store keeps of one key, but for blocks. What was used and when that
/// was true, never what is left: so a changed limit acts at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Untouched,
    /// Used ticks at a time; capacity, rate and per (ticks in a unit) of the quota
    /// that wrote them.
    Level { ticks: u64, by: [u64; 3], at_us: u64 },
    /// Used units in the window that ends at a time.
    Window { used: u64, end_ms: u64 },
    /// Units by when they were charged.
    Log(Log),
    /// Used units in the window that began at a time, and in the one before it.
    Counter { current: u64, previous: u64, start_us: u64 },
}

/// The most units that one penalty or refund names: more could not be counted.
pub const MOST_DEBT: u64 = 1 << 49;

/// Up to here every integer is exact in a double: no script counts further.
pub(crate) const EXACT: u64 = 1 << 53;

/// A state settled to now, as a script reports it: one to three numbers, whose
/// meaning is the algorithm's (`State` in its Lua header).
pub type Seen = [u64; 3];

/// What one algorithm does. Times are µs; `seen` is always settled to `now`.
pub trait Algorithm {
    /// How many numbers of [`Seen`] the script reports.
    fn fields(&self) -> usize;

    /// Whether the script can have reported this: what follows from it counts on
    /// these bounds.
    fn is_possible(&self, seen: Seen, now: u64) -> bool;

    /// What the state amounts to at `now`.
    fn settle(&self, state: &State, now: u64) -> Seen;

    /// Dated in the future, because the server's clock was stepped back.
    fn is_ahead(&self, state: &State, now: u64) -> bool;

    /// How many of `n` asks of `cost` each can be admitted.
    fn afford(&self, seen: Seen, n: u64, cost: u64, now: u64, max_delay: Option<u64>) -> u64;

    /// Adds `units` (0 only re-dates) to the state, dated `now`.
    fn charge(&self, state: &mut State, seen: Seen, units: u64, now: u64);

    /// Units that a denial of `denied` asks leaves behind in the state.
    fn charge_of_denied(&self, _denied: u64, _cost: u64) -> u64 {
        0
    }

    /// Identifies a take to its give-backs, which must say when their units were
    /// charged.
    fn stamp(&self, _seen: Seen, now: u64) -> u64 {
        now
    }

    /// Returns `units` of the take with this stamp, as far as they still count;
    /// without a stamp, all of them do. Whether the state changed.
    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool;

    /// `seen`, as it is after `units` more.
    fn after(&self, seen: Seen, units: u64, now: u64) -> Seen;

    /// Completes `seen` by what cannot be told from it alone, once the state
    /// after the take is known.
    fn complete(&self, seen: Seen, _state: &State, _cost: u64, _now: u64) -> Seen {
        seen
    }

    /// Units left.
    fn remaining(&self, seen: Seen, now: u64) -> u64;

    /// Until another ask of `cost` passes; 0 if it would now.
    fn retry_after(&self, seen: Seen, cost: u64, max_delay: Option<u64>, now: u64) -> u64;

    /// Until the state is as if untouched; 0 if it is.
    fn reset_after(&self, seen: Seen, now: u64) -> u64;

    /// Until when a key in this state is kept: as long as it says anything, or
    /// somewhat longer where expiries then change less often.
    fn kept_until(&self, seen: Seen, now: u64) -> u64 {
        now + self.reset_after(seen, now)
    }

    /// [`kept_until`](Self::kept_until) as it was when this very quota wrote the
    /// state.
    fn was_kept_until(&self, _state: &State) -> Option<u64> {
        None
    }

    /// How long who is admitted next waits for his turn.
    fn delay(&self, _seen: Seen) -> u64 {
        0
    }

    /// Whether quotas that need different times share a key, so that a denial
    /// may find its expiry too soon.
    fn lengthens(&self) -> bool {
        false
    }
}

impl Kind {
    pub fn algorithm(&self) -> &dyn Algorithm {
        match self {
            Self::TokenBucket(it) => it,
            Self::LeakyBucket(it) => it,
            Self::FixedWindow(it) => it,
            Self::SlidingLog(it) => it,
            Self::SlidingCounter(it) => it,
        }
    }

    /// What one key costs Redis beside the others, measured: see `MOST_WORK`.
    pub(crate) fn work(&self) -> u32 {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::FixedWindow(_) => 2,
            Self::SlidingCounter(_) => 3,
            Self::SlidingLog(_) => 5,
        }
    }
}

/// One key as a store keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub state: State,
    /// 0: not blocked.
    pub blocked_until_us: u64,
    /// When it vanishes, as Redis would let it.
    pub expires_ms: u64,
}

/// One gate's part in a take.
#[derive(Debug)]
pub struct Item<'a> {
    pub quota: &'a Quota,
    pub record: &'a mut Record,
    pub cost: u64,
    pub max_delay: Option<u64>,
}

/// What a take found at one key, before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    pub blocked_until_us: u64,
    pub seen: Seen,
}

/// Admits as many of `n` asks as every item affords, and charges exactly those.
pub fn take(items: &mut [Item<'_>], n: u64, now: u64) -> (u64, SmallVec<[Before; 1]>) {
    let affordable: SmallVec<[(u64, Before); 1]> = items
        .iter()
        .map(|item| {
            let algorithm = item.quota.kind().algorithm();
            let blocked_until_us = item.record.blocked_until_us;
            let before = Before { blocked_until_us, seen: algorithm.settle(&item.record.state, now) };
            (before.afford(item.quota, n, item.cost, item.max_delay, now), before)
        })
        .collect();
    let k = affordable.iter().map(|&(own, _)| own).min().unwrap_or(0);
    let before = items
        .iter_mut()
        .zip(affordable)
        .map(|(item, (own, mut before))| {
            let algorithm = item.quota.kind().algorithm();
            let record = &mut *item.record;
            if n > 0 && item.cost > 0 {
                let denied = algorithm.charge_of_denied(n - own, item.cost);
                let units = k * item.cost + denied;
                record.write(item.quota, before.seen, units, now);
            }
            before.seen = algorithm.complete(before.seen, &record.state, item.cost, now);
            before
        })
        .collect();
    (k, before)
}

impl Record {
    /// Charges `units`; with none, repairs what a denial may repair: a state
    /// dated in the future, and an expiry that is too soon for this quota.
    fn write(&mut self, quota: &Quota, seen: Seen, units: u64, now: u64) {
        let algorithm = quota.kind().algorithm();
        let was_kept_until = match self.blocked_until_us {
            0 => algorithm.was_kept_until(&self.state),
            _ => None,
        };
        if units > 0 || algorithm.is_ahead(&self.state, now) {
            algorithm.charge(&mut self.state, seen, units, now);
            self.forget_passed_block(now);
            // What has been set for as long is left as it is.
            if was_kept_until != Some(self.kept_until(quota, now)) {
                self.expire(quota, now);
            }
        } else if algorithm.lengthens() && was_kept_until.is_none() {
            let needed_us = algorithm.reset_after(seen, now).max(self.blocked_until_us.saturating_sub(now));
            let left_ms = self.expires_ms.saturating_sub(now / 1_000);
            if left_ms * 1_000 < needed_us {
                self.expire(quota, now);
            }
        }
    }

    /// Charges `units` without asking.
    pub fn penalize(&mut self, quota: &Quota, units: u64, now: u64) {
        if units > 0 {
            let seen = quota.kind().algorithm().settle(&self.state, now);
            self.write(quota, seen, units, now);
        }
    }

    /// Returns `units`; `stamp` is that of the take that charged them.
    pub fn refund(&mut self, quota: &Quota, units: u64, stamp: Option<u64>, now: u64) {
        if quota.kind().algorithm().give_back(&mut self.state, units, stamp, now) {
            self.forget_passed_block(now);
            self.expire(quota, now);
        }
    }

    /// Denies everything until a time; 0 lifts that. Like any write it re-dates
    /// a state dated in the future.
    pub fn block(&mut self, quota: &Quota, until: u64, now: u64) {
        if until == 0 && self.blocked_until_us == 0 {
            return;
        }
        let algorithm = quota.kind().algorithm();
        let seen = algorithm.settle(&self.state, now);
        algorithm.charge(&mut self.state, seen, 0, now);
        self.blocked_until_us = until;
        self.expire(quota, now);
    }

    /// As in Redis: once the clock shows a later millisecond.
    #[must_use]
    pub fn has_expired(&self, now: u64) -> bool {
        now / 1_000 > self.expires_ms
    }

    /// So that it does not come back when the server's clock is stepped back.
    fn forget_passed_block(&mut self, now: u64) {
        if self.blocked_until_us <= now {
            self.blocked_until_us = 0;
        }
    }

    fn kept_until(&self, quota: &Quota, now: u64) -> u64 {
        let algorithm = quota.kind().algorithm();
        algorithm.kept_until(algorithm.settle(&self.state, now), now).max(self.blocked_until_us)
    }

    fn expire(&mut self, quota: &Quota, now: u64) {
        self.expires_ms = self.kept_until(quota, now).div_ceil(1_000).max(now / 1_000 + 1);
    }
}

/// What a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub allowed: bool,
    pub remaining: u64,
    pub retry_after_us: u64,
    pub reset_after_us: u64,
    pub delay_us: u64,
}

/// One take, as its callers see it.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    pub quota: &'a Quota,
    pub cost: u64,
    pub max_delay: Option<u64>,
    /// How many asked: 0 for a peek.
    pub n: u64,
    /// How many were admitted.
    pub k: u64,
    pub before: Before,
    pub now: u64,
}

impl Before {
    pub(crate) fn afford(&self, quota: &Quota, n: u64, cost: u64, max_delay: Option<u64>, now: u64) -> u64 {
        if cost == 0 {
            n
        } else if self.blocked_until_us > now {
            0
        } else {
            quota.kind().algorithm().afford(self.seen, n, cost, now, max_delay)
        }
    }
}

impl Taken<'_> {
    /// The answer to the `index`-th caller (from 0), the first `k` of whom were
    /// admitted. A peek's caller is told whether one unit would pass.
    #[must_use]
    pub fn answer(&self, index: u64) -> Answer {
        let Self { quota, cost, max_delay, n, k, before, now } = *self;
        let algorithm = quota.kind().algorithm();
        let is_peek = n == 0 || cost == 0;
        let own = || before.afford(quota, n.max(1), cost.max(1), max_delay, now);
        let allowed = if is_peek { own() > 0 } else { index < k };
        let spent_before = if is_peek { 0 } else { index.min(k) * cost };
        let spent = match (is_peek, allowed) {
            (true, _) => 0,
            (false, true) => spent_before + cost,
            (false, false) => spent_before + algorithm.charge_of_denied(n.saturating_sub(own()), cost),
        };
        let after = algorithm.after(before.seen, spent, now);
        let block = before.blocked_until_us.saturating_sub(now);
        Answer {
            allowed,
            remaining: if block > 0 { 0 } else { algorithm.remaining(after, now) },
            retry_after_us: algorithm.retry_after(after, cost.max(1), max_delay, now).max(block),
            reset_after_us: algorithm.reset_after(after, now).max(block),
            delay_us: if allowed && !is_peek {
                algorithm.delay(algorithm.after(before.seen, spent_before, now))
            } else {
                0
            },
        }
    }

    /// Whether this gate alone would have admitted the `index`-th caller, after
    /// those who were admitted before; for a cost of 0, whether it would have
    /// admitted one unit.
    #[must_use]
    pub fn affords(&self, index: u64) -> bool {
        // What costs nothing was charged nothing by those before.
        let before = if self.cost == 0 { 0 } else { index.min(self.k) };
        self.before.afford(self.quota, before + 1, self.cost.max(1), self.max_delay, self.now) > before
    }
}
