//! Bans in memory: the reference of bans on the map.

use super::Keys;
use crate::quota::reference::bans::{Counting, DenialCount, take};
use crate::quota::reference::{self, Record};
use crate::store::take::{BeginningBan, Group, Item, Outcome};

impl Keys {
    /// Takes a group of which at least one key is of a gate with a ban.
    pub(super) fn take_with_bans(&mut self, group: &Group, now: u64) -> Outcome {
        let mut records: Vec<Record> =
            group.items.iter().map(|item| self.remove(&item.target.redis_key, now)).collect();
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
        Outcome { k, before, now_us: now, repeated: Vec::new(), bans }
    }

    /// Removes the count of a key's denials, to be changed and inserted again.
    fn remove_denial_count(&mut self, item: &Item, now: u64) -> DenialCount {
        let removed = item.ban().and_then(|_| self.denials.remove_entry(&item.target.denials_key()));
        match removed {
            Some((_, denials)) if !denials.has_expired(now) => denials,
            _ => DenialCount::default(),
        }
    }
}
