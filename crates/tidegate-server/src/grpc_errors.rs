//! Counts the gRPC requests that fail, also those that fail before their message is decoded.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;
use tonic::{Code, Status};

use crate::metrics::requests::GrpcRequests;
use crate::service_error::ServiceError;

/// The only method of the protocol.
const METHOD: &str = "/ShouldRateLimit";

/// A service whose failed requests are counted by their codes. Requests of unknown methods are not.
#[derive(Clone)]
pub(crate) struct CountedErrors<S> {
    pub(crate) service: S,
    pub(crate) requests: Option<Arc<GrpcRequests>>,
}

impl<S> Service<Request<Body>> for CountedErrors<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Counted<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_counted = request.uri().path().ends_with(METHOD);
        let requests = self.requests.clone().filter(|_| is_counted);
        Counted { requests, began: Instant::now(), response: self.service.call(request) }
    }
}

impl<S: NamedService> NamedService for CountedErrors<S> {
    const NAME: &'static str = S::NAME;
}

pub(crate) struct Counted<F> {
    requests: Option<Arc<GrpcRequests>>,
    began: Instant,
    response: F,
}

impl<F> Future for Counted<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let response = ready!(Pin::new(&mut self.response).poll(cx));
        if let (Some(requests), Ok(response)) = (&self.requests, &response)
            // tonic keeps the status of an error in the extensions of its response; a success has none there.
            && let Some(status) = response.extensions().get::<Status>()
        {
            requests.answered(label(status), self.began);
        }
        Poll::Ready(response)
    }
}

/// Returns the label of an error. A message that cannot be decoded is `INTERNAL` in the protocol, but it is the mistake of
/// its client: only the errors of the service have theirs as a source.
fn label(status: &Status) -> &'static str {
    match status.code() {
        Code::Internal if !status.source().is_some_and(|source| source.is::<ServiceError>()) => "MALFORMED",
        code => name(code),
    }
}

/// Returns the name of a code, as the protocol writes it.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
