//! The way of one request through the layer.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{Extensions, Request, Response};
use tower_service::Service;

use super::body::{self, ResponseBody};
use super::deciding::{Admitted, Passage};
use super::headers::Told;
use super::refusal::Refusal;
use super::settings::Settings;

pub(super) async fn pass<S, RequestBody, B>(
    settings: Arc<Settings>,
    mut inner: S,
    request: Request<RequestBody>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone,
{
    let (mut parts, body) = request.into_parts();
    // What a service keeps for who finds it ready (a permit, a place in its queue) is not held while waiting.
    let mut is_ready = settings.room.is_none();
    if !is_ready {
        inner = inner.clone();
    }
    let admitted = match settings.decide(&parts).await {
        Passage::Free => None,
        Passage::Admitted(admitted) => Some(admitted),
        Passage::Refused(refusal) => return Ok(settings.refuse(parts, refusal).await),
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
    admitted.goes_in(&mut parts.extensions);
    let Admitted { held, decision, policies, .. } = admitted;
    let response = inner.call(Request::from_parts(parts, body)).await;
    let (mut head, body) = match response {
        Ok(response) => response.into_parts(),
        Err(error) => {
            held.settle(None).await;
            return Err(error);
        }
    };
    let settled = held.settle(Some(&head)).await;
    if let Some(mut decision) = decision {
        // Those who only watch come after those who are told.
        for (at, now) in settled.into_iter().filter(|(at, _)| *at < policies.len()) {
            decision.decisions[at] = now;
        }
        settings
            .headers
            .write(&mut head.headers, &Told { decision: &decision, policies: &policies, wait: None });
    }
    Ok(Response::from_parts(head, ResponseBody::inner(body)))
}

impl Admitted {
    /// The service gets the request, and is told what was decided.
    fn goes_in(&mut self, extensions: &mut Extensions) {
        self.place = None;
        self.held.goes_in();
        if let Some(decision) = &self.decision {
            extensions.insert(decision.binding().clone());
            extensions.insert(decision.clone());
        }
        #[cfg(feature = "rules")]
        if let Some(ruling) = self.ruling.take() {
            extensions.insert(ruling);
        }
    }
}

impl Settings {
    async fn refuse<B>(&self, parts: Parts, refusal: Refusal) -> Response<ResponseBody<B>> {
        let mut response = match &self.answering {
            Some(answer) => answer(parts, refusal.clone()).await,
            None => refusal.response(&parts).map(body::boxed),
        };
        let is_error = response.status().is_client_error() || response.status().is_server_error();
        let headers = response.headers_mut();
        if let Some(told) = Told::of(&refusal) {
            self.headers.write(headers, &told);
        }
        if let (true, true, Some(wait)) = (self.headers.retry_after, is_error, refusal.retry_after()) {
            headers.entry(RETRY_AFTER).or_insert(wait.as_secs().into());
        }
        response.map(ResponseBody::answer)
    }
}
