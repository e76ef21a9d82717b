//! Clocks and zone data that differ between the server and its clients.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::{Connection, Value};
use tidegate::algorithm::all_scripts;
use tidegate::quota::Calendar;
use tidegate::{Decision, Limiter, Quota};
use tidegate_testkit::Server;

use crate::support::fixture::{builder, calls};
use crate::support::script::connect;
use crate::support::wire::{Answer, Wire};
use crate::support::world::START;

const HOUR_US: u64 = 3_600_000_000;
const DAY_US: u64 = 24 * HOUR_US;

/// Returns a limiter that makes no calls but those of its checks.
fn undisturbed(url: &str) -> Limiter {
    let builder = builder(url).batching(false).deny_cache(Duration::ZERO);
    builder.instances(1).follow_overrides(false).publish_figures(false).build().unwrap()
}

fn assert_of_the_servers_window(decision: &Decision, calendar: Calendar) {
    let now_us = decision.server_now_us();
    let left_us = calendar.window_at(now_us).end - now_us;
    assert_eq!(decision.reset_after(), Duration::from_micros(left_us), "{decision:?}");
}

/// The clock of this machine is right, that of the server is not, and each of the servers is in another month.
#[tokio::test]
async fn window_is_that_of_the_servers_clock_for_two_calls_more_at_most() {
    let server = Server::with_shiftable_clock().unwrap();
    let calendar: Calendar = "month@Europe/Berlin".parse().unwrap();
    let gate = undisturbed(server.url()).gate("month", Quota::calendar_window(1_000, calendar));
    // Loads the script.
    assert_of_the_servers_window(&gate.check("x").await.unwrap(), calendar);
    // After a step forward, the call is late, too.
    for (shift_days, expected) in [(0, 1), (-40, 2), (0, 1), (100, 3), (0, 1), (-60, 2), (0, 1)] {
        server.shift_clock(shift_days * DAY_US as i64);
        let before = calls(&server, "evalsha");
        assert_of_the_servers_window(&gate.check("x").await.unwrap(), calendar);
        assert_eq!(calls(&server, "evalsha"), before + expected, "after a step of {shift_days} days");
    }
    // A refused refund had no effect, so it is sent again.
    let before = gate.peek("x").await.unwrap().remaining();
    let _ = gate.check_cost("x", 10).await.unwrap();
    server.shift_clock(-(DAY_US as i64));
    gate.refund("x", 10).await.unwrap();
    assert_eq!(gate.peek("x").await.unwrap().remaining(), before);
}

#[tokio::test]
async fn server_that_refuses_every_window_is_asked_three_times() {
    let server = Server::process(&[]).unwrap();
    let wire = Wire::to(server.url());
    let gate = undisturbed(&wire.url()).gate("month", Quota::calendar_window(5, Calendar::MONTH));
    let _ = gate.check("x").await.unwrap();
    for time in ["1577836800000000", "0", "18446744073709551615"] {
        let refusal = format!("${}\r\nSPAN {time}\r\n", time.len() + 5);
        wire.answer(Answer::Say(refusal.into_bytes()));
        let (mut before, mut error);
        loop {
            before = wire.calls();
            error = gate.check("x").await.unwrap_err();
            // On a busy machine, the server's reply to a probe of the connection can arrive as the reply of a call.
            if !error.to_string().contains("its reply holds a string") {
                break;
            }
        }
        assert!(error.is_unavailable(), "{error}");
        assert!(error.to_string().contains("its clock left the calendar window of each attempt"), "{error}");
        assert_eq!(wire.calls(), before + 3);
    }
    wire.answer(Answer::OfServer);
    assert_of_the_servers_window(&gate.check("x").await.unwrap(), Calendar::MONTH);
}

/// Runs the take of a process whose zone data have this window. Returns the admitted checks of 5, or the refusal.
fn take(connection: &mut Connection, window: [u64; 2], span: [u64; 2]) -> Result<u64, String> {
    let script = all_scripts().find(|script| script.name == "take:fixed_window@span").unwrap();
    let [start, end] = window;
    let mut eval = redis::cmd("EVAL");
    eval.arg(script.text).arg(1).arg("key").arg(&[5, end - start, 1, start]).arg(5).arg(1).arg("");
    eval.arg(&span).arg("");
    match eval.query(connection).unwrap() {
        Value::BulkString(refusal) => Err(String::from_utf8(refusal).unwrap()),
        Value::Array(row) => match row[..] {
            [Value::Int(_), Value::Int(k), ..] if k < 0 => Ok((-1 - k).unsigned_abs()),
            [Value::Int(_), Value::Int(_), Value::Int(_)] => Ok(5),
            ref other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn call_outside_of_its_span_is_refused_and_leaves_no_key() {
    let server = Server::with_shiftable_clock().unwrap();
    let mut connection = connect(server.url());
    let now = START.as_micros() as u64;
    server.freeze_clock(now);
    let refused = Err(format!("SPAN {now}"));
    let window = [now - DAY_US, now + DAY_US];
    assert_eq!(take(&mut connection, window, [now - DAY_US, now]), refused, "the end is outside");
    assert_eq!(take(&mut connection, window, [now + 1, now + DAY_US]), refused);
    assert_eq!(server.cli(&["EXISTS", "key"]).unwrap(), "(integer) 0");
    assert_eq!(take(&mut connection, window, [now, now + 1]), Ok(5), "the beginning is inside");
}

/// Zone data of two versions, of which one has the boundary between two windows an hour later. Whichever of them each
/// process has: each key is admitted at most one more limit, in the hour between, or once its count is carried into
/// the second window, which then admits less.
#[test]
fn clients_with_other_zone_data_admit_at_most_one_limit_more_at_a_boundary_that_differs() {
    let server = Server::with_shiftable_clock().unwrap();
    let mut connection = connect(server.url());
    let start = START.as_micros() as u64;
    let (early, late, end) = (start + DAY_US, start + DAY_US + HOUR_US, start + 2 * DAY_US);
    let times = [start, early - 1, early, early + 1, late - 1, late, late + 1, end - 1];
    let mut totals = BTreeSet::new();
    for versions in 0..1_u32 << times.len() {
        redis::cmd("DEL").arg("key").exec(&mut connection).unwrap();
        let mut total = 0;
        for (at, now) in times.into_iter().enumerate() {
            server.freeze_clock(now);
            let boundary = if versions >> at & 1 == 0 { early } else { late };
            let window = if now < boundary { [start, boundary] } else { [boundary, end] };
            total += take(&mut connection, window, window).unwrap();
        }
        totals.insert(total);
    }
    // With one version of the data: 5 in each of the two windows.
    assert_eq!(totals, [5, 10, 15].into());
}
