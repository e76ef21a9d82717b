//! The HTTP response to a rejected request: a problem in JSON, or text.

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response};
use serde::Serialize;
use tidegate::Decision;

use crate::rejection::{Reason, Rejection};

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Builds the response to a rejected request: a problem in JSON, or text if the request prefers it.
pub(super) fn build(rejection: &Rejection, request: &Parts) -> Response<String> {
    let (content_type, body) = if prefers_text(&request.headers) {
        (TEXT, format!("{}\n", rejection.message()))
    } else {
        (PROBLEM, Problem::new(rejection).to_json())
    };
    let mut response = Response::new(body);
    *response.status_mut() = rejection.status();
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    // The state of one client at one moment must not be cached.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
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
            _ => ("about:blank", status.canonical_reason().unwrap_or_default(), None),
        };
        let detail = rejection.message();
        Self { kind, title, status: status.as_u16(), detail, violated_policies }
    }

    fn to_json(&self) -> String {
        // Strings and numbers always serialize.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// Returns whether Accept prefers text to JSON. The most specific range of each decides.
fn prefers_text(headers: &HeaderMap) -> bool {
    let ranges: Vec<(String, u16)> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(parse_range)
        .collect();
    let quality = |names: &[&str]| {
        let range_quality =
            |name: &&str| ranges.iter().find(|(range, _)| range == name).map(|(_, quality)| *quality);
        names.iter().find_map(range_quality).unwrap_or(0)
    };
    let json = quality(&["application/problem+json", "application/json", "application/*", "*/*"]);
    quality(&["text/plain", "text/*", "*/*"]) > json
}

/// Parses a media range such as `text/*;q=0.5` into its type and its quality in thousandths.
fn parse_range(range: &str) -> (String, u16) {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
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
    fn text_round_trips_through_json() {
        let text = "a \"b\" \\ c\n\u{1} ä \u{1f30a} \u{7f}";
        let violated_policies = Some(vec![text]);
        let problem = Problem { kind: text, title: text, status: 429, detail: text, violated_policies };
        let json: serde_json::Value = serde_json::from_str(&problem.to_json()).unwrap();
        for member in ["type", "title", "detail"] {
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
        };
        assert_eq!(
            problem.to_json(),
            "{\"type\":\"k\",\"title\":\"t\",\"status\":429,\"detail\":\"d\",\"violated-policies\":[\"a\",\"b\"]}\n"
        );
        problem.violated_policies = None;
        assert_eq!(problem.to_json(), "{\"type\":\"k\",\"title\":\"t\",\"status\":429,\"detail\":\"d\"}\n");
    }
}
