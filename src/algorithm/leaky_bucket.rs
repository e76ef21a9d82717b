//! Leaky bucket: a token bucket used as a queue. The level is the queued work, so an admitted check waits
//! until the work before it has drained. `Seen` is `[ticks, _, _]`.

use super::{Algorithm, Seen, State};
use crate::quota::LeakyBucket;

impl Algorithm for LeakyBucket {
    fn fields(&self) -> usize {
        self.0.fields()
    }

    fn is_possible(&self, seen: Seen, now: u64) -> bool {
        self.0.is_possible(seen, now)
    }

    fn settle(&self, state: &State, now: u64) -> Seen {
        self.0.settle(state, now)
    }

    fn is_ahead(&self, state: &State, now: u64) -> bool {
        self.0.is_ahead(state, now)
    }

    fn afford(&self, seen: Seen, n: u64, cost: u64, now: u64, max_delay: Option<u64>) -> u64 {
        let n = self.0.afford(seen, n, cost, now, None);
        let Some(max_delay) = max_delay else { return n };
        let [ticks, ..] = seen;
        let latest = u128::from(max_delay) * u128::from(self.0.rate);
        match latest.checked_sub(u128::from(ticks)) {
            // The first check waits for the current level, each further check for one more cost.
            Some(room) => u128::from(n).min(room / u128::from(self.0.cost(cost)) + 1) as u64,
            None => 0,
        }
    }

    fn charge(&self, state: &mut State, seen: Seen, units: u64, now: u64) {
        self.0.charge(state, seen, units, now);
    }

    /// Frees the end of the queue; checks that already wait keep their delay.
    fn give_back(&self, state: &mut State, units: u64, stamp: Option<u64>, now: u64) -> bool {
        self.0.give_back(state, units, stamp, now)
    }

    fn after(&self, seen: Seen, units: u64, now: u64) -> Seen {
        self.0.after(seen, units, now)
    }

    fn remaining(&self, seen: Seen, now: u64) -> u64 {
        self.0.remaining(seen, now)
    }

    fn retry_after(&self, seen: Seen, cost: u64, max_delay: Option<u64>, now: u64) -> u64 {
        let place = self.0.retry_after(seen, cost, None, now);
        match max_delay {
            Some(max_delay) => place.max(self.delay(seen).saturating_sub(max_delay)),
            None => place,
        }
    }

    fn reset_after(&self, seen: Seen, now: u64) -> u64 {
        self.0.reset_after(seen, now)
    }

    fn delay(&self, [ticks, ..]: Seen) -> u64 {
        self.0.drained_after(ticks)
    }

    fn kept_until(&self, seen: Seen, now: u64) -> u64 {
        Algorithm::kept_until(&self.0, seen, now)
    }

    fn was_kept_until(&self, state: &State) -> Option<u64> {
        self.0.was_kept_until(state)
    }

    fn lengthens(&self) -> bool {
        self.0.lengthens()
    }
}
