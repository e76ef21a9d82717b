//! The requests of a connection whose responses have not ended, and the parts of responses that its client has not taken.
//! HTTP/2 lets a client open a request and give its response no room, for as long as the connection lasts.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use prost::bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::body::BodyMemory;
use crate::grpc_streams::is_stream;

/// The maximum time in which a client takes no part of the responses that wait for it.
const TAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time without an open request after which a connection of a stopping server is closed.
const QUIET: Duration = Duration::from_millis(500);
/// The time between two looks at the counts. Parts that are taken between two looks take no memory.
const LOOK: Duration = Duration::from_millis(100);
/// The memory of a response that waits, beside the bytes of its part: its stream and its headers.
const OVERHEAD_BYTES: usize = 8 << 10;

/// The open requests of a connection. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenRequests(Arc<Requests>);

#[derive(Debug, Default)]
struct Requests {
    counts: Mutex<Counts>,
    /// A part waits, and none did before.
    waits: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    /// Requests that have begun.
    begun: u64,
    /// Requests whose response has not ended, without streams.
    open: usize,
    /// Parts that have been taken.
    taken: u64,
    /// Parts that wait since the last look, and since an earlier one.
    recent: Waiting,
    old: Waiting,
    looks: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Waiting {
    parts: usize,
    bytes: usize,
}

impl OpenRequests {
    /// Counts a request of this path, unless it is a stream, which would last until its client ends it.
    pub(super) fn begin(&self, path: &str) -> OpenRequest {
        let is_counted = !is_stream(path);
        let mut counts = self.0.lock();
        counts.begun += 1;
        counts.open += usize::from(is_counted);
        OpenRequest { requests: self.0.clone(), is_counted }
    }

    /// Completes when the client has taken nothing for too long, or when the responses that wait for it have no room in
    /// this memory.
    pub(super) async fn not_taken(&self, memory: &BodyMemory) {
        loop {
            self.0.waits.notified().await;
            let mut last_taken = self.0.lock().taken;
            let mut since = Instant::now();
            let mut room = None;
            loop {
                sleep(LOOK).await;
                let Some((old, taken)) = self.0.lock().look() else { break };
                if taken != last_taken {
                    (last_taken, since) = (taken, Instant::now());
                }
                drop(room.take());
                let bytes = old.parts.saturating_mul(OVERHEAD_BYTES).saturating_add(old.bytes);
                if since.elapsed() >= TAKE_TIMEOUT || !memory.grow(&mut room, bytes) {
                    return;
                }
            }
        }
    }

    /// Completes when no request has been open for a while.
    pub(super) async fn quiet(&self) {
        let mut since = Instant::now();
        let mut last_begun = self.0.lock().begun;
        while since.elapsed() < QUIET {
            sleep(LOOK).await;
            let counts = self.0.lock();
            if counts.begun != last_begun || counts.open > 0 || counts.waiting() > 0 {
                (last_begun, since) = (counts.begun, Instant::now());
            }
        }
    }
}

impl Requests {
    /// Ignores poisoning: each change is complete before the lock is released.
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn waiting(&self) -> usize {
        self.recent.parts + self.old.parts
    }

    /// Returns the parts that have waited since the last look or longer, and the number of those that were taken. `None`
    /// if no part waits.
    fn look(&mut self) -> Option<(Waiting, u64)> {
        if self.waiting() == 0 {
            return None;
        }
        let old = self.old;
        let recent = std::mem::take(&mut self.recent);
        self.old.parts += recent.parts;
        self.old.bytes += recent.bytes;
        self.looks += 1;
        Some((old, self.taken))
    }
}

/// Counts a request until it is dropped.
#[derive(Debug)]
pub(super) struct OpenRequest {
    requests: Arc<Requests>,
    is_counted: bool,
}

impl OpenRequest {
    /// Returns a body that counts the request until its own end, and each of its parts until the client has taken it.
    pub(super) const fn until_the_end_of<B>(self, body: B) -> TakenBody<B> {
        TakenBody { body, request: self }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.requests.lock().open -= usize::from(self.is_counted);
    }
}

/// The body of a response.
pub(super) struct TakenBody<B> {
    body: B,
    request: OpenRequest,
}

impl<B: Body<Data = Bytes> + Unpin> Body for TakenBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let requests = &self.request.requests;
        Poll::Ready(
            frame.map(|frame| frame.map(|frame| frame.map_data(|part| WaitingPart::of(part, requests)))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A part of a response. The connection drops it once it has written it.
struct WaitingPart {
    part: Bytes,
    /// The number of looks before it.
    looks: u64,
    requests: Arc<Requests>,
}

impl WaitingPart {
    fn of(part: Bytes, requests: &Arc<Requests>) -> Bytes {
        let mut counts = requests.lock();
        let is_first = counts.waiting() == 0;
        counts.recent.parts += 1;
        counts.recent.bytes += part.len();
        let looks = counts.looks;
        drop(counts);
        if is_first {
            requests.waits.notify_one();
        }
        Bytes::from_owner(Self { part, looks, requests: requests.clone() })
    }
}

impl AsRef<[u8]> for WaitingPart {
    fn as_ref(&self) -> &[u8] {
        &self.part
    }
}

impl Drop for WaitingPart {
    fn drop(&mut self) {
        let mut counts = self.requests.lock();
        counts.taken += 1;
        let is_old = self.looks < counts.looks;
        let waiting = if is_old { &mut counts.old } else { &mut counts.recent };
        waiting.parts -= 1;
        waiting.bytes -= self.part.len();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    const BYTES: usize = 1_000;

    /// Returns parts of as many responses, which wait while they are held.
    async fn wait_for_client(requests: &OpenRequests, count: usize) -> Vec<Bytes> {
        let mut parts = Vec::new();
        for _ in 0..count {
            let mut body = requests.begin("/").until_the_end_of(Full::new(Bytes::from(vec![b'x'; BYTES])));
            parts.push(body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        parts
    }

    #[tokio::test(start_paused = true)]
    async fn connection_whose_client_takes_nothing_is_closed_after_its_time() {
        let (requests, memory) = (OpenRequests::default(), BodyMemory::new(1 << 20, 0));
        let start = Instant::now();
        let mut parts = wait_for_client(&requests, 3).await;
        let takes_some = async {
            sleep(TAKE_TIMEOUT / 2).await;
            parts.pop();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = requests.not_taken(&memory) => {}
            () = takes_some => {}
        }
        let waited = start.elapsed();
        let expected = TAKE_TIMEOUT + TAKE_TIMEOUT / 2;
        assert!(waited >= expected && waited <= expected + 2 * LOOK, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn responses_that_wait_take_memory_and_give_it_back() {
        let requests = OpenRequests::default();
        let memory = BodyMemory::new(3 * (OVERHEAD_BYTES + BYTES), 0);
        let mut not_taken = Box::pin(requests.not_taken(&memory));
        let parts = wait_for_client(&requests, 2).await;
        tokio::time::timeout(3 * LOOK, &mut not_taken).await.unwrap_err();
        let (mut room, one) = (None, OVERHEAD_BYTES + BYTES);
        assert!(!memory.grow(&mut room, one + 1) && memory.grow(&mut room, one));
        drop((room, parts));
        tokio::time::timeout(3 * LOOK, &mut not_taken).await.unwrap_err();
        let mut room = None;
        assert!(memory.grow(&mut room, 3 * one), "all is free again");
        drop(room);
        let start = Instant::now();
        let _parts = wait_for_client(&requests, 4).await;
        not_taken.await;
        assert!(start.elapsed() < TAKE_TIMEOUT, "there is no room for four");
    }

    #[tokio::test(start_paused = true)]
    async fn parts_that_are_taken_at_once_take_no_memory() {
        let (requests, memory) = (OpenRequests::default(), BodyMemory::new(0, 0));
        let busy = async {
            for _ in 0..100 {
                let parts = wait_for_client(&requests, 1_000).await;
                sleep(LOOK / 2).await;
                drop(parts);
            }
        };
        tokio::select! {
            () = requests.not_taken(&memory) => panic!("the client takes all"),
            () = busy => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_is_quiet_once_no_request_is_open() {
        let requests = OpenRequests::default();
        let mut quiet = Box::pin(requests.quiet());
        let open = requests.begin("/");
        tokio::time::timeout(2 * QUIET, &mut quiet).await.unwrap_err();
        let mut body = open.until_the_end_of(Full::new(Bytes::from("x")));
        let part = body.frame().await;
        drop(body);
        tokio::time::timeout(2 * QUIET, &mut quiet).await.unwrap_err();
        drop(part);
        tokio::time::timeout(2 * QUIET, quiet).await.unwrap();
    }
}
