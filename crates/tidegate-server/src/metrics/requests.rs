//! The metrics of requests. Each counter and histogram is registered once and kept: a registration allocates all labels.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use ::metrics::{Counter, Histogram};
use http::StatusCode;
use tokio::time::Instant;

use super::{ServiceMetrics, names};

/// The maximum number of routes, and of statuses of a route, whose metrics are kept. Above those of the router and its
/// handlers.
const MAX_ROUTES: usize = 64;
const MAX_STATUSES: usize = 64;

/// The method of the protocol.
const METHOD: &str = "ShouldRateLimit";
/// The codes with which the method ends: those of its decisions, and those of messages that are late, too large, malformed,
/// of a page, or above the memory of unfinished ones.
const CODES: [&str; 11] = [
    "OK",
    "OVER_LIMIT",
    "INVALID_ARGUMENT",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "UNAVAILABLE",
    "INTERNAL",
    "DEADLINE_EXCEEDED",
    "OUT_OF_RANGE",
    "MALFORMED",
    "RESOURCE_EXHAUSTED",
];

/// Counts requests over gRPC.
pub(crate) struct GrpcRequests {
    metrics: ServiceMetrics,
    /// By code. Created at the start: Prometheus does not count the first value of a new series as an increase.
    counters: [(&'static str, Counter); CODES.len()],
    seconds: Histogram,
}

impl GrpcRequests {
    pub(crate) fn new(metrics: &ServiceMetrics) -> Self {
        let counters = CODES.map(|code| (code, requests(metrics, "grpc", METHOD, code)));
        Self { metrics: metrics.clone(), counters, seconds: seconds(metrics, "grpc", METHOD) }
    }

    /// Counts a request that is answered now.
    pub(crate) fn answered(&self, code: &str, began: Instant) {
        match self.counters.iter().find(|(known, _)| *known == code) {
            Some((_, counter)) => counter.increment(1),
            None => requests(&self.metrics, "grpc", METHOD, code).increment(1),
        }
        self.seconds.record(began.elapsed());
    }
}

/// Counts requests over HTTP, by route and status.
pub(crate) struct HttpRequests {
    metrics: ServiceMetrics,
    routes: RwLock<HashMap<Box<str>, HashMap<StatusCode, RouteMetrics>>>,
}

/// The metrics of one route and status. Clones share them.
#[derive(Clone)]
struct RouteMetrics {
    requests: Counter,
    seconds: Histogram,
}

impl HttpRequests {
    pub(crate) fn new(metrics: &ServiceMetrics) -> Self {
        Self { metrics: metrics.clone(), routes: RwLock::default() }
    }

    /// Counts a request that is answered now. `route`: that of the router, never a path of a client.
    pub(crate) fn answered(&self, route: &str, status: StatusCode, began: Instant) {
        let metrics = self.kept(route, status).unwrap_or_else(|| self.keep(route, status));
        metrics.requests.increment(1);
        metrics.seconds.record(began.elapsed());
    }

    fn kept(&self, route: &str, status: StatusCode) -> Option<RouteMetrics> {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        routes.get(route)?.get(&status).cloned()
    }

    /// Registers the metrics, and keeps them if there is room. Two requests that register at once get the same.
    fn keep(&self, route: &str, status: StatusCode) -> RouteMetrics {
        let made = RouteMetrics {
            requests: requests(&self.metrics, "http", route, status.as_str()),
            seconds: seconds(&self.metrics, "http", route),
        };
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        if routes.len() < MAX_ROUTES || routes.contains_key(route) {
            let statuses = routes.entry(route.into()).or_default();
            if statuses.len() < MAX_STATUSES {
                statuses.insert(status, made.clone());
            }
        }
        made
    }
}

fn requests(metrics: &ServiceMetrics, protocol: &'static str, method: &str, code: &str) -> Counter {
    metrics.counter(&names::REQUESTS, &[("protocol", protocol), ("method", method), ("code", code)])
}

fn seconds(metrics: &ServiceMetrics, protocol: &'static str, method: &str) -> Histogram {
    metrics.histogram(&names::REQUEST_SECONDS, &[("protocol", protocol), ("method", method)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(metrics: &ServiceMetrics, labels: &str) -> Option<u64> {
        let text = metrics.render();
        let series = format!("tidegate_server_requests_total{{{labels}}} ");
        text.lines().find_map(|line| line.strip_prefix(&*series)).map(|count| count.parse().unwrap())
    }

    #[test]
    fn requests_of_one_route_and_status_register_once() {
        let metrics = ServiceMetrics::new();
        let requests = HttpRequests::new(&metrics);
        let began = Instant::now();
        assert!(requests.kept("/json", StatusCode::OK).is_none());
        for _ in 0..100 {
            requests.answered("/json", StatusCode::OK, began);
            requests.answered("/json", StatusCode::TOO_MANY_REQUESTS, began);
        }
        assert!(requests.kept("/json", StatusCode::OK).is_some());
        let labels = |code: u16| format!("protocol=\"http\",method=\"/json\",code=\"{code}\"");
        assert_eq!((count(&metrics, &labels(200)), count(&metrics, &labels(429))), (Some(100), Some(100)));
        let seconds = "tidegate_server_request_seconds_count{protocol=\"http\",method=\"/json\"} 200";
        assert!(metrics.render().contains(seconds), "{}", metrics.render());
    }

    #[test]
    fn kept_metrics_are_bounded_and_the_others_counted_too() {
        let metrics = ServiceMetrics::new();
        let requests = HttpRequests::new(&metrics);
        for number in 0..500_u16 {
            let began = Instant::now();
            requests.answered(&format!("/{number}"), StatusCode::OK, began);
            requests.answered("/0", StatusCode::from_u16(200 + number).unwrap(), began);
        }
        let routes = requests.routes.read().unwrap();
        assert_eq!((routes.len(), routes["/0"].len()), (MAX_ROUTES, MAX_STATUSES));
        assert_eq!(count(&metrics, "protocol=\"http\",method=\"/499\",code=\"200\""), Some(1));
        assert_eq!(count(&metrics, "protocol=\"http\",method=\"/0\",code=\"699\""), Some(1));
    }

    #[test]
    fn codes_of_grpc_are_counted_from_the_start() {
        let metrics = ServiceMetrics::new();
        let requests = GrpcRequests::new(&metrics);
        let labels = |code: &str| format!("protocol=\"grpc\",method=\"ShouldRateLimit\",code=\"{code}\"");
        assert!(CODES.iter().all(|code| count(&metrics, &labels(code)) == Some(0)));
        for code in ["OK", "OK", "UNAVAILABLE", "further"] {
            requests.answered(code, Instant::now());
        }
        let counts = ["OK", "UNAVAILABLE", "INTERNAL", "further"].map(|code| count(&metrics, &labels(code)));
        assert_eq!(counts, [Some(2), Some(1), Some(0), Some(1)]);
    }
}
