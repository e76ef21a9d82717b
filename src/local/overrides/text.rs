//! The two kinds of overrides, the mode of a gate and the quota of a key, and their text in Redis, as
//! `redis-cli HGETALL tidegate:1:overrides` shows it: `switch login` is `closed until 1790000000000000`,
//! `override login:user:42` is `token_bucket 100 100 60000000 0 until 1790000000000000`. Times are microseconds
//! since 1970; the numbers of a quota are the arguments of its script. A calendar window is
//! `fixed_window 100 month+15@Europe/Berlin`.

use std::time::Duration;

use crate::error::Error;
use crate::error::redact::RedactedKey;
use crate::quota::algorithm::Definition;
use crate::quota::{Calendar, Quota};

/// One override, as it was read.
pub(super) struct OverrideEntry<'t> {
    pub(super) gate: &'t str,
    pub(super) what: What<'t>,
    /// By the server's clock.
    pub(super) until_us: Option<u64>,
}

pub(super) enum What<'t> {
    Switch(Switch),
    Override(&'t str, Quota),
}

pub(super) fn of_switch(gate: &str) -> String {
    format!("switch {gate}")
}

pub(super) fn of_override(gate: &str, key: &str) -> String {
    format!("override {gate}:{key}")
}

pub(super) fn quota(quota: &Quota) -> String {
    if let Some(calendar) = quota.kind().calendar() {
        return format!("{} {} {calendar}", quota.algorithm(), quota.limit());
    }
    let [a, b, c, d] = quota.kind().args();
    format!("{} {a} {b} {c} {d}", quota.algorithm())
}

impl<'t> OverrideEntry<'t> {
    /// Returns `None` if this version does not know the format.
    pub(super) fn parse(field: &'t str, text: &'t str) -> Option<Self> {
        let (text, until_us) = match text.split_once(" until ") {
            Some((text, until_us)) => (text, Some(until_us.parse().ok()?)),
            None => (text, None),
        };
        let (gate, what) = match field.split_once(' ')? {
            ("switch", gate) => (gate, What::Switch(text.parse().ok()?)),
            ("override", gate_and_key) => {
                let (gate, key) = gate_and_key.split_once(':')?;
                (gate, What::Override(key, parse_quota(text)?))
            }
            _ => return None,
        };
        Some(Self { gate, what, until_us })
    }

    /// Returns `None` if the override has ended.
    pub(super) fn active(&self, now_us: u64) -> Option<Override> {
        let left = self.until_us.map(|until_us| until_us.checked_sub(now_us).filter(|left| *left > 0));
        let ends_in = match left {
            Some(left) => Some(Duration::from_micros(left?)),
            None => None,
        };
        let gate = self.gate.to_owned();
        Some(match self.what {
            What::Switch(switch) => Override::Switch { gate, switch, ends_in },
            What::Override(key, quota) => Override::Quota { gate, key: key.to_owned(), quota, ends_in },
        })
    }
}

impl Override {
    /// Returns the name of its gate.
    #[must_use]
    pub fn gate(&self) -> &str {
        match self {
            Self::Switch { gate, .. } | Self::Quota { gate, .. } => gate,
        }
    }
}

fn parse_quota(text: &str) -> Option<Quota> {
    let mut words = text.split(' ');
    let definition = Definition::of_name(words.next()?)?;
    if let Some(("fixed_window", rest)) = text.split_once(' ')
        && let Some((limit, calendar)) = rest.split_once(' ')
        && let Some(calendar) = Calendar::of_text(calendar)
    {
        return Quota::in_calendar(limit.parse().ok()?, calendar).ok();
    }
    let mut number = || words.next()?.parse::<u64>().ok();
    let args = [number()?, number()?, number()?, number()?];
    match words.next() {
        Some(_) => None,
        None => Quota::of_args(definition, args).ok(),
    }
}

/// The mode of a gate, which replaces or overlays its quota: an operator's override for the whole fleet, set
/// by [`Control::switch`](crate::Control::switch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Switch {
    /// Admits every check without charging it or calling the store.
    Open,
    /// Denies every check with a retry time of one second, without calling the store.
    Closed,
    /// Decides and charges every check as usual, and admits it even if denied:
    /// [`Decision::is_shadow`](crate::Decision::is_shadow) tells which checks would have been denied. A check
    /// that the gate cannot decide is admitted too: see [`Gate::shadow`](crate::Gate::shadow).
    Shadow,
}

impl Switch {
    const ALL: [Self; 3] = [Self::Open, Self::Closed, Self::Shadow];

    /// Returns the label used in Redis and texts, such as `open`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Shadow => "shadow",
        }
    }
}

impl std::fmt::Display for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Switch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|switch| switch.as_str() == text);
        found.ok_or_else(|| Error::config(format!("no switch is {text:?}: use `open`, `closed` or `shadow`")))
    }
}

/// An active override, from [`Control::overrides`](crate::Control::overrides). `Debug` redacts the key.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Override {
    /// Applies to all keys of a gate.
    #[non_exhaustive]
    Switch {
        /// The gate's name.
        gate: String,
        /// The mode of the gate.
        switch: Switch,
        /// `None`: until it is removed.
        ends_in: Option<Duration>,
    },
    /// Applies to one key of a gate.
    #[non_exhaustive]
    Quota {
        /// The gate's name.
        gate: String,
        /// The key as written in Redis: see [`KeyMode`](crate::KeyMode).
        key: String,
        /// The quota that decides instead of the gate's.
        quota: Quota,
        /// `None`: until it is removed.
        ends_in: Option<Duration>,
    },
}

/// Keys may be personal data.
impl std::fmt::Debug for Override {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Switch { gate, switch, ends_in } => f
                .debug_struct("Switch")
                .field("gate", gate)
                .field("switch", switch)
                .field("ends_in", ends_in)
                .finish(),
            Self::Quota { gate, key, quota, ends_in } => f
                .debug_struct("Quota")
                .field("gate", gate)
                .field("key", &RedactedKey::new(key.as_bytes()))
                .field("quota", quota)
                .field("ends_in", ends_in)
                .finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quota::Rate;

    fn quotas() -> impl Strategy<Value = Quota> {
        let window = || (1_u64..1 << 40).prop_map(|ms| Duration::from_micros(ms.max(1_000)));
        let rate =
            || (1_u64..1 << 20, 1_u64..1 << 30).prop_map(|(n, us)| Rate::new(n, Duration::from_micros(us)));
        let limit = || 1_u64..1 << 20;
        prop_oneof![
            (limit(), rate()).prop_filter_map("too slow", |(n, rate)| Quota::try_token_bucket(n, rate).ok()),
            (limit(), rate()).prop_filter_map("too slow", |(n, rate)| Quota::try_leaky_bucket(n, rate).ok()),
            (limit(), window()).prop_map(|(n, window)| Quota::fixed_window(n, window)),
            (limit(), window(), 0_u64..1_000).prop_map(|(n, window, offset)| {
                Quota::fixed_window(n, window).aligned_to_clock_at(Duration::from_micros(offset))
            }),
            (limit(), window()).prop_map(|(n, window)| Quota::sliding_log(n, window)),
            (limit(), window()).prop_map(|(n, window)| Quota::sliding_log(n, window).count_denied()),
            (limit(), window())
                .prop_filter_map("range", |(n, window)| Quota::try_sliding_counter(n, window).ok()),
        ]
    }

    proptest! {
        #[test]
        fn a_quota_is_read_as_it_was_written(it in quotas()) {
            prop_assert_eq!(parse_quota(&quota(&it)), Some(it), "{}", quota(&it));
        }

        #[test]
        fn any_text_is_read_or_not_and_never_panics(field in ".{0,40}", text in ".{0,60}") {
            let _ = OverrideEntry::parse(&field, &text).and_then(|entry| entry.active(1));
        }
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn calendar_window_is_read_as_it_was_written() {
        let quota_of = |calendar: &str| Quota::calendar_window(9, calendar.parse().unwrap());
        for calendar in ["day@UTC", "month+15@Europe/Berlin", "year+02-29@Etc/GMT+5"] {
            assert_eq!(quota(&quota_of(calendar)), format!("fixed_window 9 {calendar}"));
            assert_eq!(parse_quota(&quota(&quota_of(calendar))), Some(quota_of(calendar)));
        }
        for text in [
            "fixed_window 0 day@UTC",
            "sliding_log 9 day@UTC",
            "fixed_window 9 day@UTC 0",
            "fixed_window 9 day@X",
        ] {
            assert_eq!(parse_quota(text), None, "{text}");
        }
        let text = "fixed_window 7 month@UTC until 9";
        let entry = OverrideEntry::parse("override login:k", text).unwrap();
        assert!(
            matches!(entry.what, What::Override("k", quota) if quota == Quota::calendar_window(7, Calendar::MONTH))
        );
    }

    #[test]
    fn in_flight_limit_with_the_patience_of_an_earlier_version_keeps_its_limit() {
        assert_eq!(parse_quota("in_flight 3 1000000 0 0"), Some(Quota::in_flight(3)));
        assert_eq!(quota(&Quota::in_flight(3)), "in_flight 3 0 0 0");
    }

    #[test]
    fn what_another_version_writes_is_not_understood() {
        for (field, text) in [
            ("switch login", "ajar"),
            ("switch login", "open until soon"),
            ("switch login", "open until"),
            ("login", "open"),
            ("override login", "fixed_window 1 1000 0 0"),
            ("override login:k", "fixed_window 1 1000 0"),
            ("override login:k", "fixed_window 1 1000 0 0 0"),
            ("override login:k", "fixed_window 0 1000 0 0"),
            ("override login:k", "gcra 1 1000 0 0"),
            ("override login:k", "token_bucket 1 0 0 0"),
        ] {
            assert!(OverrideEntry::parse(field, text).is_none(), "{field}: {text}");
        }
        let entry = OverrideEntry::parse("override login:a:b", "fixed_window 7 1000 0 0 until 9").unwrap();
        assert!(matches!(entry.what, What::Override("a:b", quota) if quota.limit() == 7));
        assert_eq!((entry.gate, entry.until_us), ("login", Some(9)));
        assert!(entry.active(8).is_some() && entry.active(9).is_none(), "over at its very end");
    }
}
