//! The definitions of the algorithms, written for clarity instead of speed: exact fractions, lists that are
//! scanned on every call, one check at a time. Shares no code with `src/quota/algorithm` except the numbers of a
//! quota.
//!
//! A prediction in an answer is tested, not computed: it must hold at the predicted time, and must not hold 1
//! µs earlier.

use num_rational::Ratio;
use tidegate::Quota;
use tidegate::algorithm::{FixedWindow, Kind, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket};
use tidegate::reference::{Answer, Before, Taken};

type Exact = Ratio<i128>;

/// The state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oracle {
    used: Used,
    blocked_until: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Used {
    /// Units used, and the time at which that was true.
    Level(Exact, u64),
    /// The charges in a window, and the end of the window.
    Window(Vec<u64>, u64),
    /// Each retained charge with its time, oldest first.
    Log(Vec<(u64, u64)>),
    /// Units in the current window and in the previous one, and the start of the current window.
    Counter(u64, u64, u64),
}

fn exact(number: u64) -> Exact {
    Exact::from_integer(i128::from(number))
}

/// Units that drain per µs.
fn rate(bucket: &TokenBucket) -> Exact {
    Exact::new(bucket.rate.into(), bucket.per.into())
}

/// Returns the end of the window that a charge at `now` starts. Windows start and end on a full millisecond.
fn window_end(quota: &Quota, fixed: &FixedWindow, now: u64) -> u64 {
    // tests/calendar compares the windows of calendars with those that Python computes.
    if let Some(calendar) = quota.calendar() {
        return calendar.window_at(now).end;
    }
    let now = now / 1_000 * 1_000;
    let start =
        fixed.aligned_us.map_or(now, |offset| (now - offset) / fixed.window_us * fixed.window_us + offset);
    (start + fixed.window_us).div_ceil(1_000) * 1_000
}

/// Returns the largest debt: 2^49 ticks or 2^52 units.
fn max_debt(quota: &Quota) -> Exact {
    match quota.kind() {
        Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket)) => {
            Exact::new(1 << 49, bucket.per.into())
        }
        _ => exact(1 << 52),
    }
}

impl Oracle {
    pub fn new(quota: &Quota) -> Self {
        let used = match quota.kind() {
            Kind::TokenBucket(_) | Kind::LeakyBucket(_) => Used::Level(exact(0), 0),
            Kind::FixedWindow(_) => Used::Window(Vec::new(), 0),
            Kind::SlidingLog(_) => Used::Log(Vec::new()),
            Kind::SlidingCounter(_) => Used::Counter(0, 0, 0),
            Kind::InFlight(_) => panic!("{quota} holds units instead of charging them"),
        };
        Self { used, blocked_until: 0 }
    }

    /// Returns the state at `now`. Entries with a future date are moved to `now`.
    #[must_use]
    pub fn at(&self, quota: &Quota, now: u64) -> Self {
        let used = match (&self.used, quota.kind()) {
            (Used::Level(units, at), Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket))) => {
                let drained = rate(bucket) * exact(now.saturating_sub(*at));
                Used::Level((*units - drained).max(exact(0)), now)
            }
            (Used::Window(charges, end), Kind::FixedWindow(fixed)) => {
                let counts = charges.iter().sum::<u64>() > 0 && *end > now;
                let latest = window_end(quota, fixed, now);
                if counts {
                    Used::Window(charges.clone(), latest.min(*end))
                } else {
                    Used::Window(Vec::new(), latest)
                }
            }
            (Used::Log(charges), Kind::SlidingLog(_)) => {
                let (mut past, ahead): (Vec<_>, Vec<_>) = charges.iter().partition(|(at, _)| *at <= now);
                if !ahead.is_empty() {
                    past.push((now, ahead.iter().map(|(_, units)| units).sum()));
                }
                Used::Log(past)
            }
            (Used::Counter(current, previous, start), Kind::SlidingCounter(counter)) => {
                let begins = now / counter.window_us * counter.window_us;
                match begins.checked_sub(*start) {
                    None | Some(0) => Used::Counter(*current, *previous, begins),
                    Some(later) if later == counter.window_us => Used::Counter(0, *current, begins),
                    Some(_) => Used::Counter(0, 0, begins),
                }
            }
            other => panic!("{other:?}"),
        };
        Self { used, ..*self }
    }

    fn entries(&self) -> usize {
        if let Used::Log(charges) = &self.used { charges.len() } else { 0 }
    }

    fn is_ahead(&self, quota: &Quota, now: u64) -> bool {
        match (&self.used, quota.kind()) {
            (Used::Level(_, at), _) => *at > now,
            (Used::Window(_, end), Kind::FixedWindow(fixed)) => *end > window_end(quota, fixed, now),
            (Used::Counter(.., start), _) => *start > now,
            (Used::Log(charges), _) => charges.iter().any(|(at, _)| *at > now),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the units used, for a state that [`Self::at`] moved to `now`.
    fn units(&self, quota: &Quota, now: u64) -> Exact {
        match (&self.used, quota.kind()) {
            (Used::Level(units, _), _) => *units,
            (Used::Window(charges, _), _) => exact(charges.iter().sum()),
            (Used::Log(charges), Kind::SlidingLog(SlidingLog { window_us, .. })) => {
                exact(charges.iter().filter(|(at, _)| now - at < *window_us).map(|(_, units)| units).sum())
            }
            (
                Used::Counter(current, previous, start),
                Kind::SlidingCounter(SlidingCounter { window_us, .. }),
            ) => {
                let overlap = Exact::new((window_us - (now - start)).into(), (*window_us).into());
                exact(*current) + (exact(*previous) * overlap).floor()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the exact delay of a check that is admitted now.
    pub fn delay(&self, quota: &Quota, now: u64) -> Exact {
        match quota.kind() {
            Kind::LeakyBucket(LeakyBucket(queue)) => self.units(quota, now) / rate(queue),
            _ => exact(0),
        }
    }

    /// Returns whether a check is allowed.
    pub fn fits(&self, quota: &Quota, cost: u64, max_delay: Option<u64>, now: u64) -> bool {
        let state = self.at(quota, now);
        self.blocked_until <= now
            && state.units(quota, now) + exact(cost) <= exact(quota.limit())
            && max_delay.is_none_or(|max_delay| state.delay(quota, now) <= exact(max_delay))
    }

    fn is_untouched(&self, quota: &Quota, now: u64) -> bool {
        self.blocked_until <= now && self.at(quota, now).units(quota, now) == exact(0)
    }

    fn add(&mut self, quota: &Quota, units: u64, now: u64) {
        *self = self.at(quota, now);
        let used = self.units(quota, now);
        match &mut self.used {
            Used::Level(level, _) => *level = (*level + exact(units)).min(max_debt(quota)),
            Used::Window(charges, _) => {
                let room = (max_debt(quota) - used).to_integer() as u64;
                charges.push(units.min(room));
            }
            Used::Counter(current, ..) => {
                *current = (exact(*current + units)).min(max_debt(quota)).to_integer() as u64;
            }
            Used::Log(charges) => {
                let room = (max_debt(quota) - used).to_integer() as u64;
                charges.push((now, units.min(room)));
            }
        }
    }

    /// Removes the entries that no later decision needs, as a charge does: those that have left the window.
    /// If denied checks count, it also removes all but the newest `limit` units.
    fn forget(&mut self, quota: &Quota, entries_before: usize, now: u64) {
        if let (Used::Log(charges), Kind::SlidingLog(log)) = (&mut self.used, quota.kind()) {
            // One take is one entry, which is kept or removed as a whole.
            let taken = charges.split_off(entries_before);
            charges.push((now, taken.iter().map(|(_, units)| units).sum()));
            let mut newer: u64 = charges.iter().map(|(_, units)| units).sum();
            charges.retain(|(at, units)| {
                newer -= units;
                now - at < log.window_us && !(log.count_denied && newer >= log.limit)
            });
        }
    }

    /// Makes `n` checks in sequence and compares `answer` of each with the result. Returns how many were
    /// admitted.
    pub fn take(
        &mut self,
        quota: &Quota,
        (n, cost, max_delay): (u64, u64, Option<u64>),
        now: u64,
        answer: impl Fn(u64) -> Answer,
    ) -> Result<u64, String> {
        if n == 0 {
            let view = self.at(quota, now);
            let allowed = view.fits(quota, cost, max_delay, now);
            view.confirm(quota, cost, max_delay, now, &Answer { allowed, ..answer(0) })?;
            return if answer(0).allowed == allowed { Ok(0) } else { Err(format!("{:?}", answer(0))) };
        }
        let counts_denied = matches!(quota.kind(), Kind::SlidingLog(log) if log.count_denied);
        let before = (!self.is_ahead(quota, now)).then(|| self.clone());
        *self = self.at(quota, now);
        let entries_before = self.entries();
        let mut k = 0;
        while k < n && self.fits(quota, cost, max_delay, now) {
            let delay = self.delay(quota, now);
            self.add(quota, cost, now);
            let given = answer(k);
            if !given.allowed || exact(given.delay_us) != delay.ceil() {
                return Err(format!("caller {k} passes after {delay}, not {given:?}"));
            }
            k += 1;
            // If denied checks count, those of later callers change the wait of this one.
            if !counts_denied || k == n {
                self.confirm(quota, cost, max_delay, now, &given)?;
            }
        }
        if k < n {
            let given = answer(k);
            if given.allowed || given.delay_us > 0 {
                return Err(format!("caller {k} does not pass, not {given:?}"));
            }
            if counts_denied {
                self.add(quota, ((n - k) * cost).min(quota.limit()), now);
            }
            self.confirm(quota, cost, max_delay, now, &given)?;
        }
        if k > 0 || counts_denied {
            self.forget(quota, entries_before, now);
        } else if let Some(before) = before {
            // A denial writes nothing, except to repair entries with a future date.
            *self = before;
        }
        Ok(k)
    }

    /// Compares an answer with the state and with its future.
    pub fn confirm(
        &self,
        quota: &Quota,
        cost: u64,
        max_delay: Option<u64>,
        now: u64,
        given: &Answer,
    ) -> Result<(), String> {
        let left = (exact(quota.limit()) - self.units(quota, now)).floor().max(exact(0));
        let left = if self.blocked_until > now { exact(0) } else { left };
        let fits = |after: u64| self.fits(quota, cost, max_delay, now + after);
        let is_untouched = |after: u64| self.is_untouched(quota, now + after);
        let wrong = if exact(given.remaining) != left {
            format!("{left} units are left")
        } else if !fits(given.retry_after_us) {
            "the check does not pass after retry_after".to_owned()
        } else if given.retry_after_us > 0 && fits(given.retry_after_us - 1) {
            "the check passes before retry_after".to_owned()
        } else if !is_untouched(given.reset_after_us) {
            "the key is not untouched after reset_after".to_owned()
        } else if given.reset_after_us > 0 && is_untouched(given.reset_after_us - 1) {
            "the key is untouched before reset_after".to_owned()
        } else {
            return Ok(());
        };
        Err(format!("{wrong}, not {given:?}, for {self:?}"))
    }

    /// Returns how many of `n` checks this key alone admits.
    pub fn afford(&self, quota: &Quota, (n, cost, max_delay): (u64, u64, Option<u64>), now: u64) -> u64 {
        if cost == 0 {
            return n;
        }
        let mut used = self.clone();
        let mut k = 0;
        while k < n && used.fits(quota, cost, max_delay, now) {
            used.penalize(quota, cost, now);
            k += 1;
        }
        k
    }

    /// Charges `k` of `n` checks of a group, and compares the answers to the last admitted and to the first denied one.
    pub fn charge_group_item(
        &mut self,
        quota: &Quota,
        (cost, max_delay): (u64, Option<u64>),
        (n, k, before): (u64, u64, Before),
        now: u64,
    ) -> Result<(), String> {
        let taken = Taken { quota, cost, max_delay, n, k, before, now };
        let delay = self.at(quota, now).delay(quota, now).ceil().to_integer();
        if k * cost > 0 && i128::from(taken.answer(0).delay_us) != delay {
            return Err(format!("the delay is {delay}, not {:?}", taken.answer(0)));
        }
        if k * cost > 0 {
            self.penalize(quota, k * cost, now);
        }
        if n * cost > 0 {
            self.repair(quota, now);
        }
        let view = self.at(quota, now);
        for index in k.saturating_sub(1)..n.max(1).min(k + 1) {
            view.confirm(quota, cost.max(1), max_delay, now, &taken.answer(index))
                .map_err(|error| format!("check {index}: {error}"))?;
        }
        Ok(())
    }

    pub fn penalize(&mut self, quota: &Quota, units: u64, now: u64) {
        *self = self.at(quota, now);
        let entries_before = self.entries();
        self.add(quota, units, now);
        self.forget(quota, entries_before, now);
    }

    /// Charges units that were used, as far as at most `most` are used afterwards. Compares their number, and the answer,
    /// with the definitions.
    pub fn charge_used(
        &mut self,
        quota: &Quota,
        (units, most): (u64, u64),
        charged: u64,
        given: &Answer,
        now: u64,
    ) -> Result<(), String> {
        let state = self.at(quota, now);
        let used = state.units(quota, now);
        let room = (exact(most).min(max_debt(quota)) - used).floor().max(exact(0));
        let expected = exact(units).min(room);
        let difference = (expected - exact(charged)).max(exact(charged) - expected);
        // The product of a debt and a window is rounded above 2^53.
        let is_rounded = match (&state.used, quota.kind()) {
            (Used::Counter(_, previous, _), Kind::SlidingCounter(counter)) => {
                u128::from(*previous) * u128::from(counter.window_us) > 1 << 53
            }
            _ => false,
        };
        if difference > exact(is_rounded.into()) {
            return Err(format!("{expected} of {units} units are to be charged, not {charged}"));
        }
        let is_within_limit = self.blocked_until <= now && used + exact(units) <= exact(quota.limit());
        if given.allowed != is_within_limit {
            return Err(format!("{units} units are within the limit: {is_within_limit}, not {given:?}"));
        }
        match charged {
            0 => self.repair(quota, now),
            _ => self.penalize(quota, charged, now),
        }
        self.at(quota, now).confirm(quota, 1, None, now, given)
    }

    /// Refunds the units charged at `stamp` that still count. For a fixed window, `stamp` is the end of the
    /// window. If no units count, nothing changes.
    pub fn refund(&mut self, quota: &Quota, units: u64, stamp: Option<u64>, now: u64) {
        let window = stamp;
        let stamp = stamp.map_or(now, |stamp| stamp.min(now));
        let found = self.used.clone();
        let mut state = self.at(quota, now);
        match (&mut state.used, quota.kind()) {
            (Used::Level(level, _), Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket))) => {
                let left = (exact(units) - rate(bucket) * exact(now - stamp)).max(exact(0)).min(*level);
                if left == exact(0) {
                    return;
                }
                *level -= left;
            }
            (Used::Window(charges, _), _) => {
                let is_of_window =
                    matches!(found, Used::Window(_, end) if window.is_none_or(|window| window == end));
                if !is_of_window || units.min(charges.iter().sum::<u64>()) == 0 {
                    return;
                }
                *charges = vec![charges.iter().sum::<u64>().saturating_sub(units)];
            }
            (Used::Counter(current, previous, start), Kind::SlidingCounter(counter)) => {
                let window = if stamp >= *start {
                    current
                } else if stamp >= *start - counter.window_us {
                    previous
                } else {
                    return;
                };
                if units.min(*window) == 0 {
                    return;
                }
                *window = window.saturating_sub(units);
            }
            (Used::Log(charges), Kind::SlidingLog(log)) => {
                if now - stamp >= log.window_us || units == 0 {
                    return;
                }
                // Refunds the oldest charges first.
                let mut units = units;
                for (_, charged) in charges.iter_mut().filter(|(at, _)| now - at < log.window_us) {
                    let refunded = units.min(*charged);
                    *charged -= refunded;
                    units -= refunded;
                }
            }
            other => panic!("{other:?}"),
        }
        *self = state;
    }

    /// Moves a state with a future date to `now`, as a denied check does.
    pub fn repair(&mut self, quota: &Quota, now: u64) {
        if self.is_ahead(quota, now) {
            *self = self.at(quota, now);
        }
    }

    /// Refunds the units charged at the time `stamp`, at most now, that still count. A window began with the
    /// millisecond of its first charge.
    pub fn refund_charge_of(&mut self, quota: &Quota, units: u64, stamp: u64, now: u64) {
        let stamp = stamp.min(now);
        let (Used::Window(_, found), Kind::FixedWindow(fixed)) = (&self.used, quota.kind()) else {
            return self.refund(quota, units, Some(stamp), now);
        };
        let Used::Window(_, end) = self.at(quota, now).used else { return };
        let is_in_window = match fixed.aligned_us.is_some() || fixed.has_calendar() {
            true => window_end(quota, fixed, stamp) == end,
            false => window_end(quota, fixed, stamp) >= end,
        };
        if is_in_window {
            self.refund(quota, units, Some(*found), now);
        }
    }

    /// Blocks the key until this time. 0 lifts a block. Like any write, it re-dates future entries if it
    /// changes anything.
    pub fn block(&mut self, quota: &Quota, until: u64, now: u64) {
        if until > 0 || self.blocked_until > 0 {
            *self = Self { blocked_until: until, ..self.at(quota, now) };
        }
    }

    /// Records that the server removed the key, which is correct only if the key was untouched.
    pub fn expire(&mut self, quota: &Quota, now: u64) -> Result<(), String> {
        if !self.is_untouched(quota, now) {
            return Err(format!("the key expired although it holds units or a block: {self:?}"));
        }
        *self = Self::new(quota);
        Ok(())
    }

    pub fn is_blocked(&self, now: u64) -> bool {
        self.blocked_until > now
    }

    /// Returns the end of the block, or 0.
    pub fn blocked_until(&self) -> u64 {
        self.blocked_until
    }

    /// Records that the server removed the block, if it has ended.
    pub fn forget_block(&mut self, now: u64) {
        if self.blocked_until <= now {
            self.blocked_until = 0;
        }
    }
}
