//! The HTTP response to a rejected request: a problem in JSON, or text.

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response};
use serde::Serialize;
use tidegate::{Decision, Error};

use crate::rejection::{Reason, Rejection};

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
/// The type of this problem, which is also that of the rate-limit service.
const COST_ABOVE_LIMIT: &str = "urn:tidegate:problem:cost-above-limit";
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Builds the response to a rejected request: a problem in JSON, or text.
pub(super) fn build(rejection: &Rejection, prefers_text: bool) -> Response<String> {
    let (content_type, body) = if prefers_text {
        let help = rejection.help.as_ref().map(|link| format!("Help: {link}\n")).unwrap_or_default();
        (TEXT, format!("{}\n{help}", rejection.message()))
    } else {
        (PROBLEM, Problem::new(rejection).to_json())
    };
    let mut response = Response::new(body);
    *response.status_mut() = rejection.status();
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// A problem of RFC 9457. Sections 5.1 and 5.2 of draft-ietf-httpapi-ratelimit-headers-11 define the types of a
/// denial, which names the exceeded limits, and of a closed gate.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Problem<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    violated_policies: Option<Vec<&'a str>>,
    #[serde(flatten)]
    excess: Option<Excess<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'a str>,
}

/// A cost above a limit, which a client can correct.
#[derive(Serialize)]
struct Excess<'a> {
    policy: Option<&'a str>,
    cost: u64,
    limit: u64,
}

impl<'a> Excess<'a> {
    fn new(rejection: &'a Rejection, error: &'a Error) -> Option<Self> {
        let policy = rejection.policies.first().and_then(|policy| policy.name.as_deref()).or(error.gate());
        error.cost_and_limit().map(|(cost, limit)| Self { policy, cost, limit })
    }
}

impl<'a> Problem<'a> {
    fn new(rejection: &'a Rejection) -> Self {
        let status = rejection.status();
        let (kind, title, violated_policies) = match rejection.reason() {
            Reason::Denied(decision) => {
                let decisions = decision.each_alone().iter().zip(&rejection.policies).enumerate();
                let is_violated =
                    |at: usize, gate: &Decision| at == decision.binding_index() || !gate.is_allowed();
                let violated = decisions.filter(|(at, (gate, _))| is_violated(*at, gate));
                (
                    "https://iana.org/assignments/http-problem-types#quota-exceeded",
                    "Request cannot be satisfied as assigned quota has been exceeded",
                    Some(violated.map(|(_, (gate, policy))| policy.name(gate)).collect()),
                )
            }
            Reason::Closed(decision) => {
                let gates = decision.each_alone().iter().zip(&rejection.policies);
                let closed = gates.filter(|(gate, _)| Rejection::is_closed(gate));
                (
                    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                    "Request cannot be satisfied due to temporary server capacity constraints",
                    Some(closed.map(|(gate, policy)| policy.name(gate)).collect()),
                )
            }
            Reason::TooCostly(_) => (COST_ABOVE_LIMIT, "The cost can never pass the limit.", None),
            _ => ("about:blank", status.canonical_reason().unwrap_or_default(), None),
        };
        let excess = match rejection.reason() {
            Reason::TooCostly(error) => Excess::new(rejection, error),
            _ => None,
        };
        let (detail, help) = (rejection.message(), rejection.help.as_deref());
        Self { kind, title, status: status.as_u16(), detail, violated_policies, excess, help }
    }

    fn to_json(&self) -> String {
        // Strings and numbers always serialize.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// Bytes of all Accept headers together that are read; a browser sends fewer than 200. Reading stops before the
/// media range that exceeds this, so a long header costs no more than a short one.
const MAX_ACCEPT_BYTES: usize = 1_024;

/// Returns whether Accept prefers text to JSON. The most specific range of each decides.
pub(super) fn prefers_text(headers: &HeaderMap) -> bool {
    let mut json = Preference::new(["application/problem+json", "application/json", "application/*", "*/*"]);
    let mut text = Preference::new(["text/plain", "text/*", "*/*"]);
    let mut unread = MAX_ACCEPT_BYTES;
    for value in headers.get_all(ACCEPT) {
        let mut rest = Some(value.as_bytes());
        while let Some(bytes) = rest {
            let window = &bytes[..bytes.len().min(unread)];
            let end = window.iter().position(|byte| *byte == b',');
            if end.is_none() && window.len() < bytes.len() {
                return text.quality() > json.quality();
            }
            let range = &bytes[..end.unwrap_or(bytes.len())];
            rest = end.map(|end| &bytes[end + 1..]);
            unread = unread.saturating_sub(range.len() + 1);
            let Ok(range) = std::str::from_utf8(range) else { continue };
            let (name, quality) = parse_range(range);
            json.note(name, quality);
            text.note(name, quality);
        }
    }
    text.quality() > json.quality()
}

/// The qualities of the media ranges that match one type, the most specific range first.
struct Preference<const N: usize> {
    ranges: [&'static str; N],
    qualities: [Option<u16>; N],
}

impl<const N: usize> Preference<N> {
    const fn new(ranges: [&'static str; N]) -> Self {
        Self { ranges, qualities: [None; N] }
    }

    /// Notes a range of the header. Of equal ranges, the first one counts.
    fn note(&mut self, name: &str, quality: u16) {
        if let Some(at) = self.ranges.iter().position(|range| range.eq_ignore_ascii_case(name)) {
            self.qualities[at].get_or_insert(quality);
        }
    }

    fn quality(&self) -> u16 {
        self.qualities.iter().flatten().next().copied().unwrap_or(0)
    }
}

/// Parses a media range such as `text/*;q=0.5` into its type and its quality in thousandths.
fn parse_range(range: &str) -> (&str, u16) {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    let quality = quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0_f64));
    (name, (quality.clamp(0.0, 1.0) * 1000.0) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_selects_text_only_if_its_quality_is_higher() {
        for (accept, is_text) in [
            ("", false),
            ("*/*", false),
            ("text/plain", true),
            ("text/*", true),
            ("application/json", false),
            ("application/json, text/plain", false),
            ("application/json;q=0.5, text/plain", true),
            ("text/plain;q=0.9,*/*;q=0.8", true),
            ("text/plain; charset=utf-8; q=0.2, application/*;q=0.3", false),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", false),
            ("image/png", false),
            ("TEXT/PLAIN;Q=1", true),
            ("text/plain;q=nonsense", false),
            (",;,;q=", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(prefers_text(&headers), is_text, "{accept:?}");
        }
        assert!(!prefers_text(&HeaderMap::new()));
    }

    #[test]
    fn accept_is_read_up_to_its_bound() {
        let filler = |bytes: usize| "image/png,".repeat(bytes / 10);
        for (before, after, is_text) in [
            (filler(1_000), "text/plain", true),
            (filler(1_000), ",,,,,,,,,,,,,,text/plain", true),
            (filler(1_000), ",,,,,,,,,,,,,,,text/plain", false),
            (filler(60_000), "text/plain", false),
            (",".repeat(60_000), "text/plain", false),
            ("text/plain,".to_owned() + &filler(60_000), "application/json", true),
            ("text/plain,".to_owned() + &"x".repeat(60_000), "", true),
        ] {
            let value = format!("{before}{after}");
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, value.parse().unwrap());
            assert_eq!(prefers_text(&headers), is_text, "{} bytes, {after}", value.len());
        }
        let mut lines = HeaderMap::new();
        for _ in 0..MAX_ACCEPT_BYTES {
            lines.append(ACCEPT, HeaderValue::from_static(""));
        }
        lines.append(ACCEPT, HeaderValue::from_static("text/plain"));
        assert!(!prefers_text(&lines), "an empty line counts as one byte");
    }

    #[test]
    fn text_round_trips_through_json() {
        let text = "a \"b\" \\ c\n\u{1} ä \u{1f30a} \u{7f}";
        let violated_policies = Some(vec![text]);
        let problem = Problem {
            kind: text,
            title: text,
            status: 429,
            detail: text,
            violated_policies,
            excess: None,
            help: Some(text),
        };
        let json: serde_json::Value = serde_json::from_str(&problem.to_json()).unwrap();
        for member in ["type", "title", "detail", "help"] {
            assert_eq!(json[member], text, "{member}");
        }
        assert_eq!(json["violated-policies"][0], text);
    }

    #[test]
    fn problem_is_one_line_with_its_members_in_order() {
        let mut problem = Problem {
            kind: "k",
            title: "t",
            status: 429,
            detail: "d",
            violated_policies: Some(vec!["a", "b"]),
            excess: None,
            help: None,
        };
        assert_eq!(
            problem.to_json(),
            "{\"type\":\"k\",\"title\":\"t\",\"status\":429,\"detail\":\"d\",\"violated-policies\":[\"a\",\"b\"]}\n"
        );
        problem.violated_policies = None;
        assert_eq!(problem.to_json(), "{\"type\":\"k\",\"title\":\"t\",\"status\":429,\"detail\":\"d\"}\n");
    }
}
