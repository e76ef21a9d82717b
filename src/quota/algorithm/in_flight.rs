//! In-flight limit: at most so many units are held at the same time, by processes with a lease.

use std::collections::BTreeMap;

use super::definition::{
    Algorithm, Definition, EXACT, Parameters, RawState, State, Storage, deserialize, exact_number,
};
use crate::error::Error;
use crate::quota::Invalid;
use crate::script::{Script, Scripts, allow_oom, lua, scripts, with_bound, with_prelude};

pub(super) static DEFINITION: Definition = Definition {
    name: "in_flight",
    scripts: &SCRIPTS,
    storage: Storage::Holders,
    fields: 2,
    work: 4,
    token_code: None,
    parameters: Parameters::Count,
    words: "in flight",
    limit_name: "UNITS",
    help: "The units that may be held at the same time",
};

/// Composes `acquire` after this first line.
macro_rules! acquire {
    ($first_line:expr) => {
        concat!(
            $first_line,
            with_bound!(""),
            lua!("in_flight/fast_acquire"),
            "local function slow_path(call, format, now, stamp)\n",
            lua!("prelude"),
            lua!("quota/hash_state"),
            lua!("quota/in_flight"),
            lua!("in_flight/slow_acquire"),
            "end\n",
            lua!("in_flight/acquire")
        )
    };
}

static SCRIPTS: Scripts = Scripts {
    take: Script::bounded("acquire", acquire!("")),
    refund: None,
    penalize: None,
    charge_used: None,
    block: scripts!(@write "block", "in_flight", "", "hash_state", "in_flight"),
};

/// Processes messages without acquires as `lua/in_flight/acquire.lua` does, also while the memory of Redis is full.
pub static REPORT: Script = Script::bounded("report", acquire!(allow_oom!()));

/// The maximum limit: the scripts write counts of 14 digits.
const MAX_LIMIT: u64 = 1_000_000_000_000;
/// How long Redis keeps a key after its last write, at least. At most a quarter longer.
pub(crate) const KEPT_US: u64 = 3_600_000_000;
/// A key's expiry changes once per quarter.
pub(crate) const QUARTER_US: u64 = KEPT_US / 4;
/// The hint after a denial. A waiting caller polls after this time at first.
const FIRST_POLL_US: u64 = 10_000;

/// The numbers of an [in-flight limit](crate::Quota::in_flight).
///
/// Its [`RawState`] is `[held, sure_until, 0]`: the units held, where those that the sender of a message keeps
/// replace its own; and the earliest time at which a holder can lapse, in µs since 1970, 0 if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct InFlight {
    /// The units that may be held at the same time, from 1 to 10^12.
    pub limit: u64,
}

deserialize!(InFlight { limit: u64 } Self::build(limit));

impl InFlight {
    pub(crate) const fn build(limit: u64) -> Result<Self, Invalid> {
        match limit {
            1..=MAX_LIMIT => Ok(Self { limit }),
            _ => Err(Invalid("an in-flight limit must be 1 to 10^12 units")),
        }
    }

    /// Makes the quota from its [`args`](Self::args). Ignores the second number: earlier versions stored how long a
    /// process kept its place in a queue.
    pub(super) fn of_args([limit, ..]: [u64; 4]) -> Result<Self, Error> {
        Self::build(limit).map_err(Invalid::into_error)
    }

    pub(super) fn share(&self, instances: u64) -> Self {
        Self { limit: self.limit.div_ceil(instances) }
    }

    /// Returns the arguments of the scripts: see [`Kind::args`](super::Kind::args).
    pub(super) const fn args(&self) -> [u64; 4] {
        [self.limit, 0, 0, 0]
    }
}

/// Returns the time to store in a write at `now`. It does not decrease, so that steps of the clock back and forth do
/// not shorten the key's life, unless it is too far ahead to be that of a write.
pub(crate) fn written_at(before_us: u64, now: u64) -> u64 {
    if (now..=now + KEPT_US).contains(&before_us) { before_us } else { now }
}

impl Algorithm for InFlight {
    fn is_possible(&self, raw: RawState, _: u64) -> bool {
        raw.iter().all(|number| *number <= EXACT)
    }

    /// Returns the counts of the last scan: a scan needs the leases, which are stored apart.
    fn settle(&self, state: &State, _: u64) -> RawState {
        let State::InFlight(holdings) = state else { return RawState::default() };
        [holdings.held, holdings.sure_until_us, 0]
    }

    fn is_ahead(&self, _: &State, _: u64) -> bool {
        false
    }

    fn afford(&self, [held, ..]: RawState, n: u64, cost: u64, _: u64, _: Option<u64>) -> u64 {
        n.min(self.limit.saturating_sub(held) / cost)
    }

    /// Only for a changed block: the units of a holder change by its messages.
    fn charge(&self, state: &mut State, [held, sure_until_us, _]: RawState, units: u64, now: u64) {
        if !matches!(state, State::InFlight(_)) {
            *state = State::InFlight(Holdings { sure_until_us: now, ..Holdings::default() });
        }
        if let State::InFlight(holdings) = state {
            holdings.held = held + units;
            holdings.sure_until_us = holdings.sure_until_us.max(sure_until_us);
            holdings.written_us = written_at(holdings.written_us, now);
        }
    }

    /// Returns nothing: a release is a message.
    fn give_back(&self, _: &mut State, _: u64, _: Option<u64>, _: u64) -> bool {
        false
    }

    fn after(&self, [held, sure_until_us, _]: RawState, units: u64, _: u64) -> RawState {
        [held.saturating_add(units).min(EXACT), sure_until_us, 0]
    }

    fn remaining(&self, [held, ..]: RawState, _: u64) -> u64 {
        self.limit.saturating_sub(held)
    }

    fn room(&self, most: u64, [held, ..]: RawState, _: u64) -> u64 {
        most.saturating_sub(held)
    }

    /// Returns a hint: the time of the next release is unknown.
    fn retry_after(&self, [held, sure_until_us, _]: RawState, cost: u64, _: Option<u64>, now: u64) -> u64 {
        if held.saturating_add(cost) <= self.limit {
            return 0;
        }
        match sure_until_us.saturating_sub(now) {
            0 => FIRST_POLL_US,
            left_us => FIRST_POLL_US.min(left_us),
        }
    }

    fn reset_after(&self, [held, sure_until_us, _]: RawState, now: u64) -> u64 {
        if held > 0 { sure_until_us.saturating_sub(now).max(1) } else { 0 }
    }

    fn kept_until(&self, _: RawState, now: u64) -> u64 {
        now - now % QUARTER_US + QUARTER_US + KEPT_US
    }

    fn predicts(&self) -> bool {
        false
    }

    fn unleasable(&self) -> Option<&'static str> {
        Some(
            "units of an in-flight limit cannot be leased, since each permit is held by its process: use it without `leased`",
        )
    }

    fn parse(&self, text: &str) -> Option<(State, Option<[u64; 4]>)> {
        let (units, rest) = text.split_once('/')?;
        let (limit, rest) = rest.split_once(" at ")?;
        let (written, sure_until) = rest.split_once(" sure until ")?;
        let holdings = Holdings {
            held: exact_number(units)?,
            sure_until_us: exact_number(sure_until)?,
            written_us: exact_number(written)?,
            ..Holdings::default()
        };
        Some((State::InFlight(holdings), Some([exact_number(limit)?, 0, 0, 0])))
    }
}

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
