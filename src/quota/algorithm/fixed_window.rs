//! Fixed window: a count that restarts with each window.

use std::time::Duration;

use super::definition::{Algorithm, Definition, EXACT, Parameters, RawState, State, Storage, exact_number};
use crate::error::Error;
use crate::quota::{Calendar, Invalid, Window, check_limit, limit_and_window, whole_micros};
use crate::script::scripts;

pub(super) static DEFINITION: Definition = Definition {
    name: "fixed_window",
    scripts: scripts!("fixed_window", "fast_fixed_window", "hash_state", "fixed_window"),
    storage: Storage::Count,
    fields: 2,
    work: 2,
    token_code: Some(2),
    parameters: Parameters::Window,
    words: "",
    limit_name: "LIMIT",
    help: "The units per --window, which begins with its first unit",
};

/// The maximum count, so that debt stays exact in a double.
const MAX_UNITS: u64 = 1 << 52;

/// The numbers of a [fixed window](crate::Quota::fixed_window).
///
/// Its [`RawState`] is `[used, end_ms, 0]`: the used units, and the end of the window in ms since 1970. If no
/// units are used, `end_ms` is the end of the window that a charge would begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "Serialized", try_from = "Serialized"))]
pub struct FixedWindow {
    /// The units per window, from 1 to 2^48.
    pub limit: u64,
    /// The length of a window, in µs, from 1 ms to ten years. Of windows of a calendar, their mean length.
    pub window_us: u64,
    /// `Some(offset)`: windows begin at multiples of their length since 1970, plus `offset` µs, which is less
    /// than `window_us`. `None`: a window begins with its first charge.
    pub aligned_us: Option<u64>,
    /// `Some`: the windows are those of this calendar, and `aligned_us` is `None`.
    pub(crate) calendar: Option<Calendar>,
}

impl FixedWindow {
    pub(crate) const fn build(limit: u64, window: Duration) -> Result<Self, Invalid> {
        match limit_and_window(limit, window) {
            Ok(window_us) => Ok(Self { limit, window_us, aligned_us: None, calendar: None }),
            Err(invalid) => Err(invalid),
        }
    }

    pub(crate) const fn of_calendar(limit: u64, calendar: Calendar) -> Result<Self, Invalid> {
        match check_limit(limit) {
            Ok(()) => {
                let window_us = calendar.mean_us();
                Ok(Self { limit, window_us, aligned_us: None, calendar: Some(calendar) })
            }
            Err(invalid) => Err(invalid),
        }
    }

    pub(crate) const fn aligned_at(self, offset: Duration) -> Result<Self, Invalid> {
        if self.calendar.is_some() {
            return Err(Invalid("a calendar window is aligned to its calendar, not to the clock"));
        }
        match whole_micros(offset, 0) {
            Some(offset_us) if offset_us < self.window_us => Ok(Self { aligned_us: Some(offset_us), ..self }),
            _ => Err(Invalid("an offset must be whole microseconds and shorter than the window")),
        }
    }

    /// Makes the quota from its [`args`](Self::args).
    pub(super) fn of_args(args: [u64; 4]) -> Result<Self, Error> {
        let [limit, window_us, is_aligned, offset_us] = args;
        let fixed = Self::build(limit, Duration::from_micros(window_us)).map_err(Invalid::into_error)?;
        match is_aligned {
            0 => Ok(fixed),
            _ => fixed.aligned_at(Duration::from_micros(offset_us)).map_err(Invalid::into_error),
        }
    }

    pub(super) fn share(&self, instances: u64) -> Self {
        Self { limit: self.limit.div_ceil(instances), ..*self }
    }

    /// Returns the arguments of the scripts: see [`Kind::args`](super::Kind::args).
    pub(super) const fn args(&self) -> [u64; 4] {
        match self.aligned_us {
            None => [self.limit, self.window_us, 0, 0],
            Some(offset_us) => [self.limit, self.window_us, 1, offset_us],
        }
    }

    /// Returns the arguments for a call at `now`: see [`Kind::args_at`](super::Kind::args_at). The window of the
    /// calendar is sent as one that is aligned to the clock: its length, and its beginning as the offset.
    pub(super) fn args_at(&self, now: u64) -> [u64; 4] {
        match &self.calendar {
            None => self.args(),
            Some(calendar) => {
                let window = calendar.window_at(now);
                [self.limit, window.end - window.start, 1, window.start]
            }
        }
    }

    /// Returns whether the windows are those of a calendar, which differ in length.
    #[must_use]
    pub const fn has_calendar(&self) -> bool {
        self.calendar.is_some()
    }

    /// Returns the end of the window that a charge would begin. Windows begin and end with a millisecond,
    /// since Redis expires keys by the millisecond.
    fn end_ms(&self, now: u64) -> u64 {
        if let Some(calendar) = &self.calendar {
            return calendar.window_at(now).end / 1_000;
        }
        let now = now - now % 1_000;
        let start = match self.aligned_us {
            None => now,
            Some(offset) => now - (now + self.window_us - offset) % self.window_us,
        };
        (start + self.window_us).div_ceil(1_000)
    }

    /// Returns whether a window with this end can contain `now`. If it ends later, the server's clock was
    /// stepped back.
    fn contains(&self, end_ms: u64, now: u64) -> bool {
        let latest = self.end_ms(now);
        let is_aligned = self.aligned_us.is_some() || self.calendar.is_some();
        let earliest = if is_aligned { latest } else { now / 1_000 + 1 };
        (earliest..=latest).contains(&end_ms)
    }
}

impl Algorithm for FixedWindow {
    fn is_possible(&self, [used, end_ms, _]: RawState, now: u64) -> bool {
        used <= EXACT && self.contains(end_ms, now)
    }

    fn settle(&self, state: &State, now: u64) -> RawState {
        match *state {
            State::Window { used, end_ms } if used > 0 && end_ms * 1_000 > now => {
                let end_ms = if self.contains(end_ms, now) { end_ms } else { self.end_ms(now) };
                [used, end_ms, 0]
            }
            _ => [0, self.end_ms(now), 0],
        }
    }

    fn is_ahead(&self, state: &State, now: u64) -> bool {
        let [used, settled_ms, _] = self.settle(state, now);
        matches!(*state, State::Window { end_ms, .. } if used > 0 && end_ms != settled_ms)
    }

    fn afford(&self, [used, ..]: RawState, n: u64, cost: u64, _: u64, _: Option<u64>) -> u64 {
        n.min(self.limit.saturating_sub(used) / cost)
    }

    fn charge(&self, state: &mut State, raw: RawState, units: u64, now: u64) {
        let [used, end_ms, _] = self.after(raw, units, now);
        *state = State::Window { used, end_ms };
    }

    /// Returns the end of the window, since its start is not stored.
    fn stamp(&self, [_, end_ms, _]: RawState, _: u64) -> u64 {
        end_ms * 1_000
    }

    /// Returns the end of the window of the charge; 0 if the state counts another one.
    fn stamp_at(&self, state: &State, charged_us: u64, now: u64) -> u64 {
        let [_, settled_ms, _] = self.settle(state, now);
        match *state {
            State::Window { end_ms, .. } if self.end_ms(charged_us.min(now)) >= settled_ms => end_ms * 1_000,
            _ => 0,
        }
    }

    fn counts_for(&self, now: u64) -> u64 {
        let [_, window_us, ..] = self.args_at(now);
        window_us + 1_000
    }

    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool {
        let [used, settled_ms, _] = self.settle(state, now);
        let State::Window { end_ms, .. } = *state else { return false };
        let counts = units.min(used) > 0 && stamp.is_none_or(|stamp| stamp == end_ms * 1_000);
        if counts {
            *state = State::Window { used: used.saturating_sub(units), end_ms: settled_ms };
        }
        counts
    }

    fn after(&self, [used, end_ms, _]: RawState, units: u64, _: u64) -> RawState {
        [used.saturating_add(units).min(MAX_UNITS), end_ms, 0]
    }

    fn remaining(&self, [used, ..]: RawState, _: u64) -> u64 {
        self.limit.saturating_sub(used)
    }

    fn room(&self, most: u64, [used, ..]: RawState, _: u64) -> u64 {
        most.min(MAX_UNITS).saturating_sub(used)
    }

    fn retry_after(&self, raw: RawState, cost: u64, _: Option<u64>, now: u64) -> u64 {
        if raw[0] + cost > self.limit { self.reset_after(raw, now) } else { 0 }
    }

    fn reset_after(&self, [used, end_ms, _]: RawState, now: u64) -> u64 {
        if used > 0 { end_ms * 1_000 - now } else { 0 }
    }

    fn window(&self) -> Option<Window> {
        Some(Window { us: self.window_us, aligned_us: self.aligned_us, calendar: self.calendar })
    }

    fn leased_until(&self, stamp: u64) -> Option<u64> {
        Some(stamp)
    }

    fn is_stamp_the_end(&self) -> bool {
        true
    }

    fn parse(&self, text: &str) -> Option<(State, Option<[u64; 4]>)> {
        let (used, end) = text.split_once(" until ")?;
        Some((State::Window { used: exact_number(used)?, end_ms: exact_number(end)? / 1_000 }, None))
    }
}

/// The serialized form. A calendar window has a calendar in place of a length.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Serialized {
    limit: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aligned_to_clock_at_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calendar: Option<Calendar>,
}

#[cfg(feature = "serde")]
impl From<FixedWindow> for Serialized {
    fn from(fixed: FixedWindow) -> Self {
        Self {
            limit: fixed.limit,
            window_us: (!fixed.has_calendar()).then_some(fixed.window_us),
            aligned_to_clock_at_us: fixed.aligned_us,
            calendar: fixed.calendar,
        }
    }
}

#[cfg(feature = "serde")]
impl TryFrom<Serialized> for FixedWindow {
    type Error = &'static str;

    fn try_from(data: Serialized) -> Result<Self, Self::Error> {
        let fixed = match (data.window_us, data.calendar) {
            (Some(window_us), None) => Self::build(data.limit, Duration::from_micros(window_us)),
            (None, Some(calendar)) => Self::of_calendar(data.limit, calendar),
            (None, None) => return Err("missing field `window_us`"),
            (Some(_), Some(_)) => return Err("`window_us` cannot be combined with `calendar`"),
        };
        let fixed = match data.aligned_to_clock_at_us {
            Some(offset) => fixed.and_then(|fixed| fixed.aligned_at(Duration::from_micros(offset))),
            None => fixed,
        };
        fixed.map_err(|invalid| invalid.0)
    }
}
