//! What an item of a take needs in the store besides the state of its key.

use std::sync::Arc;

use crate::quota::ban::Ban;
use crate::quota::reference::holds::NewHold;

/// A second key that the store reads and writes in the same step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Companion {
    /// A holder's message about a key of an in-flight limit. The second key holds the leases.
    Message(Message),
    /// The second key holds the open holds of the key. Those that have ended are settled first; then the
    /// charge of an admitted group becomes this hold.
    Holds(Option<NewHold>),
    /// The second key counts the denials of the key, which may lead to this ban.
    Ban {
        ban: Ban,
        /// Whether the group is a partial grant: its checks count as one.
        is_grant: bool,
    },
}

/// A holder's report about a key of an in-flight limit. The group's `n` and the item's cost are its acquires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The holder's name, which ends in `/` and its ttl in ms: `web-1.3f2a/10000`.
    pub(crate) holder: Arc<str>,
    /// The end of the holder's lease as the sender knew it, in µs since 1970 by the server's clock.
    pub(crate) lease_end_us: u64,
    /// Increases from message to message of a holder. A message that is sent again keeps its number.
    pub(crate) number: u64,
    /// The units that the holder continues to hold; `None` for those that an earlier group of the call has left.
    pub(crate) keep: Option<u64>,
    /// Whether the acquires that are not admitted keep a place in the queue of a fair gate.
    pub(crate) waits: bool,
    /// Whether several groups of the call have messages about the same keys.
    pub(crate) is_shared: bool,
}
