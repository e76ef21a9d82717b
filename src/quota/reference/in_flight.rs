//! Messages of holders about keys of in-flight limits, and groups that contain them: `lua/quota/in_flight.lua`.

use std::collections::BTreeMap;

use super::{Before, Item, Record};
use crate::quota::algorithm::{EXACT, Holding, Holdings, Kind, QUARTER_US, RawState, State, written_at};

/// The longest lease.
const MAX_TTL_US: u64 = 60_000_000;

/// The leases of the holders of in-flight limits, by their names: `lua/in_flight/permit_lease.lua`.
///
/// A name ends in `/` and the lease's length in ms, from 1 to 60,000, such as `web-1.3f2a/10000`. It contains
/// no space and no `;`. Each name serves one lease only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermitLeases(BTreeMap<String, u64>);

impl PermitLeases {
    /// Opens a lease at `now`. Returns its end in µs since 1970; `None` if the name is invalid, or if its lease
    /// has ended. Renews a lease that is already open.
    pub fn open(&mut self, name: &str, now: u64) -> Option<u64> {
        let is_new = !self.0.contains_key(name);
        self.extend(name, is_new, now)
    }

    /// Renews a lease at `now`. Returns its end in µs since 1970; `None` if it has ended or is unknown.
    pub fn renew(&mut self, name: &str, now: u64) -> Option<u64> {
        self.extend(name, false, now)
    }

    /// Ends a lease.
    pub fn end(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Returns the name of each lease, with its end in µs since 1970, which may have passed.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, end)| (&**name, *end))
    }

    /// Also ends leases for good that have ended, and shortens those that a step back of the clock has made
    /// too long.
    fn extend(&mut self, name: &str, is_new: bool, now: u64) -> Option<u64> {
        let new_end = now + ttl_us(name).filter(|_| is_valid(name))?;
        let is_live = self.0.get(name).is_some_and(|end| *end > now);
        if is_live || is_new {
            self.0.insert(name.to_owned(), new_end);
        }
        self.0.retain(|_, end| *end > now);
        for (other, end) in self.0.iter_mut().filter(|(_, end)| **end > new_end) {
            *end = (*end).min(now + ttl_us(other).unwrap_or(0));
        }
        (is_live || is_new).then_some(new_end)
    }

    /// Returns when a holder lapses, if no heartbeat comes; `None` if it is not live.
    fn lapse(&self, name: &str, now: u64) -> Option<u64> {
        let end = *self.0.get(name).filter(|end| **end > now)?;
        Some(end.min(now + ttl_us(name).unwrap_or(MAX_TTL_US)))
    }
}

fn ttl_us(name: &str) -> Option<u64> {
    let (_, ttl_ms) = name.rsplit_once('/')?;
    let is_number = !ttl_ms.is_empty() && ttl_ms.bytes().all(|byte| byte.is_ascii_digit());
    ttl_ms.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(1_000)
}

fn is_valid(name: &str) -> bool {
    let is_plain = name.len() > 1 && !name.starts_with('/') && !name.contains([' ', ';']);
    is_plain && ttl_us(name).is_some_and(|ttl_us| (1_000..=MAX_TTL_US).contains(&ttl_us))
}

/// A holder's report about a key of an in-flight limit. The [`Item`] has the cost of its new acquires.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The name of the holder.
    pub holder: &'a str,
    /// The end of its lease as it knew it, in µs since 1970.
    pub lease_end_us: u64,
    /// The number of the message: higher than those of its earlier messages about this key. A message that is
    /// sent again keeps its number.
    pub number: u64,
    /// The units that it continues to hold; `None` for those that it holds, after an earlier group of the call.
    pub keep: Option<u64>,
}

/// One item of a group, with the message if its quota is an in-flight limit. Without a message, such an item
/// is a peek, for `n` = 0.
#[derive(Debug)]
pub struct Acquire<'a> {
    /// The quota, the record, and the cost.
    pub item: Item<'a>,
    /// The message, if the quota is an in-flight limit.
    pub message: Option<Message<'a>>,
}

/// The reason why a message changes nothing. Contains the index of its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The sender is not live, or was not when the message was sent.
    Lapsed(usize),
    /// A later message about the key was processed before.
    Stale(usize),
}

/// Checks a group that may contain in-flight limits, and charges it: as [`take`](super::take). Sets the
/// [`before`](Item::before) of each item, and returns the number of admitted checks.
///
/// A message that is repeated returns the same number. Then its group charges nothing, and only counts the units
/// of its other messages: their keys were lost in between.
///
/// # Errors
///
/// [`Refused`]: nothing is charged. What a lapsed sender held is removed.
pub fn acquire(
    group: &mut [Acquire<'_>],
    n: u64,
    leases: &mut PermitLeases,
    now: u64,
) -> Result<u64, Refused> {
    let (mut k, mut repeated) = (if group.is_empty() { 0 } else { n }, None::<u64>);
    let mut decided = Vec::with_capacity(group.len());
    for (index, Acquire { item, message }) in group.iter_mut().enumerate() {
        let Kind::InFlight(quota) = item.quota.kind() else {
            k = k.min(item.read(n, now));
            decided.push(None);
            continue;
        };
        let limit = quota.limit;
        let found = Decided::of(item, limit, *message, n, leases, now).map_err(|refused| refused(index))?;
        k = k.min(found.admitted);
        if found.is_repeated {
            repeated = Some(repeated.unwrap_or(n).min(found.admitted));
        }
        decided.push(Some(found));
    }
    let k = repeated.unwrap_or(k);
    for (Acquire { item, message }, found) in group.iter_mut().zip(decided) {
        match (found, message) {
            (None, _) if repeated.is_none() => item.write(n, k, now),
            (Some(found), Some(message)) if !found.is_repeated => {
                let sure_until_us = item.before.raw[1];
                found.charge(item, *message, k, sure_until_us, leases, now);
            }
            _ => {}
        }
    }
    Ok(k)
}

/// A message that was read and decided.
struct Decided {
    admitted: u64,
    is_repeated: bool,
    /// The units of the sender before the message.
    own: u64,
    /// The holders that a scan found lapsed; `None` without a scan.
    lapsed: Option<Vec<String>>,
}

impl Decided {
    /// Decides by the state alone, and sets `before`.
    fn of(
        item: &mut Item<'_>,
        limit: u64,
        message: Option<Message<'_>>,
        n: u64,
        leases: &mut PermitLeases,
        now: u64,
    ) -> Result<Self, fn(usize) -> Refused> {
        let name = message.map_or("", |message| message.holder);
        let lapse = leases.lapse(name, now);
        if let Some(message) = message {
            if lapse.is_none() {
                forget(item, name, now);
                leases.end(name);
            }
            if lapse.is_none() || message.lease_end_us <= now {
                return Err(Refused::Lapsed);
            }
        }
        let holdings = match &item.record.state {
            State::InFlight(holdings) => Some(holdings),
            _ => None,
        };
        let own = holdings.and_then(|holdings| holdings.holders.get(name)).copied();
        if own.zip(message).is_some_and(|(own, message)| message.number < own.number) {
            return Err(Refused::Stale);
        }

        let ttl_us = if message.is_some() { ttl_us(name).unwrap_or(0) } else { MAX_TTL_US };
        let mut held = holdings.map_or(0, |holdings| holdings.held);
        let mut sure_until_us = holdings.map_or(EXACT, |holdings| holdings.sure_until_us);
        let mut lapsed = None;
        let is_sure = sure_until_us > now && sure_until_us <= now + ttl_us;
        let own_units = own.map_or(0, |own| own.units);
        if !is_sure {
            sure_until_us = EXACT;
        }
        if !is_sure && held == own_units && own_units > 0 {
            // Without other holders, nothing has lapsed. The new time is written as after a scan.
            lapsed = Some(Vec::new());
        }
        if let Some(holdings) = holdings.filter(|_| !is_sure && held != own_units) {
            held = 0;
            let dead = lapsed.insert(Vec::new());
            for (name, holding) in &holdings.holders {
                match leases.lapse(name, now) {
                    Some(lapse) => {
                        held += holding.units;
                        sure_until_us = sure_until_us.min(lapse);
                    }
                    None => dead.push(name.clone()),
                }
            }
        }
        sure_until_us = match lapse {
            Some(lapse) => sure_until_us.min(lapse),
            None if sure_until_us == EXACT => 0,
            None => sure_until_us,
        };

        let keep = message.map_or(0, |message| message.keep.unwrap_or(own_units));
        held = held.saturating_sub(own_units) + keep;
        let is_repeated = own.zip(message).is_some_and(|(own, message)| own.number == message.number);
        let is_blocked = item.record.blocked_until_us > now;
        let room = match is_repeated {
            true => own_units.saturating_sub(keep),
            false if is_blocked => 0,
            false => limit.saturating_sub(held),
        };
        let admitted = room.checked_div(item.cost).map_or(n, |checks| checks.min(n));
        let raw: RawState = [held, sure_until_us, 0];
        item.before = Before { blocked_until_us: item.record.blocked_until_us, raw };
        Ok(Self { admitted, is_repeated, own: own_units, lapsed })
    }

    /// Writes the units of the sender.
    fn charge(
        self,
        item: &mut Item<'_>,
        message: Message<'_>,
        k: u64,
        sure_until_us: u64,
        leases: &mut PermitLeases,
        now: u64,
    ) {
        let cost = item.cost;
        let units = message.keep.unwrap_or(self.own) + k * cost;
        let held = item.before.raw[0] + k * cost;
        let is_changed = k > 0 || units != self.own;
        let written_us = match &item.record.state {
            State::InFlight(holdings) => Some(holdings.written_us),
            _ => None,
        };
        let is_old = units > 0 && written_us.is_some_and(|at| at.saturating_add(QUARTER_US) <= now);
        let has_scanned = self.lapsed.is_some();
        if !(is_changed || has_scanned || is_old) {
            return;
        }

        let mut holdings = match std::mem::take(&mut item.record.state) {
            State::InFlight(holdings) => holdings,
            _ => Holdings::default(),
        };
        for name in self.lapsed.iter().flatten() {
            holdings.holders.remove(name);
            leases.end(name);
        }
        if is_changed {
            holdings.holders.remove(message.holder);
        }
        if is_changed && units > 0 {
            let holding = Holding { units, number: message.number };
            holdings.holders.insert(message.holder.to_owned(), holding);
        }
        (holdings.held, holdings.sure_until_us) = (held, sure_until_us);
        store(item, holdings, written_us, now);
    }
}

/// Removes the units of a lapsed holder.
fn forget(item: &mut Item<'_>, name: &str, now: u64) {
    let State::InFlight(holdings) = &mut item.record.state else { return };
    let Some(own) = holdings.holders.remove(name) else { return };
    let written_us = holdings.written_us;
    let mut holdings = std::mem::take(holdings);
    holdings.held = holdings.held.saturating_sub(own.units);
    store(item, holdings, Some(written_us), now);
}

/// Stores the state at `now`, or removes the key if it is unused. `written_us` is the time of the write before.
fn store(item: &mut Item<'_>, holdings: Holdings, written_us: Option<u64>, now: u64) {
    let record = &mut *item.record;
    record.forget_passed_block(now);
    if holdings.held == 0 && record.blocked_until_us == 0 {
        *record = Record::default();
        return;
    }
    let written_at = written_us.map_or(now, |before_us| written_at(before_us, now));
    record.state = State::InFlight(Holdings { written_us: written_at, ..holdings });
    if written_us.is_none_or(|at| written_at - written_at % QUARTER_US > at) {
        record.expire(item.quota.kind().algorithm(), now);
    }
}
