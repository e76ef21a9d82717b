//! What picks a gate, a key and a cost for a request.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;

use super::charge::Charge;
use super::key::Key;
use crate::gate::Gate;

pub(super) type Cost = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

/// One limit of a request: the gate that is asked, the key it is asked for, and at what cost.
///
/// ```
/// use tidegate::http::{Key, RateLimitLayer, Rule};
/// use tidegate::{Limiter, Quota, Rate};
///
/// let limiter = Limiter::in_memory();
/// let requests = limiter.gate("requests", Quota::token_bucket(60, Rate::per_minute(60)));
/// let upload = limiter.gate("upload", Quota::token_bucket(1 << 30, Rate::per_hour(1 << 30)));
/// let layer = RateLimitLayer::of([
///     Rule::new(requests, Key::header("x-api-key")),
///     Rule::new(upload, Key::header("x-api-key")).name("upload bytes").cost(|parts| {
///         let length = parts.headers.get("content-length").and_then(|it| it.to_str().ok()?.parse().ok());
///         length.unwrap_or(1 << 20)
///     }),
/// ]);
/// ```
#[derive(Clone)]
pub struct Rule {
    pub(super) gate: Gate,
    pub(super) key: Key,
    pub(super) cost: Option<Cost>,
    pub(super) charge: Option<Charge>,
    pub(super) name: Option<Arc<str>>,
}

impl Rule {
    /// Asks this gate for one unit, for this key.
    #[must_use]
    pub fn new(gate: Gate, key: Key) -> Self {
        Self { gate, key, cost: None, charge: None, name: None }
    }

    /// How many units a request wants. A rule that wants none of a request does not apply to it; one
    /// that wants more than its limit can never pass, and is answered 413.
    ///
    /// Default: that of the layer, which is 1.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// What the response changes of what was charged.
    ///
    /// Default: that of the layer.
    #[must_use]
    pub fn charge(mut self, charge: Charge) -> Self {
        self.charge = Some(charge);
        self
    }

    /// What clients read as the name of this limit, in headers and messages.
    ///
    /// Default: the gate's name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("gate", &self.gate).field("key", &self.key).finish_non_exhaustive()
    }
}
