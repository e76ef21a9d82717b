//! A shutdown charges the store for the units that the fallback admitted, or reports the units that it could
//! not charge.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Event, Gate, Limiter, Observer, Quota, Source};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, PATIENCE, builder_as_is, soon};

const LIMIT: u64 = 1_000;

#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<String>>>);

impl Reports {
    fn unreconciled(&self) -> Vec<String> {
        let reports = self.0.lock().unwrap();
        reports.iter().filter(|report| report.contains("units that the fallback admitted")).cloned().collect()
    }
}

impl Observer for Reports {
    fn on(&self, event: &Event<'_>) {
        if let Event::Failed { gate, error } = *event {
            self.0.lock().unwrap().push(format!("{gate}: {error}"));
        }
    }
}

async fn outage(server: &mut Server, reports: &Reports, deadline: Duration) -> (Limiter, Gate) {
    let builder = builder_as_is(server.url()).namespace("shutdown").deadline(deadline);
    let limiter = builder.observer(reports.clone()).build().unwrap();
    let [gate, other] = ["gate", "other"].map(|name| limiter.gate(name, Quota::fixed_window(LIMIT, HOUR)));
    soon("Redis decides", async || other.check("key").await.unwrap().source() == Source::Redis).await;
    server.kill();
    soon("the fallback decides", async || other.check("key").await.unwrap().source() == Source::Local).await;
    for _ in 0..7 {
        assert_eq!(gate.check("key").await.unwrap().source(), Source::Local);
    }
    (limiter, gate)
}

#[tokio::test]
async fn units_of_the_fallback_are_charged_before_a_shutdown_ends() {
    let mut server = Server::process(&[]).unwrap();
    let reports = Reports::default();
    let (limiter, _gate) = outage(&mut server, &reports, PATIENCE).await;
    server.restart().unwrap();
    // The circuit breaker has not closed yet.
    limiter.shutdown().await;
    let witness = builder_as_is(server.url()).namespace("shutdown").build().unwrap();
    let gate = witness.gate("gate", Quota::fixed_window(LIMIT, HOUR));
    assert_eq!(gate.peek("key").await.unwrap().remaining(), LIMIT - 7);
    assert!(reports.unreconciled().is_empty(), "{:?}", reports.unreconciled());
}

#[tokio::test]
async fn units_that_a_shutdown_could_not_charge_are_reported_for_each_gate() {
    let mut server = Server::process(&[]).unwrap();
    let reports = Reports::default();
    let (limiter, _gate) = outage(&mut server, &reports, Duration::from_millis(100)).await;
    limiter.shutdown().await;
    let found = reports.unreconciled();
    assert_eq!(found.len(), 2, "{found:?}");
    let reason = "Redis is unavailable: the limiter was shut down before";
    assert!(found[0].starts_with(&format!("gate: {reason} 7 units")), "{found:?}");
    assert!(found[1].starts_with(&format!("other: {reason}")), "{found:?}");
}
