//! The connections of the gRPC port. tonic's own server has one connection age for all of them, so that a fleet's
//! clients would connect again at the same moment, and no maximum of connections.

mod open_requests;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::Counter;
use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tidegate::{Limiter, RepeatedWarning};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use self::open_requests::OpenRequests;
use crate::body::BodyMemory;
use crate::connections::{self, Bounded, Stop};
use crate::grpc_streams::{FreeStreams, is_stream};
use crate::tls::Tls;

/// The maximum time of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of requests of a connection at the same time. A proxy sends all of its requests over one or a few
/// connections; hyper's default of 200 would make it open more.
const MAX_STREAMS: u32 = 1_024;
/// The reciprocal of the part by which the age of a connection is longer or shorter.
const AGE_JITTER: u32 = 10;

/// The gRPC port. Cheap to clone.
#[derive(Clone)]
pub(crate) struct GrpcPort {
    pub(crate) routes: Router,
    pub(crate) tls: Option<Tls>,
    pub(crate) keepalive: Duration,
    pub(crate) max_age: Duration,
    /// Counts the responses that clients do not take.
    pub(crate) memory: Arc<BodyMemory>,
    /// Is warned of failed TLS handshakes.
    pub(crate) limiter: Limiter,
    /// Counts failed TLS handshakes.
    pub(crate) failed_handshakes: Option<Counter>,
}

impl GrpcPort {
    /// Serves connections until the server stops, then those that are open until their requests have ended.
    pub(crate) async fn serve(self, port: connections::Port) {
        let warning = Arc::new(RepeatedWarning::new("server-tls-handshake"));
        port.serve(|stream, _, stop| self.clone().connect(stream, warning.clone(), stop)).await;
    }

    async fn connect(self, stream: TcpStream, warning: Arc<RepeatedWarning>, stop: Stop) {
        let Some(tls) = self.tls.as_ref().map(Tls::config) else {
            return self.exchange(stream, stop).await;
        };
        let failure = match timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await {
            Ok(Ok(stream)) => return self.exchange(stream, stop).await,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it took more than {HANDSHAKE_TIMEOUT:?}"),
        };
        self.failed_handshakes.iter().for_each(|failed| failed.increment(1));
        self.limiter.warn(&warning, || format!("a client's TLS handshake failed: {failure}"));
    }

    /// Serves the requests of a connection until its client closes it or does not take its responses, its age is reached,
    /// or the server stops.
    async fn exchange(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send, stop: Stop) {
        let open = OpenRequests::default();
        tokio::select! {
            () = self.serve_requests(stream, &open, stop) => {}
            // The drop of the connection ends its requests, and frees their responses.
            () = open.not_taken(&self.memory) => {}
        }
    }

    async fn serve_requests(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send,
        open: &OpenRequests,
        mut stop: Stop,
    ) {
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new()).keep_alive_interval(self.keepalive).max_concurrent_streams(MAX_STREAMS);
        let (routes, opens) = (TowerToHyperService::new(self.routes.clone()), open.clone());
        let streams = FreeStreams::default();
        let service = service_fn(move |mut request: Request<Incoming>| {
            if is_stream(request.uri().path()) {
                request.extensions_mut().insert(streams.clone());
            }
            let (count, response) = (opens.begin(request.uri().path()), routes.call(request));
            async move { Ok::<_, Infallible>(response.await?.map(|body| count.until_the_end_of(body))) }
        });
        let mut connection =
            std::pin::pin!(http.serve_connection(TokioIo::new(Bounded::http2(stream)), service));
        // The result of a connection is its client's: it has left, or did not send HTTP/2.
        tokio::select! {
            _ = &mut connection => return,
            () = sleep(jittered(self.max_age)) => {}
            () = stop.stopped() => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = connection => {}
            // The client does not answer the ping that ends a connection: it has nothing to lose.
            () = async { stop.stopped().await; open.quiet().await } => {}
        }
    }
}

/// Returns a random age at most a tenth shorter or longer.
fn jittered(age: Duration) -> Duration {
    let span = age / AGE_JITTER;
    (age - span).saturating_add(span.mul_f64(2.0 * fastrand::f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_a_tenth_at_most() {
        let age = Duration::from_secs(1_800);
        let ages: Vec<Duration> = (0..1_000).map(|_| jittered(age)).collect();
        let (min, max) = (ages.iter().min().unwrap(), ages.iter().max().unwrap());
        assert!(*min >= Duration::from_secs(1_620) && *max <= Duration::from_secs(1_980), "{min:?} {max:?}");
        assert!(*max - *min > Duration::from_secs(180), "{min:?} {max:?}");
        for age in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
            assert!(jittered(age) >= age - age / AGE_JITTER);
        }
    }
}
