//! Reservations: a group whose charges the store keeps as holds, to be settled later.

use super::all::GroupDecision;
use super::parts::Pipeline;
use crate::decision::{AllDecision, Decision, Source};
use crate::error::Error;
use crate::local::settle_queue::SettleCall;
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
        let n = u64::from(requests.iter().any(|request| request.cost > 0));
        let span = Span::of_all(requests.len());
        let reserved = self.decide_all(requests, n, Some(hold)).await;
        let (decided, requests) = match reserved {
            Ok((_, decision, requests)) => (Ok(decision), requests),
            Err(error) => (Err(error), Vec::new()),
        };
        span.all_decided(&decided);
        decided.map(|decision| (decision, requests))
    }

    /// Decides one check of a gate in shadow mode, and makes a hold of its own of the charge: the others may be
    /// denied.
    pub(super) async fn hold_shadow(
        &self,
        request: &Request<'_>,
        index: usize,
        hold: &NewHold,
    ) -> Result<Decision, Error> {
        let taken = self.take_group(&[request], 1, Some(&hold_of_item(hold, index))).await;
        self.report(request, taken.map(GroupDecision::into_first))
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
