//! A rule: the gate, the key and the cost to check for a request.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tidegate::Gate;

use super::charge::Charge;
use super::in_flight::is_in_flight;
use super::key::Key;
use super::reserved_slots::ReservedSlots;
use crate::policy::PartitionKeys;

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
    pub(super) unit: Option<Arc<str>>,
    pub(super) partition_keys: Option<PartitionKeys>,
    pub(super) reserved: Option<ReservedSlots>,
}

impl GateRule {
    /// Checks this gate for one unit of this key.
    #[must_use]
    pub fn new(gate: Gate, key: Key) -> Self {
        Self {
            gate,
            key,
            colocate_with: None,
            cost: None,
            charge: None,
            name: None,
            unit: None,
            partition_keys: None,
            reserved: None,
        }
    }

    /// Sets the units that a request consumes. A rule with cost 0 does not apply to the request. A request
    /// that costs more than the limit can never be admitted: the layer rejects it with 400, unless the gate is in
    /// shadow mode.
    ///
    /// An in-flight limit holds that many units for the request.
    ///
    /// Default: the [layer's cost](super::RateLimitLayer::cost), which is 1. At an in-flight limit: 1.
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
    ///
    /// # Panics
    ///
    /// If the gate has an in-flight limit: a permit is returned at the end of the response in any case.
    #[must_use]
    #[track_caller]
    pub fn charge(mut self, charge: Charge) -> Self {
        assert!(
            !is_in_flight(&self.gate),
            "a charge does not apply to an in-flight limit, which charges nothing: remove `charge` from this rule"
        );
        self.charge = Some(charge);
        self
    }

    /// Reserves a share of an in-flight limit for critical requests, so that less important ones are shed first. The
    /// requests for which `is_critical` returns false can use `floor(N * (1 - share))` of the N slots; critical
    /// ones can use all. Both are counted together, by key.
    ///
    /// Responses report the limit of the request's own kind. If an operator's override lowers N, at least one slot
    /// stays for the others.
    ///
    /// ```
    /// use http::Method;
    /// use tidegate::{Limiter, Quota};
    /// use tidegate_http::{GateRule, Key, RateLimitLayer};
    ///
    /// let fleet = Limiter::in_memory().gate("fleet", Quota::in_flight(100));
    /// // Of 100 requests at the same time, at most 80 are not purchases.
    /// let rule = GateRule::new(fleet, Key::constant("all"))
    ///     .reserve_for(|parts| parts.method == Method::POST && parts.uri.path() == "/purchases", 0.2);
    /// let layer = RateLimitLayer::of([rule]);
    /// # let _ = layer;
    /// ```
    ///
    /// # Panics
    ///
    /// If the gate has no in-flight limit, if `share` is not above 0 and below 1, or if one kind of
    /// requests would have no slot.
    #[must_use]
    #[track_caller]
    pub fn reserve_for(
        mut self,
        is_critical: impl Fn(&Parts) -> bool + Send + Sync + 'static,
        share: f64,
    ) -> Self {
        self.reserved = Some(ReservedSlots::new(self.gate.quota(), is_critical, share));
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

    /// Sets the unit that clients read in `RateLimit-Policy` of [draft 11](crate::Draft::Eleven): what the
    /// [cost](Self::cost) counts. The draft defines `requests`, which is the default there and is not sent,
    /// `content-bytes` and `concurrent-requests`. A service can document others, such as `tokens`.
    ///
    /// Bytes that are not printable ASCII, and `%`, are percent-encoded.
    ///
    /// Default: `requests`. At an in-flight limit: `concurrent-requests`.
    #[must_use]
    pub fn quota_unit(mut self, unit: &str) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Reports the partition key of each request in both fields of [draft 11](crate::Draft::Eleven), as the parameter
    /// `pk`: a client that acts for several users, for example, can tell their quotas apart.
    ///
    /// The partition key is not the request's key, which may be a credential or an address. It is the first 96 bits
    /// of an HMAC-SHA-256 of that key under `secret`, and of the key that it is [colocated](Self::colocate_with) with.
    /// Clients without the secret cannot compute it or test guesses of a key; they can only compare it. Every
    /// instance needs the same secret of at least 16 bytes (32 random ones). Another secret changes the reported
    /// values and no limit.
    ///
    /// Requests that share a key have the same partition key, under each gate whose rule has the same secret.
    ///
    /// ```
    /// use tidegate::{Limiter, Quota, Rate};
    /// use tidegate_http::{GateRule, Key};
    ///
    /// # let secret = b"0123456789abcdef0123456789abcdef";
    /// let tokens = Limiter::in_memory().gate("tokens", Quota::token_bucket(10_000, Rate::per_minute(10_000)));
    /// // For the key k1: RateLimit-Policy: "tokens";q=10000;qu="tokens";w=60;pk=:t42JgzF8vNMxPp78:
    /// let rule = GateRule::new(tokens, Key::header("x-api-key")).quota_unit("tokens").partition_key(secret);
    /// # let _ = rule;
    /// ```
    ///
    /// Default: not reported.
    ///
    /// # Panics
    ///
    /// If the secret has fewer than 16 bytes.
    #[must_use]
    #[track_caller]
    pub fn partition_key(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.partition_keys = Some(PartitionKeys::new(secret.as_ref()));
        self
    }
}

impl fmt::Debug for GateRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateRule").field("gate", &self.gate).field("key", &self.key).finish_non_exhaustive()
    }
}
