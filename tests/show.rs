//! `redis-cli --eval lua/show.lua KEY` describes a key in plain words, with read permissions only.

use std::process::Command;
use std::time::Duration;

use tidegate::algorithm::Storage;
use tidegate::{Limiter, Quota, Rate, Switch};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, builder};
use crate::support::world::START;

const SHOW: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/lua/show.lua");
const KEY: &str = "user:42";
const MINUTE: Duration = Duration::from_secs(60);
const ENDING: &str = "; tidegate did not write this: find the other writer, then delete the key";
/// The commands that the script calls: a subset of the list in docs/operate/redis-user.md.
const RIGHTS: [&str; 11] = [
    "+eval",
    "+time",
    "+pttl",
    "+pexpiretime",
    "+get",
    "+hget",
    "+hgetall",
    "+zcard",
    "+zcount",
    "+zrevrange",
    "+zrangebyscore",
];

/// Starts a server whose clock is frozen at [`START`], with a user that can only read.
fn set_up() -> (Server, Limiter) {
    let server = Server::with_shiftable_clock().unwrap();
    set_clock(&server, Duration::ZERO);
    let user = [&["ACL", "SETUSER", "reader", "reset", "on", ">pw", "~*"][..], &RIGHTS].concat();
    assert_eq!(server.cli(&user).unwrap(), "OK");
    let limiter = builder(server.url()).deny_cache(Duration::ZERO).build().unwrap();
    (server, limiter)
}

fn set_clock(server: &Server, since_start: Duration) {
    server.freeze_clock(u64::try_from((START + since_start).as_micros()).unwrap());
}

fn show(server: &Server, redis_key: &str) -> String {
    let text = std::fs::read_to_string(SHOW).unwrap();
    let output =
        server.cli(&["--user", "reader", "--pass", "pw", "--no-auth-warning", "EVAL", &text, "1", redis_key]);
    output.unwrap()
}

/// Returns gates of each algorithm, 5 per minute, with the description of 3 units used at [`START`].
fn descriptions() -> [(&'static str, Quota, &'static str, &'static str); 6] {
    let window = "fixed window of 60s";
    [
        (
            "token",
            Quota::token_bucket(5, Rate::per_minute(5)),
            "token bucket",
            ": 3 of 5 used, 2 left, full again in 36s",
        ),
        (
            "leaky",
            Quota::leaky_bucket(5, Rate::per_minute(5)),
            "leaky bucket",
            ": 3 of 5 queued, 2 free, empty in 36s",
        ),
        ("fixed", Quota::fixed_window(5, MINUTE), window, ": 3 used, the window ends in 1m 0s"),
        (
            "clock",
            Quota::fixed_window(5, MINUTE).aligned_to_clock(),
            "fixed window of 60s by the clock",
            ": 3 used, the window ends in 1m 0s",
        ),
        ("log", Quota::sliding_log(5, MINUTE), "sliding log of 60s", ": 3 used, untouched in 1m 0s"),
        (
            "counter",
            Quota::sliding_counter(5, MINUTE),
            "sliding counter of 60s",
            ": 3 in this window and 0 in the previous one, counted as 3",
        ),
    ]
}

#[tokio::test]
async fn each_algorithm_is_described_untouched_used_blocked_and_unblocked() {
    let (server, limiter) = set_up();
    for (name, quota, title, words) in descriptions() {
        let gate = limiter.gate(name, quota);
        let redis_key = gate.redis_key(KEY).unwrap();
        set_clock(&server, Duration::ZERO);
        assert_eq!(show(&server, &redis_key), format!("{title}: no such key, untouched"));
        assert!(gate.check_cost(KEY, 3).await.unwrap().is_allowed());
        assert_eq!(show(&server, &redis_key), format!("{title}{words}"));
        gate.block(KEY, 2 * HOUR).await.unwrap();
        assert_eq!(show(&server, &redis_key), format!("{title}{words}, all checks denied for 2h 0m"));
        set_clock(&server, HOUR);
        let line = show(&server, &redis_key);
        assert!(line.ends_with(", all checks denied for 1h 0m"), "{line}");
        gate.unblock(KEY).await.unwrap();
        let line = show(&server, &redis_key);
        assert!(line.contains("untouched") || line.contains(": 0 of 5 "), "{line}");
        gate.reset(KEY).await.unwrap();
    }
}

#[tokio::test]
async fn windows_of_a_calendar_are_described() {
    let (server, limiter) = set_up();
    for calendar in ["month+15@Asia/Kolkata", "day@America/Port-au-Prince", "year+02-29@Etc/GMT+5"] {
        let gate = limiter.gate("calendar", Quota::calendar_window(5, calendar.parse().unwrap()));
        let redis_key = gate.redis_key(KEY).unwrap();
        let title = format!("fixed window of {calendar}");
        assert_eq!(show(&server, &redis_key), format!("{title}: no such key, untouched"));
        assert!(gate.check_cost(KEY, 3).await.unwrap().is_allowed());
        let line = show(&server, &redis_key);
        assert!(line.starts_with(&format!("{title}: 3 used, the window ends in ")), "{line}");
        gate.block(KEY, 2 * HOUR).await.unwrap();
        let line = show(&server, &redis_key);
        assert!(line.ends_with(", all checks denied for 2h 0m"), "{line}");
        let holds_key = redis_key.replacen("fixed_window", "holds/fixed_window", 1);
        assert_eq!(show(&server, &holds_key), format!("holds of {title}: none open"));
    }
    for window in ["sliding_log/month@UTC", "fixed_window/month"] {
        let line = show(&server, &format!("tidegate:2:x:{window}:none"));
        assert_eq!(line, "not a key of tidegate", "{window}");
    }
}

#[tokio::test]
async fn fractional_units_and_the_previous_window_are_described() {
    let (server, limiter) = set_up();
    let bucket = limiter.gate("bucket", Quota::token_bucket(5, Rate::per_minute(5)));
    let counter = limiter.gate("counter", Quota::sliding_counter(5, MINUTE));
    for gate in [&bucket, &counter] {
        assert!(gate.check_cost(KEY, 3).await.unwrap().is_allowed());
    }
    set_clock(&server, Duration::from_secs(6));
    assert_eq!(
        show(&server, &bucket.redis_key(KEY).unwrap()),
        "token bucket: 2.5 of 5 used, 2 left, full again in 30s"
    );
    set_clock(&server, Duration::from_secs(80));
    assert_eq!(
        show(&server, &counter.redis_key(KEY).unwrap()),
        "sliding counter of 60s: 0 in this window and 3 in the previous one, counted as 2"
    );
}

#[tokio::test]
async fn count_without_expiry_is_described() {
    let (server, limiter) = set_up();
    let redis_key = limiter.gate("fixed", Quota::fixed_window(5, MINUTE)).redis_key(KEY).unwrap();
    server.cli(&["SET", &redis_key, "4"]).unwrap();
    assert_eq!(
        show(&server, &redis_key),
        "fixed window of 60s: 4 used, without an expiry: the next check sets one"
    );
}

#[tokio::test]
async fn corrupt_keys_are_described_without_control_characters() {
    let (server, limiter) = set_up();
    for (name, quota, _, _) in descriptions() {
        let redis_key = limiter.gate(name, quota).redis_key(KEY).unwrap();
        server.cli(&["RPUSH", &redis_key, "1"]).unwrap();
        assert_eq!(show(&server, &redis_key), format!("corrupt: a value of another type{ENDING}"));
        server.cli(&["DEL", &redis_key]).unwrap();
        let text = "\x1b[31m\r\n1";
        let storage = quota.kind().definition().storage;
        let put = match storage {
            Storage::Text => vec!["HSET", &redis_key, "used", text],
            Storage::Count => vec!["SET", &redis_key, text],
            Storage::Log => vec!["ZADD", &redis_key, "9000000000000000", text],
            Storage::Holders => vec!["HSET", &redis_key, "held", text],
        };
        server.cli(&put).unwrap();
        let content = if storage == Storage::Log { "members" } else { "\"?[31m??1\"" };
        assert_eq!(show(&server, &redis_key), format!("corrupt: {content}{ENDING}"));
        server.cli(&["DEL", &redis_key]).unwrap();
        if storage == Storage::Text {
            server.cli(&["HSET", &redis_key, "other", "1"]).unwrap();
            assert_eq!(show(&server, &redis_key), format!("corrupt: no field `used`{ENDING}"));
        }
    }
}

#[tokio::test]
async fn held_units_and_holders_are_described() {
    let (server, limiter) = set_up();
    let gate = limiter.gate("calls", Quota::in_flight(10));
    let redis_key = gate.redis_key(KEY).unwrap();
    assert_eq!(show(&server, &redis_key), "in flight: no such key, untouched");
    let held =
        |until: Duration, block: &str| format!("7/10 at 1 sure until {}{block}", (START + until).as_micros());
    server.cli(&["HSET", &redis_key, "held", &held(MINUTE, ""), "a/1000", "7 #3"]).unwrap();
    assert_eq!(show(&server, &redis_key), "in flight: 7 of 10 held by 1 holder, 3 left");
    let block = format!(" blocked until {}", (START + MINUTE).as_micros());
    // Left by an earlier version.
    let queue = "b/1000 2 1;c/1000 3 1;";
    server.cli(&["HSET", &redis_key, "held", &held(Duration::ZERO, &block), "queue", queue]).unwrap();
    assert_eq!(
        show(&server, &redis_key),
        "in flight: at most 7 of 10 held by 1 holder, 3 left, all checks denied for 1m 0s"
    );
    assert_eq!(gate.peek(KEY).await.unwrap().remaining(), 0, "blocked");

    let ends = |after: u64| (START.as_micros() as u64 + after).to_string();
    server.cli(&["ZADD", "tidegate:1:holders", &ends(1), "a/1000", &ends(0), "b/1000"]).unwrap();
    assert_eq!(show(&server, "tidegate:1:holders"), "holders of in-flight limits: 1 live, 1 lapsed");
}

#[tokio::test]
async fn holds_are_described() {
    let (server, _) = set_up();
    let key = "tidegate:2:tokens:holds/fixed_window/60s:user:42";
    assert_eq!(show(&server, key), "holds of fixed window of 60s: none open");
    let ends = |after: u64| (START + Duration::from_secs(after)).as_micros().to_string();
    let add = |after, member: &str| server.cli(&["ZADD", key, &ends(after), member]).unwrap();
    add(30, "a:b:7:60000000:keep");
    add(40, "c:5:60000000:back");
    assert_eq!(show(&server, key), "holds of fixed window of 60s: 2 open, 12 units, the first ends in 30s");
    add(10, "d:1:1000000:late");
    add(0, "e:1:1000000:back");
    assert_eq!(
        show(&server, key),
        "holds of fixed window of 60s: 2 open, 12 units, the first ends in 30s, 1 can be committed late, \
         1 ended, which the next call removes"
    );
    add(50, "x\x1b[31m");
    assert_eq!(show(&server, key), format!("corrupt: \"x?[31m\"{ENDING}"));
    let bucket = "tidegate:2:tokens:holds/token_bucket:{cr}:user:42";
    assert_eq!(show(&server, bucket), "holds of token bucket: none open");
    for foreign in ["holds/in_flight", "holds/holds/token_bucket", "holds", "holds/token_bucket/60s"] {
        assert_eq!(show(&server, &format!("tidegate:2:tokens:{foreign}:x")), "not a key of tidegate");
    }
}

#[tokio::test]
async fn counted_denials_are_described() {
    let (server, _) = set_up();
    let key = "tidegate:2:login:denials/fixed_window/60s:user:42";
    assert_eq!(show(&server, key), "denials of fixed window of 60s: none");
    server.cli(&["SET", key, "3", "PX", "552000"]).unwrap();
    assert_eq!(show(&server, key), "denials of fixed window of 60s: 3, counted for another 9m 12s");
    server.cli(&["PERSIST", key]).unwrap();
    assert_eq!(
        show(&server, key),
        "denials of fixed window of 60s: 3, without an expiry: the next denial sets one"
    );
    server.cli(&["SET", key, "x\x1b[31m"]).unwrap();
    assert_eq!(show(&server, key), format!("corrupt: \"x?[31m\"{ENDING}"));
    let bucket = "tidegate:2:login:denials/token_bucket:{cr}:user:42";
    assert_eq!(show(&server, bucket), "denials of token bucket: none");
    for foreign in
        ["denials/in_flight", "denials/denials/token_bucket", "denials", "denials/token_bucket/60s"]
    {
        assert_eq!(show(&server, &format!("tidegate:2:login:{foreign}:x")), "not a key of tidegate");
    }
}

#[tokio::test]
async fn overrides_and_instances_are_described() {
    let (server, _) = set_up();
    let limiter = builder(server.url()).namespace("shown").build().unwrap();
    assert_eq!(show(&server, "shown:1:overrides"), "overrides: 0 active");
    limiter.control().switch("login", Switch::Closed, None).await.unwrap();
    limiter.control().switch("api", Switch::Open, Some(MINUTE)).await.unwrap();
    assert!(show(&server, "shown:1:overrides").starts_with("overrides: 2 active, changed "));
    set_clock(&server, 2 * MINUTE);
    assert_eq!(show(&server, "shown:1:overrides"), "overrides: 1 active, changed 2m 0s ago");

    assert_eq!(show(&server, "other:1:instances"), "instances: none");
    let heartbeat_us = (START + MINUTE).as_micros().to_string();
    server.cli(&["ZADD", "other:1:instances", &heartbeat_us, "a", "1", "b"]).unwrap();
    assert_eq!(show(&server, "other:1:instances"), "instances: 2, the last heartbeat 1m 0s ago");
    server.cli(&["SET", "third:1:overrides", "x"]).unwrap();
    assert_eq!(show(&server, "third:1:overrides"), format!("corrupt: a value of another type{ENDING}"));
}

#[tokio::test]
async fn figures_records_and_the_audit_log_are_described() {
    let (server, _) = set_up();
    let begun = (START - Duration::from_secs(12)).as_secs();
    for (part, words) in [("figures", "gates"), ("instances", "records")] {
        for tag in ["", "{cr}:"] {
            let key = format!("tidegate:1:{tag}{part}/{begun}");
            assert_eq!(show(&server, &key), format!("{part}: none of this time"));
            server.cli(&["HSET", &key, "(count)", "3", "login", "allowed/redis=5"]).unwrap();
            assert_eq!(show(&server, &key), format!("{part}: 3 {words} of the time that began 12s ago"));
        }
    }
    assert_eq!(show(&server, "tidegate:1:audit"), "audit log of operators' changes");
    for foreign in ["figures/x", "figures/", "audit/1", "overrides/1"] {
        assert_eq!(show(&server, &format!("tidegate:1:{foreign}")), "not a key of tidegate");
    }
}

#[tokio::test]
async fn adaptive_limits_are_described() {
    let (server, _) = set_up();
    let key = "tidegate:2:jobs:adaptive/in_flight:user:42";
    assert_eq!(show(&server, key), "adaptive limit of in flight: none");
    server.cli(&["HSET", key, "limit", "27.75"]).unwrap();
    assert_eq!(show(&server, key), "adaptive limit of in flight: 27");
    server.cli(&["HSET", key, "limit", "x\x1b[31m"]).unwrap();
    assert_eq!(show(&server, key), format!("corrupt: \"x?[31m\"{ENDING}"));
    for foreign in ["adaptive/token_bucket", "adaptive/in_flight/60s", "adaptive/holds/in_flight", "adaptive"]
    {
        assert_eq!(show(&server, &format!("tidegate:2:jobs:{foreign}:x")), "not a key of tidegate");
    }
}

#[tokio::test]
async fn foreign_keys_and_other_layouts_are_distinguished() {
    let (server, _) = set_up();
    for redis_key in [
        "",
        "x",
        "cache:user:42",
        "tidegate:2:login:token_bucket",
        "tidegate:2:login:token_bucket/60s:x",
        "tidegate:2:login:fixed_window:x",
        "tidegate:2:login:other:x",
        "tidegate:x:login:token_bucket:x",
    ] {
        assert_eq!(show(&server, redis_key), "not a key of tidegate", "{redis_key}");
    }
    for layout in [1, 3] {
        assert_eq!(
            show(&server, &format!("tidegate:{layout}:login:token_bucket:x")),
            format!("state of layout {layout}, which another version of tidegate wrote")
        );
    }
}

/// The key has a hash tag, as in a cluster.
#[tokio::test]
async fn redis_cli_evaluates_the_file() {
    let server = Server::process(&[]).unwrap();
    let redis_key = "tidegate:2:login:fixed_window/3600s@clock+1500ms:{bt}:user:42";
    server.cli(&["SET", redis_key, "3", "EX", "1800"]).unwrap();
    let output =
        Command::new("redis-cli").args(["-u", server.url(), "--eval", SHOW, redis_key]).output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim_end(),
        "fixed window of 3600s by the clock: 3 used, the window ends in 30m 0s"
    );
}
