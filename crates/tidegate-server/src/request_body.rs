//! The body of a gRPC request, which has to end in time.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use http_body::{Frame, SizeHint};
use prost::bytes::Bytes;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// The maximum time in which a client sends the body of a request.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// A service whose requests fail with `DEADLINE_EXCEEDED` if their bodies do not end in time. Not for streams.
#[derive(Clone, Debug)]
pub(crate) struct BodyDeadline<S>(pub(crate) S);

impl<S> Service<Request<Body>> for BodyDeadline<S>
where
    S: Service<Request<Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.0.call(request.map(|body| Body::new(TimedBody { body, deadline: None })))
    }
}

impl<S: NamedService> NamedService for BodyDeadline<S> {
    const NAME: &'static str = S::NAME;
}

struct TimedBody {
    body: Body,
    /// Begins with the first wait: most bodies arrive with the head, and need no timer.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            return frame;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
        deadline.as_mut().poll(cx).map(|()| {
            let text = format!("the request did not end within {BODY_TIMEOUT:?}");
            Some(Err(Status::deadline_exceeded(text)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
