use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Connections that clients made.
    pub connections: u64,
    /// Connections that are still open.
    pub open: u64,
    /// Bytes that clients sent, including discarded ones.
    pub to_server: u64,
    /// Bytes that the server sent, including discarded ones.
    pub to_client: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    connections: AtomicU64,
    ended: AtomicU64,
    pub(super) to_server: AtomicU64,
    pub(super) to_client: AtomicU64,
}

impl Counters {
    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let ended = read(&self.ended);
        let connections = read(&self.connections);
        Counts {
            connections,
            open: connections - ended,
            to_server: read(&self.to_server),
            to_client: read(&self.to_client),
        }
    }

    /// Counts a connection as open until the returned value is dropped.
    pub(super) fn open(&self) -> Open<'_> {
        self.connections.fetch_add(1, Ordering::SeqCst);
        Open(self)
    }
}

pub(super) struct Open<'a>(&'a Counters);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}
