//! The five algorithms as pure integer arithmetic: from a state, the time and a check to a new state and a
//! reply. The scripts in `lua/` do the same on the server; tests compare the two.
//!
//! The script reports the number of admitted checks, the state before, and the time. The client's values
//! (remaining, retry time) follow from these three, and are computed here for either store.

mod fixed_window;
mod leaky_bucket;
mod sliding_counter;
mod sliding_log;
mod token_bucket;

pub use self::sliding_log::{Log, LogEntry};
use smallvec::SmallVec;

use crate::quota::{Kind, Quota};

/// The state that a store keeps for one key, except blocks. It holds used units and their time, never
/// remaining units, so a changed limit takes effect at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Untouched,
    /// Used ticks at `at_us`. `by` holds capacity, rate and ticks per unit of the quota that wrote them.
    Level { ticks: u64, by: [u64; 3], at_us: u64 },
    /// Used units in the window that ends at `end_ms`.
    Window { used: u64, end_ms: u64 },
    /// Units with the time of their charge.
    Log(Log),
    /// Used units in the window that began at `start_us`, and in the one before it.
    Counter { current: u64, previous: u64, start_us: u64 },
}

/// The maximum units of one penalty or refund: larger counts would not be exact.
pub const MAX_DEBT: u64 = 1 << 49;

/// Every integer up to here is exact in a double: no script counts further.
pub(crate) const EXACT: u64 = 1 << 53;

/// The raw state at the current time, as a script reports it: one to three numbers, whose meaning depends on
/// the algorithm (`State` in its Lua header).
pub type RawState = [u64; 3];

/// The operations of one algorithm. Times are in µs; `raw` is always settled to `now`.
pub trait Algorithm {
    /// Returns how many numbers of [`RawState`] the script reports.
    fn fields(&self) -> usize;

    /// Returns whether the script can have reported this. The other methods rely on these bounds.
    fn is_possible(&self, raw: RawState, now: u64) -> bool;

    /// Returns the raw state at `now`.
    fn settle(&self, state: &State, now: u64) -> RawState;

    /// Returns whether the state is dated in the future, because the server's clock was stepped back.
    fn is_ahead(&self, state: &State, now: u64) -> bool;

    /// Returns how many of `n` checks of `cost` each can be admitted.
    fn afford(&self, raw: RawState, n: u64, cost: u64, now: u64, max_delay: Option<u64>) -> u64;

    /// Adds `units` to the state, dated `now`. 0 units only change the date.
    fn charge(&self, state: &mut State, raw: RawState, units: u64, now: u64);

    /// Returns the units that a denial of `denied` checks adds to the state.
    fn charge_of_denied(&self, _denied: u64, _cost: u64) -> u64 {
        0
    }

    /// Returns the stamp that identifies a take to its refunds. Refunds depend on when their units were
    /// charged.
    fn stamp(&self, _raw: RawState, now: u64) -> u64 {
        now
    }

    /// Returns `units` of the take with this stamp, if they still count; without a stamp, all of them.
    /// Returns whether the state changed.
    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool;

    /// Returns `raw` after `units` more.
    fn after(&self, raw: RawState, units: u64, now: u64) -> RawState;

    /// Adds to `raw` the parts that depend on the state after the take.
    fn complete(&self, raw: RawState, _state: &State, _cost: u64, _now: u64) -> RawState {
        raw
    }

    /// Returns the units left.
    fn remaining(&self, raw: RawState, now: u64) -> u64;

    /// Returns the time until another check of `cost` is admitted; 0 if it would be now.
    fn retry_after(&self, raw: RawState, cost: u64, max_delay: Option<u64>, now: u64) -> u64;

    /// Returns the time until the state equals an unused one; 0 if it does now.
    fn reset_after(&self, raw: RawState, now: u64) -> u64;

    /// Returns when a key in this state expires: when its state no longer matters, or slightly later if
    /// expiries then change less often.
    fn kept_until(&self, raw: RawState, now: u64) -> u64 {
        now + self.reset_after(raw, now)
    }

    /// Returns [`kept_until`](Self::kept_until) at the time when this same quota wrote the state.
    fn was_kept_until(&self, _state: &State) -> Option<u64> {
        None
    }

    /// Returns how long the next admitted check waits for its turn.
    fn delay(&self, _raw: RawState) -> u64 {
        0
    }

    /// Returns whether quotas that need different lifetimes share a key, so that a denial may find an expiry
    /// that is too early.
    fn lengthens(&self) -> bool {
        false
    }
}

impl Kind {
    pub fn algorithm(&self) -> &dyn Algorithm {
        match self {
            Self::TokenBucket(kind) => kind,
            Self::LeakyBucket(kind) => kind,
            Self::FixedWindow(kind) => kind,
            Self::SlidingLog(kind) => kind,
            Self::SlidingCounter(kind) => kind,
        }
    }

    /// Returns the measured cost of one key in Redis, relative to the other algorithms: see `MAX_WORK`.
    pub(crate) fn work(&self) -> u32 {
        match self {
            Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::FixedWindow(_) => 2,
            Self::SlidingCounter(_) => 3,
            Self::SlidingLog(_) => 5,
        }
    }
}

/// One key in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub state: State,
    /// 0: not blocked.
    pub blocked_until_us: u64,
    /// When the key expires, by the rules of Redis.
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

/// The state of one key before a take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    pub blocked_until_us: u64,
    pub raw: RawState,
}

/// Admits as many of `n` checks as every item affords, and charges exactly those.
pub fn take(items: &mut [Item<'_>], n: u64, now: u64) -> (u64, SmallVec<[Before; 1]>) {
    let affordable: SmallVec<[(u64, Before); 1]> = items
        .iter()
        .map(|item| {
            let algorithm = item.quota.kind().algorithm();
            let blocked_until_us = item.record.blocked_until_us;
            let before = Before { blocked_until_us, raw: algorithm.settle(&item.record.state, now) };
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
                record.write(item.quota, before.raw, units, now);
            }
            before.raw = algorithm.complete(before.raw, &record.state, item.cost, now);
            before
        })
        .collect();
    (k, before)
}

impl Record {
    /// Charges `units`. With 0 units, repairs a state dated in the future, and an expiry that is too early
    /// for this quota.
    fn write(&mut self, quota: &Quota, raw: RawState, units: u64, now: u64) {
        let algorithm = quota.kind().algorithm();
        let was_kept_until = match self.blocked_until_us {
            0 => algorithm.was_kept_until(&self.state),
            _ => None,
        };
        if units > 0 || algorithm.is_ahead(&self.state, now) {
            algorithm.charge(&mut self.state, raw, units, now);
            self.forget_passed_block(now);
            // Skips the write if the expiry is unchanged.
            if was_kept_until != Some(self.kept_until(quota, now)) {
                self.expire(quota, now);
            }
        } else if algorithm.lengthens() && was_kept_until.is_none() {
            let needed_us = algorithm.reset_after(raw, now).max(self.blocked_until_us.saturating_sub(now));
            let left_ms = self.expires_ms.saturating_sub(now / 1_000);
            if left_ms * 1_000 < needed_us {
                self.expire(quota, now);
            }
        }
    }

    /// Charges `units` without a check.
    pub fn penalize(&mut self, quota: &Quota, units: u64, now: u64) {
        if units > 0 {
            let raw = quota.kind().algorithm().settle(&self.state, now);
            self.write(quota, raw, units, now);
        }
    }

    /// Returns `units`; `stamp` is that of the take that charged them.
    pub fn refund(&mut self, quota: &Quota, units: u64, stamp: Option<u64>, now: u64) {
        if quota.kind().algorithm().give_back(&mut self.state, units, stamp, now) {
            self.forget_passed_block(now);
            self.expire(quota, now);
        }
    }

    /// Denies everything until `until`; 0 lifts the block. Like any write, re-dates a state dated in the
    /// future.
    pub fn block(&mut self, quota: &Quota, until: u64, now: u64) {
        if until == 0 && self.blocked_until_us == 0 {
            return;
        }
        let algorithm = quota.kind().algorithm();
        let raw = algorithm.settle(&self.state, now);
        algorithm.charge(&mut self.state, raw, 0, now);
        self.blocked_until_us = until;
        self.expire(quota, now);
    }

    /// Returns whether the key has expired. As in Redis: once the clock shows a later millisecond.
    #[must_use]
    pub fn has_expired(&self, now: u64) -> bool {
        now / 1_000 > self.expires_ms
    }

    /// Removes a block that has ended. Otherwise it would return when the server's clock is stepped back.
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

/// The values that a client receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub allowed: bool,
    pub remaining: u64,
    pub retry_after_us: u64,
    pub reset_after_us: u64,
    pub delay_us: u64,
}

/// One take, from the view of its callers.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    pub quota: &'a Quota,
    pub cost: u64,
    pub max_delay: Option<u64>,
    /// The number of checks: 0 for a peek.
    pub n: u64,
    /// The number of admitted checks.
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
            quota.kind().algorithm().afford(self.raw, n, cost, now, max_delay)
        }
    }
}

impl Taken<'_> {
    /// Returns the answer to the `index`-th caller (from 0); the first `k` callers were admitted. A peek's
    /// answer says whether one unit would be admitted.
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
        let after = algorithm.after(before.raw, spent, now);
        let block = before.blocked_until_us.saturating_sub(now);
        Answer {
            allowed,
            remaining: if block > 0 { 0 } else { algorithm.remaining(after, now) },
            retry_after_us: algorithm.retry_after(after, cost.max(1), max_delay, now).max(block),
            reset_after_us: algorithm.reset_after(after, now).max(block),
            delay_us: if allowed && !is_peek {
                algorithm.delay(algorithm.after(before.raw, spent_before, now))
            } else {
                0
            },
        }
    }

    /// Returns whether this gate alone would have admitted the `index`-th caller, after the callers admitted
    /// before. For a cost of 0, returns whether it would have admitted one unit.
    #[must_use]
    pub fn affords(&self, index: u64) -> bool {
        // Checks of cost 0 before this one charged nothing.
        let before = if self.cost == 0 { 0 } else { index.min(self.k) };
        self.before.afford(self.quota, before + 1, self.cost.max(1), self.max_delay, self.now) > before
    }
}
