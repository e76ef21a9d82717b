//! Traces contain the decision, and no key.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex};

use tidegate::{Ban, Limiter, OnFailure, Quota};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::support::fixture::{HOUR, builder, builder_as_is, closed_port};

const QUOTA: Quota = Quota::fixed_window(2, HOUR);

/// Race: with a single subscriber alive, the first thread to reach a span caches for all threads whether
/// anything listens. That thread may run another test, which has no subscriber. A second subscriber prevents
/// this.
static SECOND_SUBSCRIBER: LazyLock<Dispatch> =
    LazyLock::new(|| Dispatch::new(tracing_subscriber::registry().with(LevelFilter::OFF)));

/// Records each event when it occurs, and each span when it closes.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Recorder {
    fn record(&self, level: Level, name: &str, Fields(fields): &Fields) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
        self.0.lock().unwrap().push(format!("{level} {name} {}", fields.join(" ")));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// Subscribes on this thread to `level` and more severe levels, until the guard is dropped.
    fn subscribe(&self, level: Level) -> tracing::subscriber::DefaultGuard {
        LazyLock::force(&SECOND_SUBSCRIBER);
        let layer = self.clone().with_filter(LevelFilter::from_level(level));
        tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        values.record(context.span(id).unwrap().extensions_mut().get_mut::<Fields>().unwrap());
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "tidegate" {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.record(*event.metadata().level(), "", &fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        self.record(*span.metadata().level(), span.name(), span.extensions().get::<Fields>().unwrap());
    }
}

#[tokio::test]
async fn each_check_is_a_span_with_cost_gate_outcome_and_source() {
    let (server, recorder) = (tidegate_testkit::shared(), Recorder::default());
    let _subscribed = recorder.subscribe(Level::DEBUG);
    let limiter = builder(server.url()).deny_cache(HOUR).build().unwrap();
    let [a, b] = ["a", "b"].map(|name| limiter.gate(name, QUOTA));
    let _ = a.check_cost("secret", 2).await.unwrap();
    assert_eq!(recorder.take(), ["DEBUG check cost=2 gate=a outcome=allowed source=redis"]);
    for source in ["redis", "deny_cache"] {
        let _ = a.check("secret").await.unwrap();
        assert_eq!(recorder.take(), [format!("DEBUG check cost=1 gate=a outcome=denied source={source}")]);
    }
    assert!(a.try_check("secret").is_some());
    assert_eq!(recorder.take(), ["DEBUG check cost=1 gate=a outcome=denied source=deny_cache"]);
    let _ = limiter.check_all([a.key("secret"), b.key("secret")]).await.unwrap();
    assert_eq!(recorder.take(), ["DEBUG check_all checks=2 gate=a outcome=denied source=redis"]);
    let _ = b.check_many(["x", "y", "secret"]).await;
    assert_eq!(recorder.take(), ["DEBUG check_many allowed=3 checks=3 failed=0"]);
    assert!(a.check_cost("secret", 3).await.is_err());
    assert_eq!(recorder.take(), ["DEBUG check cost=3 error=over_capacity gate=a"]);
    drop(a.check("given up"));
    assert!(recorder.take().is_empty(), "a check that was never polled has no span");
}

#[tokio::test]
async fn failures_are_logged_once_a_second_and_the_breaker_when_it_opens() {
    let recorder = Recorder::default();
    let _subscribed = recorder.subscribe(Level::INFO);
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = builder_as_is(&url).on_failure(OnFailure::Open).build().unwrap();
    let gate = limiter.gate("gate", QUOTA);
    for _ in 0..100 {
        let _ = gate.check("secret").await.unwrap();
    }
    let events = recorder.take();
    assert!(
        events[0].starts_with("WARN  code=redis-unreachable message=limits are not shared: "),
        "{events:?}"
    );
    let events = &events[1..];
    assert!(
        events[0].starts_with("WARN  error=Redis is unavailable: ")
            && events[0].contains("kind=unavailable left_out=0"),
        "{events:?}"
    );
    assert_eq!(
        events[1..],
        ["WARN  message=circuit breaker opened: Redis does not answer, so checks are not sent to it"]
    );
    assert!(!events[0].contains("se…"), "the event contains a part of the key: {events:?}");
    crate::support::fixture::soon("another failure is reported", async || {
        let _ = gate.check("secret").await.unwrap();
        recorder
            .take()
            .first()
            .is_some_and(|event| event.contains("kind=breaker_open") && !event.contains("left_out=0"))
    })
    .await;
}

#[tokio::test]
async fn bans_are_logged_once_a_second_without_the_key() {
    let recorder = Recorder::default();
    let _subscribed = recorder.subscribe(Level::INFO);
    let limiter = Limiter::in_memory();
    let ban = Ban::after(1, HOUR);
    let gate = limiter.gate("gate", QUOTA).ban(ban);
    let ban_of = async |key: String| {
        for _ in 0..3 {
            let _ = gate.check(&key).await.unwrap();
        }
        recorder.take()
    };
    let first = ban_of("secret".to_owned()).await;
    assert_eq!(first, ["INFO  gate=gate lasts=3600s left_out=0 message=denials have banned a key"]);
    let mut bans = 0;
    crate::support::fixture::soon("another ban is reported", async || {
        bans += 1;
        let events = ban_of(bans.to_string()).await;
        events.first().is_some_and(|event| event.contains(&format!("left_out={}", bans - 1)))
    })
    .await;
}

#[tokio::test]
async fn gate_of_a_rule_is_logged_by_its_readable_name() {
    let recorder = Recorder::default();
    let _subscribed = recorder.subscribe(Level::INFO);
    let limiter = Limiter::in_memory();
    limiter.notify(&tidegate::Event::GateNamed { gate: "api.user", readable: "api / user" });
    let gate = limiter.gate("api.user", QUOTA).ban(Ban::after(1, HOUR));
    for _ in 0..3 {
        let _ = gate.check("key").await.unwrap();
    }
    assert_eq!(
        recorder.take(),
        ["INFO  gate=api / user lasts=3600s left_out=0 message=denials have banned a key"]
    );
}

#[test]
fn rules_that_are_loaded_or_reloaded_are_logged() {
    let recorder = Recorder::default();
    let _subscribed = recorder.subscribe(Level::INFO);
    let limiter = Limiter::in_memory();
    limiter.notify(&tidegate::Event::RulesLoaded(1));
    assert_eq!(recorder.take(), ["INFO  message=loaded rules, following their files rules=1"]);
    limiter.notify(&tidegate::Event::RulesReloaded(Ok(2)));
    assert_eq!(recorder.take(), ["INFO  message=reloaded rules rules=2"]);
}
