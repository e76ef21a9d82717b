//! Passes one request through the layer: admission, handler, settlement, headers.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, Method, Request, Response, StatusCode};
use http_body::Body;
use tidegate::AllDecision;
use tower_service::Service;

use super::admission::{Admission, Admitted};
use super::body::ResponseBody;
use super::headers::HeaderValues;
use super::nested::compare_charges;
use super::request::decide;
use super::response::reject;
use super::settings::LayerSettings;
use super::usage::Usage;

/// Admits the request, calls the service, settles the charge and adds the headers.
pub(super) async fn handle<S, RequestBody, B>(
    settings: Arc<LayerSettings>,
    mut inner: S,
    request: Request<RequestBody>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone,
    B: Body,
{
    let (mut parts, body) = request.into_parts();
    // A ready service may reserve a resource for its caller, such as a permit or a queue slot. A request that
    // waits uses a fresh clone instead, so that it does not hold the resource meanwhile.
    let mut is_ready = settings.wait_queue.is_none();
    if !is_ready {
        inner = inner.clone();
    }
    let admission = decide(&settings, &parts).await;
    if admission.delay() > Duration::ZERO {
        (inner, is_ready) = (inner.clone(), false);
    }
    let admitted = match admission.after_delay(&settings.headers).await {
        Admission::Undecided => None,
        Admission::Admitted(admitted) => Some(admitted),
        Admission::Rejected(rejection) => return Ok(reject(&settings, parts, rejection).await),
    };
    if !is_ready {
        poll_fn(|cx| inner.poll_ready(cx)).await?;
    }
    let Some(mut admitted) = admitted else {
        return Ok(inner.call(Request::from_parts(parts, body)).await?.map(ResponseBody::inner));
    };
    let method = parts.method.clone();
    admitted.enter(&mut parts.extensions);
    match inner.call(Request::from_parts(parts, body)).await {
        Ok(response) => Ok(admitted.respond(&settings, &method, response).await),
        Err(error) => {
            // Released before the charge is settled, which may take a call to Redis.
            drop(admitted.permits);
            admitted.pending_charge.settle(None).await;
            Err(error)
        }
    }
}

impl Admitted {
    /// Records that the request enters. Returns the handle for the reports of the handler, if a charge reads
    /// them.
    pub(super) fn mark_entered(&mut self, extensions: &Extensions) -> Option<Usage> {
        self.is_nested = extensions.get::<AllDecision>().is_some();
        self.permits.add_outer(extensions.get());
        self.pending_charge.enter(extensions)
    }

    /// Adds the decisions to the request's extensions for the service.
    fn enter(&mut self, extensions: &mut Extensions) {
        if let Some(usage) = self.mark_entered(extensions) {
            extensions.insert(usage);
        }
        if !self.permits.is_empty() {
            extensions.insert(self.permits.clone());
        }
        if let Some(decision) = &self.decision {
            extensions.insert(decision.binding().clone());
            extensions.insert(decision.clone());
        }
        #[cfg(feature = "rules")]
        if let Some(rules_decision) = self.rules_decision.take() {
            extensions.insert(rules_decision);
        }
    }

    /// Settles the charge, adds the headers, and holds the permits until the end of the body.
    pub(super) async fn respond<B: Body>(
        self,
        settings: &LayerSettings,
        request: &Method,
        response: Response<B>,
    ) -> Response<ResponseBody<B>> {
        let (mut head, body) = response.into_parts();
        let charged = self.pending_charge.charged();
        compare_charges(&settings.warnings, &mut head.extensions, self.is_nested, charged);
        let (settled, charge) = self.pending_charge.settle(Some(&head)).await;
        if let Some(mut decision) = self.decision {
            // Checks in shadow mode come after the reported ones, and headers do not report them.
            for (at, current) in settled.into_iter().filter(|(at, _)| *at < self.policies.len()) {
                decision.replace(at, current);
            }
            let values = HeaderValues { decision: &decision, policies: &self.policies, wait: None };
            settings.headers.write(&mut head.headers, &values);
        }
        settings.headers.write_shadow(&mut head.headers, &self.shadow_limits);
        if is_upgrade(request, head.status) {
            self.permits.disregard();
            if self.permits.is_unshared()
                && let Some(limiter) = &self.limiter
            {
                settings.warnings.upgrade_without_permits(limiter);
            }
        }
        let body = ResponseBody::finishing(body, charge, self.permits, request, &head);
        Response::from_parts(head, body)
    }
}

/// Returns whether the connection becomes another one after this response: a websocket, or a tunnel.
fn is_upgrade(request: &Method, status: StatusCode) -> bool {
    status == StatusCode::SWITCHING_PROTOCOLS || (*request == Method::CONNECT && status.is_success())
}
