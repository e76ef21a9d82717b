//! The network, and the replicators of each region.

use tidegate::regions::reference::{Batch, Change, Cursor, Field, Id, Verb};

use super::defects::Defect;
use super::{Checked, Event, KEY, Read, World};

impl World {
    fn send(&mut self, from: usize, to: usize, event: Event) -> bool {
        let arrives = self.cut_until[from][to] <= self.now && self.rng.u32(0..1_000) >= self.setup.lost;
        if arrives {
            let delay = self.setup.delay_us + self.rng.u64(0..=self.setup.jitter_us);
            self.at(delay, event);
        }
        arrives
    }

    pub(super) fn start(&mut self, to: usize, from: usize, reader: usize, attempt: u64) {
        if self.nodes[to].is_stopped || self.nodes[to].attempts[from][reader] != attempt {
            return;
        }
        // Unique per try, so that a late reply of an earlier one is not taken for this one's.
        self.serial += 1;
        let attempt = self.serial;
        self.nodes[to].attempts[from][reader] = attempt;
        let expected = self.nodes[to].region.replication.cursors.get(&(from as u16)).copied();
        let read = Read { to, from, reader, attempt, expected, read_us: self.local(to), batch: None };
        self.send(to, from, Event::AtPeer(Box::new(read)));
        let timeout = self.setup.beat_us + 2 * (self.setup.delay_us + self.setup.jitter_us) + 1_000;
        self.at(timeout, Event::Start { to, from, reader, attempt });
    }

    pub(super) fn at_peer(&mut self, mut read: Read, is_beat: bool) {
        let (to, from) = (read.to, read.from);
        let peer_us = self.local(from);
        let peer = &mut self.nodes[from].region.replication;
        if let Some(cursor) = read.expected {
            peer.acks.insert(to as u16, cursor.position);
        }
        let (cursor, _) = Cursor::resume(read.expected, peer.epoch, peer.last);
        let mut items = 0;
        let most = 128;
        let entries = peer.read(cursor.position.1).take_while(|entry| {
            let fits = items == 0 || items + entry.changes.len() <= most;
            items += entry.changes.len();
            fits
        });
        let entries: Vec<_> = entries.cloned().collect();
        if entries.is_empty() && !is_beat && Some(cursor) == read.expected {
            self.serial += 1;
            let token = self.serial;
            self.nodes[from].waiting.push((token, read));
            self.at(self.setup.beat_us, Event::Beat { peer: from, token });
            return;
        }
        let last = entries.last().map_or(cursor.position.1, |entry| entry.id);
        let next = Cursor { position: (cursor.position.0, last), ..cursor };
        let is_complete = last >= peer.last;
        let batch =
            Batch { expected: read.expected, next, entries, read_us: read.read_us, peer_us, is_complete };
        read.batch = Some(batch);
        if self.nodes[from].region.replication.to_settle(to as u16).is_some() {
            self.at(0, Event::Settle(from));
        }
        self.serial += 1;
        let id = self.serial;
        if self.send(from, to, Event::Reply(id)) {
            self.batches.insert(id, read);
        }
    }

    pub(super) fn reply(&mut self, id: u64) {
        let read = self.batches.remove(&id).unwrap();
        let node = &mut self.nodes[read.to];
        if node.attempts[read.from][read.reader] != read.attempt || node.is_stopped {
            return;
        }
        self.serial += 1;
        let attempt = self.serial;
        node.attempts[read.from][read.reader] = attempt;
        let has_entries = read.batch.as_ref().is_some_and(|batch| !batch.entries.is_empty());
        let mut pause = if has_entries { std::mem::take(&mut node.pause_next_us) } else { 0 };
        if self.rng.u32(0..1_000) < self.setup.paused {
            pause = self.rng.u64(0..=self.setup.pause_us);
        }
        let (to, from, reader) = (read.to, read.from, read.reader);
        if read.batch.is_some() {
            self.serial += 1;
            let id = self.serial;
            self.batches.insert(id, read.clone());
            self.at(pause, Event::Apply(id));
            if self.rng.u32(0..1_000) < 50 {
                // The reply of the script was lost, and the replicator does not know it.
                let again = self.rng.u64(0..=self.setup.pause_us.max(1_000));
                self.serial += 1;
                let id = self.serial;
                self.batches.insert(id, read);
                self.at(again, Event::Apply(id));
            }
        }
        self.at(pause, Event::Start { to, from, reader, attempt });
    }

    pub(super) fn apply(&mut self, id: u64) -> Checked {
        let read = self.batches.remove(&id).unwrap();
        let (to, from) = (read.to, read.from);
        let mut batch = read.batch.unwrap();
        let local = self.local(to);
        let intact = batch.clone();
        self.plant_in_batch(to, from, &mut batch, local);
        if !self.nodes[to].region.apply(from as u16, &batch, local) {
            return Ok(());
        }
        if self.defect(Defect::DrainBelowHeld)
            && let Some(key) = self.nodes[to].region.escrow.get_mut(KEY)
        {
            key.granted.clear();
        }
        self.count_forgiven(to);
        if self.is_overridden {
            self.conversions += intact.entries.iter().map(|entry| entry.changes.len() as i128).sum::<i128>();
        }
        for entry in &intact.entries {
            let Some(fields) = self.sent.get(&(from, intact.next.position.0, entry.id)) else { continue };
            for (field, ids) in fields {
                if !intact.next.applies(entry.id, field) {
                    continue;
                }
                if field.verb == Verb::Reset {
                    let since = &mut self.charges[self.alive_from..];
                    since.iter_mut().for_each(|charge| charge.seen &= !(1 << to));
                }
                for id in ids {
                    self.charges[*id].seen |= 1 << to;
                    let late = self.now - self.charges[*id].at_us;
                    self.nodes[to].late_us = self.nodes[to].late_us.max(late);
                }
            }
        }
        self.expire_early(to);
        self.wants_flush(to);
        let is_reset = |(field, _): &Change| field.verb == Verb::Reset;
        match intact.entries.iter().flat_map(|entry| &entry.changes).any(is_reset) {
            true => self.lose(self.full_most * self.scale() * 2),
            false => Ok(()),
        }
    }

    pub(super) fn wants_flush(&mut self, region: usize) {
        let node = &mut self.nodes[region];
        if !node.is_flushing && !node.region.replication.outbox.is_empty() {
            node.is_flushing = true;
            self.at(self.setup.flush_us, Event::Flush(region));
        }
    }

    pub(super) fn flush(&mut self, region: usize) {
        self.nodes[region].is_flushing = false;
        let local = self.local(region);
        // Fields leave in random order.
        let outbox = &mut self.nodes[region].region.replication.outbox;
        self.rng.shuffle(outbox);
        let oldest_ms = local.saturating_sub(self.setup.retention_us) / 1_000;
        let before: Vec<Field> = outbox.iter().map(|(field, _)| field.clone()).collect();
        let most = self.setup.most_items;
        let first = self.nodes[region].region.replication.stream.front().map(|entry| entry.id);
        let last = self.nodes[region].region.replication.last;
        self.nodes[region].region.replication.flush(most, oldest_ms, 10_000, local);
        let gone: Vec<Field> = before.into_iter().take(most).collect();
        self.note_sent(region, last, |field| gone.contains(field));
        self.count_gaps(region, first);
        self.wake(region);
        self.wants_flush(region);
    }

    /// Notes which charges the newest entry carries.
    pub(super) fn note_sent(&mut self, region: usize, last: Id, gone: impl Fn(&Field) -> bool) {
        let node = &mut self.nodes[region];
        let (sent, stays) =
            std::mem::take(&mut node.pending).into_iter().partition::<Vec<_>, _>(|(field, _)| gone(field));
        node.pending = stays;
        let replication = &node.region.replication;
        let newest = replication.stream.back().filter(|_| replication.last > last);
        let newest: &[Change] = newest.map_or(&[], |entry| &entry.changes);
        let (carried, cancelled): (Vec<_>, Vec<_>) =
            sent.into_iter().partition(|(field, _)| newest.iter().any(|(of, _)| of == field));
        for (_, ids) in cancelled {
            // Charged and given back before the flush.
            ids.iter().for_each(|id| self.charges[*id].seen = u8::MAX);
        }
        let mut by_order = carried;
        for (field, _) in newest {
            if !by_order.iter().any(|(of, _)| of == field) {
                by_order.push((field.clone(), Vec::new()));
            }
        }
        by_order.sort_by_key(|(field, _)| newest.iter().position(|(of, _)| of == field));
        if !newest.is_empty() {
            self.sent.insert((region, replication.epoch, replication.last), by_order);
        }
    }

    /// Notes whether entries were trimmed that a peer had not read.
    fn count_gaps(&mut self, region: usize, before: Option<Id>) {
        let replication = &self.nodes[region].region.replication;
        let Some(before) =
            before.filter(|before| replication.stream.front().is_none_or(|entry| entry.id > *before))
        else {
            return;
        };
        let oldest = replication.stream.front().map_or((u64::MAX, 0), |entry| entry.id);
        let epoch = replication.epoch;
        let is_unread = (0..self.count()).filter(|peer| *peer != region).any(|peer| {
            let cursor = self.nodes[peer].region.replication.cursors.get(&(region as u16));
            let read =
                cursor.filter(|cursor| cursor.position.0 == epoch).map_or((0, 0), |cursor| cursor.position.1);
            self.sent.keys().any(|(of, in_epoch, id)| {
                *of == region && *in_epoch == epoch && *id >= before && *id > read && *id < oldest
            })
        });
        if is_unread {
            self.is_lossy = true;
            self.seen.gaps += 1;
        }
    }

    pub(super) fn wake(&mut self, region: usize) {
        for (_, read) in std::mem::take(&mut self.nodes[region].waiting) {
            self.at_peer(read, true);
        }
    }

    pub(super) fn settle(&mut self, region: usize) {
        let local = self.local(region);
        for peer in (0..self.count()).filter(|peer| *peer != region) {
            let node = &mut self.nodes[region];
            match self.setup.defect {
                Some(Defect::SettleByAnyPeer) => {
                    let best = node.region.replication.acks.values().max().copied();
                    if let Some(best) = best {
                        node.region.replication.acks.insert(peer as u16, best);
                    }
                    node.region.settle(peer as u16, local);
                }
                Some(Defect::SettleWithoutDraining) => {
                    let Some(key) = node.region.escrow.get(KEY).cloned() else { continue };
                    node.region.settle(peer as u16, local);
                    if let Some(after) = node.region.escrow.get_mut(KEY) {
                        after.record = key.record;
                    }
                }
                _ => node.region.settle(peer as u16, local),
            }
        }
        self.expire_early(region);
    }
}
