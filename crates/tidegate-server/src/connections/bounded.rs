//! A connection whose client has to keep up: it cannot hold the connection by sending or reading nothing.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The bytes that an HTTP/2 client sends before any frame.
const PREFACE_BYTES: usize = 24;
/// The maximum time in which a client sends them.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time in which a client that does not read takes no byte of a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream that fails with [`io::ErrorKind::TimedOut`] if its client does not keep up. The server then closes it.
///
/// It has no timeout between requests: hyper closes idle HTTP/1 connections, and pings HTTP/2 connections.
#[derive(Debug)]
pub(crate) struct Bounded<S> {
    stream: S,
    /// The bytes of the preface that are missing, and until when; 0 for a protocol without one.
    missing: usize,
    preface: Deadline,
    write: Deadline,
}

impl<S> Bounded<S> {
    /// A connection of any protocol.
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, missing: 0, preface: Deadline::default(), write: Deadline::default() }
    }

    /// An HTTP/2 connection. hyper itself waits for its preface without a timeout.
    pub(crate) fn http2(stream: S) -> Self {
        Self { missing: PREFACE_BYTES, ..Self::new(stream) }
    }
}

/// The end of a wait. It begins when the wait does, so that a connection that never waits needs no timer.
#[derive(Debug, Default)]
struct Deadline(Option<Pin<Box<Sleep>>>);

impl Deadline {
    fn clear(&mut self) {
        self.0 = None;
    }

    /// Begins the wait if none is in progress. Returns an error once it has lasted too long.
    fn poll<T>(&mut self, cx: &mut Context<'_>, limit: Duration, waited_for: &str) -> Poll<io::Result<T>> {
        let wait = self.0.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(wait.as_mut().poll(cx));
        let text = format!("the client {waited_for} for {limit:?}");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)))
    }

    /// Returns the result of a write, or begins the wait for it.
    fn bound<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_pending() {
            return self.poll(cx, WRITE_TIMEOUT, "has read nothing");
        }
        self.clear();
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if this.missing == 0 {
            return read;
        }
        this.missing = this.missing.saturating_sub(buffer.filled().len() - before);
        match read {
            Poll::Pending => this.preface.poll(cx, PREFACE_TIMEOUT, "has not begun HTTP/2"),
            Poll::Ready(read) => {
                if this.missing == 0 {
                    this.preface.clear();
                }
                Poll::Ready(read)
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.write.bound(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.write.bound(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.write.bound(flushed, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.write.bound(shut, cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn preface_has_a_deadline_that_single_bytes_do_not_extend() {
        let (mut client, server) = duplex(64);
        let mut server = Bounded::http2(server);
        let start = Instant::now();
        let sending = tokio::spawn(async move {
            loop {
                if client.write_all(b"P").await.is_err() {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
        });
        let mut read = [0; 64];
        let error = loop {
            if let Err(error) = server.read(&mut read).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed(), PREFACE_TIMEOUT);
        drop(server);
        sending.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_has_begun_may_be_idle() {
        let (mut client, server) = duplex(64);
        let mut server = Bounded::http2(server);
        client.write_all(&[0; PREFACE_BYTES]).await.unwrap();
        let mut read = [0; 64];
        assert_eq!(server.read(&mut read).await.unwrap(), PREFACE_BYTES);
        tokio::time::timeout(10 * PREFACE_TIMEOUT, server.read(&mut read)).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_reads_slowly_is_served_and_one_that_reads_nothing_is_not() {
        let (mut client, server) = duplex(8);
        let mut server = Bounded::new(server);
        let slow = tokio::spawn(async move {
            for _ in 0..16 {
                client.read_u8().await.unwrap();
                sleep(WRITE_TIMEOUT / 2).await;
            }
            client
        });
        server.write_all(&[0; 24]).await.unwrap();
        let _client = slow.await.unwrap();
        let start = Instant::now();
        let error = server.write_all(&[0; 24]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() >= WRITE_TIMEOUT, "{:?}", start.elapsed());
    }
}
