//! The server's clock, as this process estimates it, for calls with calendar windows.
//!
//! Only the client knows the calendar, and only the server's clock decides. So the client sends the window of the
//! server's time as it estimates it, and the span of time in which that window is right. The script refuses a call
//! outside of that span, and reports its time.

use std::ops::Range;

use redis::Value;

use crate::clock::Clock;
use crate::quota::Calendar;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The clock of this machine, corrected by the times that servers reported when they refused a call.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    /// How far the server's clock is ahead, modulo 2^64.
    ahead_us: AtomicU64,
}

impl ServerClock {
    pub(super) fn now_us(&self) -> u64 {
        Clock::System.now_us().wrapping_add(self.ahead_us.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, server_now_us: u64) {
        self.ahead_us.store(server_now_us.wrapping_sub(Clock::System.now_us()), Ordering::Relaxed);
    }
}

/// Returns the times that are in the same windows as `now_us`. `None` without calendars.
pub(super) fn span(calendars: impl Iterator<Item = Calendar>, now_us: u64) -> Option<Range<u64>> {
    let windows = calendars.map(|calendar| calendar.window_at(now_us));
    windows.reduce(|one, other| one.start.max(other.start)..one.end.min(other.end))
}

/// Returns the server's time if it refused the call because of its span.
pub(super) fn refused_at(reply: &Value) -> Option<u64> {
    let Value::BulkString(text) = reply else { return None };
    let now = text.strip_prefix(b"SPAN ")?;
    std::str::from_utf8(now).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_clock_keeps_the_difference_that_a_server_reported() {
        let clock = ServerClock::default();
        for server_us in [1_577_836_800_000_000, 4_000_000_000_000_000] {
            clock.set(server_us);
            let ahead_us = clock.now_us() - server_us;
            assert!(ahead_us < 60_000_000, "{ahead_us}");
        }
    }

    #[test]
    fn only_a_refusal_is_taken_for_one() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(refused_at(&text("SPAN 1577836800000000")), Some(1_577_836_800_000_000));
        for other in [text("SPAN "), text("SPAN x"), text("STATE value"), Value::Int(1), Value::Nil] {
            assert_eq!(refused_at(&other), None, "{other:?}");
        }
    }
}
