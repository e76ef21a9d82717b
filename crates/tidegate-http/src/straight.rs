//! The common request in straight-line code: one gate of a rate, a charge that is final, and headers. Its state is one
//! small value without lists.
//!
//! [`rule`] chooses this path by the settings, and [`decide`] leaves it by the decision. The general path serves all else:
//! several gates, in-flight limits, rules from files and chosen ones, a wait queue, a charge that the response or its end
//! determines, an outer layer, a missing key, shadow mode (also by an operator's switch), delays, denials and errors.

use std::iter;
use std::slice;

use http::request::Parts;
use http::{Extensions, HeaderMap, Response};
use smallvec::smallvec;
use tidegate::{AllDecision, Check, Decision, Error};

use super::admitted::Admitted;
use super::body::ResponseBody;
use super::charge::{Charge, compare_charges};
use super::gate_rule::GateRule;
use super::headers::{HeaderValues, Headers};
use super::in_flight::is_in_flight;
use super::pending_charge::PendingCharge;
use super::rejection::Rejection;
use super::request_checks::limit_of;
use super::settings::LayerSettings;
use crate::policy::Policy;
use crate::usage::RequestExtensions;

/// An admitted request.
pub(super) struct Straight {
    check: Check,
    policy: Policy,
    decision: AllDecision,
}

/// Returns the rule that decides the request, if this path serves it.
pub(super) fn rule<'a>(settings: &'a LayerSettings, parts: &Parts) -> Option<&'a GateRule> {
    let [rule] = &*settings.rules else { return None };
    let is_general = settings.chooser.is_some()
        || settings.wait_queue.is_some()
        || rule.reserved.is_some()
        || is_in_flight(&rule.gate)
        || !rule.charge.as_ref().unwrap_or(&settings.charge).is_final()
        || parts.extensions.get::<AllDecision>().is_some();
    (!is_general).then_some(rule)
}

/// What this path makes of a request.
pub(super) enum Decided {
    /// The rule does not apply.
    Undecided,
    Admitted(Box<Straight>),
    Rejected(Box<Rejection>),
    /// The general path continues with the result of the check.
    Left(Box<(Check, Policy, Result<Decision, Error>)>),
}

/// Decides a request by its [`rule`].
pub(super) async fn decide(settings: &LayerSettings, rule: &GateRule, parts: &Parts) -> Decided {
    let (mut check, mut policy) = match limit_of(rule, settings, parts) {
        Ok(Some(limit)) => limit,
        Ok(None) => return Decided::Undecided,
        Err(rejection) => return Decided::Rejected(rejection),
    };
    Check::follow(slice::from_mut(&mut check)).await;
    policy.follow(&check);
    match check.decide().await {
        Ok(decision) if decision.is_allowed() && decision.delay().is_zero() && !policy.is_shadow => {
            settings.warnings.decided();
            let decision = AllDecision::of_each([decision]);
            Decided::Admitted(Box::new(Straight { check, policy, decision }))
        }
        result => Decided::Left(Box::new((check, policy, result))),
    }
}

/// For a handler that decides its request itself.
impl From<Straight> for Admitted {
    fn from(Straight { check, policy, decision }: Straight) -> Self {
        let charge = Charge::default();
        let taken = iter::once((check, decision.binding(), &charge));
        let pending_charge = PendingCharge::new(taken, false);
        Self { policies: smallvec![policy], pending_charge, decision: Some(decision), ..Self::default() }
    }
}

impl Straight {
    /// Adds the values that the handler reads to the extensions of its request.
    pub(super) fn enter(&self, extensions: &mut impl RequestExtensions) {
        extensions.set(self.decision.binding().clone());
        extensions.set(self.decision.clone());
    }

    /// Reports a gate that an inner layer has charged too.
    pub(super) fn compare_charges(&self, settings: &LayerSettings, response: &mut Extensions) {
        let is_charged = |check: &&Check| check.units_charged_by(self.decision.binding()) > 0;
        let charged = iter::once(&self.check).filter(is_charged);
        compare_charges(&settings.warnings, response, false, charged);
    }

    /// Adds the headers that report the limit.
    pub(super) fn report(&self, settings: Headers, headers: &mut HeaderMap) {
        let policies = slice::from_ref(&self.policy);
        settings.write(headers, &HeaderValues { decision: &self.decision, policies, wait: None });
    }

    pub(super) fn respond<B>(
        &self,
        settings: &LayerSettings,
        mut response: Response<B>,
    ) -> Response<ResponseBody<B>> {
        self.compare_charges(settings, response.extensions_mut());
        self.report(settings.headers, response.headers_mut());
        response.map(ResponseBody::inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{HeaderMap, Request};
    use tidegate::{Limiter, Quota, Rate};

    use super::*;
    use crate::admission::Admission;
    use crate::decide::decide;
    use crate::{Key, MissingKey, RateLimitLayer};

    fn layer(quota: Quota) -> RateLimitLayer {
        RateLimitLayer::new(Limiter::in_memory().gate("api", quota), Key::header("x-api-key"))
    }

    fn request() -> Parts {
        Request::get("/").header("x-api-key", "a").body(()).unwrap().into_parts().0
    }

    async fn is_straight(layer: &RateLimitLayer, parts: &Parts) -> bool {
        matches!(decide(&layer.settings, parts).await, Admission::Straight(_))
    }

    /// Each case differs from the first in one setting.
    #[tokio::test]
    async fn only_the_common_request_is_decided_here() {
        let bucket = Quota::token_bucket(5, Rate::per_minute(5));
        assert!(is_straight(&layer(bucket), &request()).await);
        assert!(is_straight(&layer(bucket).missing_key(MissingKey::Share), &request()).await);

        let other = Limiter::in_memory().gate("other", bucket);
        let shadow = other.clone().shadow(true);
        let rule = GateRule::new(other.clone(), Key::constant("a"));
        let slots = Limiter::in_memory().gate("slots", Quota::in_flight(5));
        let general = [
            RateLimitLayer::new(other.clone(), Key::constant("a")).and(other.clone(), Key::constant("b")),
            RateLimitLayer::new(shadow, Key::constant("a")),
            RateLimitLayer::new(slots, Key::constant("a")),
            RateLimitLayer::choose(move |_| [rule.clone()]),
            layer(bucket).charge(Charge::usage()),
            layer(bucket).charge(Charge::trailers(|_: &HeaderMap| None)),
            layer(bucket).charge(Charge::always().if_abandoned(crate::Abandoned::Refunded)),
            layer(bucket).wait(Duration::from_secs(1), 1),
        ];
        for (at, layer) in general.iter().enumerate() {
            assert!(!is_straight(layer, &request()).await, "case {at}");
        }

        let mut nested = request();
        nested.extensions.insert(AllDecision::of_each([other.peek("a").await.unwrap()]));
        assert!(!is_straight(&layer(bucket), &nested).await, "behind an outer layer");
        let without_key = Request::get("/").body(()).unwrap().into_parts().0;
        assert!(!is_straight(&layer(bucket), &without_key).await, "without a key");
        let leaky = layer(Quota::leaky_bucket(2, Rate::per_hour(1)));
        assert!(is_straight(&leaky, &request()).await);
        assert!(!is_straight(&leaky, &request()).await, "with a delay");
        assert!(!is_straight(&leaky, &request()).await, "denied");
    }
}
