//! The pause that a response requests from its client.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{DATE, HeaderMap, RETRY_AFTER};
use http::status::StatusCode;
use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

/// The smallest number that counts as seconds since 1970 (in 2001). Smaller numbers are seconds from now;
/// this one would be 31 years.
const FIRST_INSTANT: f64 = 1e9;

/// The smallest number that counts as milliseconds since 1970 (also in 2001), which some services send.
const FIRST_INSTANT_MS: f64 = 1e12;

/// Returns the pause that the response requests, or zero. `Retry-After` takes precedence, since it applies to
/// this request.
pub(super) fn requested_by(status: StatusCode, headers: &HeaderMap) -> Duration {
    let is_rejection = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let retry_after = || if is_rejection { retry_after(headers) } else { None };
    retry_after().or_else(|| rate_limit(headers)).or_else(|| x_rate_limit(headers)).unwrap_or_default()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = text(headers, RETRY_AFTER.as_str())?;
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => until(httpdate::parse_http_date(text).ok()?, headers),
    }
}

/// Returns the longest reset of the limits with nothing remaining.
fn rate_limit(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("ratelimit").iter().map(|value| value.to_str().ok());
    let text = values.collect::<Option<Vec<_>>>()?.join(", ");
    // Since draft -08 the value is a list of named limits. Before, it was a dictionary of one limit's
    // numbers, which does not parse as a list.
    match Parser::new(&text).parse::<List>() {
        Ok(limits) => limits.iter().filter_map(exhausted).max(),
        Err(_) => {
            let limit: Dictionary = Parser::new(&text).parse().ok()?;
            let number = |name: &str| match limit.get(name) {
                Some(ListEntry::Item(item)) => seconds(&item.bare_item),
                _ => None,
            };
            number("reset").filter(|_| number("remaining") == Some(Duration::ZERO))
        }
    }
}

fn exhausted(limit: &ListEntry) -> Option<Duration> {
    let parameters: &Parameters = match limit {
        ListEntry::Item(item) => &item.params,
        ListEntry::InnerList(list) => &list.params,
    };
    let number = |name: &str| parameters.get(name).and_then(seconds);
    number("t").filter(|_| number("r") == Some(Duration::ZERO))
}

fn seconds(item: &BareItem) -> Option<Duration> {
    u64::try_from(i64::from(item.as_integer()?)).ok().map(Duration::from_secs)
}

/// Reads the older fields, which each service defines in its own way.
fn x_rate_limit(headers: &HeaderMap) -> Option<Duration> {
    let number = |name| text(headers, name)?.parse::<f64>().ok().filter(|number| *number >= 0.0);
    if number("x-ratelimit-remaining")? > 0.0 {
        return None;
    }
    let reset = number("x-ratelimit-reset")?;
    if reset < FIRST_INSTANT {
        return Some(Duration::from_secs_f64(reset));
    }
    let since_1970 = if reset < FIRST_INSTANT_MS { reset } else { reset / 1_000.0 };
    until(UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(since_1970).ok()?)?, headers)
}

/// Returns the time until `end` by the remote service's clock.
fn until(end: SystemTime, headers: &HeaderMap) -> Option<Duration> {
    let now = httpdate::parse_http_date(text(headers, DATE.as_str())?).ok()?;
    Some(end.duration_since(now).unwrap_or_default())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}
