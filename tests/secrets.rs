//! No error, warning or `Debug` output shows a password or a whole key.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::redact::{RedactedKey, RedactedUrl};
use tidegate::{
    AllDecision, Builder, Event, KeyMode, Limiter, Observer, OnFailure, Quota, Switch, deadpool_redis,
};

use crate::support::fixture::HOUR;

/// Parts of the password: a text may show none of them, since a URL can end in its middle.
const PARTS: [&str; 3] = ["s3cr3t", "pa55", "w0rd"];

const SCHEMES: [&str; 8] =
    ["redis", "rediss", "valkey", "unix", "redis+unix", "REDIS", "http", "redis+unknown"];

/// Between the parts: some of these end the authority of a URL, and some are correct there.
const SEPARATORS: [&str; 10] = ["", ":", "@", "/", "?", "#", "%40", "%2F", " ", "\n"];

fn urls() -> Vec<String> {
    let mut urls = Vec::new();
    for scheme in SCHEMES {
        for separator in SEPARATORS {
            let password = PARTS.join(separator);
            for url in [
                format!("{scheme}://ann:{password}@127.0.0.1:1"),
                format!("{scheme}://:{password}@127.0.0.1:1/3"),
                format!("{scheme}://{password}@127.0.0.1:1/notadatabase"),
                format!("{scheme}://ann:{password}@127.0.0.1:notaport"),
                format!("{scheme}://ann:{password}@127.0.0.1:1?protocol={password}"),
                format!("{scheme}://ann:{password}@[::1]:1#{password}"),
                format!("{scheme}://ann:{password}@"),
                format!("{scheme}://ann%3A{password}%40db:1"),
                format!("{scheme}:ann:{password}@127.0.0.1:1"),
                format!("ann:{password}@127.0.0.1:1"),
                format!("{scheme}:///nonexistent/redis.sock?user=ann&pass={password}"),
                format!("{scheme}:///nonexistent/redis.sock?db={password}&pass={password}"),
                format!("{scheme}://ann:{password}@/nonexistent/redis.sock"),
                format!("{scheme}:///nonexistent/redis.sock%3Fpass={password}"),
            ] {
                urls.push(url);
            }
            // Without a host, text behind an `@` is the host by the grammar.
            if separator != "@" {
                urls.push(format!("{scheme}://ann:{password}"));
            }
        }
    }
    urls
}

#[derive(Clone, Default)]
struct Texts(Arc<Mutex<Vec<String>>>);

impl Texts {
    fn add(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn debug(&self, value: &impl Debug) {
        self.add(format!("{value:?} {value:#?}"));
    }
}

impl Observer for Texts {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Warned(warning) => {
                self.add(format!("{warning} {warning:?}"));
            }
            Event::Failed { error, .. } => {
                self.add(format!("{error} {error:?}"));
            }
            _ => {}
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

/// Adds all that a program can print of a limiter with this builder: whether it can be built, and its failures.
/// Returns whether it can be built.
async fn print(texts: &Texts, builder: Builder) -> bool {
    let builder = builder.deadline(HOUR).on_failure(OnFailure::Error).observer(texts.clone());
    texts.debug(&builder);
    let limiter = match builder.build() {
        Ok(limiter) => limiter,
        Err(error) => {
            texts.add(format!("{error} {error:?}"));
            return false;
        }
    };
    let gate = limiter.gate("gate", Quota::fixed_window(5, HOUR));
    texts.debug(&limiter);
    texts.debug(&gate);
    let unready = limiter.ready_within(Duration::from_millis(50)).await.err();
    for error in gate.check("key").await.err().into_iter().chain(unready) {
        texts.add(format!("{error} {error:?}"));
    }
    let health = limiter.health().await;
    texts.add(format!("{health} {health:?}"));
    true
}

#[tokio::test]
async fn no_text_shows_a_password_of_any_url_form() {
    let urls = urls();
    let (mut built, mut checked) = (0, 0);
    for url in &urls {
        let texts = Texts::default();
        texts.add(format!("{} {:?}", RedactedUrl::new(url), RedactedUrl::new(url)));
        built += u32::from(print(&texts, Limiter::builder().url(url)).await);
        print(&texts, Limiter::builder().sentinel([url.as_str()], "main")).await;
        #[cfg(feature = "cluster")]
        print(&texts, Limiter::builder().cluster([url])).await;
        let config = deadpool_redis::Config::from_url(url);
        if let Ok(pool) = config.create_pool(Some(deadpool_redis::Runtime::Tokio1)) {
            print(&texts, Limiter::builder().pool(pool)).await;
        }
        for text in texts.0.lock().unwrap().iter() {
            for part in PARTS {
                assert!(!text.contains(part), "{url:?}: {text}");
            }
            checked += 1;
        }
    }
    assert!(urls.len() >= 1_000 && built > 80 && checked > 9_000, "{} URLs, {built}, {checked}", urls.len());
}

#[test]
fn url_without_a_host_shows_only_its_scheme() {
    for url in
        ["redis://:1234", "redis://:1234/0", "redis://ann:1234@", "rediss://", "redis://:1234?protocol=resp3"]
    {
        let scheme = url.split(':').next().unwrap();
        assert_eq!(RedactedUrl::new(url).to_string(), format!("{scheme}://…"), "{url}");
    }
    assert_eq!(RedactedUrl::new("redis://[::1]:6379").to_string(), "redis://[::1]:6379");
}

#[test]
fn path_of_a_socket_is_shown_only_if_it_contains_no_encoded_query() {
    for (path, shown) in [
        ("/run/redis-6.0_a.sock?pass=secret", "unix:///run/redis-6.0_a.sock"),
        ("/run/s%3Fpass=secret", "unix://…"),
        ("/run/s&pass=secret", "unix://…"),
        ("/run/ann:secret", "unix://…"),
        ("", "unix://…"),
        ("ann:secret@/run/s", "unix://…"),
    ] {
        assert_eq!(RedactedUrl::new(&format!("unix://{path}")).to_string(), shown, "{path}");
    }
}

/// The events of a limiter, as `Debug` shows them.
#[derive(Clone, Default)]
struct EventTexts(Arc<Mutex<Vec<String>>>);

impl Observer for EventTexts {
    fn on(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

#[tokio::test]
async fn debug_shows_at_most_two_bytes_of_a_key() {
    const KEY: &str = "user:42:secret";
    let limiter = Limiter::builder()
        .in_memory()
        .key_mode(KeyMode::Hmac(b"secret of the keys".to_vec()))
        .build()
        .unwrap();
    assert!(!format!("{limiter:?} {:?}", KeyMode::Hmac(b"secret".to_vec())).contains("secret"));

    let limiter = Limiter::in_memory();
    let gate = limiter.gate("gate", Quota::fixed_window(1, HOUR));
    limiter.control().set_override("gate", KEY, Quota::fixed_window(2, HOUR), HOUR).await.unwrap();
    limiter.control().switch("other", Switch::Open, None).await.unwrap();
    let all = limiter.check_all([gate.key(KEY).cost(2)]).await.unwrap();
    assert!(!gate.check(KEY).await.unwrap().is_allowed());
    let overrides = limiter.control().overrides().await.unwrap();
    assert_eq!(overrides.len(), 2);
    let values: [&dyn Debug; 6] = [
        &overrides,
        &all,
        &gate.key(KEY),
        &gate.key(KEY).reserve().await.unwrap(),
        &tidegate::AsKey::as_key(KEY),
        &RedactedKey::new(KEY.as_bytes()),
    ];
    for value in values {
        let text = format!("{value:?} {value:#?}");
        assert!(!text.contains("ser:") && !text.contains("secret"), "{text}");
    }
    let events = EventTexts::default();
    let limiter = Limiter::builder().in_memory().observer(events.clone()).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1, HOUR));
    for _ in 0..2 {
        let _ = gate.check(KEY).await.unwrap();
    }
    let texts = events.0.lock().unwrap().join(" ");
    assert!(texts.contains("Denied") && !texts.contains("ser:") && !texts.contains("secret"), "{texts}");
    let shown = format!("{overrides:?}");
    assert!(shown.contains("\"us…\" (14 bytes)") && shown.contains("Switch"), "{shown}");
    let independent = AllDecision::of_each(all.into_each_alone());
    assert!(!format!("{independent:?}").contains("secret"));
}
