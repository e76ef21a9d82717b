//! Leaky bucket: a token bucket used as a queue. The level is the queued work, so an admitted check waits
//! until the work before it has drained. `RawState` is `[ticks, _, _]`.

use super::{Algorithm, RawState, State};
use crate::quota::LeakyBucket;

impl Algorithm for LeakyBucket {
    fn fields(&self) -> usize {
        self.0.fields()
    }

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
}
