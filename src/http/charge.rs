//! Settles the charge of a request once its response is known.

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use http::response::Parts;

use crate::ask::Ask;
use crate::decision::Decision;
use crate::reservation::Reservation;

/// Decides by the response how many of the admitted units stay charged.
///
/// Units are taken before the service is called, so that no two requests use the same unit. They are settled
/// before the response is sent, so that the next request finds the result. A change takes two calls to Redis;
/// the second reads the new state for the client. If the first call fails, the taken units stay charged.
/// Units that this process admitted while Redis was unavailable are settled in this process until Redis is
/// charged for them.
///
/// ```
/// use http::StatusCode;
/// use tidegate::http::Charge;
///
/// // A login that fails costs one of the five, one that succeeds costs nothing.
/// let failures = Charge::when(|response| response.status == StatusCode::UNAUTHORIZED);
/// // What we got wrong ourselves is free.
/// let ours = Charge::when(|response| !response.status.is_server_error());
/// // The response says what it cost.
/// let tokens = Charge::units(|response| response.headers.get("x-tokens")?.to_str().ok()?.parse().ok());
/// ```
#[derive(Clone, Default)]
pub struct Charge {
    by: By,
    abandoned: Abandoned,
}

#[derive(Clone, Default)]
enum By {
    #[default]
    Always,
    When(Saying<bool>),
    Units(Saying<Option<u64>>),
}

/// A function of a response.
type Saying<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// The charge of a request that was abandoned while the service handled it: its client disconnected, or a
/// time limit outside this layer passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Abandoned {
    /// The units stay charged: otherwise a client could retry for free by disconnecting.
    #[default]
    Charged,
    /// The units are given back.
    GivenBack,
}

impl Charge {
    /// Charges every admitted request.
    #[must_use]
    pub fn always() -> Self {
        Self::default()
    }

    /// Charges requests for whose response `when` is true. Gives all units back for other requests, also if
    /// the service failed without a response.
    #[must_use]
    pub fn when(when: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { by: By::When(Arc::new(when)), ..Self::default() }
    }

    /// Charges the units that the response names, instead of the check's cost. Unused units are given back;
    /// units above the cost are charged without a check. `None`, and a service that failed without a
    /// response, keep the cost.
    #[must_use]
    pub fn units(units: impl Fn(&Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { by: By::Units(Arc::new(units)), ..Self::default() }
    }

    /// Sets the charge of a request that is abandoned while the service handles it.
    ///
    /// Default: [`Abandoned::Charged`].
    #[must_use]
    pub fn if_abandoned(mut self, abandoned: Abandoned) -> Self {
        self.abandoned = abandoned;
        self
    }

    /// Returns the units to charge in the end; `None` keeps the taken units.
    fn actual(&self, response: Option<&Parts>) -> Option<u64> {
        match (&self.by, response) {
            (By::When(when), Some(response)) if when(response) => None,
            (By::When(_), _) => Some(0),
            (By::Units(units), Some(response)) => units(response),
            (By::Always, _) | (By::Units(_), None) => None,
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            By::Always => "always",
            By::When(_) => "when",
            By::Units(_) => "units",
        };
        write!(f, "Charge({by}, abandoned: {:?})", self.abandoned)
    }
}

/// The units taken for one request. If dropped before the service has the request, they are given back;
/// afterwards each [`Charge`] decides.
pub(super) struct Held {
    items: Vec<(Reservation, Charge)>,
    is_inside: bool,
}

impl Held {
    pub(super) fn new(taken: impl Iterator<Item = ((Ask, Decision), Charge)>) -> Self {
        let items = taken.map(|((ask, decision), charge)| (Reservation::new(ask, decision), charge));
        Self { items: items.collect(), is_inside: false }
    }

    /// Records that the service has the request.
    pub(super) fn goes_in(&mut self) {
        self.is_inside = true;
    }

    /// Charges the final units. Returns the new state of each rule whose charge differs from the taken units.
    pub(super) async fn settle(mut self, response: Option<&Parts>) -> Vec<(usize, Decision)> {
        let items = std::mem::take(&mut self.items).into_iter().enumerate();
        let changes = items.filter_map(|(at, (reservation, charge))| {
            // A gate in shadow mode would have denied this request, so it charges nothing further.
            let is_watched = reservation.decision().is_shadow();
            let actual = charge.actual(response).filter(|&it| it != reservation.held() && !is_watched)?;
            Some(async move {
                let ask = reservation.ask.clone().cost(0);
                reservation.commit(actual).await.ok()?;
                Some((at, ask.check().await.ok()?))
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

impl Drop for Held {
    fn drop(&mut self) {
        let is_inside = self.is_inside;
        let given_back = self.items.drain(..).filter(|(reservation, charge)| {
            reservation.held() > 0 && (!is_inside || charge.abandoned == Abandoned::GivenBack)
        });
        let given_back: Vec<_> = given_back.map(|(reservation, _)| reservation.cancel()).collect();
        // Without a runtime the refund cannot be sent, so the units stay charged.
        if let (false, Ok(runtime)) = (given_back.is_empty(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(join_all(given_back));
        }
    }
}
