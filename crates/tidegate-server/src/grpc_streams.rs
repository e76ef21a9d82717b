//! Streams that last as long as their clients want: of health and of reflection. Their number is bounded, in all and by
//! connection, and those of reflection end after a silence.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body::Frame;
use prost::bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// The only method of health and reflection whose response ends by itself.
const SHORT: &str = "/grpc.health.v1.Health/Check";
/// The maximum number of streams of a connection.
const MAX_PER_CONNECTION: usize = 32;
/// The time without a response after which a stream of reflection ends. Each response answers a request.
pub(crate) const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Returns whether requests of this path last until their clients end them.
pub(crate) fn is_stream(path: &str) -> bool {
    path != SHORT && (path.starts_with("/grpc.health.") || path.starts_with("/grpc.reflection."))
}

/// The streams that a connection can still open. Among the extensions of its streams. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct FreeStreams(Arc<Semaphore>);

impl Default for FreeStreams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_PER_CONNECTION)))
    }
}

/// A service whose streams fail with `RESOURCE_EXHAUSTED` if there are too many.
#[derive(Clone, Debug)]
pub(crate) struct BoundedStreams<S> {
    pub(crate) service: S,
    /// Shared with the other such services.
    pub(crate) free: Arc<Semaphore>,
    /// The time without a response after which a stream ends.
    pub(crate) max_silence: Option<Duration>,
}

impl<S> BoundedStreams<S> {
    /// Returns the permits of a stream.
    fn admit(&self, request: &Request<Body>) -> Result<[Option<OwnedSemaphorePermit>; 2], Status> {
        let of_connection = request.extensions().get::<FreeStreams>();
        let of_connection = of_connection.map(|free| free.0.clone().try_acquire_owned()).transpose();
        let of_connection = of_connection.map_err(|_| {
            let text = format!("this connection has {MAX_PER_CONNECTION} streams of health and reflection");
            Status::resource_exhausted(text)
        })?;
        let of_port = self.free.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(
                "the port has as many streams of health and reflection as connections (--max-connections)",
            )
        })?;
        Ok([of_connection, Some(of_port)])
    }
}

impl<S> Service<Request<Body>> for BoundedStreams<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.uri().path() == SHORT {
            return Box::pin(self.service.call(request));
        }
        let permits = match self.admit(&request) {
            Ok(permits) => permits,
            Err(status) => return Box::pin(std::future::ready(Ok(status.into_http()))),
        };
        let max_silence = self.max_silence;
        let (open, ended) = oneshot::channel();
        let request = request.map(|body| Body::new(RequestBody { body, ended: Some(ended) }));
        let response = self.service.call(request);
        Box::pin(async move {
            let body = |body| {
                Body::new(StreamBody { body, max_silence, silence: None, _open: open, _permits: permits })
            };
            Ok(response.await?.map(body))
        })
    }
}

impl<S: NamedService> NamedService for BoundedStreams<S> {
    const NAME: &'static str = S::NAME;
}

/// The body of a stream, which ends with its status if it is silent for too long.
struct StreamBody {
    body: Body,
    max_silence: Option<Duration>,
    /// The end of the current silence.
    silence: Option<Pin<Box<Sleep>>>,
    _open: oneshot::Sender<Infallible>,
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let Some(max_silence) = self.max_silence.filter(|_| frame.is_pending()) else {
            self.silence = None;
            return frame;
        };
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(max_silence)));
        ready!(silence.as_mut().poll(cx));
        self.body = Body::empty();
        let status = Status::deadline_exceeded(format!("no request within {max_silence:?}"));
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The body of a stream's request, which ends with the response. The task of reflection would read it further.
struct RequestBody {
    body: Body,
    /// `None` once the response has ended.
    ended: Option<oneshot::Receiver<Infallible>>,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended.as_mut().is_none_or(|ended| Pin::new(ended).poll(cx).is_ready()) {
            (self.ended, self.body) = (None, Body::empty());
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody as Parts};
    use tokio::sync::mpsc;
    use tokio::time::{Instant, timeout};
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stream_of_reflection_ends_after_a_silence() {
        let (sender, parts) = mpsc::unbounded_channel();
        let body = Body::new(Parts::new(UnboundedReceiverStream::new(parts)));
        let (open, _ended) = oneshot::channel();
        let (max_silence, permits) = (Some(MAX_SILENCE), [None, None]);
        let mut body = StreamBody { body, max_silence, silence: None, _open: open, _permits: permits };
        for _ in 0..3 {
            timeout(MAX_SILENCE / 2, body.frame()).await.unwrap_err();
            sender.send(Ok::<_, Status>(Frame::data(Bytes::from("x")))).unwrap();
            assert!(body.frame().await.unwrap().unwrap().is_data());
        }
        let start = Instant::now();
        let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "4");
        assert!(start.elapsed() >= MAX_SILENCE, "{:?}", start.elapsed());
        assert!(body.frame().await.is_none());
    }
}
