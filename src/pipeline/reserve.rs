//! Reservations: units taken by an estimate, and settled when the final number is known.
//!
//! - [`Pipeline::reserve`] decides a group whose charges the store keeps as holds. Any process settles them:
//!   [`settle_holds`], repeated by the [`settle_queue`]. Charges that this process decided while Redis was unavailable
//!   have no hold: this process remembers them ([`unheld`]).
//! - The charge of a check that no hold keeps is settled by the process that made the check: [`settle_charge`].

mod settle_charge;
mod settle_holds;
mod settle_queue;
mod unheld;

pub(crate) use self::settle_charge::charged_units;
pub(crate) use self::settle_queue::SettleCall;
pub(super) use self::settle_queue::{SettleQueue, SettleQueueSettings};
pub(crate) use self::unheld::{UnheldCharge, UnheldCharges};
use super::components::Pipeline;
use super::group::Verb;
use crate::decision::{AllDecision, Decision, Source};
use crate::error::Error;
use crate::observe::trace::Span;
use crate::pipeline::request::Request;
use crate::quota::reference::holds::NewHold;
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
