//! The way of one request through the layer.

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
use crate::decision::AllDecision;

/// What became of the question.
enum Passage {
    Free,
    Admitted { held: Held, decision: AllDecision, policies: Vec<Policy> },
    Refused(Refusal),
}

pub(super) async fn pass<S, RequestBody, B>(
    settings: Arc<Settings>,
    mut inner: S,
    request: Request<RequestBody>,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
{
    let (mut parts, body) = request.into_parts();
    let (mut held, mut decision, policies) = match settings.decide(&parts).await {
        Passage::Free => {
            return Ok(inner.call(Request::from_parts(parts, body)).await?.map(ResponseBody::inner));
        }
        Passage::Refused(refusal) => return Ok(settings.refuse(parts, refusal).await),
        Passage::Admitted { held, decision, policies } => (held, decision, policies),
    };
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
            // A client may choose its cost; letting it pass would lift the limit for whoever asks for enough.
            Err(error) if self.on_error == OnError::Pass && !error.is_over_capacity() => {
                return Passage::Free;
            }
            Err(error) => return Passage::Refused(Refusal::error(error, &self.headers)),
        };
        if !decision.is_allowed() {
            return Passage::Refused(Refusal::denied(decision, policies, &self.headers));
        }
        let core = asks[0].gate.core.clone();
        let held = Held::new(asks, charges, &decision);
        if decision.delay() > Duration::ZERO {
            core.sleep(decision.delay()).await;
        }
        drop(place);
        Passage::Admitted { held, decision, policies }
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
