//! Tests of the scripts of in-flight limits that need no limiter: corrupt state, no memory, many holders, expiry,
//! and permissions. The decisions themselves are compared with an oracle.

use redis::{Connection, Value};
use tidegate::algorithm::{ACQUIRE_ALL, REPORT};
use tidegate::script::{PERMIT_LEASE, Script};
use tidegate::{Quota, Rate};
use tidegate_testkit::Server;

use crate::support::acl;
use crate::support::script::connect;

const HOLDERS: &str = "tidegate:1:holders";
/// Its lease outlives a slow test.
const WEB: &str = "web-1.3f2a/60000";
/// The last time that a lease may end: the sender does not know an earlier one.
const KNOWN_END: &str = "9007199254740991";
const HOUR_MS: i64 = 3_600_000;

fn eval(connection: &mut Connection, script: &Script, keys: &[&str], args: &[&str]) -> Value {
    let mut call = redis::cmd("EVAL");
    call.arg(script.text).arg(keys.len()).arg(keys).arg(args).arg(script.is_bounded.then_some(""));
    call.query(connection).unwrap()
}

/// Sends messages with the numbers and kept units in `messages`, of one acquire each.
fn acquire(connection: &mut Connection, quota: Quota, keys: &[&str], messages: &[&str]) -> Vec<Value> {
    let limit = quota.limit().to_string();
    let args = [&[WEB, KNOWN_END, &*limit], messages].concat();
    let script = &quota.kind().definition().scripts.take;
    array(eval(connection, script, &[&[HOLDERS], keys].concat(), &args))
}

fn array(value: Value) -> Vec<Value> {
    let Value::Array(mut values) = value else { panic!("{value:?}") };
    values.remove(0);
    values
}

fn error(value: &Value) -> &str {
    let Value::BulkString(text) = value else { panic!("{value:?}") };
    std::str::from_utf8(text).unwrap()
}

fn open(connection: &mut Connection, name: &str) {
    let reply = eval(connection, &PERMIT_LEASE, &[HOLDERS], &["open", name]);
    assert!(matches!(reply, Value::Array(_)), "{reply:?}");
}

fn run(connection: &mut Connection, command: &[&str]) {
    redis::cmd(command[0]).arg(&command[1..]).exec(connection).unwrap();
}

fn dump(connection: &mut Connection, key: &str) -> Option<Vec<u8>> {
    redis::cmd("DUMP").arg(key).query(connection).unwrap()
}

/// Returns the server's clock.
fn now_us(connection: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    seconds * 1_000_000 + micros
}

const KEY: &str = "tidegate:2:calls:in_flight:user:42";
const GOOD: &str = "tidegate:2:calls:in_flight:user:43";
const BUCKET: &str = "tidegate:2:rate:token_bucket:user:42";

/// Texts that resemble a summary of the holders but are invalid, for a limit of 3.
const NO_SUMMARIES: [&str; 22] = [
    "",
    "x",
    "1",
    "1/3",
    "1/3 at 1763680460000000",
    "1/3 at 1763680460000000 sure until",
    "1/3 at 1763680460000000 sure until ",
    "1/3 at 1763680460000000 sure until 17636804600000.5",
    "1/3 at 1763680460000000 sure until -763680460000000",
    "1/3 at 1763680460000000 sure until 1e300",
    "1/3 at 1763680460000000 until sure 1763680460000000",
    "1/3 at 17636804600000.0 sure until 1763680460000000",
    "1/3 at  sure until 1763680460000000",
    "/3 at 1763680460000000 sure until 1763680460000000",
    "x/3 at 1763680460000000 sure until 1763680460000000",
    "-1/3 at 1763680460000000 sure until 1763680460000000",
    "1.5/3 at 1763680460000000 sure until 1763680460000000",
    "0x1/3 at 1763680460000000 sure until 1763680460000000",
    "9007199254740994/3 at 1763680460000000 sure until 1763680460000000",
    "1/3 at 1763680460000000 sure until 1763680460000000 ",
    "1/3 at 1763680460000000 sure until 1763680460000000 blocked until ",
    "1/3 at 1763680460000000 sure until 1763680460000000 blocked until 9007199254740994",
];

/// Returns a summary that is sure of its units for 50 s.
fn sure_of(units: u64, now_us: u64) -> String {
    format!("{units}/3 at {now_us} sure until {}", now_us + 50_000_000)
}

#[test]
fn corrupt_key_fails_only_its_row_and_its_group() {
    let server = Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    open(&mut connection, WEB);
    let (sure, old) = (sure_of(2, now_us(&mut connection)), "2/3 at 1 sure until 1");
    let mut garbage: Vec<(Vec<&str>, &str)> =
        NO_SUMMARIES.iter().map(|text| (vec!["HSET", KEY, "held", text], "STATE held")).collect();
    for entry in ["", "1", "1 #", "#1", "1 #x", "-1 #1", "1.5 #1", "1 #9007199254740994", "9 #1"] {
        // More units than all holders together are corrupt, too.
        let field = if entry == "9 #1" { "STATE held" } else { "STATE holder" };
        garbage.push((vec!["HSET", KEY, "held", &sure, WEB, entry], field));
    }
    garbage.push((vec!["HSET", KEY, "held", old, "other/1000", "x"], "STATE holder"));
    garbage.push((vec!["HSET", KEY, WEB, "1 #1"], "STATE held"));
    garbage.push((vec!["SET", KEY, "1"], "WRONGTYPE"));
    garbage.push((vec!["ZADD", KEY, "1", "held"], "WRONGTYPE"));

    let mut number = 0;
    for (command, expected) in garbage {
        let quota = Quota::in_flight(3);
        run(&mut connection, &["DEL", KEY, GOOD, BUCKET]);
        run(&mut connection, &command);
        let before = dump(&mut connection, KEY);
        number += 1;
        let message = number.to_string();
        let rows =
            acquire(&mut connection, quota, &[GOOD, KEY, GOOD], &[&message, "0", &message, "0", "999", "1"]);
        let fields = quota.kind().fields();
        assert_eq!(rows.len(), 2 * fields + 1, "{command:?}: {rows:?}");
        assert!(error(&rows[fields]).starts_with(expected), "{command:?}: {rows:?}");
        assert_eq!((&rows[0], &rows[fields + 1]), (&Value::Int(0), &Value::Int(1)), "{command:?}");

        // In a group, a valid gate before the corrupt one is not charged.
        let bucket = Quota::token_bucket(9, Rate::per_hour(9)).kind().args().map(|number| number.to_string());
        let mut args = vec![WEB, KNOWN_END, "2", "token_bucket"];
        args.extend(bucket.iter().map(String::as_str));
        args.extend(["in_flight", "3", "0", "0", "0"]);
        args.extend(["1", "2", "1", "1", "", "2", "1", &message, "0"]);
        args.extend(["1", "1", "1", "1", ""]);
        let keys = [HOLDERS, BUCKET, KEY, BUCKET];
        let groups = array(eval(&mut connection, &ACQUIRE_ALL, &keys, &args));
        assert!(error(&groups[0]).starts_with(&format!("2 {expected}")), "{command:?}: {groups:?}");
        assert_eq!(groups[1..], [Value::Int(-2), Value::Int(0)], "{command:?}: the bucket was charged");

        // A block reads the summary alone.
        let is_summary = expected == "STATE held" && command.len() == 4 && command[2] == "held";
        if is_summary || expected == "WRONGTYPE" {
            let block = &quota.kind().definition().scripts.block;
            for duration in ["1000", "0"] {
                let args = ["3", "0", "0", "0", duration, "0"];
                let reply = eval(&mut connection, block, &[KEY], &args);
                assert!(error(&reply).starts_with(expected), "{command:?}: {reply:?}");
            }
        }
        assert_eq!(dump(&mut connection, KEY), before, "{command:?}: written");
    }
}

#[test]
fn invalid_holders_and_leases_are_errors() {
    let server = Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    for name in
        ["", "web", "web/", "web/0", "web/60001", "web/1e3", "/1000", "a b/1000", "a;b/1000", "web/-1"]
    {
        let reply = eval(&mut connection, &PERMIT_LEASE, &[HOLDERS], &["open", name]);
        assert_eq!(error(&reply), "STATE name", "{name}");
    }
    let reply = eval(&mut connection, &PERMIT_LEASE, &[HOLDERS], &["renew", WEB]);
    assert_eq!(error(&reply), "LAPSED lease", "never opened");
    let rows = acquire(&mut connection, Quota::in_flight(3), &[KEY], &["1", "0"]);
    assert_eq!(error(&rows[0]), "LAPSED lease");
    // A message without a sender is refused; a peek is not.
    let script = &Quota::in_flight(3).kind().definition().scripts.take;
    for (args, is_peek) in [
        (["", "0", "3", "1", "0", "1", "1"], false),
        (["", "0", "3", "1", "1", "0", "1"], false),
        (["", "0", "3", "0", "0", "0", "1"], true),
    ] {
        let rows = array(eval(&mut connection, script, &[HOLDERS, KEY], &args));
        match is_peek {
            true => assert_eq!(rows, [Value::Int(0), Value::Int(0)]),
            false => assert_eq!(error(&rows[0]), "LAPSED lease"),
        }
    }
    assert_eq!(dump(&mut connection, KEY), None);
    run(&mut connection, &["SET", HOLDERS, "x"]);
    let rows = acquire(&mut connection, Quota::in_flight(3), &[KEY, GOOD], &["1", "0", "1", "0"]);
    assert!(rows.iter().all(|row| error(row).starts_with("WRONGTYPE")), "{rows:?}");
    let reply = eval(&mut connection, &PERMIT_LEASE, &[HOLDERS], &["open", WEB]);
    assert!(error(&reply).starts_with("WRONGTYPE"), "{reply:?}");
}

/// Without free memory, peeks, reports and renewals succeed, and no write is partial.
#[test]
fn out_of_memory_leaves_no_partial_write() {
    let server = Server::process(&["--maxmemory-policy", "noeviction"]).unwrap();
    let mut connection = connect(server.url());
    let quota = Quota::in_flight(3);
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]);
    open(&mut connection, WEB);
    acquire(&mut connection, quota, &[KEY], &["1", "0"]);
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    let before = dump(&mut connection, KEY);
    let rows = acquire(&mut connection, quota, &[GOOD, KEY], &["2", "0", "2", "1"]);
    assert!(rows.iter().all(|row| error(row).starts_with("OOM")), "{rows:?}");
    assert_eq!((dump(&mut connection, KEY), dump(&mut connection, GOOD)), (before, None));
    // A report of more units, of fewer, and of none.
    for (number, keep) in [("3", "3"), ("4", "2"), ("5", "0")] {
        let args = [WEB, KNOWN_END, "3", number, keep, "0", "1"];
        let reported = array(eval(&mut connection, &REPORT, &[HOLDERS, KEY], &args));
        assert_eq!(reported[0], Value::Int(keep.parse().unwrap()), "{reported:?}");
    }
    assert_eq!(dump(&mut connection, KEY), None);
    let renewed = eval(&mut connection, &PERMIT_LEASE, &[HOLDERS], &["renew", WEB]);
    assert!(matches!(renewed, Value::Array(_)), "{renewed:?}");
}

/// Earlier versions kept a queue of waiting processes in the hash.
#[test]
fn queue_of_an_earlier_version_is_ignored_and_removed() {
    let server = Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    open(&mut connection, WEB);
    open(&mut connection, "other/60000");
    let quota = Quota::in_flight(3);
    let sure = sure_of(1, now_us(&mut connection));
    let queue = "x/1000 9 1;not a queue";
    let is_left = |connection: &mut Connection| -> bool {
        redis::cmd("HEXISTS").arg(KEY).arg("queue").query(connection).unwrap()
    };
    // With the known sum, after a scan, and where nothing else is stored.
    for (held, messages, is_removed) in [
        (Some(&*sure), ["1", "0"], false),
        (Some("1/3 at 1 sure until 1"), ["2", "0"], true),
        (None, ["3", "0"], false),
    ] {
        run(&mut connection, &["DEL", KEY]);
        run(&mut connection, &["HSET", KEY, "queue", queue]);
        if let Some(held) = held {
            run(&mut connection, &["HSET", KEY, "held", held, "other/60000", "1 #1"]);
        }
        let rows = acquire(&mut connection, quota, &[KEY], &messages);
        assert_eq!(rows[0], Value::Int(i64::from(held.is_some())), "{held:?}: {rows:?}");
        assert_eq!(is_left(&mut connection), !is_removed, "{held:?}");
        let reply = eval(
            &mut connection,
            &quota.kind().definition().scripts.block,
            &[KEY],
            &["3", "0", "0", "0", "0", "0"],
        );
        assert!(matches!(reply, Value::Int(_)), "{reply:?}");
    }
    // The last unit takes it along.
    let rows = acquire(&mut connection, quota, &[KEY], &["4", "0", "0", "1"]);
    assert_eq!(rows[0], Value::Int(0), "{rows:?}");
    assert_eq!(dump(&mut connection, KEY), None);
}

/// More holders than a command of a script may have arguments.
#[test]
fn scan_of_10_000_holders_counts_the_live_ones() {
    const COUNT: usize = 10_000;
    let server = Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    open(&mut connection, WEB);
    let now = now_us(&mut connection);
    let mut pipe = redis::pipe();
    pipe.cmd("HSET").arg(KEY).arg("held").arg(format!("{COUNT}/20000 at 1 sure until 1")).ignore();
    for number in 0..COUNT {
        let name = format!("web-{number}/10000");
        // Every second lease has ended.
        let end = if number % 2 == 0 { now + 60_000_000 } else { 1 };
        pipe.cmd("HSET").arg(KEY).arg(&name).arg("1 #1").ignore();
        pipe.cmd("ZADD").arg(HOLDERS).arg(end).arg(&name).ignore();
    }
    pipe.exec(&mut connection).unwrap();
    let rows = acquire(&mut connection, Quota::in_flight(20_000), &[KEY], &["1", "0"]);
    assert_eq!(rows[0], Value::Int(COUNT as i64 / 2), "{rows:?}");
    let left: (usize, usize) =
        redis::pipe().cmd("HLEN").arg(KEY).cmd("ZCARD").arg(HOLDERS).query(&mut connection).unwrap();
    assert_eq!(left, (COUNT / 2 + 2, COUNT / 2 + 1));
}

#[test]
fn keys_expire_an_hour_to_75_minutes_after_the_last_write() {
    let server = Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    let block = &Quota::in_flight(1).kind().definition().scripts.block;
    open(&mut connection, WEB);
    acquire(&mut connection, Quota::in_flight(1), &[KEY], &["1", "0"]);
    eval(&mut connection, block, &[GOOD], &["1", "0", "0", "0", "1000", "0"]);
    for key in [KEY, GOOD] {
        let left: i64 = redis::cmd("PTTL").arg(key).query(&mut connection).unwrap();
        assert!((HOUR_MS - 1_000..=HOUR_MS * 5 / 4).contains(&left), "{key}: {left}");
    }
    let left: i64 = redis::cmd("PTTL").arg(HOLDERS).query(&mut connection).unwrap();
    assert!((HOUR_MS - 60_000..=HOUR_MS).contains(&left), "{left}");
    // A block that lasts longer is covered.
    eval(&mut connection, block, &[KEY], &["1", "0", "0", "0", "9000000000", "0"]);
    let left: i64 = redis::cmd("PTTL").arg(KEY).query(&mut connection).unwrap();
    assert!(left > 2 * HOUR_MS, "{left}");
}

/// A user with the permissions of docs/operate/redis-user.md.
#[test]
fn scripts_need_only_the_listed_permissions() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    let mut admin = connect(server.url());
    let mut connection = connect(server.url());
    run(&mut connection, &["AUTH", acl::USER, acl::PASSWORD]);
    open(&mut connection, WEB);
    open(&mut connection, "other/1000");
    let quota = Quota::in_flight(1);
    // A scan, which finds a lapsed holder, then a denial, and a release.
    run(
        &mut admin,
        &["HSET", KEY, "held", "2/3 at 1 sure until 1", "gone/1000", "1 #1", "other/1000", "1 #1"],
    );
    for messages in [["1", "0", "5", "1"], ["2", "1", "0", "1"], ["3", "0", "0", "1"]] {
        let rows = acquire(&mut connection, quota, &[KEY], &messages);
        assert!(rows.iter().all(|row| matches!(row, Value::Int(_))), "{quota}: {rows:?}");
    }
    run(&mut admin, &["DEL", KEY]);
    for action in ["renew", "end"] {
        let reply = eval(&mut connection, &PERMIT_LEASE, &[HOLDERS], &[action, WEB]);
        assert!(matches!(reply, Value::Array(_)), "{reply:?}");
    }
}
