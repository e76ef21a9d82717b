//! The faults that a proxy injects.

use std::time::Duration;

/// A fault of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// The port does not listen, and open connections are cut.
    Refuse,
    /// Connections are accepted, and bytes in both directions are discarded. A connection that has lost bytes
    /// transfers nothing more, even after the fault ends, since the rest of its stream would be invalid.
    BlackHole,
    /// The server's bytes are delivered after this delay.
    Slow(Duration),
    /// The client's bytes are delivered after this delay, like those of a TCP segment that is sent again: also if
    /// the fault ends or the client disconnects before.
    Late(Duration),
    /// Each connection ends after a random number of bytes, at least 1 and at most this number, counted over
    /// both directions. It may end in the middle of a message.
    Cut(u64),
    /// The client reads the end of the stream. The proxy reads and discards the client's bytes.
    HalfClose,
}

/// The state that all connections follow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub(super) fault: Fault,
    /// The number of calls to [`Proxy::cut`](super::Proxy::cut).
    pub(super) cuts: u64,
    /// The number of states before this one.
    pub(super) changes: u64,
}
