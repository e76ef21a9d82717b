//! The units that processes hold of one key of an in-flight limit.

use std::collections::BTreeMap;

/// The state of one key of an in-flight limit: its holders and their units.
///
/// `held` and `sure_until_us` summarize the holders, so that most decisions need no scan of all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// The units of the holders that were live at the last scan, with the changes since.
    pub held: u64,
    /// The earliest time at which a holder can lapse, in µs since 1970. Before it, `held` is exact.
    pub sure_until_us: u64,
    /// The time of the last write, in µs since 1970. After a step back of the clock, that of the latest.
    pub written_us: u64,
    /// The units of each holder, by its name.
    pub holders: BTreeMap<String, Holding>,
    /// The holders that wait for units, in order of arrival. Only fair gates have a queue.
    pub queue: Vec<Waiting>,
}

/// The units of one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The units, above 0.
    pub units: u64,
    /// The number of the message that set them.
    pub number: u64,
}

/// A place in the queue of a fair gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The name of the holder that waits.
    pub holder: String,
    /// The units that it waits for.
    pub units: u64,
    /// The time of its last message, in µs since 1970. The place ends one patience later.
    pub seen_us: u64,
}

impl Waiting {
    /// Returns whether the place counts at `now`. After a step of the clock, it counts if `seen_us` is less
    /// than `patience_us` away in either direction.
    pub(crate) fn counts(&self, patience_us: u64, now: u64) -> bool {
        self.seen_us.abs_diff(now) < patience_us
    }
}
