//! How long to wait from one attempt at a connection to the next.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

use tokio::time::Instant;

/// From the beginning of the first attempt to that of the second; doubled with each that follows.
const FIRST: Duration = Duration::from_millis(10);

/// Short beside the time in which somebody notices that Redis is back.
const LONGEST: Duration = Duration::from_secs(1);

/// Grows with each attempt, until one was a success. What a fleet does after a
/// failure that all of it saw is spread by chance, so that a server which comes
/// back is not met by everybody at once.
#[derive(Debug, Default)]
pub(super) struct Pause {
    attempts: u32,
    ends: Option<Instant>,
}

impl Pause {
    pub(super) fn is_on(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() < ends)
    }

    /// An attempt begins now.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        // Whatever ended a connection that had lasted is not what went wrong before.
        if self.ends.is_some_and(|ends| now > ends + LONGEST) {
            self.attempts = 0;
        }
        let length = FIRST.saturating_mul(1 << self.attempts.min(10)).min(LONGEST);
        self.ends = Some(now + jittered(length));
        self.attempts += 1;
    }

    /// The attempt was a success.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Between half of it and all of it.
fn jittered(length: Duration) -> Duration {
    // Each has keys of its own: chance enough, without another dependency.
    let chance = RandomState::new().hash_one(()) >> 32;
    let half = length / 2;
    half + half.mul_f64(chance as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pause_doubles_to_a_second_and_begins_anew_after_a_success() {
        let mut pause = Pause::default();
        assert!(!pause.is_on());
        for expected_ms in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            pause.begin();
            let start = Instant::now();
            while pause.is_on() {
                tokio::time::advance(Duration::from_micros(100)).await;
            }
            let lasted = start.elapsed().as_micros() as u64;
            assert!(
                (expected_ms * 500..=expected_ms * 1000 + 100).contains(&lasted),
                "{lasted} us of {expected_ms} ms"
            );
        }
        pause.reset();
        assert!(!pause.is_on());
        pause.begin();
        tokio::time::advance(FIRST).await;
        assert!(!pause.is_on());
    }

    #[test]
    fn no_two_pauses_are_alike() {
        let lengths: std::collections::HashSet<_> = (0..100).map(|_| jittered(LONGEST)).collect();
        assert!(lengths.len() > 90, "{}", lengths.len());
    }
}
