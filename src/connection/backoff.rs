//! The exponential backoff between connection attempts.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use tokio::time::Instant;

/// The time from the start of the first attempt to the start of the second. It doubles with each further
/// attempt.
const INITIAL: Duration = Duration::from_millis(10);

/// Short compared to the time in which an operator notices that Redis is available again.
const MAX: Duration = Duration::from_secs(1);

/// Grows with each attempt until one succeeds. Jitter spreads the attempts of a fleet after a shared failure,
/// so that the instances do not all reconnect at the same moment.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    attempts: u32,
    ends: Option<Instant>,
}

impl Backoff {
    pub(super) fn is_on(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() < ends)
    }

    /// Records that an attempt begins now.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        // If a connection has lasted since, its end is unrelated to the earlier failures: restarts the
        // backoff.
        if self.ends.is_some_and(|ends| now > ends + MAX) {
            self.attempts = 0;
        }
        let length = INITIAL.saturating_mul(1 << self.attempts.min(10)).min(MAX);
        self.ends = Some(now + jittered(length));
        self.attempts += 1;
    }

    /// Ends the pause after the first attempt: a second one can begin at once.
    pub(super) fn end_first(&mut self) {
        if self.attempts == 1 {
            self.ends = None;
        }
    }

    /// Records that the attempt succeeded.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Returns a random duration between half of `length` and all of it.
fn jittered(length: Duration) -> Duration {
    // Each `RandomState` has its own keys, which is random enough and needs no further dependency.
    let random = RandomState::new().hash_one(()) >> 32;
    let half = length / 2;
    half + half.mul_f64(random as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn backoff_doubles_up_to_a_second_and_restarts_after_a_success() {
        let mut backoff = Backoff::default();
        assert!(!backoff.is_on());
        for expected_ms in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            backoff.begin();
            let start = Instant::now();
            while backoff.is_on() {
                tokio::time::advance(Duration::from_micros(100)).await;
            }
            let lasted = start.elapsed().as_micros() as u64;
            assert!(
                (expected_ms * 500..=expected_ms * 1000 + 100).contains(&lasted),
                "{lasted} us of {expected_ms} ms"
            );
        }
        backoff.reset();
        assert!(!backoff.is_on());
        backoff.begin();
        tokio::time::advance(INITIAL).await;
        assert!(!backoff.is_on());
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_pause_can_be_ended() {
        let mut backoff = Backoff::default();
        for is_on in [false, true, true] {
            backoff.begin();
            backoff.end_first();
            assert_eq!(backoff.is_on(), is_on);
        }
    }

    #[test]
    fn pauses_are_jittered() {
        let lengths: std::collections::HashSet<_> = (0..100).map(|_| jittered(MAX)).collect();
        assert!(lengths.len() > 90, "{}", lengths.len());
    }
}
