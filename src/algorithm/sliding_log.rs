//! Sliding log: every charge with its time, so that no window of the length holds more than the limit.
//!
//! `RawState` is `[used, newest_us, retry_at_us]`: the units in the window, the time of the newest charge,
//! and the time of the charge that must leave the window before another check of this cost is admitted (0 if
//! none must).

use std::collections::VecDeque;

use super::{Algorithm, EXACT, RawState, State};
use crate::quota::SlidingLog;

/// The maximum number of entries that one charge removes, so that no call is long.
const TRIM: usize = 256;
/// The maximum usage, so that debt stays exact in a double; at this value the running total restarts.
const MAX_TOTAL: u64 = 1 << 52;

/// Entries in order of time, one for each take of any cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log(VecDeque<LogEntry>);

/// The time of a charge, and the running total after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub at_us: u64,
    pub total: u64,
    pub units: u64,
}

impl Log {
    /// Returns the entries that count at `now`, oldest first.
    pub fn live(&self, window_us: u64, now: u64) -> impl Iterator<Item = LogEntry> + '_ {
        self.0.range(self.stale(window_us, now)..).copied()
    }

    /// Returns the number of entries that have left the window.
    fn stale(&self, window_us: u64, now: u64) -> usize {
        self.0.partition_point(|entry| entry.at_us + window_us <= now)
    }

    fn total(&self) -> u64 {
        self.0.back().map_or(0, |entry| entry.total)
    }

    /// Returns the total before the entry at `index`.
    fn total_before(&self, index: usize) -> u64 {
        match index.checked_sub(1) {
            Some(before) => self.0[before].total,
            None => self.0.front().map_or(0, |entry| entry.total - entry.units),
        }
    }

    /// Merges entries dated in the future into one entry dated `now`.
    fn redate(&mut self, now: u64) {
        let first = self.0.partition_point(|entry| entry.at_us <= now);
        if first < self.0.len() {
            let total = self.total();
            let units = total - self.total_before(first);
            self.0.truncate(first);
            self.0.push_back(LogEntry { at_us: now, total, units });
        }
    }

    fn push(&mut self, units: u64, used: u64, now: u64) {
        if self.total() + units > MAX_TOTAL {
            let newest = self.0.back().map_or(now, |entry| entry.at_us);
            self.0.clear();
            if used > 0 {
                self.0.push_back(LogEntry { at_us: newest, total: used, units: used });
            }
        }
        self.0.push_back(LogEntry { at_us: now, total: self.total() + units, units });
    }

    /// Makes `base` the running total before the entries that count. There is at least one after the first
    /// `stale` entries. Stale entries stay: they count again if the clock is stepped back.
    fn forget_up_to(&mut self, base: u64, stale: usize) {
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

    fn trim(&mut self, gone: usize) {
        self.0.drain(..gone.min(TRIM));
    }
}

impl Algorithm for SlidingLog {
    fn fields(&self) -> usize {
        3
    }

    fn is_possible(&self, [used, newest_us, retry_at_us]: RawState, now: u64) -> bool {
        let is_live = used == 0 || (newest_us <= now && now - newest_us < self.window_us);
        used.max(retry_at_us) <= EXACT && is_live
    }

    fn settle(&self, state: &State, now: u64) -> RawState {
        let State::Log(log) = state else { return [0; 3] };
        let stale = log.stale(self.window_us, now);
        if stale == log.0.len() {
            return [0; 3];
        }
        let newest = log.0.back().map_or(0, |entry| entry.at_us.min(now));
        [log.total() - log.total_before(stale), newest, 0]
    }

    fn is_ahead(&self, state: &State, now: u64) -> bool {
        matches!(state, State::Log(log) if log.0.back().is_some_and(|entry| entry.at_us > now))
    }

    fn afford(&self, [used, ..]: RawState, n: u64, cost: u64, _: u64, _: Option<u64>) -> u64 {
        n.min(self.limit.saturating_sub(used) / cost)
    }

    fn charge(&self, state: &mut State, [used, ..]: RawState, units: u64, now: u64) {
        if !matches!(state, State::Log(_)) {
            *state = State::Log(Log::default());
        }
        let State::Log(log) = state else { return };
        log.redate(now);
        let units = units.min(MAX_TOTAL.saturating_sub(used));
        if units == 0 {
            return;
        }
        log.push(units, used, now);
        let gone = if self.count_denied {
            // Only the newest `limit` units can ever deny.
            let old = log.total().saturating_sub(self.limit);
            log.0.partition_point(|entry| entry.total <= old)
        } else {
            0
        };
        log.trim(gone.max(log.stale(self.window_us, now)));
    }

    fn charge_of_denied(&self, denied: u64, cost: u64) -> u64 {
        if self.count_denied { denied.saturating_mul(cost).min(self.limit) } else { 0 }
    }

    /// Removes the oldest units first: they would have been the first to leave.
    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool {
        let [used, ..] = self.settle(state, now);
        let State::Log(log) = state else { return false };
        if units.min(used) == 0 || stamp.is_some_and(|stamp| stamp + self.window_us <= now) {
            return false;
        }
        log.redate(now);
        log.forget_up_to(log.total() - used + units.min(used), log.stale(self.window_us, now));
        true
    }

    fn after(&self, [used, newest_us, retry_at_us]: RawState, units: u64, now: u64) -> RawState {
        let units = units.min(MAX_TOTAL.saturating_sub(used));
        [used + units, if units > 0 { now } else { newest_us }, retry_at_us]
    }

    fn complete(&self, [used, newest_us, _]: RawState, state: &State, cost: u64, now: u64) -> RawState {
        let State::Log(log) = state else { return [used, newest_us, 0] };
        let cost = cost.max(1);
        let [used_after, ..] = self.settle(state, now);
        let retry_at_us = if used_after + cost > self.limit {
            let needed = log.total() - (self.limit - cost);
            let index = log.0.partition_point(|entry| entry.total < needed);
            log.0.get(index).map_or(0, |entry| entry.at_us.min(now))
        } else {
            0
        };
        [used, newest_us, retry_at_us]
    }

    fn remaining(&self, [used, ..]: RawState, _: u64) -> u64 {
        self.limit.saturating_sub(used)
    }

    fn retry_after(&self, [used, _, retry_at_us]: RawState, cost: u64, _: Option<u64>, now: u64) -> u64 {
        if used + cost > self.limit { (retry_at_us + self.window_us).saturating_sub(now) } else { 0 }
    }

    fn reset_after(&self, [used, newest_us, _]: RawState, now: u64) -> u64 {
        if used > 0 { newest_us + self.window_us - now } else { 0 }
    }
}
