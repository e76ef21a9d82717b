//! The script that records and collects releases of permits.

use redis::{Connection, Value};
use tidegate::algorithm::all_scripts;

use crate::support::fixture::namespace;
use crate::support::script::connect;

const OPEN_MS: &str = "60000";

fn call(connection: &mut Connection, key: &str, args: &[&str]) -> Value {
    let script = all_scripts().find(|script| script.name == "releases").unwrap();
    redis::cmd("EVAL").arg(script.text).arg(1).arg(key).arg(args).query(connection).unwrap()
}

fn record(connection: &mut Connection, key: &str, id: &str) -> Value {
    call(connection, key, &["record", id, "2"])
}

/// Returns the ids, and the time of the call.
fn collect(connection: &mut Connection, key: &str, last: &str) -> (Vec<String>, String) {
    let reply = call(connection, key, &["collect", last, "2", OPEN_MS]);
    let mut reply: Vec<String> = redis::from_redis_value(reply).unwrap();
    let now = reply.pop().unwrap();
    reply.retain(|member| member != "open");
    (reply, now)
}

#[test]
fn closed_inbox_takes_no_record_and_an_open_one_a_bounded_number() {
    let server = tidegate_testkit::shared();
    let mut connection = connect(server.url());
    let key = format!("{}:1:releases/a1b2c3d4", namespace());
    assert_eq!(record(&mut connection, &key, "a"), Value::Int(0));
    assert_eq!(server.cli(&["EXISTS", &key]).unwrap(), "(integer) 0");
    collect(&mut connection, &key, "0");
    for (id, reply) in [
        ("a", Value::Int(1)),
        ("b", Value::Int(1)),
        ("c", Value::BulkString(b"FULL".to_vec())),
        ("a", Value::Int(1)),
    ] {
        assert_eq!(record(&mut connection, &key, id), reply, "{id}");
    }
    assert_eq!(server.cli(&["ZCARD", &key]).unwrap(), "(integer) 3", "with `open`");
    let left: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
    assert!((1..=60_001).contains(&left), "{left} ms");
}

#[test]
fn record_is_collected_until_a_reply_has_arrived() {
    let server = tidegate_testkit::shared();
    let mut connection = connect(server.url());
    let key = format!("{}:1:releases/a1b2c3d4", namespace());
    let (_, opened) = collect(&mut connection, &key, "0");
    record(&mut connection, &key, "a");
    for _ in 0..2 {
        // The reply is lost.
        assert_eq!(collect(&mut connection, &key, &opened).0, ["a"]);
    }
    let (_, last) = collect(&mut connection, &key, &opened);
    record(&mut connection, &key, "b");
    assert_eq!(collect(&mut connection, &key, &last).0, ["a", "b"]);
    let (found, last) = collect(&mut connection, &key, &last);
    assert_eq!(found, ["b"]);
    assert_eq!(collect(&mut connection, &key, &last).0, ["b"]);
    let (found, _) = collect(&mut connection, &key, &last);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(record(&mut connection, &key, "a"), Value::Int(1), "the inbox is still open");
}
