//! The way of one request through the layer.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{Request, Response};
use tower_service::Service;

use super::asking::{Asking, check};
use super::body::{self, ResponseBody};
use super::charge::Held;
use super::headers::Told;
use super::policy::Policy;
use super::refusal::Refusal;
use super::settings::{OnError, Settings};
use super::waiting::Place;
use crate::decision::AllDecision;
use crate::limiter::Core;

/// What became of the question.
enum Passage {
    Free,
    Admitted(Admitted),
    Refused(Refusal),
}

struct Admitted {
    core: Arc<Core>,
    held: Held,
    /// In the waiting room, until the decision's delay is over.
    place: Option<Place>,
    decision: AllDecision,
    policies: Vec<Policy>,
}

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
    if let Some(Admitted { core, decision, .. }) = &admitted
        && decision.delay() > Duration::ZERO
    {
        (inner, is_ready) = (inner.clone(), false);
        core.sleep(decision.delay()).await;
    }
    if !is_ready {
        poll_fn(|cx| inner.poll_ready(cx)).await?;
    }
    let Some(Admitted { mut held, place, mut decision, policies, .. }) = admitted else {
        return Ok(inner.call(Request::from_parts(parts, body)).await?.map(ResponseBody::inner));
    };
    drop(place);
    parts.extensions.insert(decision.binding().clone());
    parts.extensions.insert(decision.clone());
    held.goes_in();
    let response = inner.call(Request::from_parts(parts, body)).await;
    let (mut head, body) = match response {
        Ok(response) => response.into_parts(),
        Err(error) => {
            held.settle(None).await;
            return Err(error);
        }
    };
    for (at, now) in held.settle(Some(&head)).await {
        decision.decisions[at] = now;
    }
    settings.headers.write(&mut head.headers, &Told { decision: &decision, policies: &policies, wait: None });
    Ok(Response::from_parts(head, ResponseBody::inner(body)))
}

impl Settings {
    async fn decide(&self, parts: &Parts) -> Passage {
        if self.skip.as_ref().is_some_and(|skip| skip(parts)) {
            return Passage::Free;
        }
        let Some(asking) = Asking::of(self, parts).await else {
            return Passage::Refused(Refusal::missing_key());
        };
        let Asking { asks, policies, charges } = asking;
        if asks.is_empty() {
            return Passage::Free;
        }
        let decided = match &self.room {
            Some(room) => room.decide(asks.clone()).await,
            None => check(&asks).await.map(|decision| (decision, None)),
        };
        let (decision, place) = match decided {
            Ok(decided) => decided,
            // No other error: whoever asked for more than there ever is would not be limited, nor anybody at a gate
            // that is set up wrongly.
            Err(error) if self.on_error == OnError::Pass && error.is_unavailable() => return Passage::Free,
            Err(error) => return Passage::Refused(Refusal::error(error, &self.headers)),
        };
        if !decision.is_allowed() {
            return Passage::Refused(Refusal::denied(decision, policies, &self.headers));
        }
        let core = asks[0].gate.core.clone();
        let held = Held::new(asks, charges, &decision);
        Passage::Admitted(Admitted { core, held, place, decision, policies })
    }

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
