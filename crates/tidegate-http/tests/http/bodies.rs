//! Response bodies: the layer passes on all that the service's body says.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody};
use tidegate::{Limiter, Quota};
use tidegate_http::{AdmittedRequest, BodyError, Charge, RateLimitLayer, ResponseBody};
use tower::{Layer, ServiceExt, service_fn};

use super::fixture::{by_key, request, three_a_minute};
use crate::support::fixture::HOUR;

/// A body with a size, an end and trailers of its own.
struct Described;

impl Body for Described {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::new()))))
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(3);
        hint.set_upper(9);
        hint
    }
}

#[tokio::test]
async fn charged_body_is_transparent() {
    let gate = Limiter::in_memory().gate("tokens", Quota::fixed_window(1_000, HOUR));
    for charge in [Charge::always(), Charge::usage(), Charge::bytes(1), Charge::trailers(|_| None)] {
        let service = RateLimitLayer::new(gate.clone(), by_key())
            .charge(charge)
            .layer(service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(Described)) }));
        let mut body = service.oneshot(request("a")).await.unwrap().into_body();
        assert_eq!((body.size_hint().lower(), body.size_hint().upper()), (3, Some(9)));
        assert!(!body.is_end_stream());
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
    }
}

#[test]
fn response_body_is_send_and_sync() {
    fn holds<T: Send + Sync + 'static>() {}
    holds::<ResponseBody<Full<Bytes>>>();
    holds::<BodyError>();
    holds::<AdmittedRequest>();
}

#[tokio::test]
async fn body_error_shows_the_services_error() {
    let gate = three_a_minute(&Limiter::in_memory(), "api");
    let service = RateLimitLayer::new(gate, by_key()).layer(service_fn(|_: Request<String>| async {
        let failing = StreamBody::new(futures_util::stream::iter([Err::<Frame<Bytes>, _>(
            std::io::Error::other("disk full"),
        )]));
        Ok::<_, Infallible>(Response::new(failing))
    }));
    let response = service.oneshot(request("a")).await.unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    assert_eq!(error.to_string(), "disk full");
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.downcast_ref::<std::io::Error>().is_some());
}
