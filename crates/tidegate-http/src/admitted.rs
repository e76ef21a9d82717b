//! An admitted request: the values that its handler reads, and the settlement after its response.

use http::response::Parts;
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::Body;
use tidegate::AllDecision;
#[cfg(feature = "rules")]
use tidegate_rules::RulesDecision;

use super::body::{AtEnd, ResponseBody};
use super::headers::{HeaderValues, Headers};
use super::pending_charge::PendingCharge;
use super::request_permits::RequestPermits;
use super::settings::LayerSettings;
use super::usage::{RequestExtensions, Usage};
use super::wait_queue::DelayPermit;
use crate::charge::compare_charges;
use crate::policy::Policies;

/// An admitted request.
#[derive(Default)]
pub(super) struct Admitted {
    /// `None` if no check can deny the request.
    pub(super) decision: Option<AllDecision>,
    pub(super) policies: Policies,
    /// The limits in shadow mode, as the header reports them.
    pub(super) shadow_limits: String,
    pub(super) pending_charge: PendingCharge,
    pub(super) permits: RequestPermits,
    /// The permit to wait for the decision's delay, with a wait queue.
    pub(super) delay_permit: Option<DelayPermit>,
    /// Whether another layer has admitted the request before.
    pub(super) is_nested: bool,
    #[cfg(feature = "rules")]
    pub(super) rules_decision: Option<RulesDecision>,
}

impl Admitted {
    /// Records that the request enters. Returns the handle for the reports of the handler, if a charge reads
    /// them.
    pub(super) fn mark_entered(&mut self, extensions: &impl RequestExtensions) -> Option<Usage> {
        self.is_nested = extensions.find::<AllDecision>().is_some();
        self.permits.add_outer(extensions.find().as_ref());
        self.pending_charge.enter(extensions)
    }

    /// Records that the request enters, and adds the values that its handler reads to its extensions.
    pub(super) fn enter(&mut self, extensions: &mut impl RequestExtensions) {
        if let Some(usage) = self.mark_entered(extensions) {
            extensions.set(usage);
        }
        if !self.permits.is_empty() {
            extensions.set(self.permits.clone());
        }
        if let Some(decision) = &self.decision {
            extensions.set(decision.binding().clone());
            extensions.set(decision.clone());
        }
        #[cfg(feature = "rules")]
        if let Some(rules_decision) = self.rules_decision.take() {
            extensions.set(rules_decision);
        }
    }

    /// Settles the charge by the response. Returns what the end of its body settles.
    pub(super) async fn settle(
        &mut self,
        settings: &LayerSettings,
        response: &mut Parts,
    ) -> Option<Box<AtEnd>> {
        let charged = self.pending_charge.charged();
        compare_charges(&settings.warnings, &mut response.extensions, self.is_nested, charged);
        let settled = self.pending_charge.settle(Some(response)).await;
        if let Some(decision) = &mut self.decision {
            // Checks in shadow mode come after the reported ones, and headers do not report them.
            for (at, current) in settled.into_iter().filter(|(at, _)| *at < self.policies.len()) {
                decision.replace(at, current);
            }
        }
        AtEnd::new(&mut self.pending_charge, &mut self.permits, response)
    }

    /// Adds the headers that report the limits.
    pub(super) fn report(&self, settings: Headers, headers: &mut HeaderMap) {
        if let Some(decision) = &self.decision {
            let values = HeaderValues { decision, policies: &self.policies, wait: None };
            settings.write(headers, &values);
        }
        settings.write_shadow(headers, &self.shadow_limits);
    }

    /// Settles the charge by the response, adds the headers, and holds the permits until the end of the body, which
    /// the server polls as hyper does.
    pub(super) async fn respond<B: Body>(
        mut self: Box<Self>,
        settings: &LayerSettings,
        request: &Method,
        response: Response<B>,
    ) -> Response<ResponseBody<B>> {
        let (mut head, body) = response.into_parts();
        if is_upgrade(request, head.status) {
            self.permits.disregard();
            // The body of such a response is not polled, so nothing shows the end of its connection.
            if self.permits.is_unshared()
                && let Some(limiter) = self.pending_charge.limiter()
            {
                settings.warnings.upgrade_without_permits(&limiter);
            }
        }
        let at_end = self.settle(settings, &mut head).await;
        self.report(settings.headers, &mut head.headers);
        let is_ended = body.is_end_stream() || is_unread(request, head.status);
        let length = body.size_hint().exact();
        Response::from_parts(head, ResponseBody::finishing(body, at_end, length, is_ended))
    }

    /// Releases the permits and settles the charge of a request without a response: its service failed.
    pub(super) async fn fail(mut self: Box<Self>) {
        // Released before the charge is settled, which may take a call to Redis.
        drop(std::mem::take(&mut self.permits));
        self.pending_charge.settle(None).await;
    }
}

/// Returns whether the server drops the body without polling it.
fn is_unread(request: &Method, status: StatusCode) -> bool {
    *request == Method::HEAD || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Returns whether the connection becomes another one after this response: a websocket, or a tunnel.
fn is_upgrade(request: &Method, status: StatusCode) -> bool {
    status == StatusCode::SWITCHING_PROTOCOLS || (*request == Method::CONNECT && status.is_success())
}
