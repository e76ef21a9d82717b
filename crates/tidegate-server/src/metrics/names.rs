//! The metrics of the service's ports: every name with its labels, its unit and its description. Those of its limiter
//! are in `tidegate::metrics::names`.

use ::metrics::{Recorder, Unit};

/// A metric: its name and properties.
pub(super) struct Metric {
    pub(super) name: &'static str,
    /// None of them holds a key, or any other text of a client.
    pub(super) labels: &'static [&'static str],
    unit: Unit,
    kind: Kind,
    description: &'static str,
}

enum Kind {
    Counter,
    Gauge,
    Histogram,
}

pub(super) const REQUESTS: Metric = Metric {
    name: "tidegate_server_requests_total",
    labels: &["protocol", "method", "code"],
    unit: Unit::Count,
    kind: Kind::Counter,
    description: "Requests that were answered.",
};

pub(super) const REQUEST_SECONDS: Metric = Metric {
    name: "tidegate_server_request_seconds",
    labels: &["protocol", "method"],
    unit: Unit::Seconds,
    kind: Kind::Histogram,
    description: "Time from the head of a request to its response; of gRPC, from its message.",
};

pub(super) const CONNECTIONS: Metric = Metric {
    name: "tidegate_server_connections",
    labels: &["port"],
    unit: Unit::Count,
    kind: Kind::Gauge,
    description: "Open connections.",
};

pub(super) const REJECTED_CONNECTIONS: Metric = Metric {
    name: "tidegate_server_rejected_connections_total",
    labels: &["port", "reason"],
    unit: Unit::Count,
    kind: Kind::Counter,
    description: "Connections that were closed before a request.",
};

pub(super) const REJECTED_LOGINS: Metric = Metric {
    name: "tidegate_server_rejected_logins_total",
    labels: &["reason"],
    unit: Unit::Count,
    kind: Kind::Counter,
    description: "Tokens that the admin port has rejected.",
};

const ALL: [Metric; 5] = [REQUESTS, REQUEST_SECONDS, CONNECTIONS, REJECTED_CONNECTIONS, REJECTED_LOGINS];

/// Tells a recorder the descriptions.
pub(super) fn describe_all(recorder: &impl Recorder) {
    for Metric { name, unit, kind, description, .. } in ALL {
        let (name, unit, description) = (name.into(), Some(unit), description.into());
        match kind {
            Kind::Counter => recorder.describe_counter(name, unit, description),
            Kind::Gauge => recorder.describe_gauge(name, unit, description),
            Kind::Histogram => recorder.describe_histogram(name, unit, description),
        }
    }
}
