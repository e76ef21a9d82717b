//! The message of a gRPC request, which has to arrive in time, and within the memory of unfinished requests.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::Full;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

use crate::body::{self, BodyError, BodyMemory};

/// The bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A service that is called once the message has arrived. Not for streams.
///
/// The service itself would allocate the whole message when its length arrives.
#[derive(Clone, Debug)]
pub(crate) struct WholeMessage<S> {
    pub(crate) service: S,
    pub(crate) max_bytes: usize,
    pub(crate) memory: Arc<BodyMemory>,
}

impl<S> Service<Request<Body>> for WholeMessage<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { mut service, max_bytes, memory } = self.clone();
        let (head, body) = request.into_parts();
        Box::pin(async move {
            match body::read(body, max_bytes.saturating_add(PREFIX_BYTES), &memory).await {
                Ok(message) => service.call(Request::from_parts(head, Body::new(Full::new(message)))).await,
                Err(error) => Ok(status(error, max_bytes).into_http()),
            }
        })
    }
}

impl<S: NamedService> NamedService for WholeMessage<S> {
    const NAME: &'static str = S::NAME;
}

fn status(error: BodyError<Status>, max_bytes: usize) -> Status {
    match error {
        BodyError::TimedOut => Status::deadline_exceeded(error.to_string()),
        BodyError::TooLarge(_) => Status::out_of_range(BodyError::<Status>::TooLarge(max_bytes).to_string()),
        BodyError::NoMemory => Status::resource_exhausted(error.to_string()),
        // The client has reset the request, or has sent no HTTP/2: its mistake, whatever code it chose.
        BodyError::Unreadable(status) => Status::internal(status.message()),
    }
}
