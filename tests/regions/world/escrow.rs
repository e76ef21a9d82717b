//! The bounds of escrow, after each step.

use std::collections::BTreeMap;

use tidegate::regions::reference::escrow::{Escrow, Key};
use tidegate::regions::reference::{Change, Entry, Field, Id, Mode, Verb};

use super::super::oracle::{Pooled, rate_and_per};
use super::{Checked, KEY, World, quota_of};

impl World {
    pub(super) fn weight(&self, region: usize) -> i128 {
        i128::from(self.nodes[region].region.weight)
    }

    /// Returns how much the changes between quotas with other ticks may have rounded a level, at most.
    pub(super) fn rounding(&self) -> i128 {
        let (_, common) = self.pooled.rate_and_per();
        let pers = self.nodes.iter().map(|node| rate_and_per(&quota_of(&node.mode)).1);
        self.conversions * (common / pers.min().unwrap_or(1) + 1) / 2
    }

    /// A common multiple of the weights.
    pub(super) fn scale(&self) -> i128 {
        (0..self.count()).map(|region| self.weight(region)).product()
    }

    /// Returns by how much the room of the pooled state exceeds the units that all regions may still spend: the least over
    /// all windows.
    pub(super) fn slack(&mut self) -> i128 {
        if !matches!(self.setup.modes[0], Mode::Escrow(_)) {
            return 0;
        }
        let windows: Vec<u64> = match &self.pooled {
            Pooled::Windows(_) => {
                let mut windows: Vec<u64> = (0..self.count()).map(|region| self.window_of(region)).collect();
                let length = quota_of(&self.setup.modes[0]).window().as_micros() as u64;
                windows.retain(|window| *window > 0);
                windows.extend((0..self.count()).map(|region| self.local(region) / length * length));
                windows.sort_unstable();
                windows.dedup();
                windows
            }
            _ => vec![0],
        };
        windows.into_iter().map(|window| self.slack_in(window)).min().unwrap_or(0)
    }

    fn slack_in(&mut self, window: u64) -> i128 {
        let scale = self.scale();
        let mode = self.nodes[0].mode;
        let quota = quota_of(&mode);
        let used = self.pooled.used(&quota, None, window, window, self.now);
        let mut spendable = 0;
        for region in 0..self.count() {
            self.plant_in_key(region);
            let Mode::Escrow(escrow) = self.nodes[region].mode else { return 0 };
            let share = scale / self.weight(region);
            let level = self.level_in(region, &escrow, window);
            if level.is_none() && self.setup.penalties > 0 {
                // A region that has left the window no longer has the units that penalties charged above the limit.
                return i128::MAX / 4;
            }
            let (_, per) = rate_and_per(&escrow.quota);
            let (_, common) = self.pooled.rate_and_per();
            spendable += level.map_or(0, |level| (self.full_most - level * (common / per)) * share);
            spendable += self.in_flight(region, &escrow, window) * share;
        }
        (self.full_most - used) * scale - spendable
    }

    /// Returns V now, of a window that this region may still spend in or grant from.
    fn level_in(&self, region: usize, escrow: &Escrow, window: u64) -> Option<i128> {
        let mut key = self.nodes[region].region.escrow.get(KEY).cloned().unwrap_or_default();
        escrow.touch(&mut key, self.local(region));
        if window == 0 {
            return Some(i128::from(escrow.level(&key)));
        }
        let length = escrow.quota.window().as_micros() as u64;
        let place = (window as i64 - key.windows.start_us as i64) / length as i64;
        match place {
            -1..=1 => Some(i128::from(key.windows.counts[(place + 1) as usize])),
            2.. => Some(0),
            _ => None,
        }
    }

    /// Returns the ticks of grants of this region that another may still apply.
    pub(super) fn in_flight<'a>(&'a self, region: usize, escrow: &Escrow, window: u64) -> i128 {
        let replication = &self.nodes[region].region.replication;
        let (_, common) = self.pooled.rate_and_per();
        let ticks = |(field, amount): &Change| match field.verb {
            Verb::Grant { to } if window == 0 || field.name == window => {
                let (_, per) = rate_and_per(&quota_of(&field.mode));
                Some((to as usize, i128::from(*amount) * (common / per)))
            }
            _ => None,
        };
        let mut sum: i128 = replication.outbox.iter().filter_map(ticks).map(|(_, amount)| amount).sum();
        // The grants of each entry that is in the stream or in a batch. Most entries have none.
        let mut entries: BTreeMap<(u64, Id), Vec<&Change>> = BTreeMap::new();
        let mut add = |epoch: u64, entry: &'a Entry, peer_us: u64| {
            let is_fresh = |field: &Field| window > 0 || field.name + 1 >= peer_us / escrow.bucket_us;
            for change in &entry.changes {
                if ticks(change).is_some() && is_fresh(&change.0) {
                    let known = entries.entry((epoch, entry.id)).or_default();
                    if !known.contains(&change) {
                        known.push(change);
                    }
                }
            }
        };
        let cursors = self.nodes.iter().map(|node| node.region.replication.cursors.get(&(region as u16)));
        let read = cursors.flatten().map(|cursor| cursor.position.1).min().unwrap_or((0, 0));
        for entry in replication.read(read) {
            add(replication.epoch, entry, self.local(region));
        }
        for read in self.batches.values().filter(|read| read.from == region) {
            let batch = read.batch.as_ref().unwrap();
            let is_live = self.local(read.to).saturating_sub(batch.read_us) <= self.setup.fresh_us
                && self.nodes[read.to].region.replication.cursors.get(&(region as u16)).copied()
                    == batch.expected;
            for entry in batch.entries.iter().filter(|_| is_live) {
                add(batch.next.position.0, entry, batch.peer_us);
            }
        }
        for ((epoch, id), changes) in entries {
            for (to, amount) in changes.into_iter().filter_map(ticks) {
                let cursor = self.nodes[to].region.replication.cursors.get(&(region as u16));
                let may_apply = cursor.is_none_or(|cursor| id > cursor.position.1 && id > cursor.began)
                    && (epoch == replication.epoch
                        || cursor.is_some_and(|cursor| cursor.position.0 == epoch));
                // A region without a cursor skips the entries that are there.
                if may_apply && cursor.is_some() {
                    sum += amount;
                }
            }
        }
        sum
    }

    pub(super) fn key_now(&mut self, region: usize, escrow: &Escrow) -> Key {
        self.plant_in_key(region);
        let mut key = self.nodes[region].region.escrow.get(KEY).cloned().unwrap_or_default();
        escrow.touch(&mut key, self.local(region));
        key
    }

    /// Returns whether nothing more can happen in a region without traffic: it has sent all, its peers have read all, and
    /// its level is empty.
    pub(super) fn is_at_rest(&mut self, region: usize) -> bool {
        let Mode::Escrow(escrow) = self.nodes[region].mode else { return true };
        let replication = &self.nodes[region].region.replication;
        let is_read = self.nodes.iter().enumerate().filter(|(peer, _)| *peer != region).all(|(_, node)| {
            let cursor = node.region.replication.cursors.get(&(region as u16));
            cursor.is_some_and(|cursor| cursor.position.1 >= replication.last)
        });
        let is_level = matches!(self.pooled, Pooled::Level { .. });
        replication.outbox.is_empty()
            && is_read
            && (!is_level || escrow.level(&self.key_now(region, &escrow)) == 0)
    }

    /// All regions together may spend no more than the room of the pooled state.
    pub(super) fn check_escrow_now(&mut self) -> Checked {
        let slack = self.slack();
        let rounding = self.rounding() * self.scale();
        if slack + self.allowed + rounding < 0 {
            let keys: Vec<_> =
                (0..self.count()).map(|region| self.nodes[region].region.escrow.get(KEY)).collect();
            let faults = &self.setup.faults;
            return Err(format!(
                "the regions may spend {} more than there is room (scaled), allowed are {}; {keys:#?}, pooled {:?}, {faults:?}",
                -slack, self.allowed, self.pooled
            ));
        }
        let quota = quota_of(&self.setup.modes[0]);
        let windows: Vec<u64> = (0..self.count()).map(|region| self.window_of(region)).collect();
        let window = windows.into_iter().max().unwrap_or(0);
        let over = self.pooled.used(&quota, None, window, window, self.now) - self.full_most;
        self.seen.over = self.seen.over.max((over * 1_000 / self.full_most) as i64);
        let penalties = if self.setup.penalties > 0 { i128::MAX / 4 } else { 0 };
        if over * self.scale() > self.allowed + rounding + penalties {
            return Err(format!(
                "{over} ticks above the limit, allowed are {} / {}",
                self.allowed,
                self.scale()
            ));
        }
        Ok(())
    }
}
