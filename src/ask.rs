//! One ask with its options, to be decided alone or together with others.

use std::time::Duration;

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
}

/// An ask whose gate and key somebody else keeps.
#[derive(Clone, Copy)]
pub(crate) struct AskRef<'a> {
    pub(crate) gate: &'a Gate,
    pub(crate) key: &'a [u8],
    pub(crate) cost: u64,
    pub(crate) max_delay: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
}

impl<'a> AskRef<'a> {
    pub(crate) fn new(gate: &'a Gate, key: &'a [u8], cost: u64) -> Self {
        Self { gate, key, cost, max_delay: None, deadline: None }
    }
}

impl Ask {
    pub(crate) fn new(gate: &Gate, key: &[u8]) -> Self {
        Self { gate: gate.clone(), key: key.to_vec(), cost: 1, max_delay: None, deadline: None }
    }

    pub(crate) fn as_ref(&self) -> AskRef<'_> {
        let Self { gate, key, cost, max_delay, deadline } = self;
        AskRef { gate, key, cost: *cost, max_delay: *max_delay, deadline: *deadline }
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

    /// Decides it.
    ///
    /// # Errors
    ///
    /// As [`Gate::check`].
    pub async fn check(self) -> Result<Decision, Error> {
        self.gate.decide(self.as_ref()).await
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
