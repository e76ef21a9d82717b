//! From when on a call is late.

use std::time::Duration;

/// The times from which on a call counts as late or overdue. `None` if such a time is before the first call.
#[derive(Clone, Copy)]
pub(super) struct Lateness {
    pub(super) now_us: u64,
    late_us: Option<u64>,
    /// Two deadlines of the limiter ago.
    pub(super) overdue_us: Option<u64>,
}

impl Lateness {
    /// Returns the thresholds for a caller that enqueues now and times out after `after`, at `due_us`. A call
    /// is late after a tenth of the limiter's deadline.
    pub(super) fn at(due_us: u64, after: Duration, longest: Duration) -> Self {
        Self::new(due_us.saturating_sub(micros(after)), micros(longest) / 10, longest)
    }

    /// Returns the thresholds for the reaper.
    pub(super) fn stalled(now_us: u64, stall: Duration, longest: Duration) -> Self {
        Self::new(now_us, micros(stall), longest)
    }

    fn new(now_us: u64, late_after_us: u64, longest: Duration) -> Self {
        Self {
            now_us,
            late_us: now_us.checked_sub(late_after_us),
            overdue_us: now_us.checked_sub(micros(longest).saturating_mul(2)),
        }
    }

    pub(super) fn is_in_time(self, began_us: u64) -> bool {
        self.late_us.is_none_or(|late_us| began_us > late_us)
    }
}

/// Saturates: a deadline can be longer than any clock shows.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_dispatcher_is_late_under_a_deadline_beyond_all_clocks() {
        for seconds in [1 << 60, u64::MAX] {
            let endless = Duration::from_secs(seconds);
            assert!(Lateness::at(1_000, endless, endless).is_in_time(0), "{seconds}");
        }
    }
}
