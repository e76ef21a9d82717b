//! A layer reloads its rules files, and rejects rules that it cannot use.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use tidegate::{Ban, Error, Event, Limiter, ManualClock, Observer, Quota};
use tidegate_http::{Descriptors, Key, RateLimitLayer};
use tidegate_rules::{Loader, Rules};

use super::{BY_HEADERS, layer, request};
use crate::http::fixture::{Tested, three_a_minute};
use crate::support::fixture::{HOUR, limiter, soon};

#[derive(Clone, Default)]
struct Reloads(Arc<Mutex<Vec<String>>>);

impl Observer for Reloads {
    fn on(&self, event: &Event<'_>) {
        if let Event::RulesReloaded(rules) = *event {
            self.0.lock().unwrap().push(rules.map_or_else(Error::to_string, |count| count.to_string()));
        }
    }
}

struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("tidegate-layer-{}-{name}.yaml", std::process::id())))
    }

    fn write(&self, text: &str) {
        let new = self.0.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &self.0).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn limit_of(limit: u64) -> String {
    format!(
        "{BY_HEADERS}descriptors: [{{ key: api_key, rate_limit: {{ unit: day, requests_per_unit: {limit} }} }}]\n"
    )
}

#[tokio::test]
async fn reload_applies_new_limits_and_keeps_counts() {
    let file = File::new("follows");
    file.write(&limit_of(10));
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    // The layer keeps the watcher alive.
    let layer = RateLimitLayer::with_rules(Loader::new().watch(&file.0, &limiter).unwrap(), "api").unwrap();
    let tested = Tested::new(layer);
    assert_eq!(tested.get("k").await.number("x-ratelimit-remaining"), 9);
    file.write(&limit_of(20));
    let mut checks = 1;
    soon("the new limit", async || {
        checks += 1;
        let reply = tested.get("k").await;
        let limit = reply.number("x-ratelimit-limit");
        assert_eq!(reply.number("x-ratelimit-remaining"), limit.saturating_sub(checks), "of {limit}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        limit == 20
    })
    .await;
}

#[tokio::test]
async fn rules_that_a_layer_cannot_use_are_rejected_on_reload() {
    let file = File::new("needs");
    file.write(&limit_of(1));
    let reloads = Reloads::default();
    let limiter = Limiter::builder().in_memory().observer(reloads.clone()).build().unwrap();
    let watched = Loader::new().watch(&file.0, &limiter).unwrap();
    let descriptors = Descriptors::of("api").extension("user", Key::constant("ada"));
    let tested = Tested::new(RateLimitLayer::with_rules(&watched, descriptors).unwrap());
    let user = "rate_limits: [{ actions: [{ extension: { name: usr } }] }]\ndescriptors: [{ key: user }]\n";
    for (text, expected) in [
        (format!("domain: other\n{user}"), "the rules lack the domain `api`, which a layer uses"),
        ("domain: api\ndescriptors: [{ key: a }]\n".to_owned(), "the domain `api` has no `rate_limits`"),
        (format!("domain: api\n{user}"), ":2:48: this service provides no extension `usr`"),
    ] {
        let before = reloads.0.lock().unwrap().len();
        file.write(&text);
        soon("the reload is reported", async || reloads.0.lock().unwrap().len() > before).await;
        let report = reloads.0.lock().unwrap()[before].clone();
        assert!(report.contains(expected), "{report}");
        assert_eq!(watched.limits().rules().iter().count(), 1);
    }
    assert!(reloads.0.lock().unwrap()[2].contains("did you mean `user`?"));
    assert_eq!(tested.get("k").await.status, StatusCode::OK);
    assert_eq!(tested.get("k").await.status, StatusCode::TOO_MANY_REQUESTS);
    drop(tested);
    // No layer needs the domain anymore.
    file.write("domain: other\ndescriptors: [{ key: a }]\n");
    soon("the rules are accepted", async || watched.limits().rules().iter().count() == 0).await;
}

#[tokio::test]
async fn rule_with_a_ban_is_refused_beside_an_in_flight_gate_of_the_layer() {
    let file = File::new("ban");
    file.write(&limit_of(1));
    let reloads = Reloads::default();
    let limiter = Limiter::builder().in_memory().observer(reloads.clone()).build().unwrap();
    let watched = Loader::new().watch(&file.0, &limiter).unwrap();
    let uploads = limiter.gate("uploads", Quota::in_flight(2));
    let layer = RateLimitLayer::with_rules(&watched, "api").unwrap().and(uploads, Key::constant(""));
    let tested = Tested::new(layer);
    let ban = "ban: { after: 2, within: 10m, for: 3h }";
    let limit = format!("{{ unit: day, requests_per_unit: 1, {ban} }}");
    let before = reloads.0.lock().unwrap().len();
    file.write(&format!("{BY_HEADERS}descriptors: [{{ key: api_key, rate_limit: {limit} }}]\n"));
    soon("the reload is reported", async || reloads.0.lock().unwrap().len() > before).await;
    let report = reloads.0.lock().unwrap()[before].clone();
    assert!(report.contains("a ban and an in-flight limit cannot be decided together"), "{report}");
    assert_eq!(tested.get("k").await.status, StatusCode::OK);
}

#[test]
fn layer_construction_panics_on_a_ban_beside_an_in_flight_limit() {
    let limiter = Limiter::in_memory();
    let banned = limiter.gate("api", Quota::fixed_window(2, HOUR)).ban(Ban::after(2, HOUR).lasting(HOUR));
    let held = limiter.gate("uploads", Quota::in_flight(2));
    let build = || RateLimitLayer::new(banned, Key::constant("")).and(held, Key::constant(""));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(build)).unwrap_err();
    let text = panic.downcast_ref::<&str>().unwrap();
    assert!(text.contains("cannot decide a gate with a ban together with an in-flight limit"), "{text}");
}

#[test]
fn layer_construction_rejects_rules_that_it_cannot_use() {
    let bind = |text: &str| Rules::parse("api.yaml", text).unwrap().bind(&Limiter::in_memory());
    for (text, expected) in [
        ("domain: other", "lack the domain `api`"),
        ("domain: api", "no `rate_limits`"),
        (
            "domain: api\nrate_limits: [{ actions: [{ extension: { name: user } }] }]",
            "api.yaml:2:48: this service provides no extension `user`",
        ),
        (
            "domain: api\ntier: { extension: plan }\nrate_limits: [{ actions: [{ path: {} }] }]",
            "api.yaml:2:20: this service provides no extension `plan`",
        ),
    ] {
        let error = RateLimitLayer::with_rules(bind(text), "api").unwrap_err();
        assert!(error.is_config() && error.to_string().contains(expected), "{error}");
    }
    let closure = Descriptors::from_fn("api", |_| Vec::new());
    assert!(RateLimitLayer::with_rules(bind("domain: api"), closure).is_ok());
}

#[tokio::test]
#[should_panic(expected = "must belong to one limiter")]
async fn gates_of_another_limiter_cannot_be_added() {
    let gate = three_a_minute(&Limiter::in_memory(), "api");
    let _ = layer(&Limiter::in_memory(), "descriptors: []").and(gate, Key::constant(""));
}

#[tokio::test]
async fn request_is_decided_by_the_rules_at_its_arrival() {
    let file = File::new("begun");
    file.write(&limit_of(1).replace("unit: day", "algorithm: token_bucket, every: 1h"));
    let clock = ManualClock::new();
    let limiter = Limiter::in_memory_with(clock.clone());
    let watched = Loader::new().watch(&file.0, &limiter).unwrap();
    let layer = RateLimitLayer::with_rules(&watched, "api").unwrap();
    let tested = Tested::new(layer.wait(Duration::from_secs(7_200), 5));
    tested.get("k").await;
    let waiting = tokio::spawn({
        let tested = tested.clone();
        async move { tested.send(request(&[("x-api-key", "k")])).await }
    });
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    file.write(&limit_of(50).replace("unit: day", "algorithm: token_bucket, every: 1h"));
    soon("the new limit", async || {
        watched.limits().rules().iter().next().unwrap().quota().unwrap().limit() == 50
    })
    .await;
    assert!(!waiting.is_finished());
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(waiting.await.unwrap().number("x-ratelimit-limit"), 1);
    assert_eq!(tested.get("k").await.number("x-ratelimit-limit"), 50);
}
