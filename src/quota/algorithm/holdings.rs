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
}

/// The units of one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The units, above 0.
    pub units: u64,
    /// The number of the message that set them.
    pub number: u64,
}
