//! For how long a response says to stay away.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{DATE, HeaderMap, RETRY_AFTER};
use http::status::StatusCode;
use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

/// Numbers from here on are seconds since 1970 and no longer seconds to go: 2001, or 31 years.
const FIRST_INSTANT: f64 = 1e9;

/// And from here on milliseconds since 1970, as some services say: also 2001.
const FIRST_INSTANT_MS: f64 = 1e12;

/// Zero where it does not say so. `Retry-After` counts before the others: it is about this very request.
pub(super) fn of(status: StatusCode, headers: &HeaderMap) -> Duration {
    let is_refusal = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let retry_after = || if is_refusal { retry_after(headers) } else { None };
    retry_after().or_else(|| rate_limit(headers)).or_else(|| x_rate_limit(headers)).unwrap_or_default()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = text(headers, RETRY_AFTER.as_str())?;
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => until(httpdate::parse_http_date(text).ok()?, headers),
    }
}

/// Of all limits of which nothing remains, the one that takes longest.
fn rate_limit(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all("ratelimit").iter().map(|line| line.to_str().ok());
    let text = lines.collect::<Option<Vec<_>>>()?.join(", ");
    // Since draft -08 a list of named limits; before, a dictionary of one limit's numbers, which is no list.
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

/// The older fields, of which every service has its own reading.
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

/// By the clock of who says it.
fn until(end: SystemTime, headers: &HeaderMap) -> Option<Duration> {
    let now = httpdate::parse_http_date(text(headers, DATE.as_str())?).ok()?;
    Some(end.duration_since(now).unwrap_or_default())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}
