//! The losses of a peer's stream: entries that were trimmed before they were read, and streams that begin anew.

use super::stream::{Info, Reading};
use crate::regions::reference::{Cursor, Position};

/// The memory of a reader. A reader without one finds the same losses, except that it takes an unknown number of trimmed
/// entries for a gap.
#[derive(Default)]
pub(super) struct Losses {
    /// The epoch of the last read.
    epoch: Option<u64>,
    /// Whether it is counted already that the stream ends below the cursor.
    is_behind: bool,
    /// A position, and the number of entries there had been up to it.
    counted: Option<(Position, u64)>,
}

/// The result of a read, besides its entries.
pub(super) struct Findings {
    /// The cursor with which it began.
    pub(super) cursor: Cursor,
    /// Whether the peer has lost its stream, or the end of it.
    pub(super) is_rewound: bool,
    /// Whether entries after the cursor were trimmed.
    pub(super) is_gap: bool,
    /// The number of entries there had been up to the end of the read, if it is known.
    added: Option<u64>,
}

impl Losses {
    /// Finds the losses that a read shows which began with this cursor.
    pub(super) fn find(&mut self, expected: Option<Cursor>, reading: &Reading) -> Findings {
        let after = expected.map_or((0, 0), |cursor| cursor.position.1);
        let end = reading.info.as_ref().map_or(after, |info| info.end);
        let (cursor, is_lost) = Cursor::resume(expected, reading.epoch, end);
        let is_new_epoch = expected.is_some_and(|cursor| cursor.position.0 != reading.epoch);
        let is_rewound = is_lost && (is_new_epoch || !self.is_behind);
        if is_new_epoch || self.epoch.is_some_and(|epoch| epoch != reading.epoch) {
            // This reader or another one counts it.
            self.is_behind = true;
        } else if reading.info.is_some() {
            self.is_behind = is_lost;
        }
        self.epoch = Some(reading.epoch);
        let known = self.counted.take().filter(|(at, _)| *at == cursor.position).map(|(_, count)| count);
        let missing = match &reading.info {
            Some(info) if expected.is_some() && !is_lost => missing(&cursor, known, info),
            _ => 0,
        };
        let added = match &reading.info {
            Some(info) if reading.is_complete => {
                let later = reading.entries.iter().filter(|(entry, _)| entry.id > info.end).count();
                info.added.map(|added| added + later as u64)
            }
            _ => known.map(|known| known + missing + reading.entries.len() as u64),
        };
        Findings { cursor, is_rewound, is_gap: missing > 0, added }
    }

    /// Notes that a read was applied up to this position, which is its end.
    pub(super) fn note_applied(&mut self, end: Position, found: &Findings) {
        self.counted = found.added.map(|added| (end, added));
    }
}

/// Returns how many entries after a cursor were trimmed, if `known` is the number there had been up to it. If that is not
/// known, returns 1 if the entry of the cursor is trimmed too, and others follow.
fn missing(cursor: &Cursor, known: Option<u64>, info: &Info) -> u64 {
    // A stream without an entry when this region joined.
    let is_new = cursor.position.1 == (0, 0) && cursor.began == (0, 0);
    match known.or(is_new.then_some(0)).zip(info.added) {
        Some((known, added)) => added.saturating_sub(info.length).saturating_sub(known),
        None => {
            let is_trimmed = info.first.is_none_or(|first| first > cursor.position.1);
            u64::from(is_trimmed && info.end > cursor.position.1 && cursor.position.1 > (0, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regions::reference::{Entry, Id};

    fn cursor(epoch: u64, id: u64) -> Cursor {
        Cursor { position: (epoch, (id, 0)), began: (0, 0) }
    }

    /// A read of these entries from a stream that once had `added` and now has those from `first`, each with its
    /// number as its ID.
    fn reading(epoch: u64, ids: &[u64], info: Option<(u64, u64)>) -> Reading {
        let id = |id: u64| -> Id { (id, 0) };
        let entry = |number: &u64| (Entry { id: id(*number), changes: Vec::new() }, 0);
        let info = info.map(|(first, added)| Info {
            end: id(added),
            first: (first <= added).then_some(id(first)),
            length: added + 1 - first,
            added: Some(added),
        });
        let entries = ids.iter().map(entry).collect();
        Reading { epoch, info, entries, is_complete: true, peer_us: 0, refused: None }
    }

    /// Returns whether a gap and a rewind are found, and notes that the read was applied.
    fn find(losses: &mut Losses, expected: Cursor, reading: &Reading) -> (bool, bool) {
        let found = losses.find(Some(expected), reading);
        let last = reading.entries.last().map_or(found.cursor.position.1, |(entry, _)| entry.id);
        losses.note_applied((reading.epoch, last), &found);
        (found.is_gap, found.is_rewound)
    }

    #[test]
    fn only_unread_entries_that_were_trimmed_are_a_gap() {
        let mut losses = Losses::default();
        // The stream was empty when this region joined.
        assert_eq!(find(&mut losses, cursor(7, 0), &reading(7, &[1, 2], Some((1, 2)))), (false, false));
        assert_eq!(find(&mut losses, cursor(7, 2), &reading(7, &[3], None)), (false, false));
        // All were trimmed after they were read, and others follow.
        assert_eq!(find(&mut losses, cursor(7, 3), &reading(7, &[4], Some((4, 4)))), (false, false));
        assert_eq!(find(&mut losses, cursor(7, 4), &reading(7, &[6], Some((6, 6)))), (true, false));
        assert_eq!(find(&mut losses, cursor(7, 6), &reading(7, &[], Some((7, 6)))), (false, false));
        // The only unread entry.
        assert_eq!(find(&mut losses, cursor(7, 6), &reading(7, &[], Some((8, 7)))), (true, false));
    }

    #[test]
    fn gap_of_unknown_length_is_found_by_the_entry_of_the_cursor() {
        for (first, is_gap) in [(3, false), (4, true), (5, true), (6, true)] {
            let read = reading(7, &[], Some((first, 5)));
            assert_eq!(find(&mut Losses::default(), cursor(7, 3), &read), (is_gap, false), "{first}");
        }
        let read = reading(7, &[], Some((6, 5)));
        assert_eq!(find(&mut Losses::default(), cursor(7, 5), &read), (false, false));
    }

    #[test]
    fn stream_that_ends_below_the_cursor_is_rewound_once() {
        let mut losses = Losses::default();
        assert_eq!(find(&mut losses, cursor(7, 9), &reading(7, &[], Some((1, 9)))), (false, false));
        assert_eq!(find(&mut losses, cursor(7, 9), &reading(7, &[], Some((1, 5)))), (false, true));
        assert_eq!(find(&mut losses, cursor(7, 9), &reading(7, &[], None)), (false, false));
        assert_eq!(find(&mut losses, cursor(7, 9), &reading(7, &[], Some((1, 6)))), (false, false));
        assert_eq!(find(&mut losses, cursor(7, 9), &reading(7, &[10], Some((1, 10)))), (false, false));
        assert_eq!(find(&mut losses, cursor(7, 10), &reading(7, &[], Some((1, 8)))), (false, true));
    }

    #[test]
    fn new_epoch_is_rewound_once() {
        let mut losses = Losses::default();
        assert_eq!(find(&mut losses, cursor(7, 9), &reading(7, &[], Some((1, 9)))), (false, false));
        assert_eq!(find(&mut losses, cursor(7, 9), &reading(8, &[], None)), (false, true));
        assert_eq!(find(&mut losses, cursor(8, 9), &reading(8, &[], Some((1, 0)))), (false, false));
        // Another replicator has stored it.
        assert_eq!(find(&mut losses, cursor(9, 9), &reading(9, &[], None)), (false, false));
        assert_eq!(find(&mut losses, cursor(9, 9), &reading(9, &[], Some((1, 0)))), (false, false));
    }
}
