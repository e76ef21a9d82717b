//! The spans of requests, and the trace contexts of their clients.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, Once};

use serde_json::json;
use tidegate_server::{Server, TraceContext};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Span, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use super::fixture::{Running, descriptor, in_memory, request};

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 10 }
";
const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

type Fields = BTreeMap<String, String>;

/// A span of the service, when it was closed.
#[derive(Clone, Debug, Default)]
struct Closed {
    name: &'static str,
    parent: Option<&'static str>,
    fields: Fields,
}

/// Collects the spans of tidegate that are closed in this thread.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Closed>>>);

struct Text<'f>(&'f mut Fields);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let mut fields = Fields::new();
        attributes.record(&mut Text(&mut fields));
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        values.record(&mut Text(span.extensions_mut().get_mut::<Fields>().unwrap()));
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if span.metadata().target().starts_with("tidegate") {
            let fields = span.extensions().get::<Fields>().cloned().unwrap_or_default();
            let parent = span.parent().map(|parent| parent.name());
            self.0.lock().unwrap().push(Closed { name: span.name(), parent, fields });
        }
    }
}

impl Spans {
    /// Collects until the guard is dropped.
    fn collect() -> (Self, DefaultGuard) {
        // Race: a test without a subscriber reaches a span first, and tracing disables that span for the process; then a
        // subscriber of one thread does not get it in time. A subscriber of all threads keeps it enabled.
        static ALL_THREADS: Once = Once::new();
        ALL_THREADS.call_once(|| tracing::subscriber::set_global_default(Registry::default()).unwrap());
        let spans = Self::default();
        let guard = tracing::subscriber::set_default(Registry::default().with(spans.clone()));
        (spans, guard)
    }

    fn named(&self, name: &str) -> Vec<Closed> {
        self.0.lock().unwrap().iter().filter(|span| span.name == name).cloned().collect()
    }
}

async fn check_over_http(server: &Running, headers: &[(&str, &[u8])]) {
    let body = json!({ "gate": "d.user", "key": "ada" }).to_string();
    let request =
        reqwest::Client::new().post(server.url("/v1/check")).header("content-type", "application/json");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    assert_eq!(request.body(body).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn span_of_a_request_has_the_trace_of_its_client() {
    let (spans, _guard) = Spans::collect();
    let server = Running::start(in_memory(RULES)).await;
    check_over_http(&server, &[("traceparent", TRACEPARENT.as_bytes()), ("tracestate", b"vendor=1")]).await;
    let mut message = tonic::Request::new(request([descriptor(&[("user", "ada")])]));
    message.metadata_mut().insert("traceparent", TRACEPARENT.parse().unwrap());
    server.client().await.should_rate_limit(message).await.unwrap();
    assert!(server.stop().await);

    let requests = spans.named("request");
    let paths: Vec<&str> = requests.iter().map(|span| &*span.fields["url.path"]).collect();
    assert_eq!(paths, ["/v1/check", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"]);
    for span in &requests {
        let expected = [
            ("trace_id", TRACE_ID),
            ("parent_span_id", "00f067aa0ba902b7"),
            ("trace_flags", "01"),
            ("otel.kind", "server"),
            ("http.request.method", "POST"),
            ("http.response.status_code", "200"),
        ];
        for (field, value) in expected {
            assert_eq!(span.fields[field], value, "{span:?}");
        }
    }
    assert_eq!(requests[0].fields["tracestate"], "vendor=1");
    assert!(!requests[1].fields.contains_key("tracestate"));
    let checks = spans.named("check");
    assert_eq!(checks.len(), 2);
    assert!(checks.iter().all(|check| check.parent == Some("request")), "{checks:?}");
}

#[tokio::test]
async fn span_of_a_request_has_the_rule_that_decided_it() {
    let (spans, _guard) = Spans::collect();
    let server = Running::start(in_memory(RULES)).await;
    let body = json!({ "domain": "d", "descriptors": [{ "entries": [{ "key": "user", "value": "ada" }] }] });
    let check = || {
        let request = reqwest::Client::new().post(server.url("/v1/check"));
        request.header("content-type", "application/json").body(body.to_string()).send()
    };
    let mut client = server.client().await;
    check_over_http(&server, &[]).await;
    while check().await.unwrap().status() == 200 {}
    client.should_rate_limit(request([descriptor(&[("user", "ada")])])).await.unwrap();
    assert!(server.stop().await);
    let decided: Vec<_> = spans
        .named("request")
        .into_iter()
        .map(|span| ["rule", "outcome"].map(|field| span.fields.get(field).cloned().unwrap_or_default()))
        .collect();
    let of_rule = |outcome: &str| ["d / user".to_owned(), outcome.to_owned()];
    let [of_gate, first, .., denied, over_grpc] = &decided[..] else { panic!("{decided:?}") };
    assert_eq!([first, denied, over_grpc], [&of_rule("allowed"), &of_rule("denied"), &of_rule("denied")]);
    assert_eq!(*of_gate, ["", ""], "a check of a gate has a span of its own with both");
}

#[tokio::test]
async fn invalid_trace_contexts_are_ignored() {
    let (spans, _guard) = Spans::collect();
    let server = Running::start(in_memory(RULES)).await;
    let invalid: [&[(&str, &[u8])]; 4] = [
        &[],
        &[("traceparent", b"00-0-0-0")],
        &[("traceparent", b"\xff"), ("tracestate", b"a=1")],
        &[("traceparent", TRACEPARENT.as_bytes()), ("traceparent", TRACEPARENT.as_bytes())],
    ];
    for headers in invalid {
        check_over_http(&server, headers).await;
    }
    assert!(server.stop().await);
    let requests = spans.named("request");
    assert_eq!(requests.len(), 4);
    assert!(requests.iter().all(|span| !span.fields.contains_key("trace_id")), "{requests:?}");
}

#[tokio::test]
async fn hook_gets_the_span_and_the_context_of_traced_clients() {
    let (_spans, _guard) = Spans::collect();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hook = {
        let seen = seen.clone();
        move |span: &Span, context: &TraceContext| {
            let name = span.metadata().map(|metadata| metadata.name());
            seen.lock().unwrap().push((name, context.trace_id().to_owned()));
        }
    };
    let server =
        Server::new(in_memory(RULES)).on_traced_request(hook).drain_notice(std::time::Duration::ZERO);
    let server = Running::of(server).await;
    check_over_http(&server, &[]).await;
    check_over_http(&server, &[("traceparent", TRACEPARENT.as_bytes())]).await;
    assert!(server.stop().await);
    assert_eq!(*seen.lock().unwrap(), [(Some("request"), TRACE_ID.to_owned())]);
}
