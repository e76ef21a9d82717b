//! Reservations in memory: the reference of holds on the map.

use super::Keys;
use crate::quota::reference::Record;
use crate::quota::reference::holds::{Call, Holds, NewHold, Part};
use crate::quota::settlement::Settlement;
use crate::store::command::SettleItem;
use crate::store::take::{Group, Outcome};

impl Keys {
    /// Takes a group of which at least one key has holds.
    pub(super) fn reserve(&mut self, group: &Group, call: &mut Call, now: u64) -> Outcome {
        let mut records: Vec<Record> =
            group.items.iter().map(|item| self.remove(&item.target.redis_key, now)).collect();
        let of_item = |item: &crate::store::Item| {
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
        Outcome { k, before, now_us: now, repeated, bans: Vec::new() }
    }

    pub(super) fn settle(
        &mut self,
        hold: &NewHold,
        SettleItem { target, units, actual }: &SettleItem,
        call: &mut Call,
        now: u64,
    ) -> Settlement {
        let (holds_key, quota) = (target.holds_key(), &target.gate.quota);
        let mut record = self.remove(&target.redis_key, now);
        let mut holds = self.remove_holds(&holds_key, now);
        let settlement = call.settle(quota, &mut record, &mut holds, hold, *units, *actual);
        self.keep(target, record, now);
        self.keep_holds(holds_key, holds);
        settlement
    }

    /// Removes a key's holds, to be changed and inserted again.
    fn remove_holds(&mut self, holds_key: &str, now: u64) -> Holds {
        match self.holds.remove_entry(holds_key) {
            Some((_, holds)) if !holds.has_expired(now) => holds,
            _ => Holds::default(),
        }
    }

    fn keep_holds(&mut self, holds_key: String, holds: Holds) {
        if !holds.is_empty() {
            self.holds.insert(holds_key, holds, |_| None::<u64>);
        }
    }
}
