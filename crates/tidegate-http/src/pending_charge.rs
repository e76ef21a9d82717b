//! The units taken for one request, until its final charge is settled.

use futures_util::future::join_all;
use http::response::Parts;
use http_body::Frame;
use smallvec::SmallVec;
use tidegate::{Check, Decision, Limiter, Reservation};
use tokio::runtime::Handle;

use super::charge::{Charge, Consumed};
use super::in_flight::needs_permit;
use super::usage::Usage;
use crate::usage::RequestExtensions;

/// The units taken for one request. Dropping this settles them, in a task: as its [`Stage`] says.
#[derive(Default)]
pub(super) struct PendingCharge {
    /// Units whose charge may change. Mostly there are none, so that a request makes no reservation.
    items: Vec<PendingItem>,
    /// The checks whose charge is final, and those at in-flight limits. Permits release their slots.
    settled: SmallVec<[Check; 1]>,
    consumed: Consumed,
    stage: Stage,
    /// The request's runtime. Set for response bodies, which may be dropped outside of it.
    runtime: Option<Handle>,
}

/// The units taken by one check.
struct PendingItem {
    /// The index of the check. In-flight limits have no item: they take no units.
    at: usize,
    reservation: Reservation,
    charge: Charge,
}

impl PendingItem {
    /// Charges the actual units. Returns the index of the check, and its new state.
    async fn commit((item, actual): (Self, u64)) -> Option<(usize, Decision)> {
        let peek = item.reservation.check().clone().cost(0);
        item.reservation.commit(actual).await.ok()?;
        Some((item.at, peek.check().await.ok()?))
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    /// The service has not received the request: a drop refunds all units.
    Outside,
    /// The service handles the request, or its response body is being sent: a drop means that the request is
    /// abandoned.
    Inside,
    /// The response body has ended.
    Complete,
}

impl PendingCharge {
    /// `waits`: whether the request may be rejected after its units were taken, which refunds them.
    pub(super) fn new<'a>(
        taken: impl Iterator<Item = (Check, &'a Decision, &'a Charge)>,
        waits: bool,
    ) -> Self {
        let mut pending = Self::default();
        for (at, (check, decision, charge)) in taken.enumerate() {
            if !needs_permit(&check) && (waits || !charge.is_final()) {
                let reservation = Reservation::new(check, decision.clone());
                pending.items.push(PendingItem { at, reservation, charge: charge.clone() });
            } else if needs_permit(&check) || check.units_charged_by(decision) > 0 {
                pending.settled.push(check);
            }
        }
        pending
    }

    /// Records that the service receives the request. Returns the handle for its reports, if a charge reads
    /// them. Nested layers share one handle, so that each charges the units that the handler reports.
    pub(super) fn enter(&mut self, extensions: &impl RequestExtensions) -> Option<Usage> {
        self.stage = Stage::Inside;
        for item in self.items.iter().filter(|item| item.charge.reads_usage()) {
            let usage = self.consumed.usage.get_or_insert_with(|| extensions.find().unwrap_or_default());
            if item.reservation.charged_units() > 0 {
                usage.reserve(item.reservation.charged_units());
            }
        }
        self.consumed.usage.clone()
    }

    /// Returns the checks that charged units or hold permits.
    pub(super) fn charged(&self) -> impl Iterator<Item = &Check> + Clone {
        let reservations = self.items.iter().map(|item| &item.reservation);
        let charged = reservations.filter(|reservation| reservation.charged_units() > 0);
        charged.map(Reservation::check).chain(&self.settled)
    }

    /// Charges the units that the response determines. Returns the new state of each rule whose charge differs
    /// from the taken units. Keeps the units that the response body determines.
    pub(super) async fn settle(&mut self, response: Option<&Parts>) -> Vec<(usize, Decision)> {
        let changes = self.take_changes(response);
        if changes.is_empty() {
            return Vec::new();
        }
        // Runs in a task, so that it completes even if the request's future is dropped.
        let settled = tokio::spawn(join_all(changes.into_iter().map(PendingItem::commit))).await;
        settled.map(|settled| settled.into_iter().flatten().collect()).unwrap_or_default()
    }

    /// Removes the units that the response determines. Returns those whose charge differs from the taken units, with the
    /// units to charge.
    fn take_changes(&mut self, response: Option<&Parts>) -> Vec<(PendingItem, u64)> {
        let (mut changes, mut at_end) = (Vec::new(), 0);
        while let Some(item) = self.items.get(at_end) {
            if item.charge.is_settled_at_end() && response.is_some() {
                at_end += 1;
                continue;
            }
            let actual = item.charge.of_response(response, &self.consumed);
            let actual = changed(&item.reservation, actual);
            let item = self.items.remove(at_end);
            changes.extend(actual.map(|actual| (item, actual)));
        }
        if at_end > 0 {
            self.runtime = Handle::try_current().ok();
        }
        changes
    }

    /// Returns whether no units are left to be settled.
    pub(super) fn is_settled(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the limiter of the checks.
    pub(super) fn limiter(&self) -> Option<Limiter> {
        let item = self.items.first().map(|item| item.reservation.check());
        item.or(self.settled.first()).map(Check::limiter)
    }

    /// Counts a frame of the response body.
    pub(super) fn count<D: bytes::Buf>(&mut self, frame: &Frame<D>) {
        if let Some(data) = frame.data_ref() {
            self.consumed.bytes = self.consumed.bytes.saturating_add(data.remaining() as u64);
        } else if let Some(trailers) = frame.trailers_ref()
            && self.items.iter().any(|item| item.charge.reads_trailers())
        {
            self.consumed.trailers = Some(Box::new(trailers.clone()));
        }
    }

    /// Returns the bytes of the response body so far.
    pub(super) fn bytes(&self) -> u64 {
        self.consumed.bytes
    }

    /// Records that the response body has ended.
    pub(super) fn complete(&mut self) {
        self.stage = Stage::Complete;
    }
}

/// Returns the final units, if they differ from the taken ones.
fn changed(reservation: &Reservation, actual: Option<u64>) -> Option<u64> {
    // A gate in shadow mode would have denied this request, so it charges nothing further.
    let is_shadow = reservation.decision().is_shadow();
    actual.filter(|&units| units != reservation.charged_units() && !is_shadow)
}

impl Drop for PendingCharge {
    fn drop(&mut self) {
        let (consumed, stage) = (&self.consumed, self.stage);
        let changes = self.items.drain(..).filter_map(|PendingItem { reservation, charge, .. }| {
            let actual = match stage {
                Stage::Outside => Some(0),
                Stage::Inside => charge.of_abandoned(reservation.charged_units(), consumed),
                Stage::Complete => charge.used(consumed),
            };
            let actual = changed(&reservation, actual)?;
            Some(reservation.commit(actual))
        });
        let changes: Vec<_> = changes.collect();
        // Without a runtime the change cannot be sent, so the units stay charged.
        let runtime = self.runtime.take().or_else(|| Handle::try_current().ok());
        if let (false, Some(runtime)) = (changes.is_empty(), runtime) {
            runtime.spawn(join_all(changes));
        }
    }
}
