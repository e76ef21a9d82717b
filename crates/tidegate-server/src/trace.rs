//! Tracing (feature `tracing`): a span at `INFO` for each request of both ports, with the trace context of its client.
//! The spans of checks are its children.

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use tidegate_rules::{RuleOutcome, RulesDecision};
use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

use crate::trace_context::TraceContext;

type Called = dyn Fn(&Span, &TraceContext) + Send + Sync;

/// Is called with the span of each request of a traced client.
#[derive(Clone, Default)]
pub(crate) struct SpanHook(pub(crate) Option<Arc<Called>>);

impl fmt::Debug for SpanHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SpanHook").field(&self.0.is_some()).finish()
    }
}

/// Without the feature, requests have no span.
pub(crate) fn traced(router: Router, hook: SpanHook) -> Router {
    match cfg!(feature = "tracing") {
        true => router.layer(middleware::from_fn_with_state(hook, in_span)),
        false => router,
    }
}

async fn in_span(State(hook): State<SpanHook>, request: Request, next: Next) -> Response {
    let span = span(&request);
    if let (false, Some(context)) = (span.is_disabled(), TraceContext::from_headers(request.headers())) {
        span.record("trace_id", context.trace_id());
        span.record("parent_span_id", context.parent_span_id());
        span.record("trace_flags", context.trace_flags());
        if !context.tracestate().is_empty() {
            span.record("tracestate", context.tracestate());
        }
        if let Some(hook) = &hook.0 {
            hook(&span, &context);
        }
    }
    let response = next.run(request).instrument(span.clone()).await;
    span.record("http.response.status_code", response.status().as_u16());
    // Of a response without a message, such as an error.
    let grpc_status = response.headers().get("grpc-status").and_then(|status| status.to_str().ok());
    if let Some(status) = grpc_status.and_then(|status| status.parse::<u8>().ok()) {
        span.record("rpc.grpc.status_code", status);
    }
    response
}

fn span(request: &Request) -> Span {
    info_span!(
        target: "tidegate_server",
        "request",
        otel.kind = "server",
        http.request.method = request.method().as_str(),
        url.path = request.uri().path(),
        trace_id = Empty,
        parent_span_id = Empty,
        trace_flags = Empty,
        tracestate = Empty,
        http.response.status_code = Empty,
        rpc.grpc.status_code = Empty,
        rule = Empty,
        outcome = Empty,
    )
}

/// Records in the span of the request whether rules admit it, and the readable name of the rule that binds.
pub(crate) fn record(decision: &RulesDecision) {
    let span = Span::current();
    if cfg!(feature = "tracing") && !span.is_disabled() {
        span.record("outcome", if decision.is_allowed() { "allowed" } else { "denied" });
        if let Some(rule) = decision.binding().and_then(RuleOutcome::rule) {
            span.record("rule", rule.readable_name());
        }
    }
}
