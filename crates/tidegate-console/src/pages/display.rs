//! Quotas, rates and amounts in words.

use std::time::{Duration, UNIX_EPOCH};

use tidegate::admin::human;
use tidegate::{Override, Switch};
use tidegate_rules::{Limit, Rule};

/// The message of a process without Redis.
pub(super) const IN_MEMORY: &str = "This process keeps its limits and figures in its own memory, and has no Redis. To share them with a fleet, start with `--rules` and `--redis`.";

/// Returns the limit of a rule in words, with its mode.
pub(super) fn rule(rule: &Rule) -> String {
    let mut limit = limit(&rule.limit(None));
    if rule.has_tiers() {
        limit.push_str("; tiers have limits of their own");
    }
    match (rule.is_shadow(), rule.is_quota()) {
        (true, _) => format!("{limit}; shadow mode: denies nothing"),
        (_, true) => format!("{limit}; quota mode: denies if all quotas deny"),
        _ => limit,
    }
}

pub(super) fn limit(limit: &Limit) -> String {
    match limit {
        Limit::Quota(limit) => limit.to_string(),
        Limit::Unlimited => "unlimited".to_owned(),
        Limit::DenyAll(_) => "denies every request".to_owned(),
    }
}

/// Returns the effect of an override in words, and its gate. `None` for a kind that this version does not know.
pub(super) fn override_effect(entry: &Override) -> Option<(&str, String)> {
    match entry {
        Override::Switch { gate, switch, .. } => Some((gate, switch_effect(switch).to_owned())),
        Override::Quota { gate, quota, .. } => Some((gate, quota.to_string())),
        _ => None,
    }
}

/// Returns what a switch does.
pub(super) fn switch_effect(switch: &Switch) -> &'static str {
    match switch {
        Switch::Open => "switched open: admits every check",
        Switch::Closed => "switched closed: denies every check",
        Switch::Shadow => "switched to shadow mode: denies nothing",
        _ => "switched",
    }
}

/// Returns the class of the style sheet for a switch.
pub(super) fn switch_class(switch: &Switch) -> &'static str {
    if *switch == Switch::Closed { "bad" } else { "warn" }
}

/// Returns when an override ends.
pub(super) fn ends(ends_in: Option<Duration>) -> String {
    ends_in.map_or_else(|| "until it is ended".to_owned(), |left| format!("for {} more", human(left)))
}

/// Groups the digits of a whole number by commas: `12,345`. Returns other text unchanged.
pub(super) fn grouped(number: &str) -> String {
    if number.len() < 5 || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return number.to_owned();
    }
    let mut out = String::with_capacity(number.len() * 2);
    for (index, digit) in number.chars().enumerate() {
        if index > 0 && (number.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a rate per second: `0`, `0.4`, `12.5`, `12,345`.
pub(super) fn per_second(rate: f64) -> String {
    match rate {
        rate if rate <= 0.0 => "0".to_owned(),
        rate if rate < 0.1 => "<0.1".to_owned(),
        rate if rate < 100.0 => {
            let text = format!("{rate:.1}");
            text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
        }
        rate => grouped(&format!("{rate:.0}")),
    }
}

/// Formats a share: `0 %`, `<1 %`, `63 %`. `-` of nothing.
pub(super) fn share(part: u64, whole: u64) -> String {
    match (part, whole) {
        (_, 0) => "-".to_owned(),
        (0, _) => "0 %".to_owned(),
        (part, whole) => match 100.0 * part as f64 / whole as f64 {
            percent if percent < 1.0 => "<1 %".to_owned(),
            percent if percent > 99.0 && part < whole => ">99 %".to_owned(),
            percent => format!("{percent:.0} %"),
        },
    }
}

/// Formats a latency: `90 µs`, `1.2 ms`, `35 ms`.
pub(super) fn latency(us: u64) -> String {
    match us {
        ..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// Formats a time of the day in UTC: `14:03:05 UTC`.
pub(super) fn clock(unix_s: u64) -> String {
    let of_day = unix_s % 86_400;
    format!("{:02}:{:02}:{:02} UTC", of_day / 3_600, of_day / 60 % 60, of_day % 60)
}

/// Formats a time in UTC: `2026-11-24 14:03:05 UTC`. A time after the year 9999 is shown as the end of that year.
pub(super) fn date_and_time(unix_s: u64) -> String {
    const MAX_UNIX_S: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(unix_s.min(MAX_UNIX_S));
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

/// Formats a size: `512 B`, `1.5 MB`.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, f64); 4] = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)];
    let size = bytes as f64;
    let (unit, scale) = UNITS.into_iter().find(|(_, scale)| size >= *scale).unwrap_or(("B", 1.0));
    let text = format!("{:.1}", size / scale);
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Returns `1 gate` or `2 gates`.
pub(super) fn counted(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(&number.to_string()), if number == 1 { "" } else { "s" })
}

/// Encodes a value for the query of a URL, so that no character of it ends the value or the attribute around it.
pub(super) fn query_value(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        assert_eq!(
            ["1", "1234", "12345", "1234567", "1.5"].map(grouped),
            ["1", "1234", "12,345", "1,234,567", "1.5"]
        );
        assert_eq!(
            [0.0, 0.04, 0.4, 12.0, 12.34, 1_234.4, 12_345.0].map(per_second),
            ["0", "<0.1", "0.4", "12", "12.3", "1234", "12,345"]
        );
        assert_eq!(
            [(0, 0), (0, 5), (1, 1000), (1, 2), (999, 1000), (5, 5)].map(|(a, b)| share(a, b)),
            ["-", "0 %", "<1 %", "50 %", ">99 %", "100 %"]
        );
        assert_eq!([0, 999, 1_500_000].map(bytes), ["0 B", "999 B", "1.5 MB"]);
        assert_eq!(counted(1, "gate"), "1 gate");
    }

    #[test]
    fn value_in_a_url_cannot_end_it() {
        assert_eq!(query_value("a&b=\"<c>#/é %41"), "a%26b%3D%22%3Cc%3E%23%2F%C3%A9+%2541");
    }
}
