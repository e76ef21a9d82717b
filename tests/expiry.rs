//! Tests the unmodified scripts on the clock of the server. Every key expires, late enough and not much
//! later. Setting the clock locks out no caller and admits no more than the documented excess.

use std::thread::sleep;
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use redis::{Connection, Value};
use tidegate::algorithm::{Kind, LeakyBucket};
use tidegate::reference::Answer;
use tidegate::{Gate, Limiter, Quota, Rate};

use crate::support::plan::{self, Call, Family, Group, Part, Plan, Played, Reference, Target, Verb, taken};
use crate::support::script::{self, Left};

/// The outcome of a call.
struct CallResult {
    /// The time of the server at which the call was decided.
    now_us: u64,
    /// When each key of the call expires, in ms, or `None` for a key that no longer exists.
    expiries: Vec<Option<u64>>,
    /// The time of the server after it read the expiries, in ms.
    observed_ms: u64,
}

fn run(connection: &mut Connection, call: &Call, keys: &[String]) -> CallResult {
    // The arguments of calendar windows depend on the time of the server.
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(connection).unwrap();
    let sent = Call { now_us: seconds * 1_000_000 + micros, ..call.clone() };
    let (script, named, args) = script::arguments(&sent, keys);
    let mut pipe = redis::pipe();
    pipe.atomic().cmd("EVAL").arg(script.text).arg(named.len()).arg(&named).arg(args);
    for key in &named {
        pipe.cmd("PEXPIRETIME").arg(key);
    }
    pipe.cmd("TIME");
    let mut reply: Vec<Value> = pipe.query(connection).unwrap();
    let (seconds, micros): (u64, u64) = redis::from_redis_value(reply.pop().unwrap()).unwrap();
    let observed_us = seconds * 1_000_000 + micros;
    let expiries = reply.split_off(1).into_iter().map(|at| match at {
        Value::Int(-2) => None,
        Value::Int(-1) => panic!("{call:?}: the key never expires"),
        Value::Int(at) => Some(at as u64),
        other => panic!("{other:?}"),
    });
    let now_us = match (&call.verb, reply.pop()) {
        // A reset replies with the number of removed keys, without a time.
        (Verb::Reset(_), _) => observed_us,
        (Verb::Take(_) | Verb::Penalize(..) | Verb::ChargeUsed(..), Some(Value::Array(values))) => {
            redis::from_redis_value(values[0].clone()).unwrap()
        }
        (_, Some(Value::Int(now))) => now as u64,
        (_, other) => panic!("{call:?}: {other:?}"),
    };
    CallResult { now_us, expiries: expiries.collect(), observed_ms: observed_us / 1_000 }
}

/// Returns the longest time for which the scripts may keep a key that holds no information, so that they
/// write expiries less often.
fn max_excess_us(quota: &Quota) -> u64 {
    match quota.kind() {
        Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket)) => {
            bucket.capacity * bucket.per / bucket.rate / 8 + 1
        }
        Kind::SlidingCounter(counter) => counter.window_us,
        Kind::FixedWindow(_) | Kind::SlidingLog(_) => 0,
        Kind::InFlight(_) => panic!("{quota} holds units instead of charging them"),
    }
}

/// Returns the answer of a peek.
fn peek(reference: &mut Reference, target: Target, now: u64) -> Answer {
    let items = vec![Part { target, cost: 1, max_delay: None }];
    let group = Group { n: 0, items };
    let call = Call { now_us: now, verb: Verb::Take(vec![group.clone()]) };
    let (k, before) = reference.call(&call).remove(0);
    taken(&group, &group.items[0], k, before[0], now).answer(0)
}

/// Makes random sequences of calls without pauses: all verbs in any order, on the same keys, under changing
/// limits.
#[test]
fn every_key_expires_when_it_holds_no_information() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let mut connection = script::connect(server.url());
    let mut runner = TestRunner::deterministic();
    let mut compared = 0;
    for family in Family::ALL {
        for sequence in 0..40 {
            let plan: Plan = plan::uniform(family).new_tree(&mut runner).unwrap().current();
            let keys: Vec<String> = (0..2).map(|key| format!("{family:?}:{sequence}:{key}")).collect();
            let mut reference = Reference::new(keys.len());
            for Played { mut call, .. } in plan.play() {
                // A key of one group may expire before the next group of the same call, which has the same
                // `now`. This is correct, but the test cannot predict it.
                if let Verb::Take(groups) = &mut call.verb {
                    groups.truncate(1);
                }
                let CallResult { now_us, expiries, observed_ms } = run(&mut connection, &call, &keys);
                let call = Call { now_us, ..call };
                let targets = call.targets();
                let ends_by = |reference: &Reference, ms: u64| {
                    targets.iter().any(|target| {
                        let expires_ms = reference.records[target.key].expires_ms;
                        (now_us / 1_000 - 1..=ms).contains(&expires_ms)
                    })
                };
                let was_ending = ends_by(&reference, now_us / 1_000);
                reference.call(&call);
                // A key that expires during a call may still count under another of its limits. Only the
                // server knows which key expired.
                let has_several_limits = targets.iter().any(|target| plan.keys[target.key].len() > 1);
                if has_several_limits && (was_ending || ends_by(&reference, observed_ms)) {
                    break;
                }
                for (target, expires_ms) in targets.into_iter().zip(expiries) {
                    let record = &mut reference.records[target.key];
                    let is_untouched = Left::of(record, &target.quota, now_us).is_untouched();
                    let Some(expires_ms) = expires_ms else {
                        assert!(
                            is_untouched || record.expires_ms <= observed_ms,
                            "{call:?}: the key is gone"
                        );
                        continue;
                    };
                    if !is_untouched {
                        // A denial that reads PTTL in the next millisecond may extend it.
                        let expected = record.expires_ms..=record.expires_ms + 1;
                        assert!(expected.contains(&expires_ms), "{call:?}: {expected:?}, not {expires_ms}");
                        record.expires_ms = expires_ms;
                        compared += 1;
                    }
                    if !has_several_limits {
                        let needed_until = now_us + peek(&mut reference, target, now_us).reset_after_us;
                        assert!(
                            is_untouched || expires_ms * 1_000 >= needed_until,
                            "{call:?}: expires too early"
                        );
                        let latest = needed_until.max(now_us + 1_000) + max_excess_us(&target.quota);
                        assert!((expires_ms - 1) * 1_000 < latest, "{call:?}: kept for too long");
                    }
                }
            }
        }
    }
    assert!(compared > 4_000, "only {compared} expiries were compared");
}

fn limits(limit: u64, window: Duration) -> [(&'static str, Quota); 7] {
    let rate = Rate::new(limit, window);
    [
        ("token_bucket", Quota::token_bucket(limit, rate)),
        ("leaky_bucket", Quota::leaky_bucket(limit, rate)),
        ("fixed_window", Quota::fixed_window(limit, window)),
        ("clock_window", Quota::fixed_window(limit, window).aligned_to_clock()),
        ("sliding_log", Quota::sliding_log(limit, window)),
        ("counting_log", Quota::sliding_log(limit, window).count_denied()),
        ("sliding_counter", Quota::sliding_counter(limit, window)),
    ]
}

/// Polls each key: it exists while it holds information, then it expires.
#[test]
fn idle_keys_expire_and_not_too_early() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let mut connection = script::connect(server.url());
    for (name, quota) in limits(3, Duration::from_millis(37)) {
        let keys = [name.to_owned()];
        let target = Target { key: 0, quota };
        let group = Group { n: 2, items: vec![Part { target, cost: 1, max_delay: None }] };
        let call = Call { now_us: 0, verb: Verb::Take(vec![group]) };
        let now = run(&mut connection, &call, &keys).now_us;
        let mut reference = Reference::new(1);
        reference.call(&Call { now_us: now, ..call });
        let needed_until = now + peek(&mut reference, target, now).reset_after_us;
        loop {
            let probe = redis::pipe().atomic().cmd("TIME").cmd("EXISTS").arg(&keys).cmd("TIME").to_owned();
            let (before, exists, after): ((u64, u64), bool, (u64, u64)) =
                probe.query(&mut connection).unwrap();
            let micros = |(seconds, micros): (u64, u64)| seconds * 1_000_000 + micros;
            if !exists {
                assert!(
                    micros(after) >= needed_until,
                    "{name} expired {} µs too early",
                    needed_until - micros(after)
                );
                break;
            }
            assert!(micros(before) < needed_until + max_excess_us(&quota) + 2_000, "{name} has not expired");
            sleep(Duration::from_micros(100));
        }
    }
}

/// If the clock jumps 1 h forwards, at most one additional limit is admitted. If it jumps 1 h back, no more
/// is admitted, and used units are released as fast as before.
#[tokio::test]
async fn setting_the_clock_locks_out_no_caller() {
    const LIMIT: u64 = 5;
    const HOUR_US: i64 = 3_600_000_000;
    // Long enough that no unit is released during the checks. Divides the hour, so that an aligned window
    // begins wherever the clock is set to.
    let window = Duration::from_secs(1_200);
    let server = tidegate_testkit::Server::with_shiftable_clock().unwrap();
    let builder = Limiter::builder().url(server.url()).deadline(Duration::from_secs(5));
    // The local denial cache does not observe the clock of the server.
    let limiter = builder.deny_cache(Duration::ZERO).build().unwrap();
    let gates = limits(LIMIT, window).map(|(name, quota)| limiter.gate(name, quota));
    let admitted = async |gate: &Gate, checks: u64| {
        let mut count = 0;
        for _ in 0..checks {
            count += u64::from(gate.check("user").await.unwrap().is_allowed());
        }
        count
    };
    let now_us = gates[0].peek("user").await.unwrap().server_now_us();
    let window_us = u64::try_from(window.as_micros()).unwrap();
    server.shift_clock(i64::try_from(window_us - now_us % window_us).unwrap());
    for gate in &gates {
        assert_eq!(admitted(gate, LIMIT).await, LIMIT, "{gate:?}");
    }

    server.shift_clock(HOUR_US);
    for gate in &gates {
        assert_eq!(admitted(gate, LIMIT + 1).await, LIMIT, "{gate:?}: after a jump forwards");
    }

    server.shift_clock(-HOUR_US);
    // The window of a counter must become the previous one first.
    let normal = |gate: &Gate| if gate.name() == Some("sliding_counter") { 2 * window } else { window };
    let mut longest = Duration::ZERO;
    for gate in &gates {
        let denied = gate.check("user").await.unwrap();
        assert!(!denied.is_allowed(), "{gate:?}: a jump back freed units");
        assert!(denied.retry_after() <= normal(gate), "{gate:?}: {denied}");
        assert!(denied.reset_after() <= normal(gate), "{gate:?}: {denied:?}");
        longest = longest.max(denied.reset_after());
    }
    server.shift_clock(i64::try_from(longest.as_micros()).unwrap());
    for gate in &gates {
        assert_eq!(gate.peek("user").await.unwrap().remaining(), LIMIT, "{gate:?}");
        assert!(gate.check("user").await.unwrap().is_allowed(), "{gate:?}");
    }
}
