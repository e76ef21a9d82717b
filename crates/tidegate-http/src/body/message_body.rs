//! The body as actix-web polls it.

use std::error::Error;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll, ready};

use actix_web::body::{BodySize, MessageBody};
use bytes::Bytes;
use http_body::{Body, Frame};

use super::{BodyKind, BodyKindProjected, ResponseBody, lock, observe};

impl<B: MessageBody> MessageBody for ResponseBody<B> {
    type Error = Box<dyn Error>;

    fn size(&self) -> BodySize {
        match &self.kind {
            BodyKind::Inner { body, .. } => body.size(),
            BodyKind::Rejection { body } => {
                lock(body).size_hint().exact().map_or(BodySize::Stream, BodySize::Sized)
            }
        }
    }

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Poll::Ready(match self.project().kind.project() {
            BodyKindProjected::Inner { body, at_end } => {
                let polled = ready!(body.poll_next(cx));
                let frame = |bytes: &Bytes| Frame::data(bytes.clone());
                observe(at_end, &polled.as_ref().map(|polled| polled.as_ref().map(frame)), || false);
                polled.map(|bytes| bytes.map_err(Into::into))
            }
            BodyKindProjected::Rejection { body } => {
                let body = body.get_mut().unwrap_or_else(PoisonError::into_inner);
                loop {
                    match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                        None => break None,
                        Some(Err(error)) => break Some(Err(error.into())),
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(data) => break Some(Ok(data)),
                            // Bodies of actix-web have no trailers.
                            Err(_trailers) => {}
                        },
                    }
                }
            }
        })
    }
}
