//! Checks that reach Redis after all their callers have given them up charge nothing.

use std::time::Duration;

use futures_util::future::join;
use tidegate::{Builder, Quota, Source};
use tidegate_testkit::{Fault, Proxy, Server};

use crate::support::fixture::{HOUR, builder, builder_as_is, calls, soon};

/// The delay of a late call.
const LATE: Duration = Duration::from_secs(1);
const HOUR_US: i64 = HOUR.as_micros() as i64;

/// Returns settings of a limiter that makes no calls but those for checks.
fn undisturbed(url: &str) -> Builder {
    builder(url).follow_overrides(false).instances(1).publish_figures(false)
}

#[tokio::test]
async fn timed_out_check_that_the_fallback_admits_is_charged_once() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let quota = Quota::fixed_window(20, HOUR);
    let settings = builder_as_is(&proxy.url()).namespace("late").deadline(LATE / 10).instances(1);
    let gate = settings.build().unwrap().gate("gate", quota);
    let seen = builder(server.url()).namespace("late").build().unwrap().gate("gate", quota);
    // Peeks: what the fallback admitted before would be charged later.
    soon("the process is connected", async || gate.peek("x").await.unwrap().source() == Source::Redis).await;
    let evals = || calls(&server, "evalsha") + calls(&server, "eval");
    let before = evals();
    proxy.set(Fault::Late(LATE));
    let decision = gate.key("x").cost(3).check().await.unwrap();
    assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local));
    soon("the late call has arrived", async || evals() > before).await;
    proxy.set(Fault::None);
    soon("the fallback's units are charged", async || seen.peek("x").await.unwrap().remaining() <= 17).await;
    tokio::time::sleep(LATE).await;
    assert_eq!(seen.peek("x").await.unwrap().remaining(), 17);
}

#[tokio::test]
async fn check_is_decided_by_a_server_whose_clock_was_set() {
    let server = Server::with_shiftable_clock().unwrap();
    let gate = undisturbed(server.url()).build().unwrap().gate("gate", Quota::fixed_window(9, 24 * HOUR));
    // Loads the script.
    let _ = gate.check("x").await.unwrap();
    // The first call after a step forward is refused, and sent again with a bound for the time of the refusal.
    for (step_us, expected) in [(0, 1), (HOUR_US, 2), (0, 1), (-HOUR_US, 1), (0, 1), (HOUR_US, 2)] {
        server.shift_clock(step_us);
        let before = calls(&server, "evalsha");
        assert_eq!(gate.check("x").await.unwrap().source(), Source::Redis);
        assert_eq!(calls(&server, "evalsha") - before, expected, "after a step of {step_us} us");
    }
    assert_eq!(gate.peek("x").await.unwrap().remaining(), 2, "each check is charged once");
}

#[tokio::test]
async fn first_check_on_a_connection_knows_no_time_of_the_server() {
    let server = Server::with_shiftable_clock().unwrap();
    let gate = undisturbed(server.url()).build().unwrap().gate("gate", Quota::fixed_window(9, 24 * HOUR));
    let _ = gate.check("x").await.unwrap();
    // As after a failover to a server with another clock.
    server.shift_clock(HOUR_US);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let before = calls(&server, "evalsha");
    assert_eq!(gate.check("x").await.unwrap().source(), Source::Redis);
    assert_eq!(calls(&server, "evalsha") - before, 1);
}

#[tokio::test]
async fn merged_caller_that_still_waits_is_decided_although_another_gave_up() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let gate = undisturbed(&proxy.url()).build().unwrap().gate("gate", Quota::fixed_window(9, HOUR));
    let _ = gate.check("x").await.unwrap();
    proxy.set(Fault::Late(LATE));
    let (gone, waiting) = join(gate.key("x").deadline(LATE / 10).check(), gate.check("x")).await;
    assert!(gone.unwrap_err().is_timeout());
    assert_eq!(waiting.unwrap().source(), Source::Redis);
}
