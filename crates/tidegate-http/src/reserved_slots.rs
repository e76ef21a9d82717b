//! The share of an in-flight limit that is reserved for critical requests.

use std::sync::Arc;

use http::request::Parts;
use tidegate::algorithm::Kind;
use tidegate::{Check, Quota};

/// A share is counted in millionths, so that the number of slots does not depend on how floats round.
const WHOLE: u64 = 1_000_000;

/// Slots that only critical requests may use.
#[derive(Clone)]
pub(super) struct ReservedSlots {
    is_critical: Arc<dyn Fn(&Parts) -> bool + Send + Sync>,
    /// Of [`WHOLE`].
    share: u64,
}

impl ReservedSlots {
    /// Panics if the quota is not an in-flight limit, or if it leaves no slot for one of both kinds of requests.
    #[track_caller]
    pub(super) fn new(
        quota: Option<Quota>,
        is_critical: impl Fn(&Parts) -> bool + Send + Sync + 'static,
        share: f64,
    ) -> Self {
        let Some(Kind::InFlight(in_flight)) = quota.as_ref().map(Quota::kind) else {
            panic!("`reserve_for` needs a gate with an in-flight limit, such as `Quota::in_flight(10)`");
        };
        let limit = in_flight.limit;
        assert!(
            share > 0.0 && share < 1.0,
            "`reserve_for` needs a share above 0 and below 1, such as 0.2, and got {share}"
        );
        let reserved =
            Self { is_critical: Arc::new(is_critical), share: (share * WHOLE as f64).round() as u64 };
        let open = limit.saturating_sub(reserved.slots(limit));
        assert!(
            open > 0 && open < limit,
            "`reserve_for` of {share} leaves no slot of {limit} for one of both kinds of requests: raise the limit or \
             change the share"
        );
        reserved
    }

    /// Returns whether the request can use all slots.
    pub(super) fn is_critical(&self, parts: &Parts) -> bool {
        (self.is_critical)(parts)
    }

    /// Restricts the check of a request that is not critical to the slots that are not reserved. The check has the
    /// settings that decide: an operator's override may have set another limit. It then leaves at least one slot.
    pub(super) fn restrict(&self, check: Check) -> Check {
        let limit = check.quota().map_or(1, |quota| quota.limit());
        check.at_most(limit.saturating_sub(self.slots(limit)).max(1))
    }

    /// Returns the number of reserved slots, rounded up, at least 1.
    fn slots(&self, limit: u64) -> u64 {
        // At most 10^12 * 10^6, which a u64 can hold.
        let exact = limit.saturating_mul(self.share);
        // The share may be rounded up by half a millionth: 2/3 of 300 slots are 200, not 201.
        let rounding = limit.min(WHOLE - 1) / 2;
        exact.saturating_sub(rounding).div_ceil(WHOLE).max(1)
    }
}
