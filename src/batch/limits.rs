//! How many checks, callers and dispatchers one destination has at a time.

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Threads that check at the same time each find a shard of their own.
    pub(super) shards: usize,
    /// Callers that send their own check at a time.
    pub(super) direct_sends: usize,
    pub(super) dispatchers: usize,
    /// The number of checks in a shard that is worth a second call while one is in flight. Fewer wait
    /// for that call to return, and travel with the checks that come until then.
    pub(super) second_call: usize,
    /// Callers that one shard holds. Beyond that callers wait for room, which keeps nothing but the
    /// caller.
    pub(super) capacity: usize,
}
