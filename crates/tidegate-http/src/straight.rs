//! The common request in straight-line code: gates of rates, charges that are final, and headers. Nothing is left to settle
//! when its response comes.
//!
//! One gate is also decided here, without lists: [`rule`] chooses this by the settings, and [`decide`] leaves it by the
//! decision. Of several gates and of rules from files, [`Admission::new`](super::admission::Admission::new) leads here. The
//! general path serves all else: in-flight limits, a wait queue, a charge that the response or its end determines, a missing
//! key, shadow mode (also by an operator's switch), delays, denials and errors.

use std::slice;

use http::request::Parts;
use http::{Extensions, HeaderMap, Response};
use smallvec::smallvec;
use tidegate::{AllDecision, Check, Decision, Error};
#[cfg(feature = "rules")]
use tidegate_rules::RulesDecision;

use super::admitted::Admitted;
use super::body::ResponseBody;
use super::charge::{Charge, compare_charges};
use super::check_group::Checks;
use super::gate_rule::GateRule;
use super::headers::{HeaderValues, Headers};
use super::in_flight::is_in_flight;
use super::pending_charge::PendingCharge;
use super::rejection::Rejection;
use super::request_checks::limit_of;
use super::settings::LayerSettings;
use crate::policy::{Policies, Policy};
use crate::usage::RequestExtensions;

/// An admitted request.
pub(super) struct Straight {
    checks: Checks,
    policies: Policies,
    pub(super) decision: AllDecision,
    /// Whether another layer has admitted the request before.
    is_nested: bool,
    #[cfg(feature = "rules")]
    pub(super) rules_decision: Option<RulesDecision>,
}

/// Returns the rule that alone decides the request, if this path serves it.
pub(super) fn rule(settings: &LayerSettings) -> Option<&GateRule> {
    let [rule] = &*settings.rules else { return None };
    let is_general = settings.chooser.is_some()
        || settings.wait_queue.is_some()
        || rule.reserved.is_some()
        || is_in_flight(&rule.gate)
        || !rule.charge.as_ref().unwrap_or(&settings.charge).is_final();
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
            Decided::Admitted(Box::new(Straight::new(smallvec![check], smallvec![policy], decision)))
        }
        result => Decided::Left(Box::new((check, policy, result))),
    }
}

/// For a handler that decides its request itself.
impl From<Straight> for Admitted {
    fn from(straight: Straight) -> Self {
        let charge = Charge::default();
        let taken = straight.checks.into_iter().zip(straight.decision.each_alone());
        let taken = taken.map(|(check, decision)| (check, decision, &charge));
        Self {
            pending_charge: PendingCharge::new(taken, false),
            decision: Some(straight.decision),
            policies: straight.policies,
            is_nested: straight.is_nested,
            #[cfg(feature = "rules")]
            rules_decision: straight.rules_decision,
            ..Self::default()
        }
    }
}

impl Straight {
    pub(super) fn new(checks: Checks, policies: Policies, decision: AllDecision) -> Self {
        Self {
            checks,
            policies,
            decision,
            is_nested: false,
            #[cfg(feature = "rules")]
            rules_decision: None,
        }
    }

    /// Records that the request enters, and adds the values that its handler reads to its extensions.
    pub(super) fn enter(&mut self, extensions: &mut impl RequestExtensions) {
        self.is_nested = extensions.find::<AllDecision>().is_some();
        extensions.set(self.decision.binding().clone());
        extensions.set(self.decision.clone());
        #[cfg(feature = "rules")]
        if let Some(rules_decision) = self.rules_decision.take() {
            extensions.set(rules_decision);
        }
    }

    /// Reports a gate that an inner layer has charged too.
    pub(super) fn compare_charges(&self, settings: &LayerSettings, response: &mut Extensions) {
        let taken = self.checks.iter().zip(self.decision.each_alone());
        let charged = taken.filter(|(check, decision)| check.units_charged_by(decision) > 0);
        compare_charges(&settings.warnings, response, self.is_nested, charged.map(|(check, _)| check));
    }

    /// Adds the headers that report the limit.
    pub(super) fn report(&self, settings: Headers, headers: &mut HeaderMap) {
        let values = HeaderValues { decision: &self.decision, policies: &self.policies, wait: None };
        settings.write(headers, &values);
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

    /// Each case differs from a common one in one setting.
    #[tokio::test]
    async fn only_the_common_request_takes_this_path() {
        let bucket = Quota::token_bucket(5, Rate::per_minute(5));
        assert!(is_straight(&layer(bucket), &request()).await);
        assert!(is_straight(&layer(bucket).missing_key(MissingKey::Share), &request()).await);

        let other = Limiter::in_memory().gate("other", bucket);
        let rule = GateRule::new(other.clone(), Key::constant("a"));
        let straight = [
            RateLimitLayer::new(other.clone(), Key::constant("a")).and(other.clone(), Key::constant("b")),
            RateLimitLayer::choose(move |_| [rule.clone()]),
        ];
        for (at, layer) in straight.iter().enumerate() {
            assert!(is_straight(layer, &request()).await, "case {at}");
        }
        let mut nested = request();
        nested.extensions.insert(AllDecision::of_each([other.peek("a").await.unwrap()]));
        assert!(is_straight(&layer(bucket), &nested).await, "behind an outer layer");

        let shadow = other.clone().shadow(true);
        let slots = Limiter::in_memory().gate("slots", Quota::in_flight(5));
        let general = [
            RateLimitLayer::new(shadow, Key::constant("a")),
            RateLimitLayer::new(slots, Key::constant("a")),
            layer(bucket).charge(Charge::usage()),
            layer(bucket).charge(Charge::trailers(|_: &HeaderMap| None)),
            layer(bucket).charge(Charge::always().if_abandoned(crate::Abandoned::Refunded)),
            layer(bucket).wait(Duration::from_secs(1), 1),
            straight[0].clone().headers(Headers::new().shadow(true)),
        ];
        for (at, layer) in general.iter().enumerate() {
            assert!(!is_straight(layer, &request()).await, "case {at}");
        }

        let without_key = Request::get("/").body(()).unwrap().into_parts().0;
        assert!(!is_straight(&layer(bucket), &without_key).await, "without a key");
        let leaky = layer(Quota::leaky_bucket(2, Rate::per_hour(1)));
        assert!(is_straight(&leaky, &request()).await);
        assert!(!is_straight(&leaky, &request()).await, "with a delay");
        assert!(!is_straight(&leaky, &request()).await, "denied");
    }
}
