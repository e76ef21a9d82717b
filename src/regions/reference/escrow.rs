//! Escrow by grants: each region owns a part of the limit, and grants it to the region that spends.

use super::gossip::{check, per};
use super::windows::{Grid, Place, Windows};
use super::{Checks, Taken};
use crate::error::Error;
use crate::quota::Quota;
use crate::quota::algorithm::{Algorithm, Kind, State};
use crate::quota::reference::{Before, Record};

/// A gate in the mode escrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Escrow {
    /// The limit of all regions together.
    pub quota: Quota,
    /// How often this region counts its own units: M. It owns 1/M of the limit, and the sum of 1/M over all regions is
    /// at most 1 at every instant. With equal parts, M is the number of regions.
    pub weight: u64,
    /// The length of a bucket of grants, in µs: G.
    pub bucket_us: u64,
}

/// The state of one key in one region. `Key::default()` is an unused key; a store need not keep it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// V of a level, as the core stores a level; the block; the expiry.
    pub record: Record,
    /// V of each window.
    pub windows: Windows,
    /// Ticks granted and not yet confirmed, by the bucket of their time: their sum is H. Of levels only.
    pub granted: Vec<(u64, u64)>,
    /// Units charged here in the current window and not given back.
    pub own: u64,
    /// Units that were given back here and whose grants this region still has. It spends them without asking for new
    /// ones.
    pub credit: u64,
}

impl Key {
    /// Returns H: the ticks granted and not yet confirmed.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.granted.iter().map(|(_, ticks)| ticks).sum()
    }
}

/// A part of the limit that a region grants to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The ticks, in those of the grantor's quota; of windows the units.
    pub ticks: u64,
    /// The bucket of a level's grant, by the grantor's clock; the name of the window.
    pub name: u64,
}

impl Escrow {
    /// The length of a bucket of grants that gates use, in µs: one minute.
    pub const BUCKET_US: u64 = 60_000_000;
    /// The longest time from a read to its application, in µs: β.
    pub const FRESH_US: u64 = 10_000_000;

    /// Makes a gate of equal `regions`.
    ///
    /// # Errors
    ///
    /// Config errors: those of [`Gossip::new`](super::gossip::Gossip::new); a sliding log or counter; a limit below the
    /// number of regions.
    pub fn new(quota: Quota, regions: u64) -> Result<Self, Error> {
        check(&quota, regions)?;
        if matches!(quota.kind(), Kind::SlidingLog(_) | Kind::SlidingCounter(_)) {
            return Err(Error::config(
                "escrow serves token buckets, leaky buckets and windows by the clock: use gossip",
            ));
        }
        if quota.limit() < regions {
            return Err(Error::config("escrow needs a limit of at least one unit for each region"));
        }
        Ok(Self { quota, weight: regions, bucket_us: Self::BUCKET_US })
    }

    /// Returns the largest cost that a check can have in this region. A larger one would be denied forever, so it is
    /// over capacity.
    #[must_use]
    pub const fn largest_cost(&self) -> u64 {
        self.quota.limit() / self.weight
    }

    fn grid(&self) -> Option<Grid> {
        Grid::of(&self.quota)
    }

    fn algorithm(&self) -> &dyn Algorithm {
        self.quota.kind().algorithm()
    }

    /// Returns m: the limit, in ticks.
    fn full(&self) -> i64 {
        (self.quota.limit() * per(&self.quota)) as i64
    }

    /// Brings the key to `now`: drops old buckets, then drains the level, not below H; moves the windows on. Returns the
    /// instant at which to count, and whether the state was dated in the future.
    pub fn touch(&self, key: &mut Key, now: u64) -> (u64, bool) {
        if key.record.has_expired(now) {
            *key = Key::default();
        }
        if let Some(grid) = self.grid() {
            let (own, credit) = (&mut key.own, &mut key.credit);
            let entered = key.windows.enter(grid, now, |_, _| (*own, *credit) = (0, 0));
            return (entered.now, entered.is_redated);
        }
        let oldest = (now / self.bucket_us).saturating_sub(2);
        key.granted.retain(|(bucket, _)| *bucket >= oldest);
        if let State::Level { by: [.., was], .. } = key.record.state
            && was != per(&self.quota)
        {
            // Another version of the quota counted these. Rounded up: a grant in flight must stay covered.
            for (_, ticks) in &mut key.granted {
                *ticks = (u128::from(*ticks) * u128::from(per(&self.quota))).div_ceil(u128::from(was)) as u64;
            }
        }
        let is_ahead = self.algorithm().is_ahead(&key.record.state, now);
        let [ticks, ..] = self.algorithm().settle(&key.record.state, now);
        if ticks == 0 {
            key.credit = 0;
        }
        self.set_level(key, ticks.max(key.held()), now);
        (now, is_ahead)
    }

    fn set_level(&self, key: &mut Key, ticks: u64, now: u64) {
        self.algorithm().charge(&mut key.record.state, [ticks, 0, 0], 0, now);
    }

    /// Returns V at the last touch, in ticks; of windows that of the current one, in units.
    #[must_use]
    pub fn level(&self, key: &Key) -> i64 {
        match key.record.state {
            State::Level { ticks, .. } => ticks as i64,
            _ => key.windows.counts[1],
        }
    }

    /// The key expires when its level is empty and no grant can be in flight, or when no item names its windows.
    fn expire(&self, key: &mut Key, now: u64) {
        let kept = match self.grid() {
            Some(grid) => key.windows.kept_until(grid),
            None => {
                let aged = key.granted.iter().map(|(bucket, _)| (bucket + 3) * self.bucket_us).max();
                let raw = self.algorithm().settle(&key.record.state, now);
                self.algorithm().kept_until(raw, now).max(aged.unwrap_or(0))
            }
        };
        let kept = kept.max(key.record.blocked_until_us);
        key.record.expires_ms = kept.div_ceil(1_000).max(now / 1_000 + 1);
    }

    fn before(&self, key: &Key, at: u64) -> Before {
        let raw = match self.grid() {
            Some(grid) => {
                [key.windows.counts[1].max(0) as u64, grid.begins(key.windows.start_us, 1) / 1_000, 0]
            }
            None => self.algorithm().settle(&key.record.state, at),
        };
        Before { blocked_until_us: key.record.blocked_until_us, raw }
    }

    /// Decides equal checks at `now`: as the core does, with M times the cost. Denied checks change nothing, except that
    /// a state dated in the future is re-dated. Admits none above the [largest cost](Self::largest_cost).
    ///
    /// # Panics
    ///
    /// May panic if the cost is 0.
    pub fn take(&self, key: &mut Key, checks: Checks, now: u64) -> Taken {
        let Checks { n, cost, max_delay } = checks;
        let mut after = key.clone();
        let (at_us, is_ahead) = self.touch(&mut after, now);
        let before = self.before(&after, at_us);
        let own = cost.saturating_mul(self.weight);
        let is_denied = own > self.quota.limit() || before.blocked_until_us > now;
        let k = if is_denied { 0 } else { self.algorithm().afford(before.raw, n, own, at_us, max_delay) };
        let (sent, window_us) = (self.charge(&mut after, k * cost, now), after.windows.start_us);
        let not_before_us = self.held_until(&after, own);
        if k > 0 || is_ahead {
            *key = after;
        }
        let (quota, fold) = (self.quota, self.weight);
        Taken { quota, checks, k, fold, before, at_us, share: None, sent, window_us, not_before_us }
    }

    /// Returns when enough grants will have aged for a check of this cost; 0 if they are not in its way.
    fn held_until(&self, key: &Key, own: u64) -> u64 {
        let mut over = key.held() as i64 + own.saturating_mul(per(&self.quota)) as i64 - self.full();
        let mut granted = key.granted.clone();
        granted.sort_unstable();
        let needed = granted.iter().take_while(|(_, ticks)| {
            let is_needed = over > 0;
            over -= *ticks as i64;
            is_needed
        });
        needed.last().map_or(0, |(bucket, _)| (bucket + 3) * self.bucket_us)
    }

    /// Adds own units to a touched key. Returns the units to replicate: those that no credit covers.
    fn charge(&self, key: &mut Key, units: u64, now: u64) -> i64 {
        let covered = units.min(key.credit);
        key.credit -= covered;
        match self.grid() {
            Some(_) => {
                key.windows.counts[1] += (units * self.weight) as i64;
                key.own += units;
            }
            None => {
                let raw = self.algorithm().settle(&key.record.state, now);
                self.algorithm().charge(&mut key.record.state, raw, units * self.weight, now);
            }
        }
        if key.record.blocked_until_us <= now {
            key.record.blocked_until_us = 0;
        }
        self.expire(key, now);
        (units - covered) as i64
    }

    /// Charges `units` without a check, also above the limit. Returns the units to replicate, and the window they name.
    pub fn penalize(&self, key: &mut Key, units: u64, now: u64) -> (i64, u64) {
        self.touch(key, now);
        (self.charge(key, units, now), key.windows.start_us)
    }

    /// Gives back those of the `units` that still count, and returns nothing to replicate: the other regions' grants for
    /// these units stay here, as credit. A level gives back at least 1/M of them at once, since it does not fall below
    /// 0; the rest drains.
    pub fn refund(&self, key: &mut Key, units: u64, stamp: Option<u64>, now: u64) {
        self.touch(key, now);
        let Some(grid) = self.grid() else {
            // The ticks of these units that have not drained: those that a level full of them would get back.
            let all = self.algorithm().after([0; 3], units, now);
            let mut probe = State::default();
            self.algorithm().charge(&mut probe, all, 0, now);
            self.algorithm().give_back(&mut probe, units, stamp, now);
            let counts = all[0] - self.algorithm().settle(&probe, now)[0];
            let level = self.level(key) as u64;
            let after = level.saturating_sub(counts.saturating_mul(self.weight)).max(key.held());
            key.credit += (level - after) / (self.weight * per(&self.quota));
            self.set_level(key, after, now);
            return self.expire(key, now);
        };
        if stamp.is_none_or(|stamp| stamp == grid.begins(key.windows.start_us, 1)) {
            let counts = units.min(key.own);
            key.own -= counts;
            key.windows.counts[1] -= (counts * self.weight) as i64;
            key.credit += counts;
            self.expire(key, now);
        }
    }

    /// Denies every check until `until`, in µs since 1970; 0 lifts the block.
    pub fn block(&self, key: &mut Key, until: u64, now: u64) {
        self.touch(key, now);
        key.record.blocked_until_us = until;
        self.expire(key, now);
    }

    /// Forgets the key, except grants in flight, which stay covered.
    pub fn reset(&self, key: &mut Key, now: u64) {
        self.touch(key, now);
        let granted = std::mem::take(&mut key.granted);
        *key = Key { granted, ..Key::default() };
        if key.held() > 0 {
            self.set_level(key, key.held(), now);
            self.expire(key, now);
        }
    }

    /// Returns V of a named window, or of the level.
    fn level_of<'k>(&self, key: &'k mut Key, name: u64) -> Option<&'k mut i64> {
        let index = match key.windows.place(self.grid()?, name) {
            Place::Previous => 0,
            Place::Current => 1,
            Place::Next { is_far: false } => 2,
            Place::Next { is_far: true } | Place::Gone => return None,
        };
        Some(&mut key.windows.counts[index])
    }

    /// Grants a part of this region's limit for `units` that another region charged in the window `window_us`, as far as
    /// there is room. Returns the grant, if any, for the outbox.
    pub fn grant(&self, key: &mut Key, window_us: u64, units: u64, now: u64) -> Option<Grant> {
        let mut after = key.clone();
        self.touch(&mut after, now);
        let (per, full) = (per(&self.quota), self.full());
        let wanted = u128::from(units) * u128::from(per);
        let offer = |level: i64| {
            let has = (full - level).max(0);
            let ticks = wanted.min(has as u128) as i64;
            // The rest is not a unit here, and may complete one there.
            if has - ticks < (self.weight * per) as i64 { has } else { ticks }
        };
        let ticks = if self.grid().is_some() {
            let level = self.level_of(&mut after, window_us)?;
            let ticks = offer(*level);
            *level += ticks;
            ticks
        } else {
            // Grants in flight hold at most half of the limit, so that lost ones do not starve this region.
            let held = after.held() as i64;
            offer(self.level(&after)).min(full / 2 - held)
        };
        if ticks <= 0 {
            return None;
        }
        let mut name = window_us;
        if self.grid().is_none() {
            name = now / self.bucket_us;
            let level = (self.level(&after) + ticks) as u64;
            self.set_level(&mut after, level, now);
            match after.granted.iter_mut().find(|(bucket, _)| *bucket == name) {
                Some((_, sum)) => *sum += ticks as u64,
                None => after.granted.push((name, ticks as u64)),
            }
        }
        self.expire(&mut after, now);
        *key = after;
        Some(Grant { ticks: ticks as u64, name })
    }

    /// Adds a grant of a region of the mode `by` to this region's part.
    pub fn receive(&self, key: &mut Key, by: &Self, grant: Grant, now: u64) {
        let (ours, theirs) = (self.weight * per(&self.quota), by.weight * per(&by.quota));
        let ticks = (u128::from(grant.ticks) * u128::from(ours) / u128::from(theirs)) as u64;
        self.touch(key, now);
        match self.grid() {
            Some(_) => {
                if let Some(level) = self.level_of(key, grant.name) {
                    *level -= ticks as i64;
                }
            }
            None => {
                let level = (self.level(key) as u64).saturating_sub(ticks).max(key.held());
                self.set_level(key, level, now);
            }
        }
        self.expire(key, now);
    }

    /// Settles a grant of this region that its addressee has confirmed: its ticks may drain from now on, but not for the
    /// time before.
    pub fn settle(&self, key: &mut Key, grant: Grant, now: u64) {
        if self.grid().is_some() {
            return;
        }
        self.touch(key, now);
        if let Some((_, ticks)) = key.granted.iter_mut().find(|(bucket, _)| *bucket == grant.name) {
            *ticks = ticks.saturating_sub(grant.ticks);
        }
        key.granted.retain(|(_, ticks)| *ticks > 0);
        self.expire(key, now);
    }

    /// Returns whether a grant may be applied that was read when its grantor's clock showed `peer_us`: those of a level
    /// have no cover in later buckets.
    #[must_use]
    pub fn is_fresh(&self, grant: Grant, peer_us: u64) -> bool {
        self.grid().is_some() || grant.name + 1 >= peer_us / self.bucket_us
    }
}
