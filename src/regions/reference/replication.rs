//! The state of a region besides that of its keys: charges to send, the stream that its peers read, and how far
//! it has read theirs.

use std::collections::{BTreeMap, VecDeque};

use super::escrow::{Escrow, Grant};
use super::gossip::Gossip;

/// The number of a region in this model. Redis stores its name.
pub type Name = u16;

/// The ID of an entry of a stream: milliseconds and a sequence number. Within an epoch, IDs only rise.
pub type Id = (u64, u64);

/// A gate with its mode: all that a region needs to apply a change of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// See [`Gossip`].
    Gossip(Gossip),
    /// See [`Escrow`].
    Escrow(Escrow),
}

/// The kind of a change, and so the meaning of its amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Units that were charged. Below 0: given back.
    Charge,
    /// Ticks that are granted to a region: see [`Grant`].
    Grant {
        /// The region that may spend them.
        to: Name,
    },
    /// In the outbox, the local time until which the key is blocked. In the stream, how long it still is, in µs; 0 lifts
    /// the block.
    Block,
    /// The key is forgotten.
    Reset,
}

/// The object of a change. Equal fields coalesce.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// The meaning of the amount.
    pub verb: Verb,
    /// The gate.
    pub mode: Mode,
    /// The window by its start, or the bucket of a grant; 0 if there is none.
    pub name: u64,
    /// The key.
    pub key: String,
}

/// A change of a key, for the other regions.
pub type Change = (Field, i64);

/// An entry of a stream. Its changes apply in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the stream.
    pub id: Id,
    /// At most 128 of a flush.
    pub changes: Vec<Change>,
}

/// Up to where a region has read a stream: in which epoch, and the last entry.
pub type Position = (u64, Id);

/// How far a region has applied the stream of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The epoch of the stream, and its last applied entry.
    pub position: Position,
    /// The end of the stream when this cursor began. Up to it, only [replayable](Field::is_replayable) changes apply:
    /// others may have been applied by the state that was lost, and a grant must not be granted twice.
    pub began: Id,
}

/// The state of replication of a region, in one Redis and one slot.
#[derive(Clone, Debug, Default)]
pub struct Replication {
    /// A random number, made with the stream.
    pub epoch: u64,
    /// Changes to send: a hash.
    pub outbox: Vec<Change>,
    /// The stream, oldest first.
    pub stream: VecDeque<Entry>,
    /// The ID of the newest entry, even after it was trimmed.
    pub last: Id,
    /// How far this region has applied the streams of its peers.
    pub cursors: BTreeMap<Name, Cursor>,
    /// Up to which local time this region knows all that a peer had sent: the time before the last read that reached the
    /// end of the stream and was applied.
    pub heard: BTreeMap<Name, u64>,
    /// How far the peers say that they have applied this region's stream.
    pub acks: BTreeMap<Name, Position>,
    /// Up to where this region has settled its own grants, for each peer.
    pub settled: BTreeMap<Name, Position>,
}

impl Field {
    /// Returns whether a region without a cursor applies this change of before: units in a window that its name tells.
    #[must_use]
    pub fn is_replayable(&self) -> bool {
        self.verb == Verb::Charge && matches!(self.mode, Mode::Gossip(_)) && self.name > 0
    }

    /// Returns the grant of this change, if it is one.
    #[must_use]
    pub fn grant(&self, amount: i64) -> Option<(Name, Grant)> {
        match self.verb {
            Verb::Grant { to } => Some((to, Grant { ticks: amount as u64, name: self.name })),
            _ => None,
        }
    }
}

impl Cursor {
    /// Returns the cursor with which a reader whose stored cursor is `expected` reads on, and whether the peer has lost
    /// its stream or the end of it. `epoch` and `end` are those of the peer's stream now.
    ///
    /// The ID of a cursor never goes back, so nothing is applied twice, not even by a reader that was paused meanwhile.
    /// New entries of a peer whose clock is behind the cursor are skipped.
    #[must_use]
    pub fn resume(expected: Option<Self>, epoch: u64, end: Id) -> (Self, bool) {
        match expected {
            None => (Self { position: (epoch, (0, 0)), began: end }, false),
            Some(cursor) => {
                let is_lost = cursor.position.0 != epoch || end < cursor.position.1;
                (Self { position: (epoch, cursor.position.1), ..cursor }, is_lost)
            }
        }
    }

    /// Returns whether a change of this entry applies.
    #[must_use]
    pub fn applies(&self, id: Id, field: &Field) -> bool {
        id > self.began || field.is_replayable()
    }
}

impl Replication {
    /// Makes the state of an empty Redis.
    #[must_use]
    pub fn new(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Adds a change to the outbox. Of blocks, the later one stays.
    pub fn add(&mut self, field: Field, amount: i64) {
        if amount == 0 {
            return;
        }
        match self.outbox.iter_mut().find(|(other, _)| *other == field) {
            Some((_, until)) if field.verb == Verb::Block => *until = amount.max(*until),
            Some((_, sum)) => *sum += amount,
            None => self.outbox.push((field, amount)),
        }
    }

    /// Appends an entry to the stream at `now`.
    pub fn append(&mut self, changes: Vec<Change>, now: u64) {
        let (ms, sequence) = self.last;
        self.last = if now / 1_000 > ms { (now / 1_000, 0) } else { (ms, sequence + 1) };
        self.stream.push_back(Entry { id: self.last, changes });
    }

    /// Moves at most `most` changes of the outbox into one entry of the stream, in any order, then trims entries older
    /// than `min_ms`, and more than `max_entries`.
    pub fn flush(&mut self, most: usize, min_ms: u64, max_entries: usize, now: u64) {
        let sent: Vec<Change> = self.outbox.drain(..most.min(self.outbox.len())).collect();
        let changes: Vec<Change> = sent
            .into_iter()
            .map(|(field, amount)| match field.verb {
                Verb::Block => (field, (amount - now as i64).max(0)),
                _ => (field, amount),
            })
            // A block that has ended, and charges that were all given back.
            .filter(|(_, amount)| *amount != 0)
            .collect();
        if !changes.is_empty() {
            self.append(changes, now);
        }
        while self.stream.len() > max_entries || self.stream.front().is_some_and(|entry| entry.id.0 < min_ms)
        {
            self.stream.pop_front();
        }
    }

    /// Moves the pending charges and grants of a key into the stream, with a last change: those of later takes follow it. A
    /// pending block is over. With `names`, leaves charges that name other windows, and those of another mode: the outbox is a
    /// hash, in which a script finds only fields that it knows.
    pub fn send_now(&mut self, last: Field, names: Option<[u64; 3]>, now: u64) {
        let is_moved = |field: &Field| {
            let is_known = field.verb == Verb::Block || names.is_none_or(|names| names.contains(&field.name));
            field.key == last.key && is_known && (names.is_none() || field.mode == last.mode)
        };
        let (pending, outbox) =
            std::mem::take(&mut self.outbox).into_iter().partition(|(field, _)| is_moved(field));
        self.outbox = outbox;
        let mut changes: Vec<Change> = pending;
        changes.retain(|(field, amount)| field.verb != Verb::Block && *amount != 0);
        changes.push((last, 0));
        self.append(changes, now);
    }

    /// Moves the cursor of a peer from `expected` on to `next`. Returns false, and changes nothing, if it is another.
    pub fn advance(&mut self, peer: Name, expected: Option<Cursor>, next: Cursor) -> bool {
        let is_expected = self.cursors.get(&peer).copied() == expected;
        if is_expected {
            self.cursors.insert(peer, next);
        }
        is_expected
    }

    /// Returns the local time at which the first of these peers was cut off: `after_us` after it was heard of. `None` if
    /// all have been heard of since. One that was never heard of is cut off.
    #[must_use]
    pub fn cut_off(&self, peers: &[Name], after_us: u64, now: u64) -> Option<u64> {
        let heard = peers.iter().map(|peer| self.heard.get(peer).copied().unwrap_or(0));
        heard.min().map(|heard| heard + after_us).filter(|cut_us| *cut_us <= now)
    }

    /// Returns the entries after a position; those trimmed before it was reached are lost to the reader.
    pub fn read(&self, after: Id) -> impl Iterator<Item = &Entry> {
        self.stream.range(self.stream.partition_point(|entry| entry.id <= after)..)
    }

    /// Returns the position up to which a peer's acknowledgement allows to settle; `None` if it is of another epoch, or
    /// not beyond the settled one.
    #[must_use]
    pub fn to_settle(&self, peer: Name) -> Option<(Position, Position)> {
        let (epoch, acked) = *self.acks.get(&peer)?;
        let settled = match self.settled.get(&peer) {
            Some((of, id)) if *of == self.epoch => *id,
            _ => (0, 0),
        };
        (epoch == self.epoch && acked > settled).then_some(((epoch, settled), (epoch, acked)))
    }
}
