//! Reads the bodies of requests, within a size, a time, and the memory of all unfinished ones.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::Body;
use prost::bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// The maximum time in which a client sends the head of a request, and then the body.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The memory of an unfinished request beside its body: its head, its task, and the buffers of its stream.
/// Also the 5 bytes before a message of gRPC.
const OVERHEAD_BYTES: usize = 16 << 10;

/// The reason why a body was not read. `E`: the error of its connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError<E> {
    #[error("the body did not end within {READ_TIMEOUT:?}")]
    TimedOut,
    #[error("the body has more than {0} bytes: send less in one request, or raise --max-message")]
    TooLarge(usize),
    #[error(
        "the unfinished requests of all clients take as much memory as they may: repeat the request, or raise \
         --max-unfinished"
    )]
    NoMemory,
    #[error("cannot read the body: {0}")]
    Unreadable(E),
}

/// The memory of unfinished bodies, and of responses that clients do not take, in bytes.
#[derive(Debug)]
pub(crate) struct BodyMemory(Semaphore);

impl BodyMemory {
    /// Less than what one body of `max_body_bytes` takes counts as that.
    pub(crate) const fn new(bytes: usize, max_body_bytes: usize) -> Self {
        let one = max_body_bytes.saturating_add(OVERHEAD_BYTES);
        let bytes = if bytes < one { one } else { bytes };
        // A semaphore has no more permits.
        Self(Semaphore::const_new(if bytes < Semaphore::MAX_PERMITS {
            bytes
        } else {
            Semaphore::MAX_PERMITS
        }))
    }

    /// Grows what a body has taken to this many bytes. Returns whether there was room.
    pub(crate) fn grow<'m>(&'m self, taken: &mut Option<SemaphorePermit<'m>>, bytes: usize) -> bool {
        let missing = bytes.saturating_sub(taken.as_ref().map_or(0, SemaphorePermit::num_permits));
        let Ok(more) = u32::try_from(missing).map(|missing| self.0.try_acquire_many(missing)) else {
            return false;
        };
        match (taken, more) {
            (Some(taken), Ok(more)) => taken.merge(more),
            (taken, Ok(more)) => *taken = Some(more),
            (_, Err(_)) => return false,
        }
        true
    }
}

/// Reads a body to its end.
///
/// A body that has arrived with its head, in one piece, takes nothing of `memory`: it is decided even when unfinished
/// bodies take all.
pub(crate) async fn read<B>(
    body: B,
    max_bytes: usize,
    memory: &BodyMemory,
) -> Result<Bytes, BodyError<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut arrived = Arrived { body, max_bytes, first: Bytes::new(), all: Vec::new() };
    let mut taken = None;
    let end = std::future::poll_fn(|cx| {
        let end = arrived.poll(cx);
        match end.is_pending() && !memory.grow(&mut taken, OVERHEAD_BYTES + arrived.take_memory()) {
            true => Poll::Ready(Err(BodyError::NoMemory)),
            false => end,
        }
    });
    timeout(READ_TIMEOUT, end).await.map_err(|_| BodyError::TimedOut)??;
    Ok(arrived.into_bytes())
}

/// A body, and what of it has arrived.
struct Arrived<B> {
    body: B,
    max_bytes: usize,
    /// The first part: of most bodies, all of it.
    first: Bytes,
    /// All parts, once there is a second one, or a wait for it.
    all: Vec<u8>,
}

impl<B: Body<Data = Bytes> + Unpin> Arrived<B> {
    /// Reads what has arrived, until the end of the body.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError<B::Error>>> {
        while !self.body.is_end_stream()
            && let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx))
        {
            let Ok(part) = frame.map_err(BodyError::Unreadable)?.into_data() else { continue };
            if self.first.len() + self.all.len() + part.len() > self.max_bytes {
                return Poll::Ready(Err(BodyError::TooLarge(self.max_bytes)));
            }
            match self.first.is_empty() && self.all.is_empty() {
                true => self.first = part,
                false => {
                    self.take_memory();
                    self.append(&part);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Copies the first part, which keeps the buffer of its connection alive: a part of one byte holds kilobytes. Returns
    /// the bytes that the body now takes.
    fn take_memory(&mut self) -> usize {
        let first = std::mem::take(&mut self.first);
        self.append(&first);
        self.all.capacity()
    }

    fn append(&mut self, part: &[u8]) {
        let bytes = self.all.len() + part.len();
        if bytes > self.all.capacity() {
            self.all.reserve_exact((2 * bytes).min(self.max_bytes) - self.all.len());
        }
        self.all.extend_from_slice(part);
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream::{self, StreamExt};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    const MAX: usize = 1_000;

    fn part(bytes: usize) -> Result<Frame<Bytes>, Infallible> {
        Ok(Frame::data(vec![b'x'; bytes].into()))
    }

    /// A body whose parts arrive when they are sent.
    fn slow() -> (
        mpsc::UnboundedSender<Result<Frame<Bytes>, Infallible>>,
        impl Body<Data = Bytes, Error = Infallible> + Unpin,
    ) {
        let (sender, parts) = mpsc::unbounded_channel();
        (sender, StreamBody::new(UnboundedReceiverStream::new(parts)))
    }

    #[tokio::test]
    async fn unfinished_bodies_take_memory_and_give_it_back() {
        let memory = BodyMemory::new(3 * OVERHEAD_BYTES, MAX);
        let (first, first_body) = slow();
        let (second, second_body) = slow();
        let (_third, third_body) = slow();
        let mut first_read = std::pin::pin!(read(first_body, MAX, &memory));
        let mut second_read = std::pin::pin!(read(second_body, MAX, &memory));
        for parts in [1, 999] {
            first.send(part(parts)).unwrap();
            second.send(part(1)).unwrap();
            assert!(futures_util::poll!(&mut first_read).is_pending());
            assert!(futures_util::poll!(&mut second_read).is_pending());
        }
        let left = memory.0.available_permits();
        assert!((OVERHEAD_BYTES - MAX - 8..OVERHEAD_BYTES - MAX).contains(&left), "{left}");
        assert!(matches!(read(third_body, MAX, &memory).await, Err(BodyError::NoMemory)));
        let whole = StreamBody::new(stream::iter([part(400), part(600)]));
        assert_eq!(read(whole, MAX, &memory).await.unwrap().len(), MAX, "it has arrived");
        drop(first);
        assert_eq!(first_read.await.unwrap(), vec![b'x'; MAX]);
        drop(second);
        assert_eq!(second_read.await.unwrap(), "xx");
        assert_eq!(memory.0.available_permits(), 3 * OVERHEAD_BYTES);
    }

    #[tokio::test]
    async fn body_above_the_maximum_is_not_read_further() {
        let memory = BodyMemory::new(0, MAX);
        let endless = StreamBody::new(stream::repeat_with(|| part(7)).boxed());
        assert!(matches!(read(endless, MAX, &memory).await, Err(BodyError::TooLarge(MAX))));
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_does_not_end_times_out() {
        let memory = BodyMemory::new(0, MAX);
        let (_sender, body) = slow();
        assert!(matches!(read(body, MAX, &memory).await, Err(BodyError::TimedOut)));
    }
}
