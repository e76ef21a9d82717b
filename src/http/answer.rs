//! What is answered instead of the service.

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response};

use super::refusal::{Reason, Refusal};

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

pub(super) fn response(refusal: &Refusal, request: &Parts) -> Response<String> {
    let (content_type, body) = if prefers_text(&request.headers) {
        (TEXT, format!("{}\n", refusal.message()))
    } else {
        (PROBLEM, problem(refusal))
    };
    let mut response = Response::new(body);
    *response.status_mut() = refusal.status();
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    // What is true of one client at one moment is no cache's to keep.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// RFC 9457; what is exceeded as draft-ietf-httpapi-ratelimit-headers-11 says it in section 5.1.
fn problem(refusal: &Refusal) -> String {
    let status = refusal.status();
    let (kind, title) = match refusal.reason() {
        Reason::Denied(_) => (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        _ => ("about:blank", status.canonical_reason().unwrap_or_default()),
    };
    let mut json = format!(
        "{{\"type\":{},\"title\":{},\"status\":{},\"detail\":{}",
        quoted(kind),
        quoted(title),
        status.as_u16(),
        quoted(refusal.message())
    );
    if let Reason::Denied(_) = refusal.reason() {
        let violated: Vec<String> = refusal.violated().map(quoted).collect();
        json += &format!(",\"violated-policies\":[{}]", violated.join(","));
    }
    json + "}\n"
}

/// A string in JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            '\0'..='\x1f' => quoted += &format!("\\u{:04x}", u32::from(letter)),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether text is wanted more than JSON, by the ranges of Accept that fit best.
fn prefers_text(headers: &HeaderMap) -> bool {
    let ranges: Vec<(String, u16)> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(range)
        .collect();
    let quality = |names: &[&str]| {
        let of = |name: &&str| ranges.iter().find(|(range, _)| range == name).map(|(_, quality)| *quality);
        names.iter().find_map(of).unwrap_or(0)
    };
    let json = quality(&["application/problem+json", "application/json", "application/*", "*/*"]);
    quality(&["text/plain", "text/*", "*/*"]) > json
}

/// Such as `text/*;q=0.5`, as its type and its quality in thousandths.
fn range(range: &str) -> (String, u16) {
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
    fn text_is_for_who_prefers_it() {
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
    fn any_text_is_a_string_in_json() {
        let text = "a \"b\" \\ c\n\u{1} ä \u{1f30a} \u{7f}";
        assert_eq!(serde_json::from_str::<String>(&quoted(text)).unwrap(), text);
    }
}
