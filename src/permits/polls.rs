//! The delays between the polls of a key for which callers wait: one poll per process and key.

/// The first delay.
const FIRST_US: u64 = 10_000;
/// The longest delay, unless the gate is fair.
const LONGEST_US: u64 = 250_000;

/// The delay of the next poll, which grows until an acquire is admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Polls {
    delay_us: u64,
}

impl Default for Polls {
    fn default() -> Self {
        Self { delay_us: FIRST_US }
    }
}

impl Polls {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns the delay until the next poll, randomly up to half shorter.
    ///
    /// A gate without a queue is polled after 10 ms, then 1.5 times less often each time. A fair gate is polled
    /// according to the units that wait before this process: the front often, the back seldom, and all often
    /// enough to keep their places.
    pub(crate) fn next(&mut self, patience_us: u64, before: u64) -> u64 {
        let delay_us = match patience_us {
            0 => {
                let delay_us = self.delay_us;
                self.delay_us = (delay_us + delay_us / 2).min(LONGEST_US);
                delay_us
            }
            _ => FIRST_US.saturating_mul(before.saturating_add(1)).min(patience_us / 4),
        };
        delay_us - fastrand::u64(..=delay_us / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(delay_us: u64, longest_us: u64) {
        assert!((longest_us / 2..=longest_us).contains(&delay_us), "{delay_us} of {longest_us}");
    }

    #[test]
    fn polls_back_off_to_a_quarter_of_a_second_until_they_are_reset() {
        let mut polls = Polls::default();
        for longest_us in [10_000, 15_000, 22_500, 33_750] {
            within(polls.next(0, 7), longest_us);
        }
        for _ in 0..20 {
            polls.next(0, 0);
        }
        within(polls.next(0, 0), 250_000);
        polls.reset();
        within(polls.next(0, 0), 10_000);
    }

    #[test]
    fn front_of_a_fair_queue_polls_more_often_than_its_back() {
        let mut polls = Polls::default();
        within(polls.next(1_000_000, 0), 10_000);
        within(polls.next(1_000_000, 4), 50_000);
        within(polls.next(1_000_000, 1_000), 250_000);
        within(polls.next(1_000, u64::MAX), 250);
    }
}
