//! In front of a client, so that many instances together keep the limit of somebody else's service.

mod error;
mod pause;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode, header};
use tower_layer::Layer;
use tower_service::Service;

pub use self::error::OutgoingError;
use super::Key;
use crate::gate::Gate;

/// Keeps a limit that somebody else sets, for all instances that share the gate (feature `client`): around a
/// client, each request waits until the gate lets it pass, and what the other side says of its limit holds
/// for all instances.
///
/// - **Before**: waits at most [`max_wait`](Self::max_wait). Where that is too short, nothing is waited for
///   and nothing is sent: [`OutgoingError::Limited`].
/// - **After**: a response that says to stay away [blocks](Gate::block) the key for all instances, at most
///   for [`max_block`](Self::max_block). Says so: status 429 or 503 with `Retry-After` (seconds or a date);
///   any response with `RateLimit` (drafts -07 to -11) of which nothing remains, for the longest reset of
///   those; or with `X-RateLimit-Remaining: 0`, until `X-RateLimit-Reset` (seconds to go, or since 1970). Dates
///   are read by the other side's clock, from its `Date`; without one they say nothing. A response comes
///   back as it is, also a 429: to repeat it is the caller's choice.
/// - A block that cannot be written (Redis is away) is dropped. A gate that is [leased](Gate::leased) spends
///   what it holds, whatever is blocked.
///
/// The key is the host that is asked, unless [another](Self::key) is set.
///
/// A request that was given up after it was let through stays charged.
///
/// ```
/// use std::time::Duration;
/// use tidegate::http::OutgoingLayer;
/// use tidegate::{Limiter, Quota, Rate};
/// use tower::{Service, ServiceBuilder, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::in_memory();
/// let gate = limiter.gate("outgoing", Quota::token_bucket(10, Rate::per_second(5)));
/// // reqwest's own types are converted; a client of hyper-util needs neither map.
/// let mut client = ServiceBuilder::new()
///     .layer(OutgoingLayer::new(gate).max_wait(Duration::from_secs(10)))
///     .map_response(http::Response::<reqwest::Body>::from)
///     .map_request(|request: http::Request<String>| reqwest::Request::try_from(request).expect("a whole URL"))
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
    /// Around a client that may ask as often as `gate` says.
    #[must_use]
    pub fn new(gate: Gate) -> Self {
        let key = Key::from_fn(|parts| host(parts).map(|host| host.to_ascii_lowercase().into_bytes()));
        Self { gate, key, max_wait: Duration::from_secs(30), max_block: Duration::from_secs(3_600) }
    }

    /// Whose limit a request is counted against, such as an account: [`Key::constant`] where all share one.
    /// What the other side says of its limit blocks this key.
    ///
    /// Default: the host that is asked, without its port.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = key;
        self
    }

    /// How long a request may wait. Default: 30 s.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// The longest time for which what the other side says is believed. Default: one hour; zero to believe
    /// nothing.
    #[must_use]
    pub fn max_block(mut self, max_block: Duration) -> Self {
        self.max_block = max_block;
        self
    }

    /// Waits for its turn.
    async fn enter(&self, key: Option<&[u8]>) -> Result<(), OutgoingError<std::convert::Infallible>> {
        let decision = match key {
            Some(key) => self.gate.until_allowed(key, self.max_wait).await,
            None => return Err(OutgoingError::NoKey),
        };
        match decision {
            Ok(decision) if decision.is_allowed() => Ok(()),
            Ok(decision) => Err(OutgoingError::Limited(decision)),
            Err(error) => Err(OutgoingError::Undecided(error)),
        }
    }

    /// Passes on to all instances what the other side said.
    async fn heed(&self, key: &[u8], status: StatusCode, headers: &HeaderMap) {
        let pause = pause::of(status, headers).min(self.max_block);
        if pause.is_zero() {
            return;
        }
        // A block takes the place of the one before. One who says a minute must not cut short an hour.
        if self.gate.peek(key).await.is_ok_and(|now| now.retry_after() >= pause) {
            return;
        }
        // Who wants to know is told by the observer: the response is not to be lost for it.
        let _ = self.gate.block(key, pause).await;
    }
}

fn host(parts: &http::request::Parts) -> Option<&str> {
    parts.uri.host().or_else(|| {
        // A request in origin form says it in a header.
        let authority = parts.headers.get(header::HOST)?.to_str().ok()?;
        Some(authority.rsplit_once(':').map_or(authority, |(host, _)| host))
    })
}

impl<S> Layer<S> for OutgoingLayer {
    type Service = Outgoing<S>;

    fn layer(&self, inner: S) -> Outgoing<S> {
        Outgoing { inner, layer: self.clone() }
    }
}

/// See [`OutgoingLayer`].
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

    /// Ready at once: who waits for a turn keeps no place of the client's.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { mut inner, layer } = self.clone();
        OutgoingFuture(Box::pin(async move {
            let (parts, body) = request.into_parts();
            let key = layer.key.of(&parts);
            layer.enter(key.as_deref()).await.map_err(OutgoingError::widened)?;
            poll_fn(|cx| inner.poll_ready(cx)).await.map_err(OutgoingError::Client)?;
            let request = Request::from_parts(parts, body);
            let response = inner.call(request).await.map_err(OutgoingError::Client)?;
            if let Some(key) = key {
                layer.heed(&key, response.status(), response.headers()).await;
            }
            Ok(response)
        }))
    }
}

/// A request on its way: it waits, is sent, and what came back is heeded.
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
