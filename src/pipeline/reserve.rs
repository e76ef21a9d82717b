//! Reservations: a group whose charges the store keeps as holds, to be settled later.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::components::Pipeline;
use super::group::Verb;
use crate::decision::{AllDecision, Decision, Source};
use crate::error::Error;
use crate::local::fallback::ReconcileStamp;
use crate::local::settle_queue::SettleCall;
use crate::observe::trace::Span;
use crate::pipeline::request::Request;
use crate::quota::reference::holds::NewHold;
use crate::runtime::sync::{Mutex, lock};
use crate::store::SettleItem;

impl Pipeline {
    /// Decides as [`check_all`](Self::check_all), and makes the hold of the charges. Also returns the requests with
    /// the settings that decided.
    pub(crate) async fn reserve<'a>(
        &self,
        requests: Vec<Request<'a>>,
        hold: &NewHold,
    ) -> Result<(AllDecision, Vec<Request<'a>>), Error> {
        let span = Span::of_all(requests.len());
        let reserved = self.decide_all(requests, 1, Verb::Reserve(hold)).await;
        span.all_decided(reserved.as_ref().map(|reserved| &reserved.decision));
        reserved.map(|reserved| (reserved.decision, reserved.requests))
    }

    /// Cancels the charges of gates in shadow mode, after the other gates of the reservation have failed.
    pub(super) async fn cancel_shadow<'a>(
        &self,
        held: impl Iterator<Item = ((usize, &'a Request<'a>), &'a Result<Decision, Error>)>,
        hold: &NewHold,
    ) {
        for ((index, request), decided) in held {
            let (Ok(decision), Ok(target)) = (decided, request.target()) else { continue };
            if decision.is_shadow() || request.cost == 0 {
                continue;
            }
            if decision.source() == Source::Local {
                let stamp = self.stamp_of_charge(request, decision);
                let _ = self.settle_charge(request, decision, stamp.as_ref(), 0).await;
            }
            // Redis holds the units also if only its reply was lost. A hold that does not exist is not changed.
            let items = vec![SettleItem { target, units: request.cost, actual: 0 }];
            let call = SettleCall { hold: hold_of_item(hold, index), items };
            self.settle(call, self.deadline_of(request.deadline)).await;
        }
    }
}

/// Returns the hold of a check that is held apart from the other checks of its reservation.
pub(crate) fn hold_of_item(hold: &NewHold, index: usize) -> NewHold {
    NewHold { id: format!("{}.{index}", hold.id).into(), ..hold.clone() }
}

// Charges of reservations that this process decided while Redis was unavailable. The store holds none of them, so
// this process remembers them until they are settled.

/// The maximum number of reservations whose charges are remembered.
const MAX_RESERVATIONS: usize = 16_384;

/// A check of such a reservation.
pub(crate) struct UnheldCharge {
    /// The index of the check in the reservation.
    pub(crate) index: usize,
    pub(crate) request: Request<'static>,
    pub(crate) decision: Decision,
    pub(crate) stamp: Option<ReconcileStamp>,
}

/// The charges by the id of their reservation. Each is settled at most once.
pub(crate) struct UnheldCharges {
    /// By this number the limiter recognizes its tokens.
    pub(crate) issuer: u32,
    remembered: Mutex<HashMap<[u8; 12], Remembered>>,
}

/// The charges of a reservation.
pub(crate) struct Remembered {
    /// Then the token is no longer settled.
    until: Instant,
    pub(crate) charges: Vec<UnheldCharge>,
}

impl Default for UnheldCharges {
    fn default() -> Self {
        Self { issuer: fastrand::u32(..), remembered: Mutex::default() }
    }
}

impl UnheldCharges {
    /// Remembers the charges of a reservation. If there are too many, forgets them, so that they stay as they are.
    pub(crate) fn insert(&self, id: [u8; 12], charges: Vec<UnheldCharge>, ttl: Duration) {
        let mut remembered = lock(&self.remembered);
        let now = Instant::now();
        if remembered.len() >= MAX_RESERVATIONS {
            remembered.retain(|_, entry| entry.until > now);
        }
        if remembered.len() < MAX_RESERVATIONS {
            remembered.insert(id, Remembered { until: now + ttl, charges });
        }
    }

    /// Removes the charges of a reservation, so that only one settle finds them.
    pub(crate) fn remove(&self, id: [u8; 12]) -> Option<Remembered> {
        lock(&self.remembered).remove(&id).filter(|entry| entry.until > Instant::now())
    }

    /// Remembers again the charges that a settle has removed and could not settle, until their first end.
    pub(crate) fn restore(&self, id: [u8; 12], entry: Remembered) {
        let mut remembered = lock(&self.remembered);
        if remembered.len() < MAX_RESERVATIONS {
            remembered.entry(id).or_insert(entry);
        }
    }
}
