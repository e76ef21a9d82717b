//! One check with its options, decided alone or together with others.

use std::borrow::Cow;
use std::time::Duration;

use crate::as_key::AsKey;
use crate::decision::Decision;
use crate::error::Error;
use crate::gate::Gate;

/// One check of a gate: a key, a cost, and options. Made by [`Gate::key`]; decided alone by
/// [`check`](Check::check), or together with others by [`Limiter::check_all`](crate::Limiter::check_all).
#[must_use = "a check is not made until `check` is called or it is passed to `check_all`"]
#[derive(Clone)]
pub struct Check {
    pub(crate) gate: Gate,
    pub(crate) key: Vec<u8>,
    pub(crate) cost: u64,
    pub(crate) max_delay: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    colocate_with: Option<Vec<u8>>,
}

/// A check that borrows its gate and key.
#[derive(Clone, Copy)]
pub(crate) struct CheckRef<'a> {
    pub(crate) gate: &'a Gate,
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
    pub(crate) max_delay: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) colocate_with: Option<&'a [u8]>,
}

impl<'a> CheckRef<'a> {
    pub(crate) fn new(gate: &'a Gate, key: &'a [u8], cost: u64) -> Self {
        Self { gate, key, cost, max_delay: None, deadline: None, colocate_with: None }
    }
}

impl Check {
    pub(crate) fn new(gate: &Gate, key: &[u8]) -> Self {
        let key = key.to_vec();
        Self { gate: gate.clone(), key, cost: 1, max_delay: None, deadline: None, colocate_with: None }
    }

    /// Replaces the gate by the one that now decides this key.
    pub(crate) fn effective_gate(mut self) -> Self {
        if let Cow::Owned(gate) = self.gate.effective_gate(&self.key) {
            self.gate = gate;
        }
        self
    }

    pub(crate) fn as_ref(&self) -> CheckRef<'_> {
        let Self { gate, key, cost, max_delay, deadline, colocate_with } = self;
        let colocate_with = colocate_with.as_deref();
        CheckRef { gate, key, cost: *cost, max_delay: *max_delay, deadline: *deadline, colocate_with }
    }

    /// Sets the units that the check consumes. 0 makes it a peek, which charges nothing and never denies
    /// others.
    ///
    /// Default: 1.
    pub const fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// Sets the longest [`delay`](Decision::delay) that the caller accepts at a leaky bucket. A check that
    /// would wait longer is denied and takes no place in the queue. Other algorithms have no delay.
    ///
    /// Default: any.
    pub const fn max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = Some(delay);
        self
    }

    /// Sets the time limit for the decision. Among several checks in one
    /// [`check_all`](crate::Limiter::check_all) the shortest applies.
    ///
    /// Default: the limiter's.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Stores the key in the Redis Cluster slot of another key, so that one
    /// [`check_all`](crate::Limiter::check_all) can decide both. The keys of one atomic step must be in one
    /// slot; all gates of one key are. With a single Redis, or in memory, this changes nothing.
    ///
    /// A colocated key has its own state. It does not share a limit with the same key without `colocate_with`,
    /// or colocated with a third key. Always pass the same owner, which must never change:
    /// `users.key("user:42").colocate_with("tenant:7")`. Other operations (a refund, a block, a reset) and
    /// [leases](crate::Lease) apply to the key in its own slot.
    ///
    /// One node decides all keys that are colocated with one key. A global limit in one step with each user's
    /// limit therefore moves all users to one node.
    ///
    /// Default: the key's own slot.
    pub fn colocate_with(mut self, key: impl AsKey) -> Self {
        self.colocate_with = Some(key.as_key().to_vec());
        self
    }

    /// Decides the check.
    ///
    /// # Errors
    ///
    /// As [`Gate::check`].
    pub async fn check(self) -> Result<Decision, Error> {
        self.gate.decide(&self.as_ref()).await
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check")
            .field("gate", &self.gate)
            .field("key", &format_args!("{}", crate::error::Redacted(&self.key)))
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}
