//! Settling the charge of one check in the process that made the check.

use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::local::fallback::ReconcileStamp;
use crate::pipeline::Pipeline;
use crate::pipeline::request::Request;
use crate::store::Write;

impl Pipeline {
    /// Charges `actual` units in total for a decided check: gives the rest back, or charges the difference without
    /// a check.
    pub(crate) async fn settle_charge(
        &self,
        request: &Request<'_>,
        decision: &Decision,
        stamp: Option<&ReconcileStamp>,
        actual: u64,
    ) -> Result<(), Error> {
        let charged = charged_units(request, decision);
        match decision.source() {
            Source::Switch => return Ok(()),
            _ if actual > charged => {
                let (target, deadline) = (request.target()?, self.deadline_of(request.deadline));
                return self.charge_used_units(&target, &request.key, actual - charged, deadline).await;
            }
            _ => {}
        }
        let (units, taken_us) = (charged - actual, decision.stamp_us);
        let stamp_us = match decision.source() {
            // Given back to the fallback, unless it has reconciled them.
            Source::Local => self.fallback.as_ref().zip(stamp).and_then(|(fallback, stamp)| {
                fallback.give_back(&request.target().ok()?, stamp, units, taken_us)
            }),
            _ => Some(taken_us),
        };
        match stamp_us {
            Some(stamp_us) if units > 0 => {
                self.write(request, Write::Refund { units, stamp_us: Some(stamp_us) }).await
            }
            _ => Ok(()),
        }
    }

    /// Returns the stamp by which units that the fallback just admitted can be given back.
    pub(crate) fn stamp_of_charge(
        &self,
        request: &Request<'_>,
        decision: &Decision,
    ) -> Option<ReconcileStamp> {
        let is_local = decision.source() == Source::Local && charged_units(request, decision) > 0;
        let fallback = self.fallback.as_ref().filter(|_| is_local)?;
        fallback.stamp(&request.target().ok()?)
    }
}

/// Returns the units that a decided check was charged, by the store or by the fallback.
pub(crate) fn charged_units(request: &Request<'_>, decision: &Decision) -> u64 {
    let is_charged =
        matches!(decision.source(), Source::Redis | Source::Memory | Source::Lease | Source::Local);
    // A gate in shadow also admits checks that it would deny.
    let is_admitted = decision.is_allowed() && !decision.is_shadow();
    if is_charged && is_admitted { request.cost } else { 0 }
}
