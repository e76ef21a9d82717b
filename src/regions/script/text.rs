//! The texts of quotas, fields, epochs and cursors.

use crate::quota::Quota;
use crate::quota::algorithm::{Definition, MAX_DEBT};
use crate::regions::reference::gossip::Gossip;
use crate::regions::reference::{Change, Cursor, Entry, Field, Id, Mode, Position, Verb};

/// Returns the quota as arguments: see `lua/regions/outbox.lua`.
pub(super) fn quota(gate: &Gossip) -> [String; 7] {
    let [a, b, c, d] = gate.quota.kind().args().map(|arg| arg.to_string());
    let carry = u8::from(gate.carry).to_string();
    [gate.quota.algorithm().to_owned(), a, b, c, d, gate.debt.to_string(), carry]
}

/// Returns the name of a verb; `None` of grants, which the mode gossip does not have.
pub(super) const fn verb(verb: Verb) -> Option<&'static str> {
    match verb {
        Verb::Charge => Some("charge"),
        Verb::Block => Some("block"),
        Verb::Reset => Some("reset"),
        Verb::Grant { .. } => None,
    }
}

pub(super) fn epoch(epoch: u64) -> String {
    format!("{epoch:016x}")
}

/// Returns the text of a cursor: the epoch, the last applied entry, and the end of the stream when it began.
#[must_use]
pub fn cursor_text(cursor: &Cursor) -> String {
    format!("{} {}", position_text(cursor.position), id_text(cursor.began))
}

/// Returns the text of a position: the epoch, and the last applied entry.
#[must_use]
pub fn position_text((of, id): Position) -> String {
    format!("{} {}", epoch(of), id_text(id))
}

/// Reads the text of a position, which others may follow.
#[must_use]
pub fn position_of(text: &str) -> Option<Position> {
    let mut words = text.split(' ');
    Some((epoch_of(words.next()?)?, id(words.next()?)?))
}

/// Reads the text of a cursor.
#[must_use]
pub fn cursor_of(text: &str) -> Option<Cursor> {
    let mut words = text.split(' ');
    let epoch = epoch_of(words.next()?)?;
    let [position, began] = [id(words.next()?)?, id(words.next()?)?];
    words.next().is_none().then_some(Cursor { position: (epoch, position), began })
}

pub(in crate::regions) fn epoch_of(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

pub(in crate::regions) fn id_text((ms, sequence): Id) -> String {
    format!("{ms}-{sequence}")
}

pub(in crate::regions) fn id(text: &str) -> Option<Id> {
    let (ms, sequence) = text.split_once('-')?;
    Some((ms.parse().ok()?, sequence.parse().ok()?))
}

/// What this region knows of a peer: enough to read the entries of its stream. A peer can name only keys of replicated
/// gates, and numbers that tidegate writes.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'p> {
    /// The number of regions.
    pub regions: u64,
    /// How the keys of replicated gates begin.
    pub states: &'p str,
}

impl Peer<'_> {
    /// Reads an entry: fields with amounts. Returns how many changes it had to skip.
    #[must_use]
    pub fn entry(&self, id_text: &str, pairs: &[(String, String)]) -> Option<(Entry, usize)> {
        let changes: Vec<Change> =
            pairs.iter().filter_map(|(field, amount)| self.change(field, amount)).collect();
        let skipped = pairs.len() - changes.len();
        Some((Entry { id: id(id_text)?, changes }, skipped))
    }

    /// Reads a change. Returns `None` if tidegate does not write such a one.
    #[must_use]
    pub fn change(&self, field: &str, amount: &str) -> Option<Change> {
        let mut words = field.splitn(4, ' ');
        let mut word = || words.next();
        let (verb, mode, name, key) = (word()?, word()?, word()?.parse().ok()?, word()?);
        let amount: i64 = amount.parse().ok()?;
        let is_possible = |verb| match verb {
            Verb::Charge => amount.unsigned_abs() <= MAX_DEBT,
            Verb::Block => (0..=MAX_DEBT as i64).contains(&amount),
            Verb::Reset | Verb::Grant { .. } => amount == 0,
        };
        let verbs = [Verb::Charge, Verb::Block, Verb::Reset];
        let verb = verbs.into_iter().find(|known| self::verb(*known) == Some(verb) && is_possible(*known))?;
        let mode = Mode::Gossip(self.gate(mode)?);
        (name <= MAX_DEBT * 8 && key.starts_with(self.states))
            .then(|| (Field { verb, mode, name, key: key.to_owned() }, amount))
    }

    fn gate(&self, text: &str) -> Option<Gossip> {
        let mut words = text.split(',');
        let definition = Definition::of_name(words.next()?)?;
        let numbers: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [a, b, c, d, debt, carry] = numbers[..] else { return None };
        let quota = Quota::of_args(definition, [a, b, c, d]).ok()?;
        let gate = Gossip { debt, carry: carry == 1, ..Gossip::new(quota, self.regions).ok()? };
        // Other numbers would be another quota: those of one version are canonical.
        (quota.kind().args() == [a, b, c, d] && debt <= MAX_DEBT * 4 && carry <= 1).then_some(gate)
    }
}
