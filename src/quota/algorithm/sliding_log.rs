//! Sliding log: every charge with its time, so that no window of the length holds more than the limit.

use std::time::Duration;

use super::definition::{Algorithm, Definition, EXACT, Parameters, RawState, State, Storage, deserialize};
use super::log::{Log, MAX_TOTAL};
use crate::error::Error;
use crate::quota::{Invalid, Window, limit_and_window};
use crate::script::scripts;

pub(super) static DEFINITION: Definition = Definition {
    name: "sliding_log",
    scripts: scripts!("sliding_log", "fast_nothing", "sliding_log"),
    storage: Storage::Log,
    fields: 3,
    work: 5,
    token_code: Some(3),
    parameters: Parameters::Window,
    words: "sliding log",
    limit_name: "LIMIT",
    help: "The units in any period of --window",
};

/// The numbers of a [sliding log](crate::Quota::sliding_log).
///
/// Its [`RawState`] is `[used, newest_us, retry_at_us]`: the units in the window, the time of the newest
/// charge, and the time of the charge that must leave the window before another check of this cost is
/// admitted (0 if none must). Times are in µs since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SlidingLog {
    /// The units in any period of the window's length, from 1 to 2^48.
    pub limit: u64,
    /// The length of the window, in µs, from 1 ms to ten years.
    pub window_us: u64,
    /// Whether denied checks are charged too: see [`Quota::count_denied`](crate::Quota::count_denied).
    pub count_denied: bool,
}

deserialize!(SlidingLog { limit: u64, window_us: u64, #[serde(default)] count_denied: bool } {
    Self::build(limit, Duration::from_micros(window_us)).map(|log| Self { count_denied, ..log })
});

impl SlidingLog {
    pub(crate) const fn build(limit: u64, window: Duration) -> Result<Self, Invalid> {
        match limit_and_window(limit, window) {
            Ok(window_us) => Ok(Self { limit, window_us, count_denied: false }),
            Err(invalid) => Err(invalid),
        }
    }

    /// Makes the quota from its [`args`](Self::args).
    pub(super) fn of_args(args: [u64; 4]) -> Result<Self, Error> {
        let [limit, window_us, count_denied, _] = args;
        let log = Self::build(limit, Duration::from_micros(window_us)).map_err(Invalid::into_error)?;
        Ok(Self { count_denied: count_denied != 0, ..log })
    }

    pub(super) fn share(&self, instances: u64) -> Self {
        Self { limit: self.limit.div_ceil(instances), ..*self }
    }

    /// Returns the arguments of the scripts: see [`Kind::args`](super::Kind::args).
    pub(super) const fn args(&self) -> [u64; 4] {
        [self.limit, self.window_us, self.count_denied as u64, 0]
    }
}

impl Algorithm for SlidingLog {
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
        log.redate(used, now);
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
        log.redate(used, now);
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

    fn room(&self, most: u64, [used, ..]: RawState, _: u64) -> u64 {
        most.min(MAX_TOTAL).saturating_sub(used)
    }

    fn retry_after(&self, [used, _, retry_at_us]: RawState, cost: u64, _: Option<u64>, now: u64) -> u64 {
        if used + cost > self.limit { (retry_at_us + self.window_us).saturating_sub(now) } else { 0 }
    }

    fn reset_after(&self, [used, newest_us, _]: RawState, now: u64) -> u64 {
        if used > 0 { newest_us + self.window_us - now } else { 0 }
    }

    fn window(&self) -> Option<Window> {
        Some(Window { us: self.window_us, aligned_us: None, calendar: None })
    }

    fn counts_denied(&self) -> bool {
        self.count_denied
    }

    /// Counts all units until the newest of them leaves the window, since `raw` does not tell when the others do.
    fn later(&self, raw @ [_, newest_us, _]: RawState, _: u64, now: u64) -> RawState {
        if newest_us + self.window_us > now { raw } else { [0; 3] }
    }

    /// Returns false, since `raw` does not hold the times of all entries.
    fn predicts(&self) -> bool {
        false
    }

    fn unleasable(&self) -> Option<&'static str> {
        self.count_denied.then_some(
            "a sliding log that counts denied checks cannot be leased, since Redis must see every check: leave out `count_denied` or `leased`",
        )
    }
}
