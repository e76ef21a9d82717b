//! The service: a request of the protocol to its response, without a server.

use std::sync::Arc;

use tidegate::Source;
use tidegate_http::Headers;
use tidegate_rules::{
    ChargedDenials, Descriptor, Mode, ReloadingRules, RuleOutcome, RulesDecision, RulesLimiter,
};

use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::recent_peeks::RecentPeeks;
use crate::request::RequestDescriptors;
use crate::response::{self, HeaderNames};
use crate::service_error::ServiceError;
use crate::trace;

/// Decides requests of Envoy's rate-limit protocol by rules from files. Cheap to clone.
///
/// It is independent of the server: [`Server`](crate::Server) calls it for gRPC and for `/json`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tidegate::Limiter;
/// use tidegate_rules::Rules;
/// use tidegate_server::RateLimitService;
/// use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
/// use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
/// use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
/// use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
///
/// let text = "
/// domain: api
/// descriptors:
///   - key: user
///     rate_limit: { unit: minute, requests_per_unit: 1 }
/// ";
/// let rules = Rules::parse("api.yaml", text)?.bind(&Limiter::in_memory());
/// let service = RateLimitService::new(rules);
/// let entries = vec![Entry { key: "user".to_owned(), value: "ada".to_owned() }];
/// let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
/// let request = RateLimitRequest { domain: "api".to_owned(), descriptors, ..Default::default() };
///
/// assert_eq!(service.decide(&request).await?.overall_code(), Code::Ok);
/// assert_eq!(service.decide(&request).await?.overall_code(), Code::OverLimit);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitService {
    rules: ReloadingRules,
    headers: Headers,
    header_names: Option<HeaderNames>,
    is_shadow: bool,
    mode: Mode,
    returns_request: bool,
    denied_body: Vec<u8>,
    peeks: Arc<RecentPeeks>,
}

impl RateLimitService {
    /// Creates a service that decides by these rules.
    pub fn new(rules: impl Into<ReloadingRules>) -> Self {
        Self {
            rules: rules.into(),
            headers: Headers::none(),
            header_names: None,
            is_shadow: false,
            mode: Mode::check().deny_above_limit(true),
            returns_request: false,
            denied_body: Vec::new(),
            peeks: Arc::new(RecentPeeks::new()),
        }
    }

    /// Sets the headers that the proxy adds to its responses. They report the limit that binds.
    ///
    /// Default: none, because Envoy can add its own: `enable_x_ratelimit_headers`.
    #[must_use]
    pub const fn headers(mut self, headers: Headers) -> Self {
        self.headers = headers;
        self
    }

    /// Renames the headers of [`Headers::x_ratelimit`].
    ///
    /// Default: their own names.
    #[must_use]
    pub fn header_names(mut self, names: HeaderNames) -> Self {
        self.header_names = Some(names);
        self
    }

    /// Sets whether no request is denied, to try rules. Requests are decided and charged as usual, and the statuses
    /// show which descriptors are over their limits; the code of the response is `OK`. Applies to all endpoints, those of
    /// `/v1` included: the parts of a response show their denials, and the whole is allowed.
    ///
    /// Default: false.
    #[must_use]
    pub const fn shadow(mut self, is_shadow: bool) -> Self {
        self.is_shadow = is_shadow;
        self
    }

    /// Sets which denied requests are charged, as envoyproxy/ratelimit charges them: [`Mode::charge_denied`]. Applies to
    /// requests of Envoy's protocol, over gRPC and `/json`, not to those of `/v1`. With [`ChargedDenials::Uncached`], as that
    /// program with a local cache, a client that goes on calls Redis about twice each half second, instead of with each
    /// request.
    ///
    /// Default: [`ChargedDenials::None`].
    #[must_use]
    pub const fn charge_denied(mut self, charged: ChargedDenials) -> Self {
        self.mode = self.mode.charge_denied(charged);
        self
    }

    /// Sets whether descriptors with 0 hits pass at exactly their limit, as in envoyproxy/ratelimit:
    /// [`Mode::peeks_pass_at_limit`]. Applies to requests of Envoy's protocol, over gRPC and `/json`, not to those of `/v1`.
    ///
    /// Default: false. They are denied if no unit is left.
    #[must_use]
    pub const fn peeks_pass_at_limit(mut self, pass: bool) -> Self {
        self.mode = self.mode.peeks_pass_at_limit(pass);
        self
    }

    /// Sets whether the dynamic metadata of each response contain the request, as those of envoyproxy/ratelimit with
    /// `RESPONSE_DYNAMIC_METADATA`: its domain, its descriptors and its hits, beside the `metadata` of rules.
    ///
    /// Default: false. Only responses with `metadata` of rules have dynamic metadata: the domain and these.
    #[must_use]
    pub const fn request_metadata(mut self, returns_request: bool) -> Self {
        self.returns_request = returns_request;
        self
    }

    /// Sets the body of the proxy's response to a denied request.
    ///
    /// Default: empty, which leaves the body to the proxy.
    #[must_use]
    pub fn denied_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.denied_body = body.into();
        self
    }

    /// Returns the rules in force.
    #[must_use]
    pub fn rules(&self) -> RulesLimiter {
        self.rules.limits()
    }

    /// Returns whether no request is denied.
    pub(crate) const fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Returns the headers that report the limits.
    pub(crate) const fn response_headers(&self) -> &Headers {
        &self.headers
    }

    /// Returns the rules with their last reload.
    #[must_use]
    pub const fn reloading(&self) -> &ReloadingRules {
        &self.rules
    }

    /// Decides a request.
    ///
    /// The statuses are in the order of the descriptors. Descriptors with negative hits give their units back, also if
    /// the request is denied, and then show the state of their limit; they deny nothing. All others are charged
    /// together, as [`RulesLimiter::decide`] does with [`Mode::deny_above_limit`]. Descriptors with 0 hits only peek: if one of
    /// them denies, nothing is charged, except by [`charge_denied`](Self::charge_denied).
    ///
    /// # Errors
    ///
    /// - [`ServiceError::Invalid`] for a request without a domain or without descriptors, with more than 100
    ///   descriptors, or with a limit of an unknown unit. Nothing is charged.
    /// - [`ServiceError::Limiter`] if the limiter fails: see [`RulesLimiter::decide`]. While Redis is unavailable, the
    ///   failure policy of each rule decides. Units that could not be given back are an error under every policy. Then
    ///   the others are charged, and a caller that repeats the request may give units back twice.
    pub async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, ServiceError> {
        let rules = self.rules.limits();
        let descriptors = RequestDescriptors::new(request)?;
        let domain = &*request.domain;
        let charged = match &*descriptors.charged {
            [] => None,
            charged => Some(rules.decide(domain, charged, &self.mode).await?.decision),
        };
        if let Some(decision) = charged.as_ref().filter(|_| !self.peeks.has_warned()) {
            self.find_lost_charges(&rules, request, decision);
        }
        charged.iter().for_each(trace::record);
        let is_allowed = self.is_shadow || charged.as_ref().is_none_or(RulesDecision::is_allowed);
        // Last: an error then leaves units charged. Before, a caller that repeats the request would give back twice.
        let returned = match descriptors.returned.is_empty() {
            true => None,
            // Boxed, since it is rare: the server allocates the future of each request.
            false => Box::pin(give_back(&rules, domain, descriptors.returned)).await?,
        };

        // Each decision has the order of its descriptors, and one of them is nearly always empty.
        let mut outcomes_of_charged = outcomes(charged.as_ref());
        let mut outcomes_of_returned = outcomes(returned.as_ref());
        let statuses = request.descriptors.iter().map(|descriptor| match descriptor.is_negative_hits {
            true => response::status(outcomes_of_returned.next(), descriptor, true),
            false => response::status(outcomes_of_charged.next(), descriptor, false),
        });
        let mut response = RateLimitResponse { statuses: statuses.collect(), ..Default::default() };
        response.set_overall_code(response::code(is_allowed));
        if let Some(charged) = &charged {
            let names = self.header_names.as_ref();
            response.response_headers_to_add =
                response::headers(&self.headers, names, charged, request, is_allowed);
        }
        response.dynamic_metadata = response::metadata(request, charged.as_ref(), self.returns_request);
        if !is_allowed {
            response.raw_body.clone_from(&self.denied_body);
        }
        Ok(response)
    }

    /// Remembers the descriptors that peeks admit, and warns of charges of such descriptors that are denied.
    fn find_lost_charges(&self, rules: &RulesLimiter, request: &RateLimitRequest, decision: &RulesDecision) {
        let charged = request.descriptors.iter().filter(|descriptor| !descriptor.is_negative_hits);
        for (descriptor, outcome) in charged.zip(decision.outcomes()) {
            let (Some(rule), Some(decided)) = (outcome.rule(), outcome.decision()) else { continue };
            let is_window = rule.quota().is_some_and(|quota| quota.algorithm() == "fixed_window");
            let is_charged = rule.charges_used() || (self.mode.charges_denied() && is_window);
            let is_by_state = !matches!(decided.source(), Source::Rule | Source::Switch);
            match (descriptor.hits_addend, decided.is_allowed()) {
                _ if is_charged || !is_by_state => {}
                (Some(0), true) => self.peeks.note(&request.domain, descriptor),
                (Some(0), false) | (_, true) => {}
                (_, false) => {
                    let limiter = rules.limiter();
                    self.peeks.warn_of_denied_charge(&request.domain, descriptor, rule, limiter);
                }
            }
        }
    }
}

fn outcomes(decision: Option<&RulesDecision>) -> impl Iterator<Item = &RuleOutcome> {
    decision.into_iter().flat_map(RulesDecision::outcomes)
}

/// Returns the units that a check of these descriptors charges, each to its gate, and then peeks. The gates are
/// independent: of a request that fails, some units may have been returned.
async fn give_back(
    rules: &RulesLimiter,
    domain: &str,
    descriptors: Vec<Descriptor<'_>>,
) -> Result<Option<RulesDecision>, ServiceError> {
    rules.refund(domain, &descriptors).await?;
    let peeks: Vec<_> = descriptors.into_iter().map(|descriptor| descriptor.hits(0)).collect();
    // An error would make the caller give the units back again.
    let mode = Mode::peek().deny_above_limit(true);
    Ok(rules.decide(domain, &peeks, &mode).await.ok().map(|grant| grant.decision))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::Limiter;
    use tidegate_rules::Rules;

    use super::*;
    use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;

    #[tokio::test]
    async fn denied_request_is_charged_with_the_longest_deadline() {
        let text =
            "{ domain: d, descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 3 } }] }";
        let limiter = Limiter::builder().in_memory().deadline(Duration::MAX).build().unwrap();
        let service = RateLimitService::new(Rules::parse("d.yaml", text).unwrap().bind(&limiter));
        let service = service.charge_denied(ChargedDenials::All);
        let entries = vec![Entry { key: "user".to_owned(), value: "ada".to_owned() }];
        let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
        for (hits_addend, code) in [(2, Code::Ok), (2, Code::OverLimit), (1, Code::OverLimit)] {
            let (domain, descriptors) = ("d".to_owned(), descriptors.clone());
            let request = RateLimitRequest { domain, descriptors, hits_addend };
            assert_eq!(service.decide(&request).await.unwrap().overall_code(), code);
        }
    }

    /// The server allocates and copies the future of each request. It was 5,500 bytes with all rare cases in place.
    #[test]
    fn future_of_a_decision_has_no_room_for_rare_cases() {
        let rules = Rules::parse(
            "d.yaml",
            "domain: d\ndescriptors: [{ key: user, rate_limit: { unlimited: true } }]\n",
        );
        let service = RateLimitService::new(rules.unwrap().bind(&Limiter::in_memory()));
        let bytes = size_of_val(&service.decide(&RateLimitRequest::default()));
        assert!(bytes <= 2_000, "{bytes} bytes");
    }
}
