//! The example of rejections in the client's language, over sockets: negotiation and hostile headers.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{ACCEPT, ACCEPT_LANGUAGE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tidegate::{Limiter, Quota, Switch};
use tidegate_testkit::Server;

use super::process::Example;
use crate::support::fixture::soon;

const JSON: &str = "application/problem+json";
const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// A service at which the key `ann` has used its only greeting.
struct Service {
    example: Example,
    client: reqwest::Client,
    server: Server,
}

struct Reply {
    headers: HeaderMap,
    body: String,
}

impl Service {
    async fn start() -> Self {
        let server = Server::process(&[]).unwrap();
        let example = Example::start("languages", server.url());
        let service = Self { example, client: reqwest::Client::new(), server };
        let admitted = service.send("ann", &[]).await;
        assert_eq!(admitted.status(), StatusCode::OK);
        service
    }

    async fn send(&self, key: &str, headers: &[(HeaderName, &[u8])]) -> reqwest::Response {
        let mut request =
            self.client.get(format!("http://{}/", self.example.address)).header("x-api-key", key);
        for (name, value) in headers {
            request = request.header(name, HeaderValue::from_bytes(value).unwrap());
        }
        request.send().await.unwrap()
    }

    /// Returns a limiter of the service's fleet.
    fn limiter(&self) -> Limiter {
        Limiter::builder().url(self.server.url()).namespace("example-languages").build().unwrap()
    }

    /// Returns the rejection, after verifying the headers that do not depend on the language.
    async fn reject(&self, headers: &[(HeaderName, &[u8])]) -> Reply {
        let response = self.send("ann", headers).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let headers = response.headers().clone();
        let values = |name: &str| headers.get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(values("vary"), ["accept, accept-language"]);
        assert_eq!(values("cache-control"), ["no-store"]);
        assert_eq!(values("x-ratelimit-remaining"), ["0"]);
        assert_eq!(values("ratelimit-policy"), ["\"greetings\";q=1;w=3600"]);
        assert_eq!(values("ratelimit").len(), 1);
        let retry_after = values("retry-after");
        assert_eq!(retry_after.len(), 1);
        let retry_after_s: u64 = retry_after[0].to_str().unwrap().parse().unwrap();
        assert!((1..=3_600).contains(&retry_after_s), "{retry_after_s}");
        Reply { headers, body: response.text().await.unwrap() }
    }
}

#[tokio::test]
async fn accept_language_selects_the_language_and_english_is_the_default() {
    let service = Service::start().await;
    let many = "xx;q=0.9,".repeat(10_000);
    let (german_first, german_last) = (format!("de,{many}"), format!("{many}de"));
    let many_subtags = format!("de{}", "-a".repeat(40_000));
    let cases: &[(&[u8], &str)] = &[
        (b"en", "en"),
        (b"de", "de"),
        (b"DE-de", "de"),
        (b"de-AT", "de"),
        (b"de-Latn-AT-1996, en;q=0.5", "de"),
        (b"den, fr;q=0.1", "fr"),
        (b"fr;q=0, de", "de"),
        (b"fr;q=0, de;q=0.001", "de"),
        (b"de;q=0, de-AT, fr;q=0.2", "fr"),
        (b"de-AT;q=0, de", "de"),
        (b"en;q=0.7, fr;q=0.8, de;q=0.9", "de"),
        (b"en;q=0.7,fr ; q=0.8,de;q=0.75", "fr"),
        (b"fr, de", "fr"),
        (b"de;q=1.000, fr;Q=0.999", "de"),
        (b"*", "en"),
        (b"*, fr", "fr"),
        (b"*, en;q=0", "de"),
        (b"*;q=0.5, fr;q=0.1, en;q=0.2", "de"),
        (b"*;q=0, fr", "fr"),
        (b"*;q=0", "en"),
        (b"en;q=0", "en"),
        (b"sv, no;q=0.5", "en"),
        (b"sv, de;q=0.5", "de"),
        (b"", "en"),
        (b",;,;q=,-,--,;;", "en"),
        (b"de;q=nonsense", "en"),
        (b"de;q=nonsense, fr;q=0.1", "fr"),
        (b"de;q=NaN, fr;q=0.1", "fr"),
        (b"de;q=inf, fr;q=0.1", "fr"),
        (b"de;q=-1, fr;q=0.1", "fr"),
        (b"de;q=2, fr;q=0.1", "fr"),
        (b"de, \xff\xfe", "en"),
        ("dé, 德".as_bytes(), "en"),
        (many.as_bytes(), "en"),
        (german_first.as_bytes(), "de"),
        (german_last.as_bytes(), "en"),
        (many_subtags.as_bytes(), "de"),
        (&[b'-'; 80_000], "en"),
        (&[b','; 80_000], "en"),
    ];
    for (accept_language, language) in cases {
        let reply = service.reject(&[(ACCEPT_LANGUAGE, accept_language)]).await;
        let case = String::from_utf8_lossy(&accept_language[..accept_language.len().min(60)]);
        assert_eq!(reply.headers["content-language"], language, "{case}");
        let title = match *language {
            "de" => "Zu viele Anfragen",
            "fr" => "Trop de requêtes",
            _ => "Too many requests",
        };
        let problem: Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(problem["title"], title, "{case}");
    }
    let none = service.reject(&[]).await;
    assert_eq!(none.headers["content-language"], "en");
    let lines = [(ACCEPT_LANGUAGE, b"\xff".as_slice()), (ACCEPT_LANGUAGE, b"fr")];
    assert_eq!(service.reject(&lines).await.headers["content-language"], "fr", "lines are read as one list");
}

#[tokio::test]
async fn accept_selects_the_format_and_a_problem_is_the_default() {
    let service = Service::start().await;
    let many = "image/png,".repeat(8_000) + "text/html";
    let cases: &[(&[u8], &str)] = &[
        (b"application/problem+json", JSON),
        (b"application/json", JSON),
        (b"application/*", JSON),
        (b"*/*", JSON),
        (b"text/html", HTML),
        (b"TEXT/HTML;level=1;Q=0.5", HTML),
        (b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", HTML),
        (b"text/html, */*", HTML),
        (b"text/html;q=0, */*", JSON),
        (b"text/html, application/json", JSON),
        (b"text/plain", TEXT),
        (b"text/*", TEXT),
        (b"text/*, text/plain;q=0.1", HTML),
        (b"application/problem+json;q=0.1, text/plain;q=0.2, text/html;q=0.15", TEXT),
        (b"application/*;q=0, */*;q=0.1", TEXT),
        (b"image/png", JSON),
        (b"text/html;q=0", JSON),
        (b"text/html;q=nonsense", JSON),
        (b"", JSON),
        (b"text/html, \xff", JSON),
        (many.as_bytes(), JSON),
    ];
    for (accept, content_type) in cases {
        let reply = service.reject(&[(ACCEPT, accept)]).await;
        let case = String::from_utf8_lossy(&accept[..accept.len().min(60)]);
        assert_eq!(reply.headers["content-type"], content_type, "{case}");
    }
}

#[tokio::test]
async fn each_format_has_the_translated_text_and_the_retry_time_in_words() {
    let service = Service::start().await;
    let problem = service.reject(&[(ACCEPT_LANGUAGE, b"de-AT")]).await;
    let problem: Value = serde_json::from_str(&problem.body).unwrap();
    let is_wait = |wait: &str| wait.parse().is_ok_and(|minutes: u64| (1..=60).contains(&minutes));
    let wait = |text: &str, before: &str, after: &str| {
        let wait = text.strip_prefix(before).and_then(|text| text.strip_suffix(after));
        assert!(wait.is_some_and(is_wait), "{text}");
    };
    let before = "Das Limit \"greetings\" ist ausgeschöpft. Versuchen Sie es in ";
    wait(problem["detail"].as_str().unwrap(), before, " Minuten erneut.");
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["greetings"]));

    let text = service.reject(&[(ACCEPT, b"text/plain")]).await;
    wait(&text.body, "The limit \"greetings\" is used up. Try again in ", " minutes.\n");

    let page = service.reject(&[(ACCEPT_LANGUAGE, b"de-AT"), (ACCEPT, b"text/html")]).await;
    let before = "<!doctype html>\n<html lang=\"de\"><meta charset=\"utf-8\"><title>Zu viele Anfragen</title>\n\
                  <h1>Zu viele Anfragen</h1>\n<p>Das Limit &quot;greetings&quot; ist ausgeschöpft. Versuchen Sie es in ";
    wait(&page.body, before, " Minuten erneut.</p>\n");
}

#[tokio::test]
async fn retry_time_in_words_has_the_unit_that_fits_and_is_rounded_up() {
    let service = Service::start().await;
    let limiter = service.limiter();
    let gate = limiter.gate("greetings", Quota::fixed_window(1, Duration::from_secs(3_600)));
    for (blocked_s, words) in [
        (119 * 60, "119 minutes"),
        (2 * 3_600 + 60, "3 hours"),
        (47 * 3_600, "47 hours"),
        (2 * 86_400 + 60, "3 days"),
    ] {
        gate.block(words, Duration::from_secs(blocked_s)).await.unwrap();
        let reply = service.send(words, &[(ACCEPT, b"text/plain")]).await;
        let text = format!("The limit \"greetings\" is used up. Try again in {words}.\n");
        assert_eq!(reply.text().await.unwrap(), text);
    }
    // A short block can end before the request arrives.
    let mut keys = (0_u32..).map(|attempt| format!("attempt-{attempt}"));
    soon("a block of one second in words", async || {
        let key = keys.next().unwrap();
        gate.block(key.as_str(), Duration::from_secs(1)).await.unwrap();
        let reply = service.send(&key, &[(ACCEPT, b"text/plain"), (ACCEPT_LANGUAGE, b"fr")]).await;
        reply.text().await.unwrap() == "La limite « greetings » est atteinte. Réessayez dans 1 seconde.\n"
    })
    .await;
    gate.block("eve", Duration::from_secs(110)).await.unwrap();
    let reply = service.send("eve", &[(ACCEPT, b"text/plain")]).await.text().await.unwrap();
    assert!(reply.ends_with(" seconds.\n"), "{reply}");
}

#[tokio::test]
async fn closed_gate_and_missing_key_are_rejected_in_the_language_too() {
    let service = Service::start().await;
    let missing = service.send("", &[(ACCEPT_LANGUAGE, b"de"), (ACCEPT, b"text/html")]).await;
    assert_eq!(missing.status(), StatusCode::BAD_REQUEST);
    assert_eq!(missing.headers()["content-language"], "de");
    assert!(!missing.headers().contains_key("retry-after"));
    let page = missing.text().await.unwrap();
    assert!(page.contains("<h1>Ungültige Anfrage</h1>"), "{page}");

    service.limiter().control().switch("greetings", Switch::Closed, None).await.unwrap();
    soon("the service learns that the gate is closed", async || {
        let closed = service.send("ann", &[(ACCEPT_LANGUAGE, b"de")]).await;
        if closed.status() != StatusCode::SERVICE_UNAVAILABLE {
            return false;
        }
        assert!(closed.headers().contains_key("retry-after"));
        let problem: Value = serde_json::from_str(&closed.text().await.unwrap()).unwrap();
        let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
        assert_eq!(problem["type"], kind);
        assert_eq!(problem["title"], "Dienst nicht verfügbar");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("Versuchen Sie es in ") && detail.contains(" Sekunde"), "{detail}");
        true
    })
    .await;
}
