//! A read, in parts that are applied one after the other.

use super::flusher::MAX_CHANGES;
use super::local::KnownPeer;
use super::stream::Reading;
use crate::regions::reference::{Batch, Cursor};

/// A part of a read, and how many changes in it were skipped.
pub(super) type ReadPart = (Batch, u64);

/// Cuts a read into whole entries with at most [`MAX_CHANGES`] changes in sum. `cursor` is that of the read. There is a
/// part even without an entry: it says that the peer was heard of.
pub(super) fn parts(before: &KnownPeer, cursor: Cursor, reading: Reading) -> Vec<ReadPart> {
    let Reading { entries, is_complete, peer_us, .. } = reading;
    let part = |expected: Option<Cursor>, next: Cursor| Batch {
        expected,
        next,
        entries: Vec::new(),
        read_us: before.now_us,
        peer_us,
        is_complete: false,
    };
    let mut parts = vec![(part(before.cursor, cursor), 0)];
    let mut changes = 0;
    for (entry, skipped) in entries {
        let last = &parts[parts.len() - 1].0;
        changes += entry.changes.len();
        if changes > MAX_CHANGES && !last.entries.is_empty() {
            changes = entry.changes.len();
            parts.push((part(Some(last.next), last.next), 0));
        }
        if let Some((batch, skips)) = parts.last_mut() {
            batch.next.position.1 = entry.id;
            batch.entries.push(entry);
            *skips += skipped;
        }
    }
    if let Some((batch, _)) = parts.last_mut() {
        batch.is_complete = is_complete;
    }
    parts
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::quota::Quota;
    use crate::regions::reference::gossip::Gossip;
    use crate::regions::reference::{Change, Entry, Field, Mode, Verb};

    /// Returns the parts of a read of entries with these numbers of changes: the last entry, the changes, and how many
    /// were skipped.
    fn cut(entries: &[(usize, u64)]) -> (Vec<(u64, usize, u64)>, Vec<Batch>) {
        let quota = Quota::sliding_log(10, std::time::Duration::from_secs(60));
        let mode = Mode::Gossip(Gossip { quota, regions: 2, debt: 20, carry: false });
        let change = |_| -> Change { (Field { verb: Verb::Charge, mode, name: 0, key: String::new() }, 1) };
        let cursor = Cursor { position: (7, (100, 0)), began: (50, 0) };
        let numbered = entries.iter().zip(101..);
        let entries = numbered.map(|(&(changes, skipped), id)| {
            (Entry { id: (id, 0), changes: (0..changes).map(change).collect() }, skipped)
        });
        let entries = entries.collect();
        let before =
            KnownPeer { cursor: Some(cursor), now_us: 9, heard_us: None, common: None, at: Instant::now() };
        let reading = Reading { epoch: 7, info: None, entries, is_complete: true, peer_us: 8, refused: None };
        let (batches, skips): (Vec<_>, Vec<_>) = parts(&before, cursor, reading).into_iter().unzip();
        let changes = |batch: &Batch| batch.entries.iter().map(|entry| entry.changes.len()).sum();
        let sizes = batches.iter().zip(skips);
        let sizes = sizes.map(|(batch, skipped)| (batch.next.position.1.0, changes(batch), skipped));
        (sizes.collect(), batches)
    }

    #[test]
    fn parts_are_whole_entries_and_follow_each_other() {
        let (sizes, batches) = cut(&[(100, 0), (28, 1), (1, 0), (128, 2), (0, 129), (128, 0)]);
        assert_eq!(sizes, [(102, 128, 1), (103, 1, 0), (105, 128, 131), (106, 128, 0)]);
        for pair in batches.windows(2) {
            assert_eq!(pair[1].expected, Some(pair[0].next));
            assert!(!pair[0].is_complete);
        }
        assert!(batches[3].is_complete);
        assert!(batches.iter().all(|batch| batch.next.began == (50, 0) && batch.read_us == 9));
    }

    #[test]
    fn read_without_an_entry_is_one_part_that_keeps_the_cursor() {
        let (sizes, batches) = cut(&[]);
        assert_eq!(sizes, [(100, 0, 0)]);
        assert!(batches[0].is_complete && batches[0].expected == Some(batches[0].next));
    }
}
