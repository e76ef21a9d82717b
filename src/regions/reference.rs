//! The reference of regions: the changes of one region's state, as integer arithmetic without I/O.
//!
//! Not covered by semantic versioning: a minor version may change this module.
//!
//! A [`Region`] holds the state of one Redis, and each of its methods stands for one script: it acts at one instant of the local
//! clock, without knowing any other region. Replicators carry entries between regions: they read with
//! [`Cursor::resume`] and [`Replication::read`], and write with [`Region::apply`]. The arithmetic of one key is in
//! [`gossip::Gossip`] and [`escrow::Escrow`]. The decisions are those of the
//! [core's reference](crate::quota::reference); only the parts between regions are new.
//!
//! All times are in µs since 1970 by the clock of this region, durations in µs.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::Quota;
//! use tidegate::regions::reference::gossip::Gossip;
//! use tidegate::regions::reference::{Batch, Checks, Cursor, Mode, Region};
//!
//! let per_minute = Quota::fixed_window(3, Duration::from_secs(60)).aligned_to_clock();
//! let mode = Mode::Gossip(Gossip::new(per_minute, 2)?);
//! let now = 1_767_225_600_000_000; // 2026-01-01 00:00 UTC
//! let [mut eu, mut us] = [Region::new(0, 2, 1), Region::new(1, 2, 2)];
//! let checks = Checks { n: 3, cost: 1, max_delay: None };
//! assert_eq!(eu.take(&mode, "user:42", checks, None, now).k, 3);
//! assert_eq!(us.take(&mode, "user:42", checks, None, now).k, 3); // has not heard of them
//! eu.replication.flush(128, 0, usize::MAX, now);
//! let (cursor, _) = Cursor::resume(None, eu.replication.epoch, (0, 0));
//! let entries = eu.replication.read(cursor.position.1).cloned().collect();
//! let batch = Batch { expected: None, next: cursor, entries, read_us: now, peer_us: now, is_complete: true };
//! us.apply(0, &batch, now);
//! // Six of three are used: the surplus is repaid from the next window.
//! let next = us.take(&mode, "user:42", checks, None, now + 60_000_000);
//! assert_eq!((next.k, next.before.raw[0]), (0, 3));
//! # Ok::<(), tidegate::Error>(())
//! ```

pub mod escrow;
pub mod gossip;
mod replication;
mod windows;

use std::collections::BTreeMap;

use self::escrow::{Escrow, Grant};
use self::gossip::{Counts, Gossip};
pub use self::replication::{Change, Cursor, Entry, Field, Id, Mode, Name, Position, Replication, Verb};
pub use self::windows::Windows;
use crate::quota::Quota;
use crate::quota::reference::{self, Answer, Before};

/// Equal checks of one key: those of a batch, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// How many.
    pub n: u64,
    /// The units that each consumes, at least 1.
    pub cost: u64,
    /// The longest accepted delay, in µs: see [`reference::Item::max_delay`].
    pub max_delay: Option<u64>,
}

/// Equal checks that need every item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeGroup<'a> {
    /// How many.
    pub n: u64,
    /// At least one. Their keys differ.
    pub items: Vec<TakeItem<'a>>,
}

/// A key that each check of a group needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeItem<'a> {
    /// The gate that decides.
    pub gate: &'a Gossip,
    /// The key.
    pub key: &'a str,
    /// The key of its share: the second state, which decides too while a peer is cut off.
    pub share: &'a str,
    /// The units that each check consumes, from 0 to the quota's limit.
    pub cost: u64,
    /// The longest accepted delay, in µs: see [`reference::Item::max_delay`].
    pub max_delay: Option<u64>,
}

/// The result of a take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The quota that decided.
    pub quota: Quota,
    /// The checks.
    pub checks: Checks,
    /// How many were admitted.
    pub k: u64,
    /// How often own units count: once, or as the weight of escrow says.
    pub fold: u64,
    /// The usage before.
    pub before: Before,
    /// The instant at which it counts: `now`, or the start of the window if the clock is behind it.
    pub at_us: u64,
    /// How often own units count in the share, and its usage before.
    pub share: Option<(u64, Before)>,
    /// The units to replicate.
    pub sent: i64,
    /// The window that they name, by its start; 0 of levels and logs.
    pub window_us: u64,
    /// No other of these checks can be admitted before, because of debt or of grants in flight. 0 if neither is in its
    /// way.
    pub not_before_us: u64,
}

impl Taken {
    /// Returns the answer to the check at `index`, by the knowledge of this region. Of gossip, the earliest time at which another
    /// check can be admitted; of escrow the latest, since grants may come before.
    #[must_use]
    pub fn answer(&self, index: u64) -> Answer {
        let Checks { n, cost, max_delay } = self.checks;
        let of = |fold: u64, before, now| {
            let (units, limit) = (cost.saturating_mul(fold), self.quota.limit());
            let cost = units.min(limit);
            let taken = reference::Taken { quota: &self.quota, cost, max_delay, n, k: self.k, before, now };
            let answer = taken.answer(index);
            Answer { allowed: answer.allowed && units <= limit, remaining: answer.remaining / fold, ..answer }
        };
        let mut answer = of(self.fold, self.before, self.at_us);
        answer.retry_after_us = answer.retry_after_us.max(self.not_before_us.saturating_sub(self.at_us));
        if let Some((fold, before)) = self.share {
            let share = of(fold, before, self.at_us);
            answer = Answer {
                allowed: answer.allowed && share.allowed,
                remaining: answer.remaining.min(share.remaining),
                retry_after_us: answer.retry_after_us.max(share.retry_after_us),
                reset_after_us: answer.reset_after_us.max(share.reset_after_us),
                delay_us: answer.delay_us.max(share.delay_us),
                is_blocked: answer.is_blocked || share.is_blocked,
            };
        }
        answer
    }

    /// Returns how many of the `wanted` checks from the index `first` on were admitted, and one answer to all of them: see
    /// [`reference::Taken::grant`].
    #[must_use]
    pub fn grant(&self, first: u64, wanted: u64) -> (u64, Answer) {
        reference::grant(self.checks.n, self.k, (first, wanted), |index| self.answer(index))
    }

    /// Returns whether this key alone would have admitted the check at `index`: see [`reference::Taken::affords`].
    #[must_use]
    pub fn affords(&self, index: u64) -> bool {
        let of = |fold: u64, before| {
            let Checks { n, cost, max_delay } = self.checks;
            let cost = cost.saturating_mul(fold);
            let taken = reference::Taken {
                quota: &self.quota,
                cost,
                max_delay,
                n,
                k: self.k,
                before,
                now: self.at_us,
            };
            cost <= self.quota.limit() && taken.affords(index)
        };
        of(self.fold, self.before) && self.share.is_none_or(|(fold, before)| of(fold, before))
    }
}

/// Entries that a replicator has read from the stream of a peer.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The cursor at the read.
    pub expected: Option<Cursor>,
    /// The cursor after these entries.
    pub next: Cursor,
    /// Whole entries after `expected`.
    pub entries: Vec<Entry>,
    /// The local time before the read, in µs since 1970.
    pub read_us: u64,
    /// The time that the peer's clock showed after the read.
    pub peer_us: u64,
    /// Whether these are all entries that the stream then had.
    pub is_complete: bool,
}

/// The state of one region: that of its keys, and of replication.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// Its number.
    pub name: Name,
    /// How often it counts its own units in escrow: see [`escrow::Escrow::weight`].
    pub weight: u64,
    /// The longest time from a read to its application, in µs: [`FRESH_US`](Escrow::FRESH_US).
    pub fresh_us: u64,
    /// The outbox, the stream and the cursors.
    pub replication: Replication,
    /// The keys of gates in the mode gossip, and their shares.
    pub gossip: BTreeMap<String, gossip::Key>,
    /// The keys of gates in the mode escrow.
    pub escrow: BTreeMap<String, escrow::Key>,
    /// Charges that did not count as they should.
    pub counts: Counts,
}

impl Region {
    /// Makes a region with an empty Redis. `weight` is that of its gates in the mode escrow, `epoch` is random.
    #[must_use]
    pub fn new(name: Name, weight: u64, epoch: u64) -> Self {
        let fresh_us = Escrow::FRESH_US;
        Self { name, weight, fresh_us, replication: Replication::new(epoch), ..Self::default() }
    }

    fn gossip_key(&mut self, key: &str) -> (&mut gossip::Key, &mut Counts) {
        (self.gossip.entry(key.to_owned()).or_default(), &mut self.counts)
    }

    fn escrow_key(&mut self, key: &str) -> &mut escrow::Key {
        self.escrow.entry(key.to_owned()).or_default()
    }

    fn send(&mut self, verb: Verb, mode: &Mode, name: u64, key: &str, amount: i64) {
        self.replication.add(Field { verb, mode: *mode, name, key: key.to_owned() }, amount);
    }

    /// Decides equal checks of a key, and charges the admitted ones. In the mode gossip, as
    /// [`take_all`](Self::take_all); the share has the name of the key and ` share`. Escrow does not read `cut_us`.
    ///
    /// # Panics
    ///
    /// May panic if the cost is above the quota's limit, or 0 in the mode escrow.
    pub fn take(&mut self, mode: &Mode, key: &str, checks: Checks, cut_us: Option<u64>, now: u64) -> Taken {
        match mode {
            Mode::Gossip(gate) => {
                let (Checks { n, cost, max_delay }, share) = (checks, format!("{key} share"));
                let items = vec![TakeItem { gate, key, share: &share, cost, max_delay }];
                self.take_all(&TakeGroup { n, items }, cut_us, now).remove(0)
            }
            Mode::Escrow(escrow) => {
                let taken = escrow.take(self.escrow_key(key), checks, now);
                self.send(Verb::Charge, mode, taken.window_us, key, taken.sent);
                taken
            }
        }
    }

    /// Decides a group in the mode gossip: admits as many checks as each item affords, and charges exactly those to all
    /// items. Returns the result for each item.
    ///
    /// `cut_us` is the local time at which a peer was cut off, if one is and the gates have the share policy: see
    /// [`Replication::cut_off`]. Then the shares must afford the checks too. A share counts own units, each as often as
    /// there are regions. At least as much of it is used as a limit used at the cut leaves now.
    ///
    /// # Panics
    ///
    /// May panic if a cost is above the quota's limit.
    pub fn take_all(&mut self, group: &TakeGroup<'_>, cut_us: Option<u64>, now: u64) -> Vec<Taken> {
        let all = gossip::take(&mut self.gossip, group, cut_us, now, &mut self.counts);
        for (item, taken) in group.items.iter().zip(&all) {
            self.send(Verb::Charge, &Mode::Gossip(*item.gate), taken.window_us, item.key, taken.sent);
        }
        all
    }

    /// Charges `units` without a check, also above the limit.
    pub fn penalize(&mut self, mode: &Mode, key: &str, units: u64, now: u64) {
        let (sent, window_us) = match mode {
            Mode::Gossip(gossip) => {
                let (key, counts) = self.gossip_key(key);
                (units as i64, gossip.penalize(key, units, now, counts))
            }
            Mode::Escrow(escrow) => escrow.penalize(self.escrow_key(key), units, now),
        };
        self.send(Verb::Charge, mode, window_us, key, sent);
    }

    /// Gives back those of the `units` that still count. `stamp` identifies their take, as in the core.
    pub fn refund(&mut self, mode: &Mode, key: &str, units: u64, stamp: Option<u64>, now: u64) {
        match mode {
            Mode::Gossip(gossip) => {
                let (of, counts) = self.gossip_key(key);
                let (window_us, back) = gossip.refund(of, units, stamp, now, counts);
                self.send(Verb::Charge, mode, window_us, key, -(back as i64));
            }
            Mode::Escrow(escrow) => escrow.refund(self.escrow_key(key), units, stamp, now),
        }
    }

    /// Denies every check of the key for `duration`. 0 lifts the block.
    pub fn block(&mut self, mode: &Mode, key: &str, duration: u64, now: u64) {
        let until = if duration == 0 { 0 } else { now + duration };
        self.block_here(mode, key, until, now);
        match duration {
            0 => {
                let names = self.names(mode, key, now);
                let field = Field { verb: Verb::Block, mode: *mode, name: 0, key: key.to_owned() };
                self.replication.send_now(field, names, now);
            }
            _ => self.send(Verb::Block, mode, 0, key, until as i64),
        }
    }

    fn block_here(&mut self, mode: &Mode, key: &str, until: u64, now: u64) {
        match mode {
            Mode::Gossip(gossip) => {
                let (key, counts) = self.gossip_key(key);
                gossip.block(key, until, now, counts);
            }
            Mode::Escrow(escrow) => escrow.block(self.escrow_key(key), until, now),
        }
    }

    fn blocked_until(&self, mode: &Mode, key: &str) -> u64 {
        let record = match mode {
            Mode::Gossip(_) => self.gossip.get(key).map(|key| &key.record),
            Mode::Escrow(_) => self.escrow.get(key).map(|key| &key.record),
        };
        record.map_or(0, |record| record.blocked_until_us)
    }

    /// Forgets the key, with its block. Its share stays.
    pub fn reset(&mut self, mode: &Mode, key: &str, now: u64) {
        let names = self.names(mode, key, now);
        self.reset_here(mode, key, now);
        let field = Field { verb: Verb::Reset, mode: *mode, name: 0, key: key.to_owned() };
        self.replication.send_now(field, names, now);
    }

    /// Returns the names of the changes that [`Replication::send_now`] finds.
    fn names(&mut self, mode: &Mode, key: &str, now: u64) -> Option<[u64; 3]> {
        let Mode::Gossip(gossip) = mode else { return None };
        Some(gossip.names(self.gossip_key(key).0, now))
    }

    fn reset_here(&mut self, mode: &Mode, key: &str, now: u64) {
        match mode {
            Mode::Gossip(_) => drop(self.gossip.remove(key)),
            Mode::Escrow(escrow) => escrow.reset(self.escrow_key(key), now),
        }
    }

    /// Applies entries of a peer, exactly once. Returns false, and changes nothing, if the cursor is not the expected
    /// one, or if the read is too old for [grants](Escrow::FRESH_US).
    pub fn apply(&mut self, peer: Name, batch: &Batch, now: u64) -> bool {
        let is_fresh = now.saturating_sub(batch.read_us) <= self.fresh_us;
        if !is_fresh || !self.replication.advance(peer, batch.expected, batch.next) {
            return false;
        }
        if batch.is_complete {
            let heard = self.replication.heard.entry(peer).or_default();
            *heard = batch.read_us.max((*heard).min(now));
        }
        for entry in &batch.entries {
            for (field, amount) in
                entry.changes.iter().filter(|(field, _)| batch.next.applies(entry.id, field))
            {
                self.apply_change(peer, field, *amount, batch.peer_us, now);
            }
        }
        true
    }

    fn apply_change(&mut self, peer: Name, field: &Field, amount: i64, peer_us: u64, now: u64) {
        let Field { verb, mode, name, key } = field;
        match (verb, mode) {
            (Verb::Charge, Mode::Gossip(gossip)) => {
                let (key, counts) = self.gossip_key(key);
                gossip.apply(key, *name, amount, now, counts);
            }
            (Verb::Charge, Mode::Escrow(by)) => {
                let escrow = Escrow { weight: self.weight, ..*by };
                let grant = escrow.grant(self.escrow_key(key), *name, amount.max(0) as u64, now);
                if let Some(Grant { ticks, name }) = grant {
                    self.send(Verb::Grant { to: peer }, &Mode::Escrow(escrow), name, key, ticks as i64);
                }
            }
            (Verb::Grant { to }, Mode::Escrow(by)) => {
                let escrow = Escrow { weight: self.weight, ..*by };
                let grant = Grant { ticks: amount as u64, name: *name };
                if *to == self.name && by.is_fresh(grant, peer_us) {
                    escrow.receive(self.escrow_key(key), by, grant, now);
                }
            }
            (Verb::Block, _) => {
                let until = now + amount as u64;
                if amount == 0 {
                    self.block_here(mode, key, 0, now);
                } else if until > self.blocked_until(mode, key) {
                    self.block_here(mode, key, until, now);
                }
            }
            (Verb::Reset, _) => self.reset_here(mode, key, now),
            (Verb::Grant { .. }, Mode::Gossip(_)) => {}
        }
    }

    /// Settles the grants that a peer has confirmed: those to it, up to its acknowledgement.
    pub fn settle(&mut self, peer: Name, now: u64) {
        let Some(((_, from), to)) = self.replication.to_settle(peer) else { return };
        let confirmed: Vec<Change> = self
            .replication
            .read(from)
            .take_while(|entry| entry.id <= to.1)
            .flat_map(|entry| entry.changes.clone())
            .collect();
        for (field, amount) in confirmed {
            if let (Some((_, grant)), Mode::Escrow(escrow)) =
                (field.grant(amount).filter(|(addressee, _)| *addressee == peer), field.mode)
            {
                escrow.settle(self.escrow_key(&field.key), grant, now);
            }
        }
        self.replication.settled.insert(peer, to);
    }
}
