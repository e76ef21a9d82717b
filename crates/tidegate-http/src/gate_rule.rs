//! A rule: the gate, the key and the cost to check for a request.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tidegate::Gate;

use super::charge::Charge;
use super::key::Key;

pub(super) type Cost = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

/// One limit of a request: the gate to check, the key, and the cost.
///
/// A limit of bytes charges the bytes that the handler read. A chunked request has no `Content-Length`: it takes
/// as many units as the largest body that the handler accepts, until its bytes are known.
///
/// ```
/// use http::header::CONTENT_LENGTH;
/// use tidegate::{Limiter, Quota, Rate};
/// use tidegate_http::{Charge, GateRule, Key, RateLimitLayer};
///
/// const MAX_BODY_BYTES: u64 = 2 << 20;
///
/// /// The handler adds it to the extensions of its response.
/// #[derive(Clone)]
/// struct BytesRead(u64);
///
/// let limiter = Limiter::in_memory();
/// let requests = limiter.gate("requests", Quota::token_bucket(60, Rate::per_minute(60)));
/// let upload = limiter.gate("upload", Quota::token_bucket(1 << 30, Rate::per_hour(1 << 30)));
/// let layer = RateLimitLayer::of([
///     GateRule::new(requests, Key::header("x-api-key")),
///     GateRule::new(upload, Key::header("x-api-key"))
///         .name("upload bytes")
///         .cost(|parts| {
///             let length = parts.headers.get(CONTENT_LENGTH);
///             length.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(MAX_BODY_BYTES)
///         })
///         .charge(Charge::units(|response| response.extensions.get().map(|&BytesRead(bytes)| bytes))),
/// ]);
/// ```
#[derive(Clone)]
pub struct GateRule {
    pub(super) gate: Gate,
    pub(super) key: Key,
    pub(super) colocate_with: Option<Key>,
    pub(super) cost: Option<Cost>,
    pub(super) charge: Option<Charge>,
    pub(super) name: Option<Arc<str>>,
}

impl GateRule {
    /// Checks this gate for one unit of this key.
    #[must_use]
    pub fn new(gate: Gate, key: Key) -> Self {
        Self { gate, key, colocate_with: None, cost: None, charge: None, name: None }
    }

    /// Sets the units that a request consumes. A rule with cost 0 does not apply to the request. A request
    /// that costs more than the limit can never be admitted: the layer rejects it with 413, unless the gate is in
    /// shadow mode.
    ///
    /// Default: the [layer's cost](super::RateLimitLayer::cost), which is 1.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Stores the key in the Redis Cluster slot of another rule's key, so that one step can decide both: see
    /// [`Check::colocate_with`](tidegate::Check::colocate_with). A request without that other key is treated as
    /// one that lacks the rule's key.
    ///
    /// Default: the key's own slot.
    #[must_use]
    pub fn colocate_with(mut self, key: Key) -> Self {
        self.colocate_with = Some(key);
        self
    }

    /// Sets how the response changes the charge.
    ///
    /// Default: the [layer's charge](super::RateLimitLayer::charge).
    #[must_use]
    pub fn charge(mut self, charge: Charge) -> Self {
        self.charge = Some(charge);
        self
    }

    /// Sets the name of this limit in headers and messages.
    ///
    /// Default: the gate's name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }
}

impl fmt::Debug for GateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateRule").field("gate", &self.gate).field("key", &self.key).finish_non_exhaustive()
    }
}
