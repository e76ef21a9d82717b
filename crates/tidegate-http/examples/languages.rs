//! Rejections in the client's language, as a problem in JSON, text or HTML. Each key has one greeting an hour.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example languages
//! ```
//!
//! Its responses (without `date`, `content-length` and `vary: accept, accept-language`):
//!
//! ```console
//! $ curl -s -H 'x-api-key: ann' http://127.0.0.1:3000/
//! hello
//! $ curl -si -H 'x-api-key: ann' -H 'accept-language: de-AT, en;q=0.5' http://127.0.0.1:3000/
//! HTTP/1.1 429 Too Many Requests
//! content-type: application/problem+json
//! content-language: de
//! cache-control: no-store
//! x-ratelimit-limit: 1
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 3600
//! ratelimit-policy: "greetings";q=1;w=3600
//! ratelimit: "greetings";r=0;t=3600
//! retry-after: 3600
//!
//! {"detail":"Das Limit \"greetings\" ist ausgeschöpft. Versuchen Sie es in 60 Minuten erneut.","status":429,"title":"Zu viele Anfragen","type":"https://iana.org/assignments/http-problem-types#quota-exceeded","violated-policies":["greetings"]}
//! $ curl -s -H 'x-api-key: ann' -H 'accept: text/plain' http://127.0.0.1:3000/
//! The limit "greetings" is used up. Try again in 60 minutes.
//! $ curl -s -H 'accept: text/html' -H 'accept-language: fr' http://127.0.0.1:3000/
//! <!doctype html>
//! <html lang="fr"><meta charset="utf-8"><title>Requête incorrecte</title>
//! <h1>Requête incorrecte</h1>
//! <p>Envoyez votre clé d&#39;API dans l&#39;en-tête x-api-key.</p>
//! ```
use std::cmp::Reverse;
use std::iter::successors;
use std::time::Duration;

use axum::Router;
use axum::http::header::{ACCEPT, ACCEPT_LANGUAGE, CONTENT_LANGUAGE, CONTENT_TYPE, VARY};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};
use axum::routing::get;
use serde_json::{Map, Value};
use tidegate::{Limiter, Quota};
use tidegate_http::{Key, RateLimitLayer, Reason, Rejection};
use tokio::net::TcpListener;

const GREETINGS: Quota = Quota::fixed_window(1, Duration::from_secs(3_600));

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-languages")
        .deadline(Duration::from_secs(2))
        .build()?;
    let limit = RateLimitLayer::new(limiter.gate("greetings", GREETINGS), Key::header("x-api-key"))
        .on_rejection(|parts, rejection| async move { translated(parts, &rejection) });
    let app = Router::new().route("/", get("hello\n")).layer(limit);
    axum::serve(TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?;
    Ok(())
}

/// Translates the layer's default response. The layer then adds Retry-After and the headers that report the limits.
fn translated(mut parts: Parts, rejection: &Rejection) -> Response<String> {
    let (language, format) = (preferred_language(&parts.headers), preferred_format(&parts.headers));
    let Some(text) = language.text(rejection.reason()) else { return rejection.response(&parts) };
    // Without Accept, the default response is a problem in JSON. Its type and its limits stay as they are. With the
    // feature `tonic`, a gRPC request has a gRPC status instead.
    parts.headers.remove(ACCEPT);
    let mut response = rejection.response(&parts);
    let Ok(mut problem) = serde_json::from_str::<Map<String, Value>>(response.body()) else {
        return response;
    };
    let detail = language.filled(text.detail, rejection, &problem);
    let (content_type, body) = match format {
        Format::Problem => {
            problem.insert("title".to_owned(), text.title.into());
            problem.insert("detail".to_owned(), detail.into());
            ("application/problem+json", format!("{}\n", Value::Object(problem)))
        }
        Format::Text => ("text/plain; charset=utf-8", format!("{detail}\n")),
        Format::Html => ("text/html; charset=utf-8", page(language.tag, text.title, &detail)),
    };
    *response.body_mut() = body;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CONTENT_LANGUAGE, HeaderValue::from_static(language.tag));
    headers.insert(VARY, HeaderValue::from_static("accept, accept-language"));
    response
}

struct Language {
    tag: &'static str,
    denied: Text,
    unavailable: Text,
    missing_key: Text,
    /// The words for 1 second, and for several seconds, minutes, hours and days, as the texts need them after "in".
    units: [&'static str; 5],
}

/// A detail can contain `{limit}` and, if the rejection has a retry time, `{wait}`.
struct Text {
    title: &'static str,
    detail: &'static str,
}

/// The first one is the default.
const LANGUAGES: &[Language] = &[
    Language {
        tag: "en",
        denied: Text {
            title: "Too many requests",
            detail: "The limit \"{limit}\" is used up. Try again in {wait}.",
        },
        unavailable: Text { title: "Service unavailable", detail: "Try again in {wait}." },
        missing_key: Text { title: "Bad request", detail: "Send your API key in the header x-api-key." },
        units: ["second", "seconds", "minutes", "hours", "days"],
    },
    Language {
        tag: "de",
        denied: Text {
            title: "Zu viele Anfragen",
            detail: "Das Limit \"{limit}\" ist ausgeschöpft. Versuchen Sie es in {wait} erneut.",
        },
        unavailable: Text { title: "Dienst nicht verfügbar", detail: "Versuchen Sie es in {wait} erneut." },
        missing_key: Text {
            title: "Ungültige Anfrage",
            detail: "Senden Sie Ihren API-Schlüssel im Header x-api-key.",
        },
        units: ["Sekunde", "Sekunden", "Minuten", "Stunden", "Tagen"],
    },
    Language {
        tag: "fr",
        denied: Text {
            title: "Trop de requêtes",
            detail: "La limite « {limit} » est atteinte. Réessayez dans {wait}.",
        },
        unavailable: Text { title: "Service indisponible", detail: "Réessayez dans {wait}." },
        missing_key: Text {
            title: "Requête incorrecte",
            detail: "Envoyez votre clé d'API dans l'en-tête x-api-key.",
        },
        units: ["seconde", "secondes", "minutes", "heures", "jours"],
    },
];

impl Language {
    /// Returns the text for a reason. The other reasons are for developers, and keep the default response: a mistake
    /// in the setup, and a cost above the limit, which no request of this service has.
    fn text(&self, reason: &Reason) -> Option<&Text> {
        match reason {
            Reason::Denied(_) => Some(&self.denied),
            Reason::Closed(_) | Reason::Failed(_) => Some(&self.unavailable),
            Reason::MissingKey => Some(&self.missing_key),
            _ => None,
        }
    }

    fn filled(&self, detail: &str, rejection: &Rejection, problem: &Map<String, Value>) -> String {
        let wait = rejection.retry_after().map(|wait| self.in_words(wait)).unwrap_or_default();
        let limits = problem.get("violated-policies").and_then(Value::as_array).into_iter().flatten();
        let limits: Vec<&str> = limits.filter_map(Value::as_str).collect();
        detail.replace("{wait}", &wait).replace("{limit}", &limits.join(", "))
    }

    /// Rounds up, so that no client returns too early.
    fn in_words(&self, wait: Duration) -> String {
        let [second, seconds, minutes, hours, days] = self.units;
        let (unit_s, unit) = match wait.as_secs() {
            1 => (1, second),
            0 | 2..120 => (1, seconds),
            120..7_200 => (60, minutes),
            7_200..172_800 => (3_600, hours),
            _ => (86_400, days),
        };
        format!("{} {unit}", wait.as_secs().div_ceil(unit_s))
    }
}

const PAGE: &str = "<!doctype html>
<html lang=\"{tag}\"><meta charset=\"utf-8\"><title>{title}</title>
<h1>{title}</h1>
<p>{detail}</p>
";

fn page(tag: &str, title: &str, detail: &str) -> String {
    PAGE.replace("{tag}", tag).replace("{title}", &escaped(title)).replace("{detail}", &escaped(detail))
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Returns the language that Accept-Language prefers (RFC 9110, section 12.5.4). `de-AT` falls back to `de`, unless
/// the client refuses `de`.
fn preferred_language(headers: &HeaderMap) -> &'static Language {
    let mut ranges = ranges(headers, ACCEPT_LANGUAGE);
    // Ranges of equal quality stay in the client's order, with `*` after them.
    ranges.sort_by_key(|(range, quality)| (Reverse(*quality), *range == "*"));
    let named =
        |language: &Language| ranges.iter().find(|(range, _)| range.eq_ignore_ascii_case(language.tag));
    let is_refused = |language: &Language| named(language).is_some_and(|(_, quality)| *quality == 0);
    let preferred = ranges.iter().filter(|(_, quality)| *quality > 0).find_map(|(range, _)| match *range {
        "*" => LANGUAGES.iter().find(|language| named(language).is_none()),
        range => nearest_language(range).filter(|language| !is_refused(language)),
    });
    preferred.unwrap_or(&LANGUAGES[0])
}

/// Shortens the range until a language matches (RFC 4647, section 3.4).
fn nearest_language(range: &str) -> Option<&'static Language> {
    let mut shorter = successors(Some(range), |range| range.rsplit_once('-').map(|(shorter, _)| shorter));
    shorter.find_map(|range| LANGUAGES.iter().find(|language| language.tag.eq_ignore_ascii_case(range)))
}

#[derive(Clone, Copy)]
enum Format {
    Problem,
    Text,
    Html,
}

/// The formats with the ranges that match them, the most specific range first. The first format is the default.
const FORMATS: [(Format, &[&str]); 3] = [
    (Format::Problem, &["application/problem+json", "application/json", "application/*", "*/*"]),
    (Format::Text, &["text/plain", "text/*", "*/*"]),
    (Format::Html, &["text/html", "text/*", "*/*"]),
];

/// Returns the format that Accept prefers (RFC 9110, section 12.5.1). At equal quality, `text/html` is preferred to
/// `*/*`.
fn preferred_format(headers: &HeaderMap) -> Format {
    let ranges = ranges(headers, ACCEPT);
    let preference = |names: &[&str]| {
        let range = |name| ranges.iter().find(|(range, _)| range.eq_ignore_ascii_case(name));
        let (range, quality) =
            names.iter().find_map(|name| range(*name)).filter(|(_, quality)| *quality > 0)?;
        Some((*quality, Reverse(range.matches('*').count())))
    };
    // Of equal maxima, `max_by_key` returns the last.
    let preferred = FORMATS.iter().rev().max_by_key(|(_, names)| preference(names));
    preferred.map_or(Format::Problem, |(format, _)| *format)
}

/// The ranges of a header that are read; browsers send fewer than 10.
const MAX_RANGES: usize = 32;

/// Returns the ranges of a header with their qualities in thousandths. Ignores values that are not ASCII.
fn ranges(headers: &HeaderMap, name: HeaderName) -> Vec<(&str, u16)> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).take(MAX_RANGES).filter_map(parse_range).collect()
}

/// Parses a range such as `de-AT;q=0.5`. Returns nothing if its quality is not a number from 0 to 1.
fn parse_range(range: &str) -> Option<(&str, u16)> {
    let mut parts = range.split(';').map(str::trim);
    let name = parts.next()?;
    let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
    let quality: f64 = quality.map_or(Ok(1.0), str::parse).ok()?;
    (0.0..=1.0).contains(&quality).then_some((name, (quality * 1_000.0).round() as u16))
}
