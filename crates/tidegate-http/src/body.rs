//! The body of a response: the service's own, or that of a rejection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use pin_project_lite::pin_project;

/// The error of a response body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) type RejectionBody = UnsyncBoxBody<Bytes, BoxError>;

pin_project! {
    /// The body of a response: the service's own, or that of a rejection.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: BodyKind<B>,
    }
}

pin_project! {
    #[project = BodyKindProjected]
    #[derive(Debug)]
    enum BodyKind<B> {
        Inner { #[pin] body: B },
        Rejection { #[pin] body: RejectionBody },
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn inner(body: B) -> Self {
        Self { kind: BodyKind::Inner { body } }
    }

    pub(super) fn rejection(body: RejectionBody) -> Self {
        Self { kind: BodyKind::Rejection { body } }
    }
}

/// Returns an empty body, for layers that respond in place of the service.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::rejection(boxed(Empty::new()))
    }
}

pub(super) fn boxed<B>(body: B) -> RejectionBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(match self.project().kind.project() {
            BodyKindProjected::Inner { body } => {
                ready!(body.poll_frame(cx)).map(|frame| frame.map_err(Into::into))
            }
            BodyKindProjected::Rejection { body } => ready!(body.poll_frame(cx)),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Inner { body } => body.is_end_stream(),
            BodyKind::Rejection { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Inner { body } => body.size_hint(),
            BodyKind::Rejection { body } => body.size_hint(),
        }
    }
}
