//! The in-memory store: the reference algorithms on a map. For tests and single processes.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;

use super::command::{MAX_OVERRIDES, OverrideText, Standing, Write, too_many_overrides};
use super::take::{Group, Outcome};
use super::target::Target;
use crate::clock::Clock;
use crate::error::Error;
use crate::generations::{EvictionRank, Generations};
use crate::quota::Quota;
use crate::reference::{self, Record};
use crate::sync::{Mutex, lock};

#[derive(Debug)]
pub(crate) struct MemoryStore {
    clock: Clock,
    /// One lock for all keys, since a group must be decided in one step.
    keys: Mutex<Keys>,
    overrides: Mutex<Overrides>,
}

/// The state that the script `override` writes: texts, and the number of changes.
#[derive(Debug, Default)]
struct Overrides {
    changes: u64,
    texts: BTreeMap<String, (String, Option<u64>)>,
}

/// The quota is the one that used the key last: it ranks the key for eviction.
struct Keys(Generations<String, (Quota, Record), RandomState>);

/// Keys may be personal data or secrets.
impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("keys", &self.0.len()).finish_non_exhaustive()
    }
}

impl MemoryStore {
    pub(crate) fn new(clock: Clock, max_keys: usize) -> Self {
        let keys = Mutex::new(Keys(Generations::new(max_keys / 2)));
        Self { clock, keys, overrides: Mutex::default() }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn take(&self, groups: &[Group]) -> Vec<Result<Outcome, Error>> {
        let mut keys = lock(&self.keys);
        let now = self.clock.now_us();
        groups.iter().map(|group| Ok(keys.take(group, now))).collect()
    }

    /// Writes as [`Store::write`](super::Store::write) does.
    pub(crate) fn write(&self, target: &Target, write: Write) -> u64 {
        let mut keys = lock(&self.keys);
        let now = self.clock.now_us();
        let mut record = keys.remove(&target.redis_key, now);
        let quota = &target.gate.quota;
        match write {
            Write::Refund { units, stamp_us } => record.refund(quota, units, stamp_us, now),
            Write::Penalize { units } => record.penalize(quota, units, now),
            Write::Block { for_us: 0 } => record.block(quota, 0, now),
            Write::Block { for_us } => record.block(quota, now.saturating_add(for_us), now),
            Write::Reset => return 0,
        }
        keys.insert(target, record, now);
        now
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

impl Keys {
    fn take(&mut self, group: &Group, now: u64) -> Outcome {
        let mut records: Vec<Record> =
            group.items.iter().map(|item| self.remove(&item.target.redis_key, now)).collect();
        let mut items: Vec<reference::Item<'_>> = group
            .items
            .iter()
            .zip(&mut records)
            .map(|(item, record)| {
                reference::Item::new(&item.target.gate.quota, record, item.cost, item.max_delay_us)
            })
            .collect();
        let k = reference::take(&mut items, group.n, now);
        let before = items.iter().map(|item| item.before).collect();
        for (item, record) in group.items.iter().zip(records) {
            // A peek at an unused key stores nothing.
            if record != Record::default() {
                self.insert(&item.target, record, now);
            }
        }
        Outcome { k, before, now_us: now }
    }

    fn insert(&mut self, target: &Target, record: Record, now: u64) {
        let kept = (target.gate.quota, record);
        self.0.insert(target.redis_key.clone(), kept, |(quota, record)| EvictionRank::of(record, quota, now));
    }

    /// Removes a key's record, to be changed and inserted again.
    fn remove(&mut self, key: &str, now: u64) -> Record {
        match self.0.remove_entry(key) {
            Some((_, (_, record))) if !record.has_expired(now) => record,
            _ => Record::default(),
        }
    }
}
