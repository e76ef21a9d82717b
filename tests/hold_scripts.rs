//! The scripts `reserve` and `settle` on a real Redis: the texts and expiries of holds, the bound of one call,
//! clock steps, and failures of a single item.

mod runner;

use std::time::Duration;

use redis::Value;
use tidegate::{Quota, Rate};

use self::runner::{Key, LATE, NOTHING, Redis, SECOND_US, SETTLED, START_US, TTL_US, error, window};
use crate::support::fixture::HOUR;

#[test]
fn hold_is_a_member_with_id_units_ttl_and_fate() {
    let mut redis = Redis::start();
    assert!(redis.reserves(window(), 3, "keep", b"first"));
    redis.at(1);
    assert!(redis.reserves(window(), 4, "back", b"second"));
    let ends = START_US + TTL_US;
    let expected: [(&[u8], u64); 2] =
        [(b"first:3:60000000:keep", ends), (b"second:4:60000000:back", ends + 1)];
    assert_eq!(redis.holds(window()), expected.map(|(member, ends)| (member.to_vec(), ends)));
    redis.at(TTL_US + 1);
    assert_eq!(redis.used(window()), 3);
    let late: [(&[u8], u64); 2] =
        [(b"first:3:60000000:late", ends + TTL_US), (b"second:4:60000000:late", ends + 1 + TTL_US)];
    assert_eq!(redis.holds(window()), late.map(|(member, ends)| (member.to_vec(), ends)));
    redis.at(2 * TTL_US + 1);
    assert_eq!(redis.used(window()), 3);
    assert_eq!(redis.text::<u64>("EXISTS tidegate:window:holds"), 0);
}

#[test]
fn hold_ends_at_its_microsecond() {
    let mut redis = Redis::start();
    assert!(redis.reserves(window(), 10, "back", b"a"));
    redis.at(TTL_US - 1);
    assert_eq!(redis.used(window()), 10);
    assert_eq!(redis.settle("back", &[(window(), 10, 10, b"b")]), [NOTHING]);
    redis.at(TTL_US);
    assert_eq!(redis.settle("back", &[(window(), 10, 4, b"a")]), [LATE]);
    assert_eq!(redis.used(window()), 4);
}

/// A charge can count longer than a hold: the holds stay as long, so that a refund at the end is not lost.
#[test]
fn holds_expire_when_nothing_can_be_settled_or_refunded() {
    let minutes = |minutes: u64| minutes * 60 * SECOND_US;
    let quotas = [
        ("token", Quota::token_bucket(10, Rate::per_hour(7)), minutes(600).div_ceil(7)),
        ("leaky", Quota::leaky_bucket(10, Rate::per_hour(7)), minutes(600).div_ceil(7)),
        ("fixed", Quota::fixed_window(10, HOUR), minutes(60) + 1_000),
        ("clock", Quota::fixed_window(10, HOUR).aligned_to_clock(), minutes(60) + 1_000),
        ("log", Quota::sliding_log(10, HOUR), minutes(60)),
        ("counter", Quota::sliding_counter(10, HOUR), minutes(120)),
        ("short", Quota::fixed_window(10, Duration::from_secs(1)), minutes(2)),
    ];
    let mut redis = Redis::start();
    for (name, quota, life_us) in quotas {
        let key = Key { name, quota };
        for (what, span_us) in [("keep", 2 * TTL_US), ("back", life_us)] {
            redis.at(0);
            assert!(redis.reserves(key, 1, what, b"a"));
            let expires_ms = redis.expires_ms(&key.holds()) as u64;
            let (needed_us, step_us) = (START_US + span_us, span_us / 8 + 1);
            let steps = needed_us.next_multiple_of(step_us).div_ceil(1_000);
            assert_eq!(expires_ms, steps, "{name} {what}");
            assert!(expires_ms * 1_000 >= needed_us);
            // A hold that needs less does not shorten the expiry.
            assert!(redis.reserves(key, 1, "keep", b"b"));
            assert_eq!(redis.expires_ms(&key.holds()) as u64, expires_ms, "{name} {what}");
            redis.text::<u64>(&format!("DEL tidegate:{name} tidegate:{name}:holds"));
        }
    }
}

#[test]
fn one_call_ends_at_most_64_holds_and_3_of_each_further_key_and_those_that_it_settles() {
    let mut redis = Redis::start();
    let log = Key { name: "log", quota: Quota::sliding_log(1_000, HOUR) };
    for number in 0..200 {
        redis.at(number);
        assert!(redis.reserves(log, 1, "back", format!("{number:03}").as_bytes()));
    }
    let open =
        |redis: &mut Redis| redis.holds(log).iter().filter(|(member, _)| member.ends_with(b"back")).count();
    redis.at(TTL_US + 199);
    for left in [133, 66] {
        // Two groups of one call share the bound. The second one ends 3 more.
        redis.take("", &[(log, 1, b""), (log, 1, b"")]);
        assert_eq!(open(&mut redis), left);
    }
    // The last one has ended, although 65 ended holds are before it.
    assert_eq!(redis.settle("back", &[(log, 1, 0, b"199")]), [LATE]);
    assert_eq!(open(&mut redis), 1);
    assert_eq!(redis.used(log), 4);
    assert_eq!(open(&mut redis), 0);
    // A repeated reservation whose hold has ended is a new one.
    assert!(redis.reserves(log, 1, "back", b"150"));
    assert_eq!((open(&mut redis), redis.used(log)), (1, 5));
}

#[test]
fn reservation_that_is_repeated_charges_nothing_and_keeps_its_end() {
    let mut redis = Redis::start();
    assert!(redis.reserves(window(), 10, "keep", b"a"));
    let holds = redis.holds(window());
    redis.at(TTL_US - 1);
    let repeated = redis.take("keep", &[(window(), 10, b"a")]);
    let ends_ms = (START_US / 1_000 + 3_600_000) as i64;
    assert_eq!(repeated, [-2, 10, ends_ms, 1, 1].map(Value::Int));
    assert_eq!(redis.holds(window()), holds);
    // Another ttl, fate or number of units is another hold.
    assert!(!redis.reserves(window(), 10, "back", b"a"));
    assert!(!redis.reserves(window(), 9, "keep", b"a"));
    redis.at(TTL_US);
    assert!(!redis.reserves(window(), 10, "keep", b"a"));
}

/// An id cannot name the hold of another one, whatever it contains.
#[test]
fn hostile_ids_name_only_their_own_hold() {
    let ids: [&[u8]; 9] = [
        b"a",
        b"a:1:60000000:keep",
        b"a:1:60000000:back",
        b":",
        b"%d%s%%",
        b"\n\r\0",
        b"\xff\xfe",
        b"block",
        &[b'x'; 10_000],
    ];
    for what in ["keep", "back"] {
        let mut redis = Redis::start();
        for (number, id) in ids.iter().enumerate() {
            assert!(redis.reserves(window(), 1, what, id), "{id:?}");
            assert_eq!(redis.holds(window()).len(), number + 1, "{id:?}");
        }
        for (number, id) in ids.iter().enumerate() {
            assert_eq!(redis.settle(what, &[(window(), 1, 0, id)]), [SETTLED], "{id:?}");
            assert_eq!(redis.settle(what, &[(window(), 1, 0, id)]), [NOTHING], "{id:?}");
            assert_eq!(redis.used(window()) as usize, ids.len() - number - 1);
        }
        for id in ids {
            assert!(redis.reserves(window(), 1, what, id), "{id:?}");
        }
        redis.at(TTL_US);
        let used = if what == "keep" { ids.len() } else { 0 };
        assert_eq!(redis.used(window()) as usize, used);
    }
}

#[test]
fn corrupt_holds_fail_only_their_group_and_charge_nothing() {
    let good = Key { name: "good", quota: Quota::fixed_window(10, HOUR) };
    let garbage: [(&str, &str); 12] = [
        ("1", "x"),
        ("1", ""),
        ("1", "a:1:1"),
        ("1", "a:1:1:kept"),
        ("1", "a:-1:1:keep"),
        ("1", "a:1:1e3:keep"),
        ("1", "a:0x1:1:back"),
        ("1", "a:9007199254740994:1:back"),
        ("1.5", "a:1:1:keep"),
        ("-1", "a:1:1:back"),
        ("-inf", "a:1:1:late"),
        ("1", "a:1:1:KEEP"),
    ];
    let mut redis = Redis::start();
    for (score, member) in garbage {
        redis.command::<Value>(&[b"DEL", b"tidegate:window", b"tidegate:window:holds"]);
        redis.command::<Value>(&[b"ZADD", b"tidegate:window:holds", score.as_bytes(), member.as_bytes()]);
        let rows = redis.take("keep", &[(window(), 1, b"a"), (good, 1, b"a")]);
        assert_eq!(rows[0], error("1 STATE holds"), "{member}");
        assert_eq!(rows[1], Value::Int(-2), "{member}");
        let rows = redis.settle("keep", &[(window(), 1, 0, b"a"), (good, 1, 0, b"a")]);
        assert_eq!(rows, [error("STATE holds"), SETTLED], "{member}");
        assert_eq!(redis.text::<u64>("EXISTS tidegate:window"), 0, "{member}");
    }
    // Garbage that never ends does no harm.
    redis.command::<Value>(&[b"DEL", b"tidegate:window:holds"]);
    redis.command::<Value>(&[b"ZADD", b"tidegate:window:holds", b"inf", b"x"]);
    assert!(redis.reserves(window(), 1, "keep", b"a"));
    assert_eq!(redis.settle("keep", &[(window(), 1, 0, b"a")]), [SETTLED]);
}

#[test]
fn item_that_fails_can_be_settled_again() {
    let mut redis = Redis::start();
    let other = Key { name: "other", quota: Quota::fixed_window(10, HOUR) };
    for what in ["keep", "back"] {
        redis.at(0);
        redis.take(what, &[(window(), 5, b"a"), (other, 5, b"a")]);
        let dumped: Vec<u8> = redis.text("DUMP tidegate:window");
        let expires = redis.expires_ms("tidegate:window").to_string();
        redis.text::<Value>("SET tidegate:window garbage");
        let items: [(Key, u64, u64, &[u8]); 2] = [(window(), 5, 1, b"a"), (other, 5, 1, b"a")];
        assert_eq!(redis.settle(what, &items), [error("STATE value"), SETTLED]);
        if what == "back" {
            // Nor does the end of the hold lose it.
            redis.at(TTL_US);
            assert_eq!(redis.settle(what, &items), [error("STATE value"), NOTHING]);
        }
        let restore: [&[u8]; 6] =
            [b"RESTORE", b"tidegate:window", expires.as_bytes(), &dumped, b"REPLACE", b"ABSTTL"];
        redis.command::<Value>(&restore);
        let settled = if what == "keep" { SETTLED } else { LATE };
        assert_eq!(redis.settle(what, &items), [settled, NOTHING]);
        assert_eq!(redis.used(window()), 1);
        redis.text::<Value>("DEL tidegate:window tidegate:other");
    }
    // Holds of another type.
    redis.text::<Value>("SET tidegate:window:holds x");
    let rows = redis.take("keep", &[(window(), 5, b"a"), (other, 5, b"a")]);
    assert!(matches!(&rows[0], Value::BulkString(text) if text.starts_with(b"1 WRONGTYPE")), "{rows:?}");
    assert_eq!((&rows[1], redis.text::<u64>("EXISTS tidegate:window")), (&Value::Int(-2), 0));
}

#[test]
fn without_memory_nothing_is_reserved_and_everything_is_settled() {
    let mut redis = Redis::start();
    assert!(redis.reserves(window(), 5, "back", b"a"));
    assert!(redis.reserves(window(), 3, "back", b"b"));
    let (holds, state) = (redis.holds(window()), redis.text::<String>("GET tidegate:window"));
    redis.text::<Value>("CONFIG SET maxmemory-policy noeviction");
    redis.text::<Value>("CONFIG SET maxmemory 1");
    let is_oom =
        |row: &Value| matches!(row, Value::BulkString(text) if text.windows(3).any(|word| word == b"OOM"));
    let rows = redis.take("back", &[(window(), 1, b"c")]);
    assert!(is_oom(&rows[0]), "{rows:?}");
    // A denial needs no memory.
    assert!(!redis.reserves(window(), 9, "back", b"c"));
    assert_eq!(
        (redis.holds(window()), redis.text::<String>("GET tidegate:window")),
        (holds.clone(), state.clone())
    );
    assert_eq!(redis.settle("back", &[(window(), 5, 1, b"a")]), [SETTLED]);
    redis.at(TTL_US);
    assert_eq!(redis.settle("back", &[(window(), 3, 1, b"b")]), [LATE]);
    assert_eq!(redis.used(window()), 2);
}

/// For each algorithm: units of a hold that is canceled late no longer count, so no unit of another charge is
/// returned in their place.
#[test]
fn refund_returns_only_units_of_its_own_charge() {
    let quotas = [
        ("token", Quota::token_bucket(10, Rate::per_minute(10))),
        ("fixed", Quota::fixed_window(10, Duration::from_secs(30))),
        ("clock", Quota::fixed_window(10, Duration::from_secs(30)).aligned_to_clock()),
        ("log", Quota::sliding_log(10, Duration::from_secs(30))),
        ("counter", Quota::sliding_counter(10, Duration::from_secs(15))),
    ];
    let mut redis = Redis::start();
    for (name, quota) in quotas {
        let key = Key { name, quota };
        redis.at(0);
        assert!(redis.reserves(key, 10, "back", b"old"), "{name}");
        redis.at(TTL_US - 1);
        // All units of the hold have drained or left the window, up to 1 µs.
        assert!(redis.reserves(key, 9, "keep", b"new"), "{name}");
        let before = redis.used(key);
        assert_eq!(redis.settle("back", &[(key, 10, 0, b"old")]), [SETTLED], "{name}");
        let returned = before - redis.used(key);
        assert!(returned <= 1, "{name}: {returned} of {before}");
    }
}

#[test]
fn refund_within_the_window_of_the_charge_returns_all() {
    for quota in [Quota::fixed_window(10, HOUR), Quota::fixed_window(10, HOUR).aligned_to_clock()] {
        let mut redis = Redis::start();
        let key = Key { name: "window", quota };
        // The window begins with the millisecond of its first charge.
        redis.at(1_999);
        assert!(redis.reserves(key, 1, "keep", b"first"));
        assert!(redis.reserves(key, 9, "back", b"a"));
        redis.at(TTL_US - 1);
        assert_eq!(redis.settle("back", &[(key, 9, 0, b"a")]), [SETTLED], "{quota}");
        assert_eq!(redis.used(key), 1, "{quota}");
    }
}

#[test]
fn clock_step_ends_holds_early_or_lets_them_last_longer() {
    let mut redis = Redis::start();
    assert!(redis.reserves(window(), 5, "back", b"a"));
    // A step back: the hold lasts longer by the step, and is refunded as charged now.
    redis.server.freeze_clock(START_US - 30 * SECOND_US);
    assert_eq!(redis.settle("back", &[(window(), 5, 2, b"a")]), [SETTLED]);
    assert_eq!(redis.used(window()), 2);
    redis.at(0);
    assert!(redis.reserves(window(), 5, "keep", b"b"));
    // A step forward ends it.
    redis.at(TTL_US);
    assert_eq!(redis.settle("keep", &[(window(), 5, 2, b"b")]), [LATE]);
    assert_eq!(redis.used(window()), 7);
}
