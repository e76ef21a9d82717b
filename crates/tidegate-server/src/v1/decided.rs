//! The response to a decided request: its status and headers.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use tidegate::{AllDecision, Decision, Quota};
use tidegate_rules::{RulesDecision, RulesLimiter};

use super::request::RequestDescriptor;
use super::response::DecisionResponse;
use super::subject;
use crate::for_clients::retry_after;
use crate::service::RateLimitService;

/// A request by rules.
#[derive(Clone, Copy)]
pub(super) struct RulesRequest<'r> {
    pub(super) rules: &'r RulesLimiter,
    pub(super) domain: &'r str,
    pub(super) descriptors: &'r [RequestDescriptor],
}

impl RulesRequest<'_> {
    fn response(&self, decision: &RulesDecision) -> DecisionResponse {
        DecisionResponse::of_rules(decision, |at| {
            subject::why_not(self.rules, self.domain, &self.descriptors[at])
        })
    }
}

/// A decided request.
pub(super) struct Decided {
    pub(super) response: DecisionResponse,
    headers: HeaderMap,
    is_peek: bool,
}

impl Decided {
    /// In the service's shadow mode the request is admitted, and its parts keep their denials.
    fn new(service: &RateLimitService, response: DecisionResponse, headers: HeaderMap) -> Self {
        let response = if service.is_shadow() { response.admitted() } else { response };
        Self { response, headers, is_peek: false }
    }

    /// `quota`: that decided the check, here and below.
    pub(super) fn of_gate(service: &RateLimitService, quota: Option<Quota>, decision: &Decision) -> Self {
        let headers = headers(service, quota, Some(decision));
        Self::new(service, DecisionResponse::of_gate(decision), headers)
    }

    /// `binding`: the quota of the check that binds.
    pub(super) fn of_gates(service: &RateLimitService, binding: Option<Quota>, all: &AllDecision) -> Self {
        let headers = headers(service, binding, Some(all.binding()));
        Self::new(service, DecisionResponse::of_gates(all), headers)
    }

    pub(super) fn of_rules(
        service: &RateLimitService,
        request: RulesRequest<'_>,
        decision: &RulesDecision,
    ) -> Self {
        let headers = decision.binding().and_then(|binding| {
            let (quota, decision) = (binding.quota()?, binding.decision()?);
            Some(service.response_headers().of_rule(binding, &quota, decision))
        });
        Self::new(service, request.response(decision), headers.unwrap_or_default())
    }

    /// `binding`: the quota of the check that binds. The reservation denied the rules' checks as a group, which need not
    /// be a denial by the outcomes of the rules.
    pub(super) fn of_denied_group(
        service: &RateLimitService,
        request: RulesRequest<'_>,
        decision: &RulesDecision,
        binding: Option<Quota>,
        all: &AllDecision,
    ) -> Self {
        let headers = headers(service, binding, Some(all.binding()));
        Self::new(service, request.response(decision).denied_by(all), headers)
    }

    /// Marks this as a peek, whose status is 200 whatever it shows.
    pub(super) fn peeked(self) -> Self {
        Self { is_peek: true, ..self }
    }
}

/// Returns the headers that report a decision by a quota. Others have no numbers to report.
fn headers(service: &RateLimitService, quota: Option<Quota>, decision: Option<&Decision>) -> HeaderMap {
    let decided = quota.zip(decision);
    decided.map_or_else(HeaderMap::new, |(quota, decision)| {
        service.response_headers().of_quota(&quota, decision)
    })
}

impl IntoResponse for Decided {
    fn into_response(self) -> Response {
        let retry_after_us = self.response.retry_after_us;
        let is_denied = !self.response.allowed && !self.is_peek;
        let status = if is_denied { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        let mut response = (status, Json(self.response)).into_response();
        let headers = response.headers_mut();
        headers.extend(self.headers);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match is_denied {
            true => {
                headers.entry(RETRY_AFTER).or_insert(retry_after(Duration::from_micros(retry_after_us)));
            }
            // A peek denies nothing.
            false => drop(headers.remove(RETRY_AFTER)),
        }
        response
    }
}
