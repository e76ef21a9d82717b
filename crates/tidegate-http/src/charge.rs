//! The rule that determines the final charge of a request.

use std::fmt;
use std::sync::Arc;

use http::response::Parts;
use http::{Extensions, HeaderMap};
use tidegate::Check;

use super::usage::Usage;
use super::warnings::LayerWarnings;

/// Determines from the response how many of the admitted units stay charged.
///
/// Units are taken before the service is called, so that no two requests use the same unit. They are settled before the
/// response is sent, so that the next request observes the result. A change takes two calls to Redis; the second reads
/// the new state for the client. If the first call fails, the taken units stay charged. Units above those taken are
/// charged whatever the state, and later requests wait until they are paid; the debt is capped:
/// [`Builder::debt_cap`](tidegate::Builder::debt_cap). Units that this process admitted while Redis was unavailable are
/// settled in this process until Redis is charged for them.
///
/// [`usage`](Self::usage), [`bytes`](Self::bytes) and [`trailers`](Self::trailers) settle when the response body
/// has ended, in a task on the request's runtime and with one call to Redis. The response's headers are sent
/// before that, so they report the taken units. If the body fails, the units used until then are charged. If it
/// is dropped before its end, the client has left: [`if_abandoned`](Self::if_abandoned) decides.
///
/// ```
/// use http::StatusCode;
/// use tidegate_http::Charge;
///
/// // A failed login costs one unit; a successful one costs nothing.
/// let failures = Charge::when(|response| response.status == StatusCode::UNAUTHORIZED);
/// // Server errors are free.
/// let unless_server_error = Charge::when(|response| !response.status.is_server_error());
/// // The response reports its cost.
/// let tokens = Charge::units(|response| response.headers.get("x-tokens")?.to_str().ok()?.parse().ok());
/// ```
#[derive(Clone, Default)]
pub struct Charge {
    basis: ChargeBasis,
    abandoned: Abandoned,
}

#[derive(Clone, Default)]
enum ChargeBasis {
    #[default]
    Always,
    When(ResponseFn<bool>),
    Units(ResponseFn<Option<u64>>),
    Usage,
    /// The bytes per unit.
    Bytes(u64),
    Trailers(TrailersFn),
}

/// A function of a response.
type ResponseFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

type TrailersFn = Arc<dyn Fn(&HeaderMap) -> Option<u64> + Send + Sync>;

/// The consumption of one request so far.
#[derive(Default)]
pub(super) struct Consumed {
    /// The bytes of the response body, without trailers.
    pub(super) bytes: u64,
    pub(super) trailers: Option<Box<HeaderMap>>,
    pub(super) usage: Option<Usage>,
}

/// The charge of a request that was abandoned while the service handled it or while its response body was
/// sent: its client disconnected, or a time limit outside this layer passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Abandoned {
    /// The units stay charged: otherwise a client could retry for free by disconnecting. Units used above them
    /// are charged too.
    #[default]
    Charged,
    /// The units are refunded.
    Refunded,
    /// The units used so far are charged: those that the handler has reported ([`Charge::usage`]), or those of
    /// the bytes that the server has taken from the body ([`Charge::bytes`]). If they are not known, as before the first
    /// report and with every other charge, the units stay charged.
    Used,
}

impl Charge {
    /// Charges every admitted request.
    #[must_use]
    pub fn always() -> Self {
        Self::default()
    }

    /// Charges a request if `when` returns true for its response. Otherwise refunds all its units, also if
    /// the service failed without a response.
    #[must_use]
    pub fn when(when: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { basis: ChargeBasis::When(Arc::new(when)), ..Self::default() }
    }

    /// Charges the units that the response names, instead of the check's cost. Unused units are refunded;
    /// units above the cost are charged without a check. If `units` returns `None`, or the service failed
    /// without a response, the cost stays charged.
    #[must_use]
    pub fn units(units: impl Fn(&Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { basis: ChargeBasis::Units(Arc::new(units)), ..Self::default() }
    }

    /// Charges the units that the handler reports through [`Usage`], which it finds in the request's
    /// extensions, instead of the check's cost. They are settled when the response body has ended, so a handler
    /// may report them while it streams: the tokens of a language model, for example. It must report them before
    /// it ends the stream. Without a report, the cost stays charged.
    ///
    /// ```
    /// use tidegate::{Limiter, Quota, Rate};
    /// use tidegate_http::{Abandoned, Charge, Key, RateLimitLayer};
    ///
    /// let gate = Limiter::in_memory().gate("tokens", Quota::token_bucket(10_000, Rate::per_minute(10_000)));
    /// let layer = RateLimitLayer::new(gate, Key::header("x-api-key"))
    ///     .cost(|_| 500) // taken before the request enters
    ///     .charge(Charge::usage().if_abandoned(Abandoned::Used));
    /// ```
    #[must_use]
    pub fn usage() -> Self {
        Self { basis: ChargeBasis::Usage, ..Self::default() }
    }

    /// Charges one unit for each `bytes_per_unit` bytes of the response body, or a part of them, instead of the
    /// check's cost. Counts the bytes that the server takes from the body, before compression by outer
    /// layers. A request without a response is charged nothing.
    ///
    /// # Panics
    ///
    /// If `bytes_per_unit` is 0.
    #[must_use]
    pub fn bytes(bytes_per_unit: u64) -> Self {
        assert!(bytes_per_unit > 0, "Charge::bytes: a unit needs at least one byte");
        Self { basis: ChargeBasis::Bytes(bytes_per_unit), ..Self::default() }
    }

    /// Charges the units that the trailers of the response name, instead of the check's cost. If there are no
    /// trailers, or `units` returns `None`, the cost stays charged.
    #[must_use]
    pub fn trailers(units: impl Fn(&HeaderMap) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { basis: ChargeBasis::Trailers(Arc::new(units)), ..Self::default() }
    }

    /// Sets the charge of a request that is abandoned while the service handles it or sends its body.
    ///
    /// Default: [`Abandoned::Charged`].
    #[must_use]
    pub fn if_abandoned(mut self, abandoned: Abandoned) -> Self {
        self.abandoned = abandoned;
        self
    }

    /// Returns whether the taken units stay charged in any case, once the service has received the request.
    pub(super) fn is_final(&self) -> bool {
        matches!(self.basis, ChargeBasis::Always) && self.abandoned != Abandoned::Refunded
    }

    /// Returns whether the end of the response body determines the charge.
    pub(super) fn is_settled_at_end(&self) -> bool {
        matches!(self.basis, ChargeBasis::Usage | ChargeBasis::Bytes(_) | ChargeBasis::Trailers(_))
    }

    pub(super) fn reads_usage(&self) -> bool {
        matches!(self.basis, ChargeBasis::Usage)
    }

    pub(super) fn reads_trailers(&self) -> bool {
        matches!(self.basis, ChargeBasis::Trailers(_))
    }

    /// Returns the final number of units to charge, for a response or for a service that failed without one.
    /// `None` keeps the taken units.
    pub(super) fn of_response(&self, response: Option<&Parts>, consumed: &Consumed) -> Option<u64> {
        match (&self.basis, response) {
            (ChargeBasis::When(when), Some(response)) if when(response) => None,
            (ChargeBasis::When(_), _) => Some(0),
            (ChargeBasis::Units(units), Some(response)) => units(response),
            _ => self.used(consumed),
        }
    }

    /// Returns the units used so far. `None` if they are not known.
    pub(super) fn used(&self, consumed: &Consumed) -> Option<u64> {
        match &self.basis {
            ChargeBasis::Usage => consumed.usage.as_ref()?.reported(),
            ChargeBasis::Bytes(bytes_per_unit) => Some(consumed.bytes.div_ceil(*bytes_per_unit)),
            ChargeBasis::Trailers(units) => units(consumed.trailers.as_deref()?),
            ChargeBasis::Always | ChargeBasis::When(_) | ChargeBasis::Units(_) => None,
        }
    }

    /// Returns the final number of units to charge for an abandoned request. `None` keeps the taken units.
    pub(super) fn of_abandoned(&self, taken: u64, consumed: &Consumed) -> Option<u64> {
        match self.abandoned {
            Abandoned::Charged => self.used(consumed).map(|used| used.max(taken)),
            Abandoned::Refunded => Some(0),
            Abandoned::Used => self.used(consumed),
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let basis = match self.basis {
            ChargeBasis::Always => "always",
            ChargeBasis::When(_) => "when",
            ChargeBasis::Units(_) => "units",
            ChargeBasis::Usage => "usage",
            ChargeBasis::Bytes(_) => "bytes",
            ChargeBasis::Trailers(_) => "trailers",
        };
        write!(f, "Charge({basis}, abandoned: {:?})", self.abandoned)
    }
}

// Nested layers: detects a gate that two layers charge for one request.

/// A response extension with the checks that inner layers have charged. Only a layer inside another one
/// inserts it, so a single layer pays nothing.
#[derive(Clone)]
struct Charged(Vec<Check>);

/// Reports checks that an inner layer has charged too. If this layer `is_nested` in another one, tells the outer
/// layer which checks were charged.
pub(super) fn compare_charges<'a>(
    warnings: &LayerWarnings,
    response: &mut Extensions,
    is_nested: bool,
    charged: impl Iterator<Item = &'a Check> + Clone,
) {
    if let Some(Charged(inner)) = response.get::<Charged>() {
        let is_same = |one: &Check, other: &Check| {
            one.gate() == other.gate() && one.key() == other.key() && one.limiter().is_same(&other.limiter())
        };
        for check in charged.clone().filter(|check| inner.iter().any(|inner| is_same(inner, check))) {
            warnings.charged_twice(check);
        }
    }
    if is_nested {
        let inner = response.remove::<Charged>().map_or(Vec::new(), |Charged(checks)| checks);
        response.insert(Charged(inner.into_iter().chain(charged.cloned()).collect()));
    }
}
