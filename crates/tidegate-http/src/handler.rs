//! Passes one request through the layer: admission, handler, settlement, headers.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::{Extensions, Request, Response};
use tower_service::Service;

use super::admission::{Admission, Admitted};
use super::body::ResponseBody;
use super::headers::HeaderValues;
use super::request::decide;
use super::response::reject;
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
    let admission = match decide(&settings, &parts).await {
        Admission::Admitted(admitted) if admitted.delay() > Duration::ZERO => {
            (inner, is_ready) = (inner.clone(), false);
            admitted.wait_for_delay(&settings.headers).await
        }
        admission => admission,
    };
    let admitted = match admission {
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
            decision.replace(at, current);
        }
        settings
            .headers
            .write(&mut head.headers, &HeaderValues { decision: &decision, policies: &policies, wait: None });
    }
    Ok(Response::from_parts(head, ResponseBody::inner(body)))
}

impl Admitted {
    /// Adds the decisions to the request's extensions for the service.
    fn enter(&mut self, extensions: &mut Extensions) {
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
