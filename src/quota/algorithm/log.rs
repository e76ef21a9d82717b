//! The charges that a sliding log keeps.

use std::collections::VecDeque;

/// The maximum number of entries that one charge removes or re-dates one by one, so that no call is long.
const TRIM: usize = 256;
/// The maximum usage, so that debt stays exact in a double; at this value the running total restarts.
pub(super) const MAX_TOTAL: u64 = 1 << 52;

/// The entries of a sliding log in order of time, one for each take of any cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log(pub(super) VecDeque<LogEntry>);

/// One charge in a sliding log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The time of the charge, in µs since 1970.
    pub at_us: u64,
    /// The running total of units after the charge, at most 2^52. The units between two entries are a
    /// difference of totals.
    pub total: u64,
    /// The charged units.
    pub units: u64,
}

impl Log {
    /// Returns the entries that count at `now`, in µs since 1970, oldest first.
    pub fn live(&self, window_us: u64, now: u64) -> impl Iterator<Item = LogEntry> + '_ {
        self.0.range(self.stale(window_us, now)..).copied()
    }

    /// Returns the number of entries that have left the window.
    pub(super) fn stale(&self, window_us: u64, now: u64) -> usize {
        self.0.partition_point(|entry| entry.at_us + window_us <= now)
    }

    pub(super) fn total(&self) -> u64 {
        self.0.back().map_or(0, |entry| entry.total)
    }

    /// Returns the total before the entry at `index`.
    pub(super) fn total_before(&self, index: usize) -> u64 {
        match index.checked_sub(1) {
            Some(before) => self.0[before].total,
            None => self.0.front().map_or(0, |entry| entry.total - entry.units),
        }
    }

    /// Merges entries dated in the future into one entry dated `now`. If there are many, merges all entries
    /// in the window, whose units are `used`.
    pub(super) fn redate(&mut self, used: u64, now: u64) {
        let first = self.0.partition_point(|entry| entry.at_us <= now);
        let ahead = self.0.len() - first;
        if ahead > TRIM {
            self.merge(used, now);
        } else if ahead > 0 {
            let total = self.total();
            let units = total - self.total_before(first);
            self.0.truncate(first);
            self.0.push_back(LogEntry { at_us: now, total, units });
        }
    }

    /// Merges the entries in the window into one entry of `used` units, which leaves the window late, never
    /// early. The running total restarts.
    fn merge(&mut self, used: u64, at_us: u64) {
        self.0.clear();
        if used > 0 {
            self.0.push_back(LogEntry { at_us, total: used, units: used });
        }
    }

    pub(super) fn push(&mut self, units: u64, used: u64, now: u64) {
        if self.total() + units > MAX_TOTAL {
            self.merge(used, self.0.back().map_or(now, |entry| entry.at_us));
        }
        self.0.push_back(LogEntry { at_us: now, total: self.total() + units, units });
    }

    /// Makes `base` the running total before the entries that count. There is at least one after the first
    /// `stale` entries. Stale entries stay: they count again if the clock is stepped back.
    pub(super) fn forget_up_to(&mut self, base: u64, stale: usize) {
        if base == self.total() {
            return self.0.clear();
        }
        let stays = self.0.partition_point(|entry| entry.total <= base);
        self.0[stays].units = self.0[stays].total - base;
        if let Some(newest) = stale.checked_sub(1) {
            let LogEntry { at_us, total, units } = self.0[newest];
            self.0[newest] = LogEntry { at_us, total: base, units: units + base - total };
        }
        self.0.drain(stale..stays);
    }

    pub(super) fn trim(&mut self, gone: usize) {
        self.0.drain(..gone.min(TRIM));
    }
}
