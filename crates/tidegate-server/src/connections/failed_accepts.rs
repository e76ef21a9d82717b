//! Connections that a port cannot accept, such as without a free file. Their clients wait, and nothing else shows it.

use std::io;
use std::time::Duration;

use ::metrics::Counter;
use tidegate::{Limiter, RepeatedWarning};
use tokio::time::Instant;

use crate::metrics::ServiceMetrics;

/// The minimum time between two warnings.
const REPORT_PAUSE: Duration = Duration::from_secs(60);

/// Counts the failures of a port, and reports them.
pub(super) struct FailedAccepts {
    port: &'static str,
    counter: Option<Counter>,
    limiter: Limiter,
    warning: RepeatedWarning,
    /// The failures that no warning has mentioned.
    unreported: u64,
    next_report: Option<Instant>,
}

impl FailedAccepts {
    pub(super) fn new(port: &'static str, metrics: Option<&ServiceMetrics>, limiter: Limiter) -> Self {
        Self {
            port,
            counter: metrics.map(|metrics| metrics.failed_accepts(port)),
            limiter,
            warning: RepeatedWarning::new("server-accept"),
            unreported: 0,
            next_report: None,
        }
    }

    /// Counts a failure of the listener. A client that has left meanwhile is not one.
    pub(super) fn count(&mut self, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
            return;
        }
        self.counter.iter().for_each(|counter| counter.increment(1));
        self.unreported += 1;
        if self.next_report.is_some_and(|next| Instant::now() < next) {
            return;
        }
        self.next_report = Some(Instant::now() + REPORT_PAUSE);
        let (port, times) = (self.port, std::mem::take(&mut self.unreported));
        self.limiter.warn(&self.warning, || {
            format!(
                "the {port} port cannot accept connections: {error}. Attempts since the last report: {times}"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tidegate::{Event, ManualClock, Observer};

    use super::*;

    #[derive(Default)]
    struct Seen(Mutex<Vec<String>>);

    impl Observer for Seen {
        fn on(&self, event: &Event<'_>) {
            if let Event::Warned(warning) = event {
                self.0.lock().unwrap().push(warning.message().to_owned());
            }
        }

        fn reports_warnings(&self) -> bool {
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn accepts_that_fail_are_counted_and_reported_once_a_minute() {
        let (seen, metrics) = (Arc::new(Seen::default()), ServiceMetrics::new());
        let clock = ManualClock::new();
        let limiter = Limiter::builder()
            .in_memory()
            .manual_clock(clock.clone())
            .observer(seen.clone())
            .build()
            .unwrap();
        let mut failed = FailedAccepts::new("grpc", Some(&metrics), limiter);
        failed.count(&io::ErrorKind::ConnectionAborted.into());
        for _ in 0..100 {
            failed.count(&io::Error::from_raw_os_error(24));
        }
        let reported = || seen.0.lock().unwrap().clone();
        assert_eq!(reported().len(), 1, "{:?}", reported());
        assert!(reported()[0].contains("grpc port cannot accept connections: "), "{:?}", reported());
        tokio::time::advance(REPORT_PAUSE).await;
        clock.advance(REPORT_PAUSE);
        failed.count(&io::Error::from_raw_os_error(24));
        assert!(reported()[1].ends_with("since the last report: 100"), "{:?}", reported());
        let text = metrics.render();
        assert!(text.contains("tidegate_server_failed_accepts_total{port=\"grpc\"} 101"), "{text}");
    }
}
