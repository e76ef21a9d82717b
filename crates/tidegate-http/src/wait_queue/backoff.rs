//! The pauses between the checks of a request that polls an in-flight limit.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(10);

/// The longest pause.
const LONGEST: Duration = Duration::from_millis(250);

/// The next pause: 1.5 times the one before it.
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// Returns the pause before the next check.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 3 / 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_quarter_of_a_second() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..12).map(|_| backoff.next().as_micros()).collect();
        assert_eq!(pauses[..4], [10_000, 15_000, 22_500, 33_750]);
        assert_eq!(pauses[9..], [250_000; 3]);
    }
}
