//! Gossip with debt: the decisions are the core's, and charges of other regions count when they arrive.

use std::collections::BTreeMap;

use super::windows::{Grid, Place, Windows};
use super::{Checks, TakeGroup, TakeItem, Taken};
use crate::error::Error;
use crate::quota::Quota;
use crate::quota::algorithm::{Algorithm, Kind, LeakyBucket, RawState};
use crate::quota::reference::{Before, Record};

/// A gate in the mode gossip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gossip {
    /// The limit of all regions together.
    pub quota: Quota,
    /// The number of regions R.
    pub regions: u64,
    /// How far above the limit arriving charges may raise the usage, in units: D. The rest is forgiven.
    pub debt: u64,
    /// Whether units above the limit of a fixed window reduce the limit of the windows that follow.
    pub carry: bool,
}

/// The state of one key in one region. `Key::default()` is an unused key; a store need not keep it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// The core's state: the level or log, the block and the expiry. Of windows and counters, the last two only.
    pub record: Record,
    /// The counts of a fixed window or sliding counter.
    pub windows: Windows,
    /// Units of earlier windows that count in the current one.
    pub debt: u64,
    /// The debt when the previous window began: a late charge of that window is added to it.
    pub prior: u64,
}

/// The keys of a region, by name.
type Keys = BTreeMap<String, Key>;

/// A key that a take has read, and not charged yet.
#[derive(Debug)]
struct Read {
    /// The key, with its windows at the time of the take.
    key: Key,
    checks: Checks,
    before: Before,
    /// How many of the checks this key alone affords.
    own: u64,
    is_redated: bool,
    /// Units that the windows forgave on their way to the time of the take.
    forgiven: u64,
}

/// Charges that do not count as they should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Units above limit and debt, which do not count.
    pub forgiven: u64,
    /// Units of windows before the previous one, which do not count.
    pub dropped: u64,
    /// Units that name a window after the next, and count in the next: the clocks are apart by more than a window.
    pub far: u64,
}

impl Gossip {
    /// Makes a gate of `regions`, with carry. The debt is R limits; 2(R - 1) limits for a fixed window, whose long-run
    /// bound needs them.
    ///
    /// # Errors
    ///
    /// Config errors: fewer than two regions; an in-flight limit; a window that begins with its first charge, or of a
    /// calendar; a log that counts denied checks.
    pub fn new(quota: Quota, regions: u64) -> Result<Self, Error> {
        let carry = matches!(quota.kind(), Kind::FixedWindow(_));
        check(&quota, regions)?;
        let limits = if carry { 2 * (regions - 1) } else { regions };
        Ok(Self { quota, regions, debt: limits.saturating_mul(quota.limit()), carry })
    }

    fn grid(&self) -> Option<Grid> {
        Grid::of(&self.quota)
    }

    /// Returns the start of the window of this time, in µs since 1970. `None` of levels and logs.
    pub(in crate::regions) fn start_us(&self, now: u64) -> Option<u64> {
        self.grid().map(|grid| grid.start(now))
    }

    fn algorithm(&self) -> &dyn Algorithm {
        self.quota.kind().algorithm()
    }

    /// The end of a window: `debt` and `used` units become the next window's debt. Returns the forgiven units.
    fn carry_over(&self, debt: u64, used: u64) -> (u64, u64) {
        let over = if self.carry { (debt + used).saturating_sub(self.quota.limit()) } else { 0 };
        (over.min(self.debt), over.saturating_sub(self.debt))
    }

    /// Moves the windows of the key on to `now`. Returns the instant at which to count, and whether the counts moved to
    /// an earlier window.
    fn enter(&self, key: &mut Key, now: u64, counts: &mut Counts) -> (u64, bool) {
        let Some(grid) = self.grid() else { return (now, false) };
        let (debt, prior) = (&mut key.debt, &mut key.prior);
        let entered = key.windows.enter(grid, now, |used, times| {
            *prior = debt.saturating_sub((times - 1).saturating_mul(self.quota.limit()));
            let (left, cut) = self.carry_over(*prior, used as u64);
            *debt = left;
            counts.forgiven += cut;
        });
        (entered.now, entered.is_redated)
    }

    /// Returns the usage as the core's algorithm reads it, at the instant of [`enter`](Self::enter).
    fn raw(&self, key: &Key, grid: Grid) -> RawState {
        let [previous, current, _] = key.windows.counts.map(|count| count as u64);
        match self.quota.kind() {
            Kind::FixedWindow(_) => [current + key.debt, grid.begins(key.windows.start_us, 1) / 1_000, 0],
            _ => [current, previous, 0],
        }
    }

    /// Returns when the debt leaves room for this cost: the start of a later window, or 0 if it is not in the way.
    fn repaid_at(&self, key: &Key, cost: u64) -> u64 {
        let Some(grid) = self.grid().filter(|_| self.carry) else { return 0 };
        let [_, current, next] = key.windows.counts.map(|count| count as u64);
        let limit = self.quota.limit();
        if key.debt + current + cost <= limit {
            return 0;
        }
        // A window repays one limit; debt above the maximum is forgiven.
        let used = (self.carry_over(key.debt, current).0 + next).min(self.debt + limit);
        grid.begins(key.windows.start_us, 1 + (used + cost).saturating_sub(limit).div_ceil(limit))
    }

    fn expire(&self, key: &mut Key, grid: Grid, now: u64) {
        let limit = self.quota.limit();
        let over = |count: i64| (count as u64).saturating_sub(limit);
        let left = key.debt + over(key.windows.counts[1]) + over(key.windows.counts[2]);
        let repaid = match (self.carry, key.debt.max(key.prior), left) {
            (false, ..) | (true, 0, 0) => 0,
            // At each edge, debt above the maximum is forgiven.
            (true, ..) => grid.begins(key.windows.start_us, 2 + left.min(2 * self.debt).div_ceil(limit)),
        };
        if key.record.blocked_until_us <= now {
            key.record.blocked_until_us = 0;
        }
        let kept = key.windows.kept_until(grid).max(repaid).max(key.record.blocked_until_us);
        key.record.expires_ms = kept.div_ceil(1_000).max(now / 1_000 + 1);
    }

    /// Returns the gate that decides shares: own units are never above the limit.
    const fn of_shares(&self) -> Self {
        Self { debt: 0, carry: false, ..*self }
    }

    /// Reads a key for a take. In a share, at least as much is used as a limit used at the cut leaves now.
    fn read(&self, key: Option<&Key>, checks: Checks, cut_us: Option<u64>, now: u64) -> Read {
        let Checks { n, cost, max_delay } = checks;
        let mut key = key.cloned().unwrap_or_default();
        key.forget_expired(now);
        let mut counts = Counts::default();
        let (at_us, is_redated) = self.enter(&mut key, now, &mut counts);
        let cut_us = cut_us.map(|cut_us| cut_us.min(now));
        let raw = match self.grid() {
            Some(grid) => {
                if let Some(cut_us) = cut_us {
                    key.windows.raise(grid, cut_us, self.quota.limit());
                }
                self.raw(&key, grid)
            }
            None => {
                let used = self.algorithm().settle(&key.record.state, now);
                let since_cut = cut_us.map_or([0; 3], |cut_us| self.limit_used_at(cut_us, cost, now));
                std::array::from_fn(|index| used[index].max(since_cut[index]))
            }
        };
        let before = Before { blocked_until_us: key.record.blocked_until_us, raw };
        let own = match before.blocked_until_us > now && cost > 0 {
            true => 0,
            false => before.afford(&self.quota, n, cost, max_delay, at_us),
        };
        Read { key, checks, before, own, is_redated, forgiven: counts.forgiven }
    }

    /// Returns the usage that a limit used at the cut leaves now. Of levels and logs.
    fn limit_used_at(&self, cut_us: u64, cost: u64, now: u64) -> RawState {
        let mut record = Record::default();
        record.penalize(&self.quota, self.quota.limit(), cut_us);
        let raw = self.algorithm().settle(&record.state, now);
        self.algorithm().complete(raw, &record.state, cost, now)
    }

    /// Reads the share of a key for a take: own units count R-fold.
    fn read_share(&self, share: Option<&Key>, checks: Checks, cut_us: u64, now: u64) -> Read {
        let limit = self.quota.limit();
        let cost = checks.cost.saturating_mul(self.regions);
        let read =
            self.of_shares().read(share, Checks { cost: cost.min(limit), ..checks }, Some(cut_us), now);
        Read { own: if cost > limit { 0 } else { read.own }, ..read }
    }

    /// Charges `k` of the checks. Denied checks change nothing, except that a state dated in the future is re-dated.
    /// Returns the state before, and the windows and the debt of then.
    fn write(
        &self,
        keys: &mut Keys,
        name: &str,
        read: Read,
        k: u64,
        now: u64,
        counts: &mut Counts,
    ) -> (Before, (Windows, u64)) {
        let Read { mut key, checks: Checks { n, cost, .. }, mut before, is_redated, forgiven, .. } = read;
        let found = (key.windows, key.debt);
        if let Some(grid) = self.grid() {
            if k * cost == 0 && !(is_redated && n * cost > 0) {
                return (before, found);
            }
            key.windows.add(k * cost);
            self.expire(&mut key, grid, now);
            counts.forgiven += forgiven;
        } else {
            if n * cost > 0 {
                key.record.write(&self.quota, before.raw, k * cost, now);
            }
            let [used, newest, retry_at] =
                self.algorithm().complete(before.raw, &key.record.state, cost, now);
            before.raw = [used, newest, retry_at.max(before.raw[2])];
        }
        keys.insert(name.to_owned(), key);
        (before, found)
    }

    /// Makes the result of a take without share, from the windows and the debt that it found. A script reports these.
    pub(in crate::regions) fn taken(
        &self,
        checks: Checks,
        k: u64,
        before: Before,
        (windows, debt): (Windows, u64),
        now: u64,
    ) -> Taken {
        let units = (k * checks.cost) as i64;
        let [previous, current, next] = windows.counts;
        let windows = Windows { counts: [previous, current + units, next], ..windows };
        let after = Key { windows, debt, ..Key::default() };
        Taken {
            quota: self.quota,
            checks,
            k,
            fold: 1,
            before,
            at_us: self.grid().map_or(now, |grid| now.max(grid.begins(windows.start_us, 0))),
            share: None,
            sent: units,
            window_us: windows.start_us,
            not_before_us: self.repaid_at(&after, checks.cost),
        }
    }

    /// Counts a charge of another region, or a refund of it if `units` is below 0. Only windows and counters read the
    /// name of the window; all else counts from its arrival.
    pub fn apply(&self, key: &mut Key, window_us: u64, units: i64, now: u64, counts: &mut Counts) {
        key.forget_expired(now);
        let most = self.quota.limit() + self.debt;
        let size = units.unsigned_abs();
        let Some(grid) = self.grid() else {
            if units < 0 {
                return key.record.refund(&self.quota, size, None, now);
            }
            counts.forgiven += size - key.record.charge_used(&self.quota, size, most, now).0;
            return;
        };
        let (mut after, mut entered) = (key.clone(), *counts);
        self.enter(&mut after, now, &mut entered);
        let place = after.windows.place(grid, window_us);
        let index = match place {
            Place::Previous => 0,
            Place::Current => 1,
            Place::Next { is_far } => {
                entered.far += if is_far { units.max(0) as u64 } else { 0 };
                2
            }
            // Changes nothing: the script writes nothing.
            Place::Gone => {
                counts.dropped += units.max(0) as u64;
                return;
            }
        };
        (*key, *counts) = (after, entered);
        let (_, forgiven_before) = self.carry_over(key.prior, key.windows.counts[0] as u64);
        let count = key.windows.counts[index];
        let counted = units.min((most as i64 - count).max(0)).max(-count);
        key.windows.counts[index] += counted;
        counts.forgiven += (units - counted).max(0) as u64;
        if place == Place::Previous && self.carry {
            let (debt, forgiven) = self.carry_over(key.prior, key.windows.counts[0] as u64);
            key.debt = debt;
            counts.forgiven += forgiven.saturating_sub(forgiven_before);
        }
        self.expire(key, grid, now);
    }

    /// Charges `units` at `now` without a check, also above limit and debt. Returns the window that they name.
    pub fn penalize(&self, key: &mut Key, units: u64, now: u64, counts: &mut Counts) -> u64 {
        key.forget_expired(now);
        match self.grid() {
            Some(grid) if units > 0 => {
                self.enter(key, now, counts);
                key.windows.add(units);
                self.expire(key, grid, now);
            }
            Some(_) => {}
            None => key.record.penalize(&self.quota, units, now),
        }
        key.windows.start_us
    }

    /// Gives back those of the `units` that still count: see [`Record::refund`]. Returns the window that they name, and
    /// the whole units to replicate as a negative charge. The share gets nothing back.
    pub fn refund(
        &self,
        key: &mut Key,
        units: u64,
        stamp: Option<u64>,
        now: u64,
        counts: &mut Counts,
    ) -> (u64, u64) {
        if key.record.has_expired(now) {
            return (0, 0);
        }
        let Some(grid) = self.grid() else {
            let used = |key: &Key| self.algorithm().settle(&key.record.state, now)[0];
            let before = used(key);
            key.record.refund(&self.quota, units, stamp, now);
            return (0, (before - used(key).min(before)) / per(&self.quota));
        };
        let (mut after, mut entered) = (key.clone(), *counts);
        let (at, _) = self.enter(&mut after, now, &mut entered);
        let start_us = after.windows.start_us;
        let is_counter = matches!(self.quota.kind(), Kind::SlidingCounter(_));
        let index = match stamp {
            None => 1,
            Some(stamp) if !is_counter && stamp == grid.begins(start_us, 1) => 1,
            Some(stamp) if is_counter && stamp.min(at) >= start_us => 1,
            Some(stamp) if is_counter && stamp >= grid.before(start_us) => 0,
            Some(_) => return (start_us, 0),
        };
        let back = (units as i64).min(after.windows.counts[index]);
        after.windows.counts[index] -= back;
        if back > 0 {
            self.expire(&mut after, grid, now);
            (*key, *counts) = (after, entered);
        }
        (if index == 1 { start_us } else { grid.before(start_us) }, back as u64)
    }

    /// Denies every check until `until`, in µs since 1970; 0 lifts the block.
    pub fn block(&self, key: &mut Key, until: u64, now: u64, counts: &mut Counts) {
        key.forget_expired(now);
        let Some(grid) = self.grid() else { return key.record.block(&self.quota, until, now) };
        if until == 0 && key.record.blocked_until_us == 0 {
            return;
        }
        self.enter(key, now, counts);
        key.record.blocked_until_us = until;
        self.expire(key, grid, now);
    }

    /// Returns the names that changes of the key may have at `now`: its windows, or 0.
    pub(super) fn names(&self, key: &Key, now: u64) -> [u64; 3] {
        let Some(grid) = self.grid() else { return [0; 3] };
        let mut key = key.clone();
        key.forget_expired(now);
        self.enter(&mut key, now, &mut Counts::default());
        let start_us = key.windows.start_us;
        [grid.before(start_us), start_us, grid.after(start_us)]
    }
}

impl Key {
    fn forget_expired(&mut self, now: u64) {
        if self.record.has_expired(now) {
            *self = Self::default();
        }
    }
}

/// Decides a group at `now`, and charges the admitted checks to each item. See [`Region::take_all`](super::Region::take_all).
pub(super) fn take(
    keys: &mut Keys,
    TakeGroup { n, items }: &TakeGroup<'_>,
    cut_us: Option<u64>,
    now: u64,
    counts: &mut Counts,
) -> Vec<Taken> {
    let read = |item: &TakeItem<'_>| {
        let checks = Checks { n: *n, cost: item.cost, max_delay: item.max_delay };
        let share = cut_us.map(|cut_us| item.gate.read_share(keys.get(item.share), checks, cut_us, now));
        (item.gate.read(keys.get(item.key), checks, None, now), share)
    };
    let reads: Vec<(Read, Option<Read>)> = items.iter().map(read).collect();
    let states = reads.iter().flat_map(|(key, share)| std::iter::once(key).chain(share));
    let k = states.map(|read| read.own).min().unwrap_or(0);
    let mut write = |(item, (key, share)): (&TakeItem<'_>, (Read, Option<Read>))| {
        let (gate, checks) = (item.gate, key.checks);
        let (before, found) = gate.write(keys, item.key, key, k, now, counts);
        let share = share.map(|share| {
            // Denied checks do not change it.
            let share = Read { checks: Checks { n: k, ..share.checks }, ..share };
            (gate.regions, gate.of_shares().write(keys, item.share, share, k, now, counts).0)
        });
        Taken { share, ..gate.taken(checks, k, before, found, now) }
    };
    items.iter().zip(reads).map(&mut write).collect()
}

/// Returns the ticks of a unit of a level; 1 for all else.
pub(super) fn per(quota: &Quota) -> u64 {
    match quota.kind() {
        Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket)) => bucket.per,
        _ => 1,
    }
}

/// Returns the config error of a quota that no mode replicates.
pub(super) fn check(quota: &Quota, regions: u64) -> Result<(), Error> {
    match quota.kind() {
        _ if regions < 2 => Err(Error::config("replication needs at least two regions: add a peer")),
        Kind::InFlight(_) => {
            Err(Error::config("an in-flight limit cannot be replicated: its permits are held in one region"))
        }
        Kind::FixedWindow(fixed) if fixed.has_calendar() => Err(Error::config(
            "a calendar window cannot be replicated: use a window that is aligned to the clock",
        )),
        Kind::FixedWindow(fixed) if fixed.aligned_us.is_none() => Err(Error::config(
            "a window that begins with its first charge cannot be replicated, since regions see different first charges: align it to the clock",
        )),
        Kind::SlidingLog(log) if log.count_denied => Err(Error::config(
            "a log that counts denied checks cannot be replicated: leave out `count_denied`",
        )),
        _ => Ok(()),
    }
}
