//! A client layer with which many instances together keep the limit of another party's service.

mod pause;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderMap, Request, Response, StatusCode, header};
use tidegate::{Decision, Error, Gate};
use tower_layer::Layer;
use tower_service::Service;

use super::key::Key;

/// Keeps the limit of a remote service for all instances that share the gate (feature `client`). The layer
/// wraps an HTTP client. Each request waits until the gate admits it. Limits that the remote service reports
/// apply to all instances.
///
/// - **Before sending**: a request waits at most [`max_wait`](Self::max_wait). If it would have to wait
///   longer, it fails at once with [`OutgoingError::Limited`] and is not sent.
/// - **After the response**: a response that requests a pause [blocks](Gate::block) the key for all
///   instances, for at most [`max_block`](Self::max_block). The caller receives each response unchanged, also
///   a 429; a retry is the caller's choice.
/// - A block that cannot be written because Redis is unavailable is dropped. A [leased](Gate::leased) gate
///   spends its local units even while the key is blocked.
///
/// These responses request a pause; the first that applies counts:
///
/// | response | pause |
/// | --- | --- |
/// | status 429 or 503 with `Retry-After` | the header's seconds, or until its date |
/// | `RateLimit` (drafts -07 to -11) with nothing remaining | the longest reset of the exhausted limits |
/// | `X-RateLimit-Remaining: 0` | until `X-RateLimit-Reset`: seconds from now, or since 1970 |
///
/// Dates are compared with the remote service's clock, from its `Date` header. Without that header they are
/// ignored.
///
/// The key is the host of the request, unless another [key](Self::key) is set. A request that is cancelled
/// after its admission stays charged.
///
/// ```
/// use std::time::Duration;
/// use tidegate_http::OutgoingLayer;
/// use tidegate::{Limiter, Quota, Rate};
/// use tower::{Service, ServiceBuilder, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::in_memory();
/// let gate = limiter.gate("outgoing", Quota::token_bucket(10, Rate::per_second(5)));
/// // The two maps convert reqwest's types; a client of hyper-util needs neither.
/// let mut client = ServiceBuilder::new()
///     .layer(OutgoingLayer::new(gate).max_wait(Duration::from_secs(10)))
///     .map_response(http::Response::<reqwest::Body>::from)
///     .map_request(|request: http::Request<String>| {
///         reqwest::Request::try_from(request).expect("an absolute URL")
///     })
///     .service(reqwest::Client::new());
/// # let _ = async move {
/// let request = http::Request::get("https://api.example.com/").body(String::new())?;
/// let response = client.ready().await?.call(request).await?;
/// # Ok::<_, Box<dyn std::error::Error>>(response) };
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct OutgoingLayer {
    gate: Gate,
    key: Key,
    max_wait: Duration,
    max_block: Duration,
}

impl OutgoingLayer {
    /// Limits a client to the quota of `gate`.
    #[must_use]
    pub fn new(gate: Gate) -> Self {
        let key = Key::from_fn(|parts| host(parts).map(String::into_bytes));
        Self { gate, key, max_wait: Duration::from_secs(30), max_block: Duration::from_secs(3_600) }
    }

    /// Sets the key that a request is counted for, such as an account; [`Key::constant`] if all requests
    /// share one limit. A pause that the remote service requests blocks this key.
    ///
    /// Default: the host of the request, without its port.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// Sets the longest time that a request may wait.
    ///
    /// Default: 30 s.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Sets the longest block for a pause that the remote service requests. Zero ignores such requests.
    ///
    /// Default: one hour.
    #[must_use]
    pub fn max_block(mut self, max_block: Duration) -> Self {
        self.max_block = max_block;
        self
    }

    /// Waits until the gate admits the request.
    async fn acquire(&self, key: Option<&[u8]>) -> Result<(), OutgoingError<std::convert::Infallible>> {
        let decision = match key {
            Some(key) => self.gate.until_allowed(key, self.max_wait).await,
            None => return Err(OutgoingError::NoKey),
        };
        match decision {
            Ok(decision) if decision.is_allowed() => Ok(()),
            Ok(decision) => Err(OutgoingError::Limited(decision)),
            Err(error) => Err(OutgoingError::Failed(error)),
        }
    }

    /// Blocks the key for all instances, if the response requests a pause.
    async fn block_if_requested(&self, key: &[u8], status: StatusCode, headers: &HeaderMap) {
        let pause = pause::requested_by(status, headers).min(self.max_block);
        if pause.is_zero() {
            return;
        }
        // A block replaces the previous one. A pause of a minute must not shorten a block of an hour.
        if self.gate.peek(key).await.is_ok_and(|current| current.retry_after() >= pause) {
            return;
        }
        // Only the observer is notified of an error: the caller must receive the response.
        let _ = self.gate.block(key, pause).await;
    }
}

fn host(parts: &http::request::Parts) -> Option<String> {
    // A request in origin form names its host in a header.
    let in_header = || parts.headers.get(header::HOST)?.to_str().ok()?.parse::<Authority>().ok();
    let authority = parts.uri.authority().cloned().or_else(in_header)?;
    Some(authority.host().to_ascii_lowercase())
}

impl<S> Layer<S> for OutgoingLayer {
    type Service = Outgoing<S>;

    fn layer(&self, inner: S) -> Outgoing<S> {
        Outgoing { inner, layer: self.clone() }
    }
}

/// A client with a rate limit, made by [`OutgoingLayer`].
#[derive(Clone, Debug)]
pub struct Outgoing<S> {
    inner: S,
    layer: OutgoingLayer,
}

impl<S, B, R> Service<Request<B>> for Outgoing<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: Send,
{
    type Response = Response<R>;
    type Error = OutgoingError<S::Error>;
    type Future = OutgoingFuture<Response<R>, OutgoingError<S::Error>>;

    /// Always ready. The inner client is polled after admission, so that a waiting request reserves none of
    /// its capacity.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { mut inner, layer } = self.clone();
        OutgoingFuture(Box::pin(async move {
            let (parts, body) = request.into_parts();
            let key = layer.key.of(&parts);
            layer.acquire(key.as_deref()).await.map_err(OutgoingError::with_client_error)?;
            poll_fn(|cx| inner.poll_ready(cx)).await.map_err(OutgoingError::Client)?;
            let request = Request::from_parts(parts, body);
            let response = inner.call(request).await.map_err(OutgoingError::Client)?;
            if let Some(key) = key {
                layer.block_if_requested(&key, response.status(), response.headers()).await;
            }
            Ok(response)
        }))
    }
}

/// The future of a response from [`Outgoing`].
pub struct OutgoingFuture<T, E>(Pin<Box<dyn Future<Output = Result<T, E>> + Send>>);

impl<T, E> Future for OutgoingFuture<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<T, E> fmt::Debug for OutgoingFuture<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OutgoingFuture")
    }
}

/// The reason why a request through an [`OutgoingLayer`](OutgoingLayer) has no response.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum OutgoingError<E> {
    /// The request would have to wait longer than is left of [`max_wait`](self::OutgoingLayer::max_wait). It was not
    /// sent. The decision's `retry_after` is the time until it can be admitted.
    Limited(Decision),
    /// The limiter could not decide: see [`OnFailure`](tidegate::OnFailure). The request was not sent.
    Failed(Error),
    /// The request has no key: its URL names no host, or the configured key yields none. It was not sent.
    NoKey,
    /// The inner client failed.
    Client(E),
}

impl OutgoingError<std::convert::Infallible> {
    fn with_client_error<E>(self) -> OutgoingError<E> {
        match self {
            Self::Limited(decision) => OutgoingError::Limited(decision),
            Self::Failed(error) => OutgoingError::Failed(error),
            Self::NoKey => OutgoingError::NoKey,
            Self::Client(never) => match never {},
        }
    }
}

impl<E: fmt::Display> fmt::Display for OutgoingError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(decision) => write!(
                f,
                "not sent: the limit \"{}\" would admit the request in {:?}, which is longer than what is left of max_wait",
                decision.gate(),
                decision.retry_after()
            ),
            Self::Failed(error) => write!(f, "not sent: {error}"),
            Self::NoKey => f.write_str(
                "not sent: the request has no key: name a host in its URL, or set OutgoingLayer::key",
            ),
            Self::Client(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for OutgoingError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Client(error) => error.source(),
            Self::Limited(_) | Self::NoKey => None,
        }
    }
}
