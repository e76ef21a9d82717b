//! The script that adds figures, with the arguments of other versions and the content of other programs.

use redis::{Connection, Value};
use tidegate::admin::{FigureBucket, FleetFigures, GateFigures};
use tidegate::algorithm::all_scripts;

use super::{Fleet, gate, sources};
use crate::support::fixture::HOUR;
use crate::support::script::connect;
use crate::support::world::START;

const SECOND_US: u64 = 1_000_000;

/// Calls the script with buckets of which the first begins at this second, and returns the second number of the reply.
fn publish(connection: &mut Connection, start_s: u64, id: &str, fields: &[(&str, &str)]) -> Value {
    let script = all_scripts().find(|script| script.name == "publish").unwrap();
    let mut command = redis::cmd("EVAL");
    command.arg(script.text).arg(6);
    for bucket in 0..3 {
        command.arg(format!("tidegate:1:figures/{}", start_s + 5 * bucket));
    }
    for bucket in 0..3 {
        let at_s = start_s + 5 * bucket;
        command.arg(format!("tidegate:1:instances/{}", at_s - at_s % 15));
    }
    command.arg(start_s * SECOND_US);
    command.arg(5 * SECOND_US).arg(3_600 * SECOND_US).arg(15 * SECOND_US);
    command.arg(4).arg(3).arg(id).arg("version=9.9.9 breaker=closed errors=1");
    for (field, text) in fields {
        command.arg(field).arg(text);
    }
    command.query(connection).unwrap()
}

fn is_written(reply: &Value) -> bool {
    match reply {
        Value::Array(reply) => reply[1] == Value::Int(1),
        other => panic!("{other:?}"),
    }
}

fn only(found: &FleetFigures) -> &FigureBucket {
    assert_eq!(found.buckets.len(), 1, "{found:?}");
    &found.buckets[0]
}

#[tokio::test]
async fn each_of_the_three_buckets_is_accepted_and_no_other() {
    let fleet = Fleet::new();
    let mut connection = connect(fleet.0.url());
    let now_s = START.as_secs();
    for start_s in [now_s - 15, now_s + 5] {
        assert!(!is_written(&publish(&mut connection, start_s, "a", &[("login", "a/redis=1")])));
    }
    assert_eq!(fleet.keys(), Vec::<String>::new());
    for start_s in [now_s - 10, now_s - 5, now_s] {
        assert!(is_written(&publish(&mut connection, start_s, "a", &[("login", "a/redis=1")])));
    }
    let found = fleet.figures(HOUR).await;
    assert_eq!((only(&found).start_unix_s, gate(only(&found), "login").allowed), (now_s, 3));
}

#[tokio::test]
async fn words_of_other_versions_are_summed_and_do_not_disturb_a_reader() {
    let fleet = Fleet::new();
    let mut connection = connect(fleet.0.url());
    let start_s = START.as_secs();
    let newer =
        [("login", "a/redis=2 q/redis=7 a/quantum=3"), ("(latency)", "64=1 96=2"), ("(novel)", "x=1")];
    publish(&mut connection, start_s, "newer", &newer);
    publish(&mut connection, start_s, "newer", &newer);
    publish(&mut connection, start_s, "older", &[("login", "a/redis=1")]);
    let text = fleet.0.cli(&["HGET", &format!("tidegate:1:figures/{start_s}"), "login"]).unwrap();
    assert!(text.contains("a/redis=5 q/redis=14 a/quantum=6"), "{text}");
    let found = fleet.figures(HOUR).await;
    let login = gate(only(&found), "login");
    assert_eq!(login.allowed, 11);
    assert_eq!(sources(login), [("quantum", 6), ("redis", 5)]);
    assert_eq!(only(&found).latency_us.count, 6);
    assert_eq!(only(&found).gates.len(), 1);
    assert_eq!(found.instances.iter().map(|one| &*one.id).collect::<Vec<_>>(), ["newer", "older"]);
}

#[tokio::test]
async fn gates_and_instances_beyond_their_maximum_are_summed_or_left_out() {
    let fleet = Fleet::new();
    let mut connection = connect(fleet.0.url());
    let start_s = START.as_secs();
    for (number, id) in ["a", "b", "c", "d", "a"].into_iter().enumerate() {
        let gate = format!("gate-{number}");
        publish(&mut connection, start_s, id, &[("common", "a/redis=1"), (&gate, "a/redis=1")]);
        publish(&mut connection, start_s, id, &[("(other)", "d/redis=1"), (&gate, "a/redis=1")]);
    }
    let found = fleet.figures(HOUR).await;
    let gates: Vec<_> = only(&found).gates.iter().map(|gate| (&*gate.gate, gate.allowed)).collect();
    // The maximum is 4 gates: `common` and the first three.
    let expected = [(GateFigures::OTHER, 4), ("common", 5), ("gate-0", 2), ("gate-1", 2), ("gate-2", 2)];
    assert_eq!(gates, expected);
    assert_eq!(gate(only(&found), GateFigures::OTHER).denied, 5);
    assert_eq!(found.instances.iter().map(|one| &*one.id).collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[tokio::test]
async fn content_of_other_programs_is_neither_summed_nor_shown() {
    let fleet = Fleet::new();
    let mut connection = connect(fleet.0.url());
    let start_s = START.as_secs();
    let key = format!("tidegate:1:figures/{start_s}");
    let long = format!("{} a/redis=3", "x".repeat(5_000));
    let many: String = (0..200).map(|number| format!("w{number}=1 ")).collect();
    let huge = format!("a/redis={}", "9".repeat(400));
    for (field, text) in [
        ("login", "a/redis=1 garbage a/redis=-5 <script>=1 a/redis=1e3"),
        ("long", &long),
        ("many", &many),
        ("huge", &huge),
        ("<script>alert(1)</script>", "a/redis=1"),
        ("\u{1b}[31m", "a/redis=1"),
        ("(count)", "many"),
    ] {
        redis::cmd("HSET").arg(&key).arg(field).arg(text).exec(&mut connection).unwrap();
    }
    redis::cmd("HSET").arg(&key).arg(b"\xff\xfe").arg(b"\xff=1").exec(&mut connection).unwrap();
    let fields = [("login", "a/redis=1"), ("many", "a/redis=1"), ("huge", "a/redis=1")];
    assert!(is_written(&publish(&mut connection, start_s, "a", &fields)));
    let found = fleet.figures(HOUR).await;
    let gates: Vec<_> = only(&found).gates.iter().map(|gate| (&*gate.gate, gate.allowed)).collect();
    assert_eq!(gates, [("huge", 1 << 32), ("login", 3), ("many", 0)], "`long` has too many bytes");
    let count = fleet.0.cli(&["HGET", &key, "(count)"]).unwrap();
    assert_eq!(count, "\"0\"");
}

#[tokio::test]
async fn key_of_another_type_is_an_error_for_the_publisher_and_the_reader() {
    let fleet = Fleet::new();
    let mut connection = connect(fleet.0.url());
    let start_s = START.as_secs();
    fleet.0.cli(&["SET", &format!("tidegate:1:figures/{start_s}"), "text"]).unwrap();
    let Value::BulkString(error) = publish(&mut connection, start_s, "a", &[("login", "a/redis=1")]) else {
        panic!("no error")
    };
    assert!(error.starts_with(b"WRONGTYPE"), "{}", String::from_utf8_lossy(&error));
    let inspector = tidegate::admin::Inspector::new(&fleet.limiter()).unwrap();
    let error = inspector.figures(HOUR).await.unwrap_err();
    assert!(error.is_corrupt_state(), "{error}");
}
