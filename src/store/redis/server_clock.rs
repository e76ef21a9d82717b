//! The server's clock, as this process estimates it, for calls with calendar windows.
//!
//! Only the client knows the calendar, and only the server's clock decides. So the client sends the window of the
//! server's time as it estimates it, and the span of time in which that window is right. The script refuses a call
//! outside of that span, and reports its time. Figures are published in the same way.

use std::ops::Range;

use redis::{Cmd, Value};

use crate::connection::{CallTarget, Connection};
use crate::error::Error;
use crate::quota::{Calendar, Quota};
use crate::runtime::clock::Clock;
use crate::runtime::sync::atomic::{AtomicU64, Ordering};
use crate::script::Script;

/// The maximum number of attempts to send a call in a span that the server accepts. Beside the boundary of a window,
/// the estimate of the server's time may be in the wrong window, and the boundary may pass before the second attempt.
const MAX_SPANS: usize = 3;

/// The clock of this machine, corrected by the times that servers reported when they refused a call.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    /// How far the server's clock is ahead, modulo 2^64.
    ahead_us: AtomicU64,
}

impl ServerClock {
    /// Runs a script that takes these quotas. `args` appends its keys and arguments for a time of the server.
    ///
    /// With calendar windows, the server refuses arguments of another window than that of its time, and the call is
    /// sent again with the arguments of that time. A refused call had no effect, so a refund is sent again too.
    pub(super) async fn run_in_span(
        &self,
        connection: &Connection,
        script: &'static Script,
        quotas: impl Iterator<Item = &Quota> + Clone,
        args: impl Fn(u64, &mut Cmd) + Sync,
        to: CallTarget,
    ) -> Result<Value, Error> {
        let calendars = quotas.filter_map(|quota| quota.kind().calendar());
        if calendars.clone().next().is_none() {
            return connection.run(script, |command| args(0, command), to).await;
        }
        let mut now_us = self.now_us();
        for _ in 0..MAX_SPANS {
            let span = span(calendars.clone(), now_us).unwrap_or_default();
            let in_span = |command: &mut Cmd| {
                args(now_us, command);
                command.arg(span.start).arg(span.end);
            };
            let reply = connection.run(script.in_span(), in_span, to).await?;
            match refused_at(&reply) {
                None => return Ok(reply),
                Some(server_now_us) => now_us = server_now_us,
            }
            self.set(now_us);
        }
        Err(Error::unavailable(
            "its clock left the calendar window of each attempt: find out what sets the server's clock",
        ))
    }

    pub(super) fn now_us(&self) -> u64 {
        Clock::System.now_us().wrapping_add(self.ahead_us.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, server_now_us: u64) {
        self.ahead_us.store(server_now_us.wrapping_sub(Clock::System.now_us()), Ordering::Relaxed);
    }
}

/// Returns the times that are in the same windows as `now_us`. `None` without calendars.
fn span(calendars: impl Iterator<Item = Calendar>, now_us: u64) -> Option<Range<u64>> {
    let windows = calendars.map(|calendar| calendar.window_at(now_us));
    windows.reduce(|one, other| one.start.max(other.start)..one.end.min(other.end))
}

/// Returns the server's time if it refused the call because of its span.
fn refused_at(reply: &Value) -> Option<u64> {
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

    #[cfg(feature = "calendar")]
    #[test]
    fn span_of_several_calendars_is_the_time_in_the_windows_of_all() {
        const HOUR_US: u64 = 3_600_000_000;
        let windows = |texts: &[&str], now_us| {
            let calendars: Vec<Calendar> = texts.iter().map(|text| text.parse().unwrap()).collect();
            span(calendars.into_iter(), now_us)
        };
        // 2020-01-31 23:30 in UTC, which is February in Berlin.
        let february_us = 1_580_511_600_000_000;
        let now_us = february_us + HOUR_US / 2;
        let days = windows(&["day@UTC"], now_us).unwrap();
        assert_eq!(days, february_us - 23 * HOUR_US..february_us + HOUR_US);
        for texts in [["month@Europe/Berlin", "day@UTC"], ["day@UTC", "month@Europe/Berlin"]] {
            assert_eq!(windows(&texts, now_us), Some(february_us..february_us + HOUR_US));
        }
        assert_eq!(windows(&[], now_us), None);
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
