//! Holds: charges that can be settled by their id until they end. The scripts `reserve` and `settle` do the
//! same on the server.
//!
//! A reservation charges every key at once, and each charge becomes a hold. A [commit](Call::settle) by any
//! process refunds the units that were not used, or charges additional ones. A hold that is not settled ends:
//! its units stay charged, or are refunded as charged at its time.
//!
//! ```text
//!                          settle: refunds unused units, or charges additional ones
//!   reserve ---> keep ----------------------------------------------------------> Settled
//!           or   back
//!                 |  a ttl after the charge: `keep` stays charged, `back` is refunded
//!                 v        settle: charges the units that are not charged
//!                late ----------------------------------------------------------> Late
//!                 |  another ttl later
//!                 v        settle: changes nothing
//!              no hold ---------------------------------------------------------> Nothing
//! ```
//!
//! A settled hold is gone, so each further settle gets `Nothing`. A hold that no call finds until both times have passed
//! ends without having been `late`.
//!
//! ```
//! use tidegate::reference::Record;
//! use tidegate::reference::holds::{Call, Holds, NewHold, Part};
//! use tidegate::{Quota, Rate, Settlement};
//!
//! let quota = Quota::token_bucket(10, Rate::per_hour(10));
//! let (mut record, mut holds) = (Record::default(), Holds::default());
//! let hold = NewHold { id: "a".into(), ttl_us: 60_000_000, is_refunded: false };
//! let start = 1_767_225_600_000_000; // 2026-01-01 00:00 UTC
//!
//! let mut parts = [Part::new(&quota, &mut record, 7, None, Some(&mut holds))];
//! assert_eq!(Call::at(start).reserve(&mut parts, 1, Some(&hold)), 1);
//! // 3 of the 7 units were used.
//! let settled = Call::at(start + 1).settle(&quota, &mut record, &mut holds, &hold, 7, 3);
//! assert_eq!(settled, Settlement::Settled);
//! let again = Call::at(start + 2).settle(&quota, &mut record, &mut holds, &hold, 7, 3);
//! assert_eq!(again, Settlement::Nothing);
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{Item, Record, take};
use crate::quota::Quota;
use crate::quota::settlement::Settlement;

/// The maximum number of holds that one call ends without being asked to settle them, ...
const MAX_ENDED: usize = 64;
/// ... but of each key so many: a reservation adds one, which ends twice, the second time as a late one.
const MIN_ENDED: usize = 3;

/// A hold to be made of each charge of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHold {
    /// The id of the reservation, as written in Redis.
    pub id: Arc<str>,
    /// When the hold ends: 1 s to 24 h after the charge, in µs.
    pub ttl_us: u64,
    /// Whether its units are refunded at its end. Otherwise they stay charged.
    pub is_refunded: bool,
}

/// The open holds of one key, and those that can be committed late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// In the order in which they end; equal ends in the order of their members.
    by_end: BTreeMap<(u64, String), Hold>,
    ends: HashMap<String, u64>,
    expires_ms: u64,
}

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The id of the reservation.
    pub id: Arc<str>,
    /// The units that are charged.
    pub units: u64,
    /// How long the hold lasts, in µs.
    pub ttl_us: u64,
    /// What happens at its end.
    pub at_end: AtEnd,
}

/// What happens at the end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// The units stay charged. For another ttl, the hold can be committed late.
    Keep,
    /// The units are refunded. For another ttl, the hold can be committed late.
    Refund,
    /// The hold has ended before. It can no longer be committed late.
    Forget,
}

impl Hold {
    fn new(hold: &NewHold, units: u64) -> Self {
        let at_end = if hold.is_refunded { AtEnd::Refund } else { AtEnd::Keep };
        Self { id: hold.id.clone(), units, ttl_us: hold.ttl_us, at_end }
    }

    fn late(self) -> Self {
        Self { at_end: AtEnd::Forget, ..self }
    }

    /// Returns the hold as written in Redis, without its end.
    #[must_use]
    pub fn member(&self) -> String {
        let what = match self.at_end {
            AtEnd::Keep => "keep",
            AtEnd::Refund => "back",
            AtEnd::Forget => "late",
        };
        format!("{}:{}:{}:{what}", self.id, self.units, self.ttl_us)
    }
}

impl Holds {
    /// Returns the holds with their ends, in µs since 1970, in the order of their ends.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Hold)> {
        self.by_end.iter().map(|((ends_us, _), hold)| (*ends_us, hold))
    }

    /// Returns whether there are none. A store need not keep such a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }

    /// Returns whether Redis removes the key at `now`, in µs since 1970. Use `Holds::default()` in place of
    /// expired holds.
    #[must_use]
    pub fn has_expired(&self, now: u64) -> bool {
        now / 1_000 > self.expires_ms
    }

    /// Returns when Redis removes the key, in ms since 1970.
    #[must_use]
    pub fn expires_ms(&self) -> u64 {
        self.expires_ms
    }

    /// Adds a hold, or changes its end.
    fn insert(&mut self, hold: Hold, ends_us: u64) {
        let member = hold.member();
        if let Some(earlier_us) = self.ends.insert(member.clone(), ends_us) {
            self.by_end.remove(&(earlier_us, member.clone()));
        }
        self.by_end.insert((ends_us, member), hold);
    }

    /// Removes a hold. The last one takes the expiry with it, as in Redis.
    fn remove(&mut self, member: String) {
        if let Some(ends_us) = self.ends.remove(&member) {
            self.by_end.remove(&(ends_us, member));
        }
        if self.by_end.is_empty() {
            self.expires_ms = 0;
        }
    }

    /// Adds a hold of a charge made at `now`. The key expires when no hold in it can be settled or refunded.
    fn add(&mut self, hold: Hold, quota: &Quota, now: u64) {
        let span = match hold.at_end {
            AtEnd::Refund => (2 * hold.ttl_us).max(quota.kind().algorithm().counts_for(now)),
            AtEnd::Keep | AtEnd::Forget => 2 * hold.ttl_us,
        };
        // Rounded up to steps, so that few charges write an expiry.
        let expires_us = (now + span).next_multiple_of(span / 8 + 1);
        self.expires_ms = self.expires_ms.max(expires_us.div_ceil(1_000));
        let ends_us = now + hold.ttl_us;
        self.insert(hold, ends_us);
    }

    /// Returns the end of a hold, if there is one. Ends it if its end has come.
    fn live_until(&mut self, member: String, quota: &Quota, record: &mut Record, now: u64) -> Option<u64> {
        let ends_us = *self.ends.get(&member)?;
        if ends_us > now {
            return Some(ends_us);
        }
        let hold = self.by_end.get(&(ends_us, member.clone())).cloned()?;
        if hold.at_end == AtEnd::Refund {
            refund(quota, record, hold.units, ends_us - hold.ttl_us, now);
        }
        if hold.at_end != AtEnd::Forget {
            let late_until_us = ends_us + hold.ttl_us;
            if late_until_us > now {
                self.insert(hold.late(), late_until_us);
            }
        }
        self.remove(member);
        None
    }
}

/// Refunds units charged at `charged_us`.
fn refund(quota: &Quota, record: &mut Record, units: u64, charged_us: u64, now: u64) {
    let stamp = quota.kind().algorithm().stamp_at(&record.state, charged_us, now);
    record.refund(quota, units, Some(stamp), now);
}

/// One item of a [reservation](Call::reserve), or of a take of a key that may have holds.
#[derive(Debug)]
pub struct Part<'a> {
    /// The quota, the key's record and the cost.
    pub item: Item<'a>,
    /// The holds of the key, which must not have [expired](Holds::has_expired). `None` leaves them as they are.
    pub holds: Option<&'a mut Holds>,
    /// Whether the hold existed, so that nothing was charged; [`reserve`](Call::reserve) sets it.
    pub was_held: bool,
}

impl<'a> Part<'a> {
    /// Makes a part. See [`Item`] for the arguments.
    #[must_use]
    pub fn new(
        quota: &'a Quota,
        record: &'a mut Record,
        cost: u64,
        max_delay: Option<u64>,
        holds: Option<&'a mut Holds>,
    ) -> Self {
        Self { item: Item::new(quota, record, cost, max_delay), holds, was_held: false }
    }

    /// Borrows the item, to be passed to [`take`].
    fn take(parts: &mut [Self], is_held: bool, n: u64, now: u64) -> u64 {
        let mut parts: Vec<&mut Self> = parts.iter_mut().filter(|part| part.was_held == is_held).collect();
        let items = parts.iter_mut().map(|part| {
            let Item { quota, record, cost, max_delay, .. } = &mut part.item;
            Item::new(quota, record, *cost, *max_delay)
        });
        let mut items: Vec<Item<'_>> = items.collect();
        let k = take(&mut items, n, now);
        let before: Vec<_> = items.iter().map(|item| item.before).collect();
        parts.iter_mut().zip(before).for_each(|(part, before)| part.item.before = before);
        k
    }
}

/// One call of a script, at one time. It ends at most 64 holds besides those that it settles, but
/// up to 3 of each key.
#[derive(Debug)]
pub struct Call {
    now: u64,
    ended: usize,
}

impl Call {
    /// Makes a call at `now`, in µs since 1970.
    #[must_use]
    pub fn at(now: u64) -> Self {
        Self { now, ended: 0 }
    }

    /// Ends the holds of these keys whose end has come. Then decides `n` equal checks, each of which needs
    /// every part, as [`take`] does. Returns the number of admitted checks.
    ///
    /// With a `hold`, `n` is 1 (or 0, a peek), and each charge of an admitted reservation becomes a hold. A part
    /// whose hold exists admits the reservation again, and is not charged: see [`Part::was_held`].
    pub fn reserve(&mut self, parts: &mut [Part<'_>], n: u64, hold: Option<&NewHold>) -> u64 {
        let now = self.now;
        for part in &mut *parts {
            part.was_held = false;
            let Some(holds) = part.holds.as_deref_mut() else { continue };
            let Item { quota, record, cost, .. } = &mut part.item;
            self.finish_ended(quota, record, holds);
            if let Some(hold) = hold.filter(|_| *cost > 0) {
                let member = Hold::new(hold, *cost).member();
                part.was_held = holds.live_until(member, quota, record, now).is_some();
            }
        }
        Part::take(parts, true, 0, now);
        let all_held = !parts.is_empty() && parts.iter().all(|part| part.was_held);
        let k = if all_held { n } else { Part::take(parts, false, n, now) };
        if let Some(hold) = hold.filter(|_| k > 0) {
            for Part { item, holds, .. } in parts.iter_mut().filter(|part| !part.was_held) {
                if let Some(holds) = holds.as_deref_mut().filter(|_| item.cost > 0) {
                    holds.add(Hold::new(hold, item.cost), item.quota, now);
                }
            }
        }
        k
    }

    /// Settles the hold of `units`. If `actual` is lower, refunds the difference as charged at the time of the
    /// reservation; if it is higher, charges the difference without a check. If the hold has ended, charges the units
    /// that are not charged. A repeated call changes nothing.
    ///
    /// The record and the holds must not have expired.
    pub fn settle(
        &mut self,
        quota: &Quota,
        record: &mut Record,
        holds: &mut Holds,
        hold: &NewHold,
        units: u64,
        actual: u64,
    ) -> Settlement {
        let now = self.now;
        self.finish_ended(quota, record, holds);
        let hold = Hold::new(hold, units);
        if let Some(ends_us) = holds.live_until(hold.member(), quota, record, now) {
            holds.remove(hold.member());
            match units.checked_sub(actual) {
                Some(0) => {}
                Some(unused) => refund(quota, record, unused, ends_us - hold.ttl_us, now),
                None => record.penalize(quota, actual - units, now),
            }
            return Settlement::Settled;
        }
        let kept = if hold.at_end == AtEnd::Keep { units } else { 0 };
        let late = hold.late().member();
        if holds.live_until(late.clone(), quota, record, now).is_some() {
            holds.remove(late);
            record.penalize(quota, actual.saturating_sub(kept), now);
            return Settlement::Late;
        }
        Settlement::Nothing
    }

    fn finish_ended(&mut self, quota: &Quota, record: &mut Record, holds: &mut Holds) {
        let most = MAX_ENDED.saturating_sub(self.ended).max(MIN_ENDED);
        let ended = holds.by_end.keys().take_while(|(ends_us, _)| *ends_us <= self.now).take(most);
        let ended: Vec<String> = ended.map(|(_, member)| member.clone()).collect();
        self.ended += ended.len();
        for member in ended {
            // Ends it, unless a hold of the same id that ended just now has become late again.
            holds.live_until(member, quota, record, self.now);
        }
    }
}
