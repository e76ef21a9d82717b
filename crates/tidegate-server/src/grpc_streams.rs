//! Streams that last as long as their clients want: of health and of reflection. Their number is bounded.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// The only method of health and reflection whose response ends by itself.
const SHORT: &str = "/grpc.health.v1.Health/Check";

/// A service whose streams fail with `RESOURCE_EXHAUSTED` if there are too many.
#[derive(Clone, Debug)]
pub(crate) struct BoundedStreams<S> {
    pub(crate) service: S,
    /// Shared with the other such services.
    pub(crate) free: Arc<Semaphore>,
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
        let Ok(stream) = self.free.clone().try_acquire_owned() else {
            let text =
                "the port has as many streams of health and reflection as connections (--max-connections)";
            return Box::pin(std::future::ready(Ok(Status::resource_exhausted(text).into_http())));
        };
        let response = self.service.call(request);
        Box::pin(async move {
            let ends_with_its_body = move |body: Body| {
                Body::new(body.map_frame(move |frame| {
                    let _open = &stream;
                    frame
                }))
            };
            Ok(response.await?.map(ends_with_its_body))
        })
    }
}

impl<S: NamedService> NamedService for BoundedStreams<S> {
    const NAME: &'static str = S::NAME;
}
