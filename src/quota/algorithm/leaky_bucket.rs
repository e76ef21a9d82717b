//! Leaky bucket: a token bucket used as a queue. The level is the queued work, so an admitted check waits
//! until the work before it has drained.

use super::definition::{Algorithm, Definition, Parameters, RawState, State, Storage, deserialize};
use super::token_bucket::TokenBucket;
use crate::error::Error;
use crate::quota::Rate;
use crate::script::scripts;

pub(super) static DEFINITION: Definition = Definition {
    name: "leaky_bucket",
    scripts: scripts!("leaky_bucket", "fast_token_bucket", "hash_state", "token_bucket", "leaky_bucket"),
    storage: Storage::Text,
    fields: 1,
    work: 2,
    token_code: Some(1),
    parameters: Parameters::Rate,
    words: "queue",
    limit_name: "QUEUE",
    help: "A queue of this many units, drained at --rate",
};

/// The numbers of a [leaky bucket](crate::Quota::leaky_bucket): a token bucket whose capacity is the length
/// of the queue, in units.
///
/// Its [`RawState`] is `[ticks, 0, 0]`: the queued ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeakyBucket(pub TokenBucket);

deserialize!(LeakyBucket { queue: u64, rate: Rate } TokenBucket::build(queue, rate).map(Self));

#[cfg(feature = "serde")]
impl serde::Serialize for LeakyBucket {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct Data {
            queue: u64,
            rate: Rate,
        }
        Data { queue: self.0.capacity, rate: self.0.configured_rate }.serialize(serializer)
    }
}

impl LeakyBucket {
    /// Makes the quota from its [`args`](Self::args).
    pub(super) fn of_args(args: [u64; 4]) -> Result<Self, Error> {
        TokenBucket::of_args(args).map(Self)
    }

    pub(super) fn share(&self, instances: u64) -> Self {
        Self(self.0.divided(instances))
    }

    /// Returns the arguments of the scripts: see [`Kind::args`](super::Kind::args).
    pub(super) const fn args(&self) -> [u64; 4] {
        [self.0.capacity, self.0.rate, self.0.per, 1]
    }
}

impl Algorithm for LeakyBucket {
    fn is_possible(&self, raw: RawState, now: u64) -> bool {
        self.0.is_possible(raw, now)
    }

    fn settle(&self, state: &State, now: u64) -> RawState {
        self.0.settle(state, now)
    }

    fn is_ahead(&self, state: &State, now: u64) -> bool {
        self.0.is_ahead(state, now)
    }

    fn afford(&self, raw: RawState, n: u64, cost: u64, now: u64, max_delay: Option<u64>) -> u64 {
        let n = self.0.afford(raw, n, cost, now, None);
        let Some(max_delay) = max_delay else { return n };
        let [ticks, ..] = raw;
        let latest = u128::from(max_delay) * u128::from(self.0.rate);
        match latest.checked_sub(u128::from(ticks)) {
            // The first check waits for the current level, each further check for one more cost.
            Some(room) => u128::from(n).min(room / u128::from(self.0.cost(cost)) + 1) as u64,
            None => 0,
        }
    }

    fn charge(&self, state: &mut State, raw: RawState, units: u64, now: u64) {
        self.0.charge(state, raw, units, now);
    }

    /// Frees the end of the queue; checks that already wait keep their delay.
    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool {
        self.0.give_back(state, units, stamp, now)
    }

    fn after(&self, raw: RawState, units: u64, now: u64) -> RawState {
        self.0.after(raw, units, now)
    }

    fn remaining(&self, raw: RawState, now: u64) -> u64 {
        self.0.remaining(raw, now)
    }

    fn room(&self, most: u64, raw: RawState, now: u64) -> u64 {
        self.0.room(most, raw, now)
    }

    fn retry_after(&self, raw: RawState, cost: u64, max_delay: Option<u64>, now: u64) -> u64 {
        let room_after = self.0.retry_after(raw, cost, None, now);
        match max_delay {
            Some(max_delay) => room_after.max(self.delay(raw).saturating_sub(max_delay)),
            None => room_after,
        }
    }

    fn reset_after(&self, raw: RawState, now: u64) -> u64 {
        self.0.reset_after(raw, now)
    }

    fn delay(&self, [ticks, ..]: RawState) -> u64 {
        self.0.drained_after(ticks)
    }

    fn kept_until(&self, raw: RawState, now: u64) -> u64 {
        Algorithm::kept_until(&self.0, raw, now)
    }

    fn was_kept_until(&self, state: &State) -> Option<u64> {
        self.0.was_kept_until(state)
    }

    fn lengthens(&self) -> bool {
        self.0.lengthens()
    }

    fn rate(&self) -> Option<Rate> {
        Algorithm::rate(&self.0)
    }

    fn window_us(&self) -> u64 {
        self.0.window_us()
    }

    fn has_queue(&self) -> bool {
        true
    }

    fn unleasable(&self) -> Option<&'static str> {
        Some(
            "a leaky bucket cannot be leased, since each check has a place in its queue: use it without `leased`, or a token bucket",
        )
    }

    fn used(&self, raw: RawState, now: u64) -> f64 {
        self.0.used(raw, now)
    }

    fn parse(&self, text: &str) -> Option<(State, Option<[u64; 4]>)> {
        TokenBucket::parse_level(text).map(|(state, args)| (state, Some(args)))
    }
}
