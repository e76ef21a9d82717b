//! The headers of OpenAI's API: one group for the limits of requests, and one for those of tokens.

use http::HeaderMap;
use http::header::HeaderName;

use super::header_values::{Fields, HeaderValues};
use super::{is_tighter, number_in};

/// The headers of one unit.
struct Group {
    unit: &'static str,
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

const GROUPS: [Group; 2] = [
    Group {
        unit: "requests",
        limit: HeaderName::from_static("x-ratelimit-limit-requests"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-requests"),
        reset: HeaderName::from_static("x-ratelimit-reset-requests"),
    },
    Group {
        unit: "tokens",
        limit: HeaderName::from_static("x-ratelimit-limit-tokens"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-tokens"),
        reset: HeaderName::from_static("x-ratelimit-reset-tokens"),
    },
];

/// Returns the names of all headers.
#[cfg(feature = "actix")]
pub(super) fn names() -> impl Iterator<Item = HeaderName> {
    GROUPS.into_iter().flat_map(|Group { limit, remaining, reset, .. }| [limit, remaining, reset])
}

/// Writes the group of each unit that a limit with a window has. `headers`: those of inner layers.
pub(super) fn write(headers: &HeaderMap, values: &HeaderValues<'_>, fields: &mut Fields) {
    for Group { unit, limit, remaining, reset } in GROUPS {
        let of_unit = values.with_window().filter(|&at| values.policies[at].unit() == unit);
        let Some(at) = of_unit.reduce(|a, b| values.tighter(a, b)) else { continue };
        let decision = &values.decision.each_alone()[at];
        let number = |name| number_in(headers, name, |text| text.parse().ok());
        if is_tighter(decision, number(&limit).zip(number(&remaining))) {
            fields.push_number(decision.limit()).end_single(limit);
            fields.push_number(decision.remaining()).end_single(remaining);
            push_duration(fields, values.reset(at));
            fields.end_single(reset);
        }
    }
}

/// Writes a time as Go does: `1s`, `6m0s`, `24h0m0s`.
fn push_duration(fields: &mut Fields, seconds: u64) {
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    if hours > 0 {
        fields.push_number(hours).push("h");
    }
    if seconds >= 60 {
        fields.push_number(minutes).push("m");
    }
    fields.push_number(seconds % 60).push("s");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_go_does() {
        for (seconds, text) in [
            (0, "0s"),
            (1, "1s"),
            (59, "59s"),
            (60, "1m0s"),
            (360, "6m0s"),
            (3_599, "59m59s"),
            (3_600, "1h0m0s"),
            (86_400, "24h0m0s"),
            (2_678_399, "743h59m59s"),
        ] {
            let (mut fields, mut headers) = (Fields::default(), HeaderMap::new());
            push_duration(&mut fields, seconds);
            fields.end_single(HeaderName::from_static("time"));
            fields.write(&mut headers);
            assert_eq!(headers["time"], text);
        }
    }
}
