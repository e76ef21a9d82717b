//! Settles the charge of a request once its response is known.

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use http::response::Parts;
use tidegate::{Check, Decision, Reservation};

/// Determines from the response how many of the admitted units stay charged.
///
/// Units are taken before the service is called, so that no two requests use the same unit. They are settled
/// before the response is sent, so that the next request observes the result. A change takes two calls to
/// Redis; the second reads the new state for the client. If the first call fails, the taken units stay
/// charged. Units that this process admitted while Redis was unavailable are settled in this process until
/// Redis is charged for them.
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
}

/// A function of a response.
type ResponseFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// The charge of a request that was abandoned while the service handled it: its client disconnected, or a
/// time limit outside this layer passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Abandoned {
    /// The units stay charged: otherwise a client could retry for free by disconnecting.
    #[default]
    Charged,
    /// The units are refunded.
    Refunded,
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

    /// Sets the charge of a request that is abandoned while the service handles it.
    ///
    /// Default: [`Abandoned::Charged`].
    #[must_use]
    pub fn if_abandoned(mut self, abandoned: Abandoned) -> Self {
        self.abandoned = abandoned;
        self
    }

    /// Returns the final number of units to charge. `None` keeps the taken units.
    fn actual(&self, response: Option<&Parts>) -> Option<u64> {
        match (&self.basis, response) {
            (ChargeBasis::When(when), Some(response)) if when(response) => None,
            (ChargeBasis::When(_), _) => Some(0),
            (ChargeBasis::Units(units), Some(response)) => units(response),
            (ChargeBasis::Always, _) | (ChargeBasis::Units(_), None) => None,
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let basis = match self.basis {
            ChargeBasis::Always => "always",
            ChargeBasis::When(_) => "when",
            ChargeBasis::Units(_) => "units",
        };
        write!(f, "Charge({basis}, abandoned: {:?})", self.abandoned)
    }
}

/// The units taken for one request. Dropping this before the service receives the request refunds them.
/// Afterwards each [`Charge`] decides.
pub(super) struct PendingCharge {
    items: Vec<(Reservation, Charge)>,
    has_entered: bool,
}

impl PendingCharge {
    pub(super) fn new(taken: impl Iterator<Item = ((Check, Decision), Charge)>) -> Self {
        let items = taken.map(|((check, decision), charge)| (Reservation::new(check, decision), charge));
        Self { items: items.collect(), has_entered: false }
    }

    /// Records that the service receives the request.
    pub(super) fn mark_entered(&mut self) {
        self.has_entered = true;
    }

    /// Returns the checks that charged units.
    pub(super) fn charged(&self) -> impl Iterator<Item = &Check> + Clone {
        let charged = self.items.iter().filter(|(reservation, _)| reservation.charged_units() > 0);
        charged.map(|(reservation, _)| reservation.check())
    }

    /// Charges the final units. Returns the new state of each rule whose charge differs from the taken units.
    pub(super) async fn settle(mut self, response: Option<&Parts>) -> Vec<(usize, Decision)> {
        let items = std::mem::take(&mut self.items).into_iter().enumerate();
        let changes = items.filter_map(|(at, (reservation, charge))| {
            // A gate in shadow mode would have denied this request, so it charges nothing further.
            let is_shadow = reservation.decision().is_shadow();
            let actual = charge
                .actual(response)
                .filter(|&units| units != reservation.charged_units() && !is_shadow)?;
            Some(async move {
                let peek = reservation.check().clone().cost(0);
                reservation.commit(actual).await.ok()?;
                Some((at, peek.check().await.ok()?))
            })
        });
        let changes: Vec<_> = changes.collect();
        if changes.is_empty() {
            return Vec::new();
        }
        // Runs in a task, so that it completes even if the request's future is dropped.
        let settled = tokio::spawn(join_all(changes)).await;
        settled.map(|settled| settled.into_iter().flatten().collect()).unwrap_or_default()
    }
}

impl Drop for PendingCharge {
    fn drop(&mut self) {
        let has_entered = self.has_entered;
        let refunds = self.items.drain(..).filter(|(reservation, charge)| {
            reservation.charged_units() > 0 && (!has_entered || charge.abandoned == Abandoned::Refunded)
        });
        let refunds: Vec<_> = refunds.map(|(reservation, _)| reservation.cancel()).collect();
        // Without a runtime the refund cannot be sent, so the units stay charged.
        if let (false, Ok(runtime)) = (refunds.is_empty(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(join_all(refunds));
        }
    }
}
