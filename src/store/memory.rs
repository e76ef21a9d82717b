//! The in-memory store: the reference algorithms on a map. For tests and single processes.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;

use smallvec::smallvec;

use super::command::{
    Adapted, LeaseCall, LeaseReply, MAX_OVERRIDES, OverrideText, SettleItem, Standing, UsedCharge, Write,
    Written, too_many_overrides,
};
use super::take::{BeginningBan, Companion, Group, GroupItem, HolderMessage, Outcome};
use super::target::Target;
use crate::error::Error;
use crate::key::keyed_hash::IdentityHasher;
use crate::quota::Quota;
use crate::quota::reference::adapt::{Adaptation, Bounds, Report};
use crate::quota::reference::bans::{Counting, DenialCount, take};
use crate::quota::reference::holds::{Call, Holds, NewHold, Part};
use crate::quota::reference::in_flight::{self, Acquire, PermitLeases, Refused};
use crate::quota::reference::{self, Record};
use crate::quota::settlement::Settlement;
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Mutex, lock};
use crate::store::generations::{EvictionRank, Generations};

#[derive(Debug)]
pub(crate) struct MemoryStore {
    clock: Clock,
    /// One lock for all keys, since a group must be decided in one step.
    keys: Mutex<MemoryKeys>,
    overrides: Mutex<StoredOverrides>,
}

/// The state that the script `override` writes: texts, and the number of changes.
#[derive(Debug, Default)]
struct StoredOverrides {
    changes: u64,
    texts: BTreeMap<String, (String, Option<u64>)>,
}

struct MemoryKeys {
    /// The quota is the one that used the key last: it ranks the key for eviction.
    records: Generations<Target, (Quota, Record), IdentityHasher>,
    permit_leases: PermitLeases,
    /// The holds of keys, by their own keys.
    holds: Generations<String, Holds, RandomState>,
    /// The counted denials of keys, by their own keys.
    denials: Box<Generations<String, DenialCount, RandomState>>,
    /// Adaptive limits by the Redis keys of the limits, with the times at which they expire.
    adaptations: Box<Generations<String, (Adaptation, u64), RandomState>>,
}

/// Keys may be personal data or secrets.
impl std::fmt::Debug for MemoryKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryKeys").field("keys", &self.records.len()).finish_non_exhaustive()
    }
}

impl MemoryStore {
    pub(crate) fn new(clock: Clock, max_keys: usize) -> Self {
        let keys = MemoryKeys {
            records: Generations::new(max_keys / 2),
            permit_leases: PermitLeases::default(),
            holds: Generations::new(max_keys / 2),
            denials: Box::new(Generations::new(max_keys / 2)),
            adaptations: Box::new(Generations::new(max_keys / 2)),
        };
        Self { clock, keys: Mutex::new(keys), overrides: Mutex::default() }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn take(&self, groups: &[Group]) -> Vec<Result<Outcome, Error>> {
        let mut keys = lock(&self.keys);
        let now = self.clock.now_us();
        let mut call = Call::at(now);
        groups.iter().map(|group| keys.decide(group, &mut call, now)).collect()
    }

    /// Takes as [`take`](Self::take) does, without a list.
    #[inline]
    pub(crate) fn take_one(&self, group: &Group) -> Result<Outcome, Error> {
        let mut keys = lock(&self.keys);
        let now = self.clock.now_us();
        keys.decide(group, &mut Call::at(now), now)
    }

    /// Settles as [`Store::settle`](super::Store::settle) does.
    pub(crate) fn settle(&self, hold: &NewHold, items: &[SettleItem]) -> Vec<Result<Settlement, Error>> {
        let mut keys = lock(&self.keys);
        let now = self.clock.now_us();
        let mut call = Call::at(now);
        items.iter().map(|item| Ok(keys.settle(hold, item, &mut call, now))).collect()
    }

    /// Writes as [`Store::write`](super::Store::write) does.
    pub(crate) fn write(&self, target: &Target, write: Write) -> Written {
        let mut keys = lock(&self.keys);
        let now = self.clock.now_us();
        let mut record = keys.lend(target, now);
        let quota = &target.gate.quota;
        match write {
            Write::Refund { units, stamp_us } => record.refund(quota, units, stamp_us, now),
            Write::Penalize { units } => record.penalize(quota, units, now),
            Write::Block { for_us: 0 } => {
                keys.denials.remove(&target.denials_key());
                record.block(quota, 0, now);
            }
            Write::Block { for_us } => record.block(quota, now.saturating_add(for_us), now),
            Write::Reset => {
                keys.records.remove(target);
                keys.holds.remove(&target.holds_key());
                keys.denials.remove(&target.denials_key());
                keys.adaptations.remove(&target.redis_key);
                return Written::default();
            }
        }
        keys.keep(target, record, now);
        Written { now_us: now, stamp_us: now }
    }

    /// Charges as [`Store::charge_used`](super::Store::charge_used) does.
    pub(crate) fn charge_used(&self, target: &Target, units: u64, most: u64) -> UsedCharge {
        let mut keys = lock(&self.keys);
        let now_us = self.clock.now_us();
        let mut record = keys.lend(target, now_us);
        let (charged, before) = record.charge_used(&target.gate.quota, units, most, now_us);
        keys.keep(target, record, now_us);
        UsedCharge { charged, before, now_us }
    }

    /// Changes a lease as [`Store::permit_lease`](super::Store::permit_lease) does.
    pub(crate) fn permit_lease(&self, call: LeaseCall<'_>) -> Result<LeaseReply, Error> {
        let leases = &mut lock(&self.keys).permit_leases;
        let now_us = self.clock.now_us();
        let end_us = match call {
            LeaseCall::Open { name } => leases.open(name, now_us),
            LeaseCall::Renew { name } => leases.renew(name, now_us),
            LeaseCall::End { name } => {
                leases.end(name);
                Some(now_us)
            }
        };
        end_us.map(|end_us| LeaseReply { now_us, end_us }).ok_or_else(Error::lapsed_lease)
    }

    /// Adds a report as [`Store::adapt`](super::Store::adapt) does.
    pub(crate) fn adapt(&self, target: &Target, report: &Report, bounds: &Bounds) -> Adapted {
        let adaptations = &mut lock(&self.keys).adaptations;
        let now_us = self.clock.now_us();
        let mut adaptation = match adaptations.remove(&target.redis_key) {
            Some((adaptation, expires_us)) if now_us <= expires_us => adaptation,
            _ => Adaptation::new(bounds, now_us),
        };
        let reported = adaptation.report(report, bounds, now_us);
        let kept = (adaptation, reported.expires_us);
        adaptations.insert(target.redis_key.clone(), kept, |_| None::<u64>);
        Adapted { adaptation, now_us, wait_us: reported.wait_us }
    }

    pub(crate) fn overrides(&self) -> Standing {
        let overrides = lock(&self.overrides);
        let written = |(text, until_us): &(String, Option<u64>)| match until_us {
            Some(until_us) => format!("{text} until {until_us}"),
            None => text.clone(),
        };
        let fields = overrides.texts.iter().map(|(field, text)| (field.clone(), written(text))).collect();
        Standing { now_us: self.clock.now_us(), changed: overrides.changes.to_string(), fields, left_out: 0 }
    }

    pub(crate) fn set_override(&self, entry: &OverrideText) -> Result<(), Error> {
        let mut overrides = lock(&self.overrides);
        let now = self.clock.now_us();
        overrides.texts.retain(|_, (_, until_us)| until_us.is_none_or(|until_us| until_us > now));
        overrides.texts.remove(&entry.field);
        if let Some(text) = &entry.text {
            if overrides.texts.len() >= MAX_OVERRIDES {
                return Err(too_many_overrides());
            }
            let until_us = entry.lasts_us.map(|lasts_us| now.saturating_add(lasts_us));
            overrides.texts.insert(entry.field.clone(), (text.clone(), until_us));
        }
        overrides.changes += 1;
        Ok(())
    }
}

// Reads for operators.

#[cfg(feature = "admin")]
impl MemoryStore {
    /// Returns the keys of all states and of all counts of denials.
    pub(crate) fn redis_keys(&self) -> Vec<String> {
        let mut keys = lock(&self.keys);
        let now = self.clock.now_us();
        let mut found = Vec::with_capacity(keys.records.len());
        let mut keep = |key: &str, has_expired: bool| {
            if !has_expired {
                found.push(key.to_owned());
            }
            !has_expired
        };
        keys.records.retain(|target, (_, record)| keep(&target.redis_key, record.has_expired(now)));
        keys.denials.retain(|key, denials| keep(key, denials.has_expired(now)));
        found
    }

    /// Returns the quota that used a key last, and when its state expires, in ms since 1970. The quota of `target` may be
    /// another one with the same Redis keys.
    pub(crate) fn quota_of(&self, target: &Target) -> Option<(Quota, u64)> {
        let mut keys = lock(&self.keys);
        let now = self.clock.now_us();
        let (quota, record) = keys.records.get_mut(target)?;
        (!record.has_expired(now)).then_some((*quota, record.expires_ms))
    }

    /// Returns the counted denials of a key, by the key of their count.
    pub(crate) fn denials(&self, denials_key: &str) -> Option<DenialCount> {
        let denials = *lock(&self.keys).denials.get_mut(denials_key)?;
        (!denials.has_expired(self.clock.now_us())).then_some(denials)
    }
}

impl MemoryKeys {
    #[inline]
    fn decide(&mut self, group: &Group, call: &mut Call, now: u64) -> Result<Outcome, Error> {
        if group.has_holds() {
            Ok(self.reserve(group, call, now))
        } else if group.has_bans() {
            Ok(self.take_with_bans(group, now))
        } else {
            match &*group.items {
                [item] if !item.target.gate.quota.is_in_flight() => Ok(self.take_alone(item, group.n, now)),
                _ => self.take(group, now),
            }
        }
    }

    /// Takes one key where it is in the map, as nearly every group does.
    #[inline]
    fn take_alone(&mut self, item: &GroupItem, n: u64, now: u64) -> Outcome {
        let quota = &item.target.gate.quota;
        let take = |record: &mut Record| {
            let mut items = [reference::Item::new(quota, record, item.cost, item.max_delay_us)];
            (reference::take(&mut items, n, now), items[0].before)
        };
        let known = self.records.update(&item.target, rank(now), |(last, record)| {
            *last = *quota;
            if record.has_expired(now) {
                *record = Record::default();
            }
            take(record)
        });
        let (k, before) = known.unwrap_or_else(|| {
            let mut record = Record::default();
            let taken = take(&mut record);
            self.keep(&item.target, record, now);
            taken
        });
        let before = smallvec![before];
        Outcome::new(k, before, now)
    }

    fn take(&mut self, group: &Group, now: u64) -> Result<Outcome, Error> {
        let mut records: Vec<Record> = group.items.iter().map(|item| self.lend(&item.target, now)).collect();
        let items = group.items.iter().zip(&mut records).map(|(item, record)| {
            reference::Item::new(&item.target.gate.quota, record, item.cost, item.max_delay_us)
        });
        let outcome = if group.items.iter().any(|item| item.target.gate.quota.is_in_flight()) {
            let mut items: Vec<Acquire<'_>> = items
                .zip(&group.items)
                .map(|(item, wanted)| Acquire { item, message: message(wanted) })
                .collect();
            let k = in_flight::acquire(&mut items, group.n, &mut self.permit_leases, now);
            let before = items.iter().map(|acquire| acquire.item.before).collect();
            k.map(|k| Outcome::new(k, before, now)).map_err(|refused| match refused {
                Refused::Lapsed(item) => Error::lapsed_lease().of_item(item),
                Refused::Stale(item) => Error::stale_message().of_item(item),
            })
        } else {
            let mut items: Vec<reference::Item<'_>> = items.collect();
            let k = reference::take(&mut items, group.n, now);
            Ok(Outcome::new(k, items.iter().map(|item| item.before).collect(), now))
        };
        for (item, record) in group.items.iter().zip(records) {
            self.keep(&item.target, record, now);
        }
        outcome
    }

    /// Takes a key's record out, to be changed and put back by [`keep`](Self::keep).
    fn lend(&mut self, target: &Target, now: u64) -> Record {
        let lent = self.records.update(target, rank(now), |(_, record)| std::mem::take(record));
        lent.filter(|record| !record.has_expired(now)).unwrap_or_default()
    }

    /// Puts a record back. The key of an unused one is removed, so a peek stores nothing.
    fn keep(&mut self, target: &Target, record: Record, now: u64) {
        if record == Record::default() {
            self.records.remove(target);
            return;
        }
        let kept = (target.gate.quota, record);
        match self.records.get_mut(target) {
            Some(lent) => *lent = kept,
            None => self.records.insert(target.clone(), kept, rank(now)),
        }
    }
}

/// Ranks keys for eviction.
fn rank(now: u64) -> impl Fn(&(Quota, Record)) -> Option<EvictionRank> {
    move |(quota, record)| EvictionRank::of(record, quota, now)
}

fn message(item: &GroupItem) -> Option<in_flight::Message<'_>> {
    let Some(Companion::Message(message)) = item.companion.as_deref() else { return None };
    let HolderMessage { ref holder, lease_end_us, number, keep, .. } = *message;
    Some(in_flight::Message { holder, lease_end_us, number, keep })
}

// Bans in memory: the reference of bans on the map.

impl MemoryKeys {
    /// Takes a group of which at least one key is of a gate with a ban.
    fn take_with_bans(&mut self, group: &Group, now: u64) -> Outcome {
        let mut records: Vec<Record> = group.items.iter().map(|item| self.lend(&item.target, now)).collect();
        let mut denials: Vec<DenialCount> =
            group.items.iter().map(|item| self.remove_denial_count(item, now)).collect();
        let items = group.items.iter().zip(&mut records).map(|(item, record)| {
            reference::Item::new(&item.target.gate.quota, record, item.cost, item.max_delay_us)
        });
        let mut items: Vec<reference::Item<'_>> = items.collect();
        let counting = group.items.iter().zip(&mut denials).map(|(item, denials)| {
            Some(Counting { is_grant: group.is_grant(), ..Counting::new(item.ban()?, denials) })
        });
        let mut counting: Vec<Option<Counting<'_>>> = counting.collect();
        let k = take(&mut items, &mut counting, group.n, now);
        let before = items.iter().map(|item| item.before).collect();
        let begins = |(item, counting): (usize, &Option<Counting<'_>>)| {
            let ban = counting.as_ref().filter(|counting| counting.begins)?.ban;
            Some(BeginningBan { item, lasts_us: ban.lasts_us() })
        };
        let bans = counting.iter().enumerate().filter_map(begins).collect();
        for ((item, record), denials) in group.items.iter().zip(records).zip(denials) {
            self.keep(&item.target, record, now);
            if denials.count > 0 {
                // A full map keeps the largest counts.
                let rank = |denials: &DenialCount| (!denials.has_expired(now)).then_some(denials.count);
                self.denials.insert(item.target.denials_key(), denials, rank);
            }
        }
        Outcome { bans, ..Outcome::new(k, before, now) }
    }

    /// Removes the count of a key's denials, to be changed and inserted again.
    fn remove_denial_count(&mut self, item: &GroupItem, now: u64) -> DenialCount {
        let removed = item.ban().and_then(|_| self.denials.remove(&item.target.denials_key()));
        match removed {
            Some(denials) if !denials.has_expired(now) => denials,
            _ => DenialCount::default(),
        }
    }
}

// Reservations in memory: the reference of holds on the map.

impl MemoryKeys {
    /// Takes a group of which at least one key has holds.
    fn reserve(&mut self, group: &Group, call: &mut Call, now: u64) -> Outcome {
        let mut records: Vec<Record> = group.items.iter().map(|item| self.lend(&item.target, now)).collect();
        let of_item = |item: &crate::store::GroupItem| {
            item.holds().map(|_| self.remove_holds(&item.target.holds_key(), now))
        };
        let mut holds: Vec<Option<Holds>> = group.items.iter().map(of_item).collect();
        let parts = group.items.iter().zip(&mut records).zip(&mut holds).map(|((item, record), holds)| {
            let quota = &item.target.gate.quota;
            Part::new(quota, record, item.cost, item.max_delay_us, holds.as_mut())
        });
        let mut parts: Vec<Part<'_>> = parts.collect();
        let k = call.reserve(&mut parts, group.n, group.new_hold());
        let before = parts.iter().map(|part| part.item.before).collect();
        let repeated = parts.iter().enumerate().filter_map(|(index, part)| part.was_held.then_some(index));
        let repeated = repeated.collect();
        drop(parts);
        for ((item, record), holds) in group.items.iter().zip(records).zip(holds) {
            self.keep(&item.target, record, now);
            if let Some(holds) = holds {
                self.keep_holds(item.target.holds_key(), holds);
            }
        }
        Outcome { repeated, ..Outcome::new(k, before, now) }
    }

    fn settle(
        &mut self,
        hold: &NewHold,
        SettleItem { target, units, actual }: &SettleItem,
        call: &mut Call,
        now: u64,
    ) -> Settlement {
        let (holds_key, quota) = (target.holds_key(), &target.gate.quota);
        let mut record = self.lend(target, now);
        let mut holds = self.remove_holds(&holds_key, now);
        let settlement = call.settle(quota, &mut record, &mut holds, hold, *units, *actual);
        self.keep(target, record, now);
        self.keep_holds(holds_key, holds);
        settlement
    }

    /// Removes a key's holds, to be changed and inserted again.
    fn remove_holds(&mut self, holds_key: &str, now: u64) -> Holds {
        match self.holds.remove(holds_key) {
            Some(holds) if !holds.has_expired(now) => holds,
            _ => Holds::default(),
        }
    }

    fn keep_holds(&mut self, holds_key: String, holds: Holds) {
        if !holds.is_empty() {
            self.holds.insert(holds_key, holds, |_| None::<u64>);
        }
    }
}
