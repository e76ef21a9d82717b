//! The tower service that the layer makes: the adapter for axum, tonic and hyper.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::admission::Admission;
use super::admitted::Admitted;
use super::body::ResponseBody;
use super::response::reject;
use super::settings::LayerSettings;
use crate::decide::decide;

/// A service behind rate limits, made by [`RateLimitLayer`](super::RateLimitLayer).
#[derive(Clone)]
pub struct RateLimit<S> {
    settings: Arc<LayerSettings>,
    inner: S,
}

impl<S> RateLimit<S> {
    pub(super) fn new(settings: Arc<LayerSettings>, inner: S) -> Self {
        Self { settings, inner }
    }
}

impl<S, RequestBody, B> Service<Request<RequestBody>> for RateLimit<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    RequestBody: Send + 'static,
    B: Body + Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<B, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        // Calls the instance that was polled ready: its clone may not be ready.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let settings = self.settings.clone();
        // A ready service may reserve a resource for its caller, such as a permit or a queue slot. A request that
        // waits uses a fresh clone instead, so that it does not hold the resource meanwhile.
        let is_ready = settings.wait_queue.is_none();
        if !is_ready {
            inner = inner.clone();
        }
        let (mut parts, body) = request.into_parts();
        // A block captures these values once. The arguments of an async function would be in its future twice.
        ResponseFuture(Box::pin(async move {
            match decide(&settings, &parts).await {
                Admission::Straight(mut admitted) => {
                    admitted.enter(&mut parts.extensions);
                    let response = inner.call(Request::from_parts(parts, body)).await?;
                    Ok(admitted.respond(&settings, response))
                }
                // Boxed, so that the future of a common request is small.
                admission => Box::pin(enter(settings, inner, is_ready, parts, body, admission)).await,
            }
        }))
    }
}

/// Waits for the delay, calls the service, settles the charge and adds the headers.
async fn enter<S, RequestBody, B>(
    settings: Arc<LayerSettings>,
    mut inner: S,
    mut is_ready: bool,
    mut parts: Parts,
    body: RequestBody,
    admission: Admission,
) -> Result<Response<ResponseBody<B>>, S::Error>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone,
    B: Body,
{
    if admission.delay() > Duration::ZERO {
        (inner, is_ready) = (inner.clone(), false);
    }
    let admitted = match admission.after_delay(&settings.headers).await {
        Admission::Undecided => None,
        Admission::Straight(admitted) => Some(Box::new(Admitted::from(*admitted))),
        Admission::Admitted(admitted) => Some(admitted),
        Admission::Rejected(rejection) => return Ok(reject(&settings, parts, *rejection).await),
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
            admitted.fail().await;
            Err(error)
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// The future of a response from [`RateLimit`].
pub struct ResponseFuture<B, E>(BoxFuture<'static, Result<Response<ResponseBody<B>>, E>>);

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}
