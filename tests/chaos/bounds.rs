//! What a fault permits to be admitted, as numbers.

use std::time::Duration;

use tidegate::Quota;
use tidegate::internals::{FixedWindow, Kind};

use crate::support::fixture::{History, quotas};
use crate::support::load::{Asked, Fallback};

use super::faults::Ground;

const YEAR: Duration = Duration::from_secs(365 * 86_400);
const HOT: Duration = Duration::from_millis(500);

/// Name, quota and how many tasks of each process ask.
pub type Gates = Vec<(&'static str, Quota, usize)>;

/// Those that give back all the time, those that give back nothing while a test runs, so that all that
/// is admitted is one limit, and one that never denies.
pub fn gates() -> Gates {
    let plenty = Quota::token_bucket(1_000_000, tidegate::Rate::per_second(1_000_000));
    let scarce =
        ["scarce.token", "scarce.leaky", "scarce.fixed", "scarce.clock", "scarce.log", "scarce.counter"];
    let hot = quotas(60, HOT).map(|(name, quota)| (name, quota, 1));
    let scarce = scarce.into_iter().zip(quotas(100, YEAR)).map(|(name, (_, quota))| (name, quota, 1));
    hot.into_iter().chain(scarce).chain([("plenty", plenty, 4)]).collect()
}

pub fn is_scarce(name: &str) -> bool {
    name.starts_with("scarce")
}

/// What was admitted, and the most that may be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admitted {
    pub admitted: u64,
    pub permitted: u64,
}

/// Of one gate's asks, since the server's time `start_us`. What this process decided by itself in the
/// meantime is bounded on its own: see [`without_redis`].
pub fn by_redis<'a>(
    quota: &Quota,
    asked: impl Iterator<Item = &'a Asked>,
    start_us: u64,
    ground: &Ground,
) -> Admitted {
    let mut history = History::default();
    for asked in asked.filter(|asked| asked.is_redis()) {
        let (all, admitted) = history.0.entry(ongoing(asked, ground)).or_default();
        *all += 1;
        *admitted += u64::from(asked.allowed);
    }
    let ceiling = match quota.algorithm() {
        "fixed_window" if !quota.to_string().contains("clock") => {
            quota.limit() * windows(quota, start_us, &history)
        }
        _ => history.ceiling(quota),
    };
    Admitted { admitted: history.admitted(), permitted: ceiling + ground.losses * quota.limit() }
}

/// How many windows that an ask begins can hold these asks. The history does not know all beginnings: an
/// ask whose answer was lost may have begun a window.
fn windows(quota: &Quota, start_us: u64, history: &History) -> u64 {
    let Kind::FixedWindow(FixedWindow { window_us, .. }) = *quota.kind() else { panic!("{quota}") };
    let (mut last, mut span) = (start_us, 0);
    for &instant in history.0.keys() {
        // What begins and ends in a long gap holds none of them.
        span += instant.saturating_sub(last).min(2 * window_us);
        last = instant;
    }
    1 + span / window_us
}

/// The server's time of an ask as if its clock had never been stepped back: what was used before is
/// still used after it, and nothing has been given back for the time that comes twice.
fn ongoing(asked: &Asked, ground: &Ground) -> u64 {
    const HALF_AN_HOUR: u64 = 1_800_000_000;
    let Some((middle_us, back_us)) = ground.stepped else { return asked.now_us };
    let is_before = asked.now_us > asked.called_us + HALF_AN_HOUR
        || (asked.now_us + HALF_AN_HOUR > asked.called_us && asked.called_us < middle_us);
    asked.now_us + if is_before { 0 } else { back_us }
}

/// The most that may be admitted without Redis; `None` where everything may. By `Local` it will be so
/// many processes times what a share of the quota permits during the fault.
pub fn without_redis(fallback: Fallback) -> Option<u64> {
    match fallback {
        Fallback::Error | Fallback::Closed => Some(0),
        Fallback::Open => None,
    }
}
