//! The text format of overrides in Redis, as `redis-cli HGETALL tidegate:1:overrides` shows it: `switch login` is
//! `closed until 1790000000000000`, `override login:user:42` is
//! `token_bucket 100 100 60000000 0 until 1790000000000000`. Times are microseconds since 1970; the numbers of a
//! quota are the arguments of its script. A calendar window is `fixed_window 100 month+15@Europe/Berlin`.

use std::time::Duration;

use super::kinds::{Override, Switch};
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
            ("override", hash_tag) => {
                let (gate, key) = hash_tag.split_once(':')?;
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
