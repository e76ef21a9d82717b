//! The script computes the same as the reference, to the bit, and rejects fields that it did not write.

use fastrand::Rng;
use redis::{Connection, Value};
use tidegate::reference::adapt::{Adaptation, Bounds, FIELDS, Report};
use tidegate::script::ADAPT;
use tidegate_testkit::Server;

use crate::support::plan::sequences;
use crate::support::script::{connect, test_build};

const KEY: &str = "key";
const START_US: u64 = 1_767_225_600_000_000;

/// Calls the test build. Returns its reply, the stored fields, and the expiry in ms.
fn call(
    connection: &mut Connection,
    script: &redis::Script,
    report: &Report,
    bounds: &Bounds,
    now_us: u64,
) -> (Vec<String>, Vec<String>, u64) {
    let mut call = script.key(KEY);
    call.arg(bounds.min).arg(bounds.max).arg(bounds.tolerance);
    call.arg(report.operations).arg(report.busy_us).arg(report.overloads).arg(report.peak);
    call.arg(report.ended_ms).arg(report.squares).arg(now_us);
    let (reply, fields, expires_ms): (Value, Vec<String>, u64) = call.invoke(connection).unwrap();
    let reply: Vec<String> = redis::from_redis_value(reply).unwrap();
    let stored = |name: &str| {
        let at = fields.chunks(2).position(|field| field[0] == name).unwrap();
        fields[2 * at + 1].clone()
    };
    (reply, FIELDS.map(stored).to_vec(), expires_ms)
}

/// Returns a report of a service of which the limit may be too high or too low.
fn random_report(rng: &mut Rng, limit: f64) -> Report {
    let operations = if rng.u8(..8) == 0 { 0 } else { rng.u64(..200) };
    let mean_ms = 10f64.powf(rng.f64() * 4.0 - 1.0);
    let ended_ms = operations as f64 * mean_ms;
    Report {
        operations,
        busy_us: (ended_ms * 1_000.0 * (0.5 + rng.f64())) as u64,
        overloads: if rng.u8(..6) == 0 { rng.u64(..50) } else { 0 },
        peak: (limit * rng.f64() * 1.3) as u64,
        ended_ms,
        squares: ended_ms * mean_ms * (1.0 + rng.f64()),
    }
}

#[test]
fn script_agrees_with_the_reference_to_the_bit() {
    let server = Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    let script = redis::Script::new(&test_build(ADAPT.text).0);
    let mut ended = 0;
    for sequence in 0..sequences().min(500) {
        let mut rng = Rng::with_seed(u64::from(sequence));
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        let min = rng.u64(1..20);
        let bounds = Bounds { min, max: min + rng.u64(..500), tolerance: 1.1 + rng.f64() };
        let mut now_us = START_US + rng.u64(..10_000_000);
        let mut reference = Adaptation::new(&bounds, now_us);
        for step in 0..100 {
            let report = random_report(&mut rng, reference.limit);
            // Sometimes another process's bounds apply.
            let bounds = if step > 0 && rng.u8(..10) == 0 {
                Bounds { min: 1, max: 30, tolerance: 2.0 }
            } else {
                bounds
            };
            let before = reference;
            let reported = reference.report(&report, &bounds, now_us);
            ended += u32::from(reference.started_us > before.started_us);
            let (reply, stored, expires_ms) = call(&mut connection, &script, &report, &bounds, now_us);
            let context = format!("sequence {sequence}, step {step}: {before:?} {report:?} {bounds:?}");
            assert_eq!(reply[0], now_us.to_string(), "{context}");
            assert_eq!(reply[1], reported.wait_us.to_string(), "{context}");
            assert_eq!(expires_ms, reported.expires_us.div_ceil(1_000), "{context}");
            assert_eq!(reply[2..], stored, "{context}");
            let numbers: Vec<f64> = stored.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(numbers, reference.numbers(), "{context}");
            assert_eq!(Adaptation::of_numbers(reference.numbers()), reference);
            // Also exactly when the next report is due, and after a step back of the clock.
            now_us = match rng.u8(..20) {
                0 => now_us - rng.u64(..5_000_000),
                1..10 => now_us + reported.wait_us,
                _ => now_us + rng.u64(..3_000_000),
            };
        }
    }
    assert!(ended > sequences().min(500) * 10, "{ended} windows ended");
}

#[test]
fn corrupt_fields_are_an_error_and_change_nothing() {
    let server = Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    let adapt = |connection: &mut Connection| -> Value {
        let mut call = redis::cmd("EVAL");
        call.arg(ADAPT.text).arg(1).arg(KEY).arg(8).arg(400).arg(1.5);
        call.arg(&[10, 10, 0, 1, 1, 1]).query(connection).unwrap()
    };
    assert!(matches!(adapt(&mut connection), Value::Array(_)));
    for field in FIELDS {
        for text in ["", "x", "-1", "nan", "-nan", "inf", "-inf", "1e300", "8 at 1"] {
            redis::cmd("HSET").arg(KEY).arg(field).arg(text).exec(&mut connection).unwrap();
            let before: Vec<u8> = redis::cmd("DUMP").arg(KEY).query(&mut connection).unwrap();
            let Value::BulkString(error) = adapt(&mut connection) else { panic!("{field} {text:?}") };
            assert_eq!(String::from_utf8(error).unwrap(), format!("STATE {field}"), "{text:?}");
            let after: Vec<u8> = redis::cmd("DUMP").arg(KEY).query(&mut connection).unwrap();
            assert_eq!(before, after, "{field} {text:?}");
        }
        redis::cmd("DEL").arg(KEY).exec(&mut connection).unwrap();
        assert!(matches!(adapt(&mut connection), Value::Array(_)));
        redis::cmd("HDEL").arg(KEY).arg(field).exec(&mut connection).unwrap();
        let reply = adapt(&mut connection);
        // Without a limit, the key is an unused one.
        assert_eq!(matches!(reply, Value::Array(_)), field == "limit", "{field} is missing");
        redis::cmd("DEL").arg(KEY).exec(&mut connection).unwrap();
        assert!(matches!(adapt(&mut connection), Value::Array(_)));
    }
    redis::cmd("SET").arg(KEY).arg("text").exec(&mut connection).unwrap();
    let Value::BulkString(error) = adapt(&mut connection) else { panic!("no error") };
    assert!(error.starts_with(b"WRONGTYPE"));
}

#[test]
fn extreme_numbers_stay_within_the_bounds() {
    let server = Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    let script = redis::Script::new(&test_build(ADAPT.text).0);
    let bounds = Bounds { min: 1, max: 1_000_000_000_000, tolerance: 10.0 };
    let reports = [
        Report { operations: 1 << 52, busy_us: 1, peak: u64::MAX >> 11, ..Report::default() },
        Report { operations: 50, busy_us: 1 << 62, ended_ms: 1e15, squares: 1e30, ..Report::default() },
        Report { overloads: 1 << 52, ..Report::default() },
        Report { operations: 100, ..Report::default() },
    ];
    let mut now_us = START_US;
    let mut reference = Adaptation::new(&bounds, now_us);
    for step in 0..400 {
        let report = reports[step / 100];
        let reported = reference.report(&report, &bounds, now_us);
        let (_, stored, _) = call(&mut connection, &script, &report, &bounds, now_us);
        let numbers: Vec<f64> = stored.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(numbers, reference.numbers(), "{step}");
        assert!((1..=bounds.max).contains(&reference.limit(&bounds)), "{reference:?}");
        now_us += reported.wait_us;
    }
}
