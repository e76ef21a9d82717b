//! What is charged, once it is known what became of a request.

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use http::response::Parts;

use crate::ask::Ask;
use crate::decision::Decision;
use crate::reservation::Reservation;

/// What stays charged of what a request was admitted for, by its response.
///
/// The units are taken before the service is called, so that no two requests pass on the same unit, and settled
/// before the response goes out, so that the next request finds them. Where something changes, that is two calls to Redis, the
/// second to tell the client where it stands; if the first fails, what was taken stays charged. Units that this
/// process admitted by itself, while Redis was unavailable, are settled in this process until Redis is charged for them.
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

/// What a response says.
type Saying<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// What becomes of what was taken for a request that was given up while the service had it: its client went
/// away, or a time limit outside this layer passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Abandoned {
    /// It stays charged: whoever could give up for nothing could try for nothing.
    #[default]
    Charged,
    /// It is given back.
    GivenBack,
}

impl Charge {
    /// Every request that was admitted.
    #[must_use]
    pub fn always() -> Self {
        Self::default()
    }

    /// Those of whose response this is true; for others everything is given back, and also where the service
    /// itself failed, without a response.
    #[must_use]
    pub fn when(when: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { by: By::When(Arc::new(when)), ..Self::default() }
    }

    /// As many units as the response says, instead of the cost that was asked for: the rest is given back, what
    /// goes beyond is charged without asking. `None`, and a service that failed without a response: what was taken.
    #[must_use]
    pub fn units(units: impl Fn(&Parts) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self { by: By::Units(Arc::new(units)), ..Self::default() }
    }

    /// What becomes of a request that is given up while the service has it.
    ///
    /// Default: [`Abandoned::Charged`].
    #[must_use]
    pub fn if_abandoned(mut self, abandoned: Abandoned) -> Self {
        self.abandoned = abandoned;
        self
    }

    /// Units to charge in the end; `None`: what was taken.
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

/// What was taken for one request. Dropped before the service has it, it is given back; afterwards as
/// each [`Charge`] says.
pub(super) struct Held {
    items: Vec<(Reservation, Charge)>,
    is_inside: bool,
}

impl Held {
    pub(super) fn new(taken: impl Iterator<Item = ((Ask, Decision), Charge)>) -> Self {
        let items = taken.map(|((ask, decision), charge)| (Reservation::new(ask, decision), charge));
        Self { items: items.collect(), is_inside: false }
    }

    /// The service has the request.
    pub(super) fn goes_in(&mut self) {
        self.is_inside = true;
    }

    /// Charges what it came to. For each rule of which something else than taken is charged, where its key
    /// stands now.
    pub(super) async fn settle(mut self, response: Option<&Parts>) -> Vec<(usize, Decision)> {
        let items = std::mem::take(&mut self.items).into_iter().enumerate();
        let changes = items.filter_map(|(at, (reservation, charge))| {
            // What was let pass by who only watches is not his to charge: he would have denied it.
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
        // A task of its own, so that it is done also where nobody waits for it any more.
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
        // Without a runtime there is nobody to send it, and it stays charged.
        if let (false, Ok(runtime)) = (given_back.is_empty(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(join_all(given_back));
        }
    }
}
