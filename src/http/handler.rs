//! Passes one request through the layer: admission, handler, settlement, headers.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{Extensions, Request, Response};
use tower_service::Service;

use super::admission::{Admission, Admitted};
use super::body::{self, ResponseBody};
use super::headers::HeaderValues;
use super::rejection::Rejection;
use super::settings::LayerSettings;

/// Admits the request, calls the service, settles the charge and adds the headers.
pub(super) async fn handle<S, RequestBody, B>(
    settings: Arc<LayerSettings>,
    mut inner: S,
    request: Request<RequestBody>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone,
{
    let (mut parts, body) = request.into_parts();
    // A ready service may reserve a resource for its caller, such as a permit or a queue slot. A request that
    // waits uses a fresh clone instead, so that it does not hold the resource meanwhile.
    let mut is_ready = settings.wait_queue.is_none();
    if !is_ready {
        inner = inner.clone();
    }
    let admitted = match settings.decide(&parts).await {
        Admission::Undecided => None,
        Admission::Admitted(admitted) => Some(admitted),
        Admission::Rejected(rejection) => return Ok(settings.reject(parts, rejection).await),
    };
    if let Some(Admitted { core: Some(core), decision: Some(decision), .. }) = &admitted
        && decision.delay() > Duration::ZERO
    {
        (inner, is_ready) = (inner.clone(), false);
        core.sleep(decision.delay()).await;
    }
    if !is_ready {
        poll_fn(|cx| inner.poll_ready(cx)).await?;
    }
    let Some(mut admitted) = admitted else {
        return Ok(inner.call(Request::from_parts(parts, body)).await?.map(ResponseBody::inner));
    };
    admitted.enter(&mut parts.extensions);
    let Admitted { pending_charge, decision, policies, .. } = admitted;
    let response = inner.call(Request::from_parts(parts, body)).await;
    let (mut head, body) = match response {
        Ok(response) => response.into_parts(),
        Err(error) => {
            pending_charge.settle(None).await;
            return Err(error);
        }
    };
    let settled = pending_charge.settle(Some(&head)).await;
    if let Some(mut decision) = decision {
        // Checks in shadow mode come after the reported ones, and headers do not report them.
        for (at, current) in settled.into_iter().filter(|(at, _)| *at < policies.len()) {
            decision.decisions[at] = current;
        }
        settings
            .headers
            .write(&mut head.headers, &HeaderValues { decision: &decision, policies: &policies, wait: None });
    }
    Ok(Response::from_parts(head, ResponseBody::inner(body)))
}

impl Admitted {
    /// Ends the wait and adds the decisions to the request's extensions for the service.
    fn enter(&mut self, extensions: &mut Extensions) {
        self.permit = None;
        self.pending_charge.mark_entered();
        if let Some(decision) = &self.decision {
            extensions.insert(decision.binding().clone());
            extensions.insert(decision.clone());
        }
        #[cfg(feature = "rules")]
        if let Some(rules_decision) = self.rules_decision.take() {
            extensions.insert(rules_decision);
        }
    }
}

impl LayerSettings {
    async fn reject<B>(&self, parts: Parts, rejection: Rejection) -> Response<ResponseBody<B>> {
        let mut response = match &self.responder {
            Some(respond) => respond(parts, rejection.clone()).await,
            None => rejection.response(&parts).map(body::boxed),
        };
        let is_error = response.status().is_client_error() || response.status().is_server_error();
        let headers = response.headers_mut();
        if let Some(values) = HeaderValues::of(&rejection) {
            self.headers.write(headers, &values);
        }
        if let (true, true, Some(wait)) = (self.headers.retry_after, is_error, rejection.retry_after()) {
            headers.entry(RETRY_AFTER).or_insert(wait.as_secs().into());
        }
        response.map(ResponseBody::rejection)
    }
}
