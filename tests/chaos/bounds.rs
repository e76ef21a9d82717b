//! The number of units that may be admitted under a fault.

use std::time::Duration;

use tidegate::algorithm::{FixedWindow, Kind};
use tidegate::{Quota, Rate};

use crate::support::fixture::{History, quotas};
use crate::support::load::Checked;

use super::faults::Ground;

const YEAR: Duration = Duration::from_secs(365 * 86_400);
const HOT: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct Gate {
    pub class: Class,
    pub name: String,
    pub quota: Quota,
    /// The share of one process.
    pub share: Quota,
    /// Number of tasks that check this gate in each process.
    pub tasks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Units become free continuously.
    Hot,
    /// One key, exhausted before the fault begins. No units become free.
    Scarce,
    /// Each key is checked for half a second. No units become free.
    Fresh,
    /// Never denies.
    Plenty,
}

pub fn gates(processes: u64) -> Vec<Gate> {
    let mut gates = Vec::new();
    for (class, limit, window) in
        [(Class::Hot, 60, HOT), (Class::Scarce, 100, YEAR), (Class::Fresh, 40, YEAR)]
    {
        for ((name, quota), share) in quotas(limit, window).into_iter().zip(shares(limit, window, processes))
        {
            let name = format!("{class:?}.{name}").to_lowercase();
            gates.push(Gate { class, name, quota, share, tasks: 1 });
        }
    }
    let plenty = Quota::token_bucket(1_000_000, Rate::per_second(1_000_000));
    gates.push(Gate {
        class: Class::Plenty,
        name: "plenty".to_owned(),
        quota: plenty,
        share: plenty,
        tasks: 2,
    });
    gates
}

/// Returns the share of one process for each of [`quotas`]: of a bucket's capacity and rate, of a window's
/// limit.
fn shares(limit: u64, window: Duration, processes: u64) -> impl Iterator<Item = Quota> {
    let part = limit.div_ceil(processes);
    let rate = Rate::new(limit, window * u32::try_from(processes).unwrap());
    quotas(part, window).into_iter().map(move |(name, quota)| match name {
        "token" => Quota::token_bucket(part, rate),
        "leaky" => Quota::leaky_bucket(part, rate),
        _ => quota,
    })
}

/// Units admitted, and the largest number permitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admitted {
    pub admitted: u64,
    pub permitted: u64,
}

impl Admitted {
    pub fn is_within_bound(self) -> bool {
        self.admitted <= self.permitted
    }
}

impl std::ops::AddAssign for Admitted {
    fn add_assign(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.permitted += other.permitted;
    }
}

/// Counts the units that Redis admitted for one key since the server's time `start_us`.
pub fn by_redis<'a>(
    quota: &Quota,
    checks: impl Iterator<Item = &'a Checked>,
    start_us: u64,
    ground: &Ground,
) -> Admitted {
    let history = history(checks.filter(|check| check.is_redis()), |check| monotonic_us(check, ground));
    let permitted = ceiling(quota, &history, start_us) + ground.losses * quota.limit();
    Admitted { admitted: history.admitted(), permitted }
}

/// Counts the units that one process admitted for one key without Redis. `permitted` is the number that the
/// share admits to a caller that checks at these instants and takes all units it can get.
pub fn by_fallback<'a>(share: &Quota, checks: impl Iterator<Item = &'a Checked>, start_us: u64) -> Admitted {
    let history = history(checks.filter(|check| check.is_local()), |check| check.now_us);
    let first = history.0.keys().next().copied().unwrap_or_default();
    let earliest = match *share.kind() {
        // The fallback may have started from a window that Redis had reported.
        Kind::FixedWindow(FixedWindow { window_us, .. }) => start_us.max(first.saturating_sub(window_us)),
        _ => first,
    };
    Admitted { admitted: history.admitted(), permitted: ceiling(share, &history, earliest) }
}

fn history<'a>(checks: impl Iterator<Item = &'a Checked>, instant: impl Fn(&Checked) -> u64) -> History {
    let mut history = History::default();
    for check in checks {
        let (all, admitted) = history.0.entry(instant(check)).or_default();
        *all += 1;
        *admitted += u64::from(check.allowed);
    }
    history
}

fn ceiling(quota: &Quota, history: &History, start_us: u64) -> u64 {
    match quota.kind() {
        _ if history.0.is_empty() => 0,
        Kind::FixedWindow(FixedWindow { aligned_us: None, .. }) => {
            quota.limit() * windows(quota, start_us, history)
        }
        _ => history.ceiling(quota),
    }
}

/// Returns the largest number of first-hit windows that can contain these checks. The history does not show
/// every start of a window: a check whose reply was lost may have started one.
fn windows(quota: &Quota, start_us: u64, history: &History) -> u64 {
    let Kind::FixedWindow(FixedWindow { window_us, .. }) = *quota.kind() else { panic!("{quota}") };
    let (mut last, mut span) = (start_us, 0);
    for &instant in history.0.keys() {
        // A window that starts and ends within a long gap contains no check.
        span += instant.saturating_sub(last).min(2 * window_us);
        last = instant;
    }
    // A window ends one length after the millisecond of its first check, which may come late in that
    // millisecond.
    1 + span / (window_us - 999)
}

/// Returns the server's time of a check as if its clock had never been stepped back. Units used before the
/// step count as used after it, and no units become free in the time that the clock repeats.
fn monotonic_us(check: &Checked, ground: &Ground) -> u64 {
    const HALF_AN_HOUR: u64 = 1_800_000_000;
    let Some((middle_us, back_us)) = ground.stepped else { return check.now_us };
    let is_before = check.now_us > check.called_us + HALF_AN_HOUR
        || (check.now_us + HALF_AN_HOUR > check.called_us && check.called_us < middle_us);
    check.now_us + if is_before { 0 } else { back_us }
}

/// Counts checks that a process admitted without Redis although Redis had reported the key as exhausted
/// before the fault began at `broken_us`.
pub fn admitted_though_exhausted(checks: &[&Checked], broken_us: u64) -> usize {
    let denials =
        checks.iter().filter(|check| check.is_redis() && !check.allowed && check.returned_us < broken_us);
    let Some(exhausted_us) = denials.map(|check| check.returned_us).min() else { return 0 };
    checks.iter().filter(|check| check.is_local() && check.allowed && check.called_us > exhausted_us).count()
}
