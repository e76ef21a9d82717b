//! One ask with its options, to be decided alone or together with others.

use std::borrow::Cow;
use std::time::Duration;

use crate::as_key::AsKey;
use crate::decision::Decision;
use crate::error::Error;
use crate::gate::Gate;

/// One ask to a gate: a key, a cost, and options. Made by [`Gate::ask`]; decided
/// alone by [`check`](Ask::check), or together with others by
/// [`Limiter::check_all`](crate::Limiter::check_all).
#[must_use = "an ask asks nothing until it is checked"]
#[derive(Clone)]
pub struct Ask {
    pub(crate) gate: Gate,
    pub(crate) key: Vec<u8>,
    pub(crate) cost: u64,
    pub(crate) max_delay: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    beside: Option<Vec<u8>>,
}

/// An ask whose gate and key somebody else keeps.
#[derive(Clone, Copy)]
pub(crate) struct AskRef<'a> {
    pub(crate) gate: &'a Gate,
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
    pub(crate) max_delay: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) beside: Option<&'a [u8]>,
}

impl<'a> AskRef<'a> {
    pub(crate) fn new(gate: &'a Gate, key: &'a [u8], cost: u64) -> Self {
        Self { gate, key, cost, max_delay: None, deadline: None, beside: None }
    }
}

impl Ask {
    pub(crate) fn new(gate: &Gate, key: &[u8]) -> Self {
        let key = key.to_vec();
        Self { gate: gate.clone(), key, cost: 1, max_delay: None, deadline: None, beside: None }
    }

    /// Of the gate that decides this key.
    pub(crate) fn in_force(mut self) -> Self {
        if let Cow::Owned(gate) = self.gate.in_force(&self.key) {
            self.gate = gate;
        }
        self
    }

    pub(crate) fn as_ref(&self) -> AskRef<'_> {
        let Self { gate, key, cost, max_delay, deadline, beside } = self;
        let beside = beside.as_deref();
        AskRef { gate, key, cost: *cost, max_delay: *max_delay, deadline: *deadline, beside }
    }

    /// The units that it wants; 0 makes it a peek, which charges nothing and
    /// never denies others.
    ///
    /// Default: 1.
    pub const fn cost(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// The longest [`delay`](Decision::delay) that is worth waiting for at a
    /// leaky bucket: an ask that would wait longer is denied and takes no place
    /// in the queue. Other algorithms have no delay.
    ///
    /// Default: any.
    pub const fn max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = Some(delay);
        self
    }

    /// By when an answer is wanted. Of several asks in one
    /// [`check_all`](crate::Limiter::check_all) the shortest counts.
    ///
    /// Default: the limiter's.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// In a Redis Cluster, where another key lives, so that one
    /// [`check_all`](crate::Limiter::check_all) can decide both: the keys of one
    /// atomic step must lie in one slot, as all gates of one key do. With a single
    /// Redis, or in memory, this changes nothing.
    ///
    /// A key beside another is not the key by itself, nor the key beside a third:
    /// do not count on their sharing a limit. Ask for it in the same way each time,
    /// beside an owner that never changes: `users.ask("user:42").beside("tenant:7")`. What is
    /// not an ask (a refund, a block, a reset) is done to the key by itself, and a
    /// [lease](crate::Lease) holds units of the key by itself alone.
    ///
    /// All that sits beside one key is decided by one node: a global limit in one
    /// step with each user's means that all of them are.
    ///
    /// Default: where the key itself lives.
    pub fn beside(mut self, key: impl AsKey) -> Self {
        self.beside = Some(key.as_key().to_vec());
        self
    }

    /// Decides it.
    ///
    /// # Errors
    ///
    /// As [`Gate::check`].
    pub async fn check(self) -> Result<Decision, Error> {
        self.gate.decide(&self.as_ref()).await
    }
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask")
            .field("gate", &self.gate)
            .field("key", &format_args!("{}", crate::error::Redacted(&self.key)))
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}
