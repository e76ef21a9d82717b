//! The body of a response: the service's own, or that of a rejection.

#[cfg(feature = "actix")]
mod message_body;

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use pin_project_lite::pin_project;

use super::pending_charge::PendingCharge;
use super::request_permits::RequestPermits;

/// Any error of a response body.
pub type BoxError = Box<dyn Error + Send + Sync>;

pub(super) type RejectionBody = UnsyncBoxBody<Bytes, BodyError>;

/// The error of a [`ResponseBody`]: an error of the service's own body. It displays as that error, which is its
/// source.
#[derive(Debug)]
pub struct BodyError(BoxError);

impl BodyError {
    fn new(error: impl Into<BoxError>) -> Self {
        Self(error.into())
    }

    /// Returns the error of the service's own body.
    #[must_use]
    pub fn into_inner(self) -> BoxError {
        self.0
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

pin_project! {
    /// The body of a response: the service's own, or that of a rejection. Passes on all frames, trailers, the
    /// size and the end of the service's body. It is `Sync` if the service's body is.
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
        Inner {
            // Dropped before the rest: what a stream reports in its `Drop` still counts, and the next request gets
            // the permit when this one's work has ended.
            #[pin] body: B,
            at_end: Option<Box<AtEnd>>,
        },
        // The mutex makes the body `Sync`. It is never contended: a body is polled by one task.
        Rejection { body: Mutex<RejectionBody> },
    }
}

impl<B> ResponseBody<B> {
    pub(super) fn inner(body: B) -> Self {
        Self { kind: BodyKind::Inner { body, at_end: None } }
    }

    pub(super) fn rejection(body: RejectionBody) -> Self {
        Self { kind: BodyKind::Rejection { body: Mutex::new(body) } }
    }

    /// Returns a body that settles the charge and releases the permits when it has ended, has failed or is
    /// dropped. `length`: the bytes that it will have, if known. `is_ended`: whether nothing of it will be polled.
    pub(super) fn finishing(
        body: B,
        mut at_end: Option<Box<AtEnd>>,
        length: Option<u64>,
        is_ended: bool,
    ) -> Self {
        if let Some(pending) = &mut at_end {
            pending.length = pending.length.or(length);
            if is_ended {
                pending.charge.complete();
                at_end = None;
            }
        }
        Self { kind: BodyKind::Inner { body, at_end } }
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
    body.map_err(BodyError::new).boxed_unsync()
}

/// The parts of a request that end with the response body. Dropping this settles the charge, then releases the
/// permits.
pub(super) struct AtEnd {
    charge: PendingCharge,
    /// Dropped after the charge.
    _permits: RequestPermits,
    /// The length of the body, if it is known. A server may drop the body after that many bytes, without polling
    /// it to its end.
    length: Option<u64>,
}

impl AtEnd {
    /// Returns `None` if nothing ends with the body, as of most requests.
    pub(super) fn new(
        charge: &mut PendingCharge,
        permits: &mut RequestPermits,
        response: &Parts,
    ) -> Option<Box<Self>> {
        if charge.is_settled() && permits.is_empty() {
            return None;
        }
        let (charge, permits) = (std::mem::take(charge), std::mem::take(permits));
        let length = response.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        Some(Box::new(Self { charge, _permits: permits, length }))
    }

    /// Counts the result of a poll. Returns whether it is the last one.
    fn count<E>(&mut self, polled: &Option<Result<Frame<Bytes>, E>>) -> bool {
        let Some(Ok(frame)) = polled else {
            self.charge.complete();
            return true;
        };
        self.charge.count(frame);
        if frame.is_trailers() || self.length.is_some_and(|length| self.charge.bytes() >= length) {
            self.charge.complete();
        }
        frame.is_trailers()
    }
}

/// Counts the result of a poll, and drops `at_end` with the last one. `is_ended`: whether the body needs no other.
fn observe<E>(
    at_end: &mut Option<Box<AtEnd>>,
    polled: &Option<Result<Frame<Bytes>, E>>,
    is_ended: impl FnOnce() -> bool,
) {
    let Some(pending) = at_end else { return };
    let is_last = pending.count(polled);
    if is_last {
        *at_end = None;
    } else if is_ended() {
        pending.charge.complete();
        *at_end = None;
    }
}

impl fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtEnd").field("bytes", &self.charge.bytes()).finish_non_exhaustive()
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(match self.project().kind.project() {
            BodyKindProjected::Inner { mut body, at_end } => {
                let polled = ready!(body.as_mut().poll_frame(cx));
                observe(at_end, &polled, || body.is_end_stream());
                polled.map(|frame| frame.map_err(BodyError::new))
            }
            BodyKindProjected::Rejection { body } => {
                let body = body.get_mut().unwrap_or_else(PoisonError::into_inner);
                ready!(Pin::new(body).poll_frame(cx))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Inner { body, .. } => body.is_end_stream(),
            BodyKind::Rejection { body } => lock(body).is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Inner { body, .. } => body.size_hint(),
            BodyKind::Rejection { body } => lock(body).size_hint(),
        }
    }
}

fn lock(body: &Mutex<RejectionBody>) -> MutexGuard<'_, RejectionBody> {
    body.lock().unwrap_or_else(PoisonError::into_inner)
}
