//! A read, in parts that are applied one after the other.

use super::flusher::MAX_CHANGES;
use super::local::Before;
use super::stream::Reading;
use crate::regions::reference::{Batch, Cursor};

/// A part of a read, and how many changes in it were skipped.
pub(super) type Part = (Batch, u64);

/// Cuts a read into whole entries with at most [`MAX_CHANGES`] changes in sum. `cursor` is that of the read. There is a
/// part even without an entry: it says that the peer was heard of.
pub(super) fn parts(before: &Before, cursor: Cursor, reading: Reading) -> Vec<Part> {
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
