//! The reference: the decisions of the scripts in `lua/`, as integer arithmetic without I/O.
//!
//! Not covered by semantic versioning: a minor version may change what is here.
//!
//! The in-memory store and the fallback decide with it, and tests compare the scripts with it. It can also
//! replay traffic, and generate the cases of a conformance test for another language. To decide a check:
//!
//! 1. Find the [`Record`] of the key. Replace a missing or [expired](Record::has_expired) record with
//!    `Record::default()`, as Redis does.
//! 2. Call [`take`] with one [`Item`] per quota. It charges the records and returns the number of admitted
//!    checks.
//! 3. Build a [`Taken`] from the same numbers. It computes the [`Answer`] to each check: the scripts report
//!    only the admitted checks, the state before the take, and the time.
//!
//! Groups with in-flight limits are decided by [`in_flight::acquire`] instead of [`take`]. [`adapt`] changes
//! in-flight limits that follow the latency. [`bans::take`] also counts denials.
//!
//! All times are in µs since 1970-01-01 00:00 UTC, and durations are in µs.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::Quota;
//! use tidegate::reference::{Answer, Item, Record, Taken, take};
//!
//! fn check(quota: &Quota, record: &mut Record, cost: u64, now: u64) -> Answer {
//!     if record.has_expired(now) {
//!         *record = Record::default();
//!     }
//!     let mut items = [Item::new(quota, record, cost, None)];
//!     let k = take(&mut items, 1, now);
//!     Taken { quota, cost, max_delay: None, n: 1, k, before: items[0].before, now }.answer(0)
//! }
//!
//! let quota = Quota::fixed_window(3, Duration::from_secs(60));
//! let mut record = Record::default();
//! let start = 1_767_225_600_000_000; // 2026-01-01 00:00 UTC
//! assert_eq!(check(&quota, &mut record, 2, start).remaining, 1);
//! let denied = check(&quota, &mut record, 2, start + 20_000_000);
//! assert_eq!((denied.allowed, denied.retry_after_us), (false, 40_000_000));
//! assert!(check(&quota, &mut record, 2, start + 60_000_000).allowed);
//! ```

pub mod adapt;
pub mod bans;
pub mod holds;
pub mod in_flight;

use crate::quota::Quota;
use crate::quota::algorithm::{Algorithm, RawState, State};

/// The stored state of one key. `Record::default()` is an unused key; a store need not keep it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The used units, and their time.
    pub state: State,
    /// The end of the block, in µs since 1970. 0 if the key is not blocked. The end may have passed.
    pub blocked_until_us: u64,
    /// When Redis removes the key, in ms since 1970: see [`has_expired`](Self::has_expired).
    pub expires_ms: u64,
}

/// One quota that a take checks, and the key that it charges.
#[derive(Debug)]
pub struct Item<'a> {
    /// The quota that decides.
    pub quota: &'a Quota,
    /// The key's record, which must not have [expired](Record::has_expired). [`take`] changes it.
    pub record: &'a mut Record,
    /// The units that each check consumes, from 0 to the quota's limit. An item with cost 0 admits every
    /// check and charges nothing.
    pub cost: u64,
    /// The longest accepted delay, in µs: a check that would wait longer is denied. `None` accepts any delay.
    /// Only leaky buckets read it.
    pub max_delay: Option<u64>,
    /// The state before the take; [`take`] sets it.
    pub before: Before,
}

impl<'a> Item<'a> {
    /// Makes an item for [`take`], with a default [`before`](Self::before).
    #[must_use]
    pub fn new(quota: &'a Quota, record: &'a mut Record, cost: u64, max_delay: Option<u64>) -> Self {
        Self { quota, record, cost, max_delay, before: Before::default() }
    }
}

/// The state of one key before a take, as the scripts report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// The end of the block, in µs since 1970. 0 if the key was not blocked. The end may have passed.
    pub blocked_until_us: u64,
    /// The usage, settled to the time of the take. The third number of a sliding log depends on the state
    /// after the take.
    pub raw: RawState,
}

/// Decides `n` equal checks at `now`, each of which needs every item. Returns the number of admitted checks:
/// as many as all items can afford.
///
/// Charges each record for exactly the admitted checks. Only quotas with
/// [`count_denied`](Quota::count_denied) also charge denied checks. Sets [`Item::before`] of every item. With
/// `n` = 0, a peek, charges nothing and returns 0. Without items, returns 0.
///
/// `now` is in µs since 1970, at most 2^53 and at least the quota's window. A `now` before that of an earlier
/// call is a clock that was stepped back: a charge then dates the state `now`. Does not allocate, except for
/// the entries of a sliding log.
///
/// # Panics
///
/// May panic if an item's cost is above its quota's limit.
pub fn take(items: &mut [Item<'_>], n: u64, now: u64) -> u64 {
    let mut k = if items.is_empty() { 0 } else { n };
    for item in &mut *items {
        k = k.min(item.read(n, now));
    }
    for item in items {
        item.write(n, k, now);
    }
    k
}

impl Item<'_> {
    /// Returns how many of `n` checks this item alone affords, by the state before the take.
    fn afford(&self, n: u64, now: u64) -> u64 {
        self.before.afford(self.quota, n, self.cost, self.max_delay, now)
    }

    /// Sets the state before the take. Returns how many of `n` checks this item alone affords.
    #[inline]
    fn read(&mut self, n: u64, now: u64) -> u64 {
        self.quota.kind().read(self, n, now)
    }

    #[inline]
    pub(super) fn read_by(&mut self, algorithm: &impl Algorithm, n: u64, now: u64) -> u64 {
        let blocked_until_us = self.record.blocked_until_us;
        self.before = Before { blocked_until_us, raw: algorithm.settle(&self.record.state, now) };
        self.before.afford_by(algorithm, n, self.cost, self.max_delay, now)
    }

    /// Charges `k` of `n` checks.
    #[inline]
    fn write(&mut self, n: u64, k: u64, now: u64) {
        let algorithm = self.quota.kind().algorithm();
        let raw = self.before.raw;
        if n > 0 && self.cost > 0 {
            // Computes again how many checks this item affords, so that no list of them is allocated.
            let denied = match self.quota.kind().counts_denied() {
                true => algorithm.charge_of_denied(n - self.afford(n, now), self.cost),
                false => 0,
            };
            self.record.write(self.quota, raw, k * self.cost + denied, now);
        }
        self.before.raw = algorithm.complete(raw, &self.record.state, self.cost, now);
    }
}

impl Record {
    /// Charges `units`. With 0 units, repairs a state dated in the future, and an expiry that is too early
    /// for this quota.
    #[inline]
    pub(crate) fn write(&mut self, quota: &Quota, raw: RawState, units: u64, now: u64) {
        quota.kind().write(self, raw, units, now);
    }

    #[inline]
    pub(super) fn write_by(&mut self, algorithm: &impl Algorithm, raw: RawState, units: u64, now: u64) {
        let was_kept_until = match self.blocked_until_us {
            0 => algorithm.was_kept_until(&self.state),
            _ => None,
        };
        if units > 0 || algorithm.is_ahead(&self.state, now) {
            algorithm.charge(&mut self.state, raw, units, now);
            self.forget_passed_block(now);
            // Skips the write if the expiry is unchanged.
            if was_kept_until != Some(self.kept_until(algorithm, now)) {
                self.expire(algorithm, now);
            }
        } else if algorithm.lengthens() && was_kept_until.is_none() {
            let needed_us = algorithm.reset_after(raw, now).max(self.blocked_until_us.saturating_sub(now));
            let left_ms = self.expires_ms.saturating_sub(now / 1_000);
            if left_ms * 1_000 < needed_us {
                self.expire(algorithm, now);
            }
        }
    }

    /// Charges `units` at `now` without a check, also above the limit. The record must not have
    /// [expired](Self::has_expired). The scripts are exact up to [`MAX_DEBT`](crate::quota::algorithm::MAX_DEBT)
    /// units. 0 units change nothing.
    pub fn penalize(&mut self, quota: &Quota, units: u64, now: u64) {
        if units > 0 {
            let raw = quota.kind().algorithm().settle(&self.state, now);
            self.write(quota, raw, units, now);
        }
    }

    /// Charges `units` that were used at `now`, whatever the state, as far as at most `most` units are used
    /// afterwards. Returns how many it charged, and the state before. The record must not have
    /// [expired](Self::has_expired).
    ///
    /// `units` is 1 to [`MAX_DEBT`](crate::quota::algorithm::MAX_DEBT), and `most` at most 2^52.
    pub fn charge_used(&mut self, quota: &Quota, units: u64, most: u64, now: u64) -> (u64, Before) {
        let algorithm = quota.kind().algorithm();
        let (raw, blocked_until_us) = (algorithm.settle(&self.state, now), self.blocked_until_us);
        let charged = units.min(algorithm.room(most, raw, now));
        self.write(quota, raw, charged, now);
        (charged, Before { blocked_until_us, raw: algorithm.complete(raw, &self.state, 1, now) })
    }

    /// Gives back `units` at `now`, at most those that still count. The record must not have
    /// [expired](Self::has_expired).
    ///
    /// `stamp` identifies the take that charged the units: see
    /// [`Algorithm::stamp`]. `None` gives them back as if they had been
    /// charged at `now`.
    pub fn refund(&mut self, quota: &Quota, units: u64, stamp: Option<u64>, now: u64) {
        if quota.kind().algorithm().give_back(&mut self.state, units, stamp, now) {
            self.forget_passed_block(now);
            self.expire(quota.kind().algorithm(), now);
        }
    }

    /// Denies every check before `until`, in µs since 1970. 0 lifts the block. The usage stays. The record
    /// must not have [expired](Self::has_expired).
    pub fn block(&mut self, quota: &Quota, until: u64, now: u64) {
        if until == 0 && self.blocked_until_us == 0 {
            return;
        }
        // Like any write, re-dates a state dated in the future.
        let algorithm = quota.kind().algorithm();
        let raw = algorithm.settle(&self.state, now);
        algorithm.charge(&mut self.state, raw, 0, now);
        self.blocked_until_us = until;
        if until == 0 && quota.is_in_flight() && algorithm.reset_after(raw, now) == 0 {
            // Nothing else is stored.
            *self = Self::default();
            return;
        }
        self.expire(quota.kind().algorithm(), now);
    }

    /// Returns whether the key has expired at `now`, in µs since 1970. As in Redis, it expires when the clock
    /// shows a later millisecond than `expires_ms`. Use `Record::default()` in place of an expired record.
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

    #[inline]
    fn kept_until(&self, algorithm: &(impl Algorithm + ?Sized), now: u64) -> u64 {
        let raw = algorithm.settle(&self.state, now);
        // The life of these counts from their last write.
        let from =
            if let State::InFlight(holdings) = &self.state { holdings.written_us.max(now) } else { now };
        algorithm.kept_until(raw, from).max(self.blocked_until_us)
    }

    fn expire(&mut self, algorithm: &(impl Algorithm + ?Sized), now: u64) {
        self.expires_ms = self.kept_until(algorithm, now).div_ceil(1_000).max(now / 1_000 + 1);
    }
}

/// The values that a client receives for one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the check is admitted.
    pub allowed: bool,
    /// The whole units left after the check; 0 while the key is blocked.
    pub remaining: u64,
    /// The time until another check of this cost can be admitted, in µs; 0 if it can be now.
    pub retry_after_us: u64,
    /// The time until the key is unused and not blocked, in µs; 0 if it is now.
    pub reset_after_us: u64,
    /// How long an admitted check waits for its turn, in µs. Above 0 only for leaky buckets.
    pub delay_us: u64,
    /// Whether the key is blocked.
    pub is_blocked: bool,
}

impl Answer {
    /// Returns the answer to a check that was not fully admitted, and with which a block of this length begins.
    pub(crate) fn blocked_for(self, us: u64) -> Self {
        Self {
            remaining: 0,
            retry_after_us: self.retry_after_us.max(us),
            reset_after_us: self.reset_after_us.max(us),
            is_blocked: true,
            ..self
        }
    }
}

/// One item of a take, with the result: computes the answers to its checks.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'a> {
    /// The quota of the item.
    pub quota: &'a Quota,
    /// The units that each check consumes, from 0 to the quota's limit.
    pub cost: u64,
    /// The longest accepted delay, in µs, as in [`Item::max_delay`].
    pub max_delay: Option<u64>,
    /// The number of checks: 0 for a peek.
    pub n: u64,
    /// The number of admitted checks: the result of [`take`].
    pub k: u64,
    /// The state before the take, from [`Item::before`] or from the reply of a script.
    pub before: Before,
    /// The time of the take, in µs since 1970.
    pub now: u64,
}

impl Before {
    /// Returns the answer to a charge of `units` that were used, of which `charged` were charged: allowed if they were
    /// within the limit. The other values are those after the charge, for a check of one unit.
    #[must_use]
    pub fn answer_to_used(&self, quota: &Quota, units: u64, charged: u64, now: u64) -> Answer {
        let taken = Taken { quota, cost: 1, max_delay: None, n: charged, k: charged, before: *self, now };
        let answer = taken.answer(charged.saturating_sub(1));
        Answer { allowed: self.afford(quota, units, 1, None, now) == units, delay_us: 0, ..answer }
    }

    pub(crate) fn afford(&self, quota: &Quota, n: u64, cost: u64, max_delay: Option<u64>, now: u64) -> u64 {
        self.afford_by(quota.kind().algorithm(), n, cost, max_delay, now)
    }

    #[inline]
    fn afford_by(
        &self,
        algorithm: &(impl Algorithm + ?Sized),
        n: u64,
        cost: u64,
        max_delay: Option<u64>,
        now: u64,
    ) -> u64 {
        if cost == 0 {
            n
        } else if self.blocked_until_us > now {
            0
        } else {
            algorithm.afford(self.raw, n, cost, now, max_delay)
        }
    }
}

/// Returns how many of the checks that a caller wanted were admitted, and one answer to all of them: see [`Taken::grant`].
#[inline]
pub(crate) fn grant(
    n: u64,
    k: u64,
    (first, wanted): (u64, u64),
    answer: impl Fn(u64) -> Answer,
) -> (u64, Answer) {
    if n == 0 {
        return (0, answer(0));
    }
    let granted = k.saturating_sub(first).min(wanted);
    match granted {
        0 => (0, answer(first)),
        _ if granted == wanted => (granted, answer(first + granted - 1)),
        _ => {
            let (last, after) = (answer(first + granted - 1), answer(first + granted));
            (granted, Answer { allowed: true, delay_us: last.delay_us, ..after })
        }
    }
}

impl Taken<'_> {
    /// Returns the answer to the check at `index`, from 0 to `n - 1`; the first `k` checks were admitted. For
    /// a peek (`n` = 0) the index is 0, and the answer reports whether one check would be admitted. With cost
    /// 0, the answer is that of a peek at one unit.
    ///
    /// # Panics
    ///
    /// May panic if the cost is above the quota's limit, or if a script cannot have reported
    /// [`before`](Self::before): see [`Algorithm::is_possible`].
    #[must_use]
    #[inline]
    pub fn answer(&self, index: u64) -> Answer {
        self.quota.kind().answer(self, index)
    }

    #[inline]
    pub(super) fn answer_by(&self, algorithm: &impl Algorithm, index: u64) -> Answer {
        let Self { cost, max_delay, n, k, before, now, .. } = *self;
        let is_peek = n == 0 || cost == 0;
        let own = || before.afford_by(algorithm, n.max(1), cost.max(1), max_delay, now);
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
            is_blocked: block > 0,
        }
    }

    /// Returns how many of the `wanted` checks from the index `first` on were admitted, and one answer to all of them: the
    /// values after them, allowed if any was admitted, with the delay of the last admitted one. `wanted` is at least 1.
    /// For a peek (`n` = 0), returns 0 and the answer to the peek.
    ///
    /// # Panics
    ///
    /// As [`answer`](Self::answer).
    #[must_use]
    #[inline]
    pub fn grant(&self, first: u64, wanted: u64) -> (u64, Answer) {
        grant(self.n, self.k, (first, wanted), |index| self.answer(index))
    }

    /// Returns whether this item alone would have admitted the check at `index`, after the checks admitted
    /// before it. With cost 0, returns whether it would have admitted one unit.
    #[must_use]
    pub fn affords(&self, index: u64) -> bool {
        // Checks of cost 0 before this one charged nothing.
        let before = if self.cost == 0 { 0 } else { index.min(self.k) };
        self.before.afford(self.quota, before + 1, self.cost.max(1), self.max_delay, self.now) > before
    }
}
