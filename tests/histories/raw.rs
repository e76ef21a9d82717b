//! Runs scripts without a limiter, unchanged or with a planted mistake, from many clients at once.

use std::sync::Barrier;

use redis::{Connection, Value};
use tidegate::Quota;
use tidegate::algorithm::RawState;
use tidegate::reference::{Before, Taken};

use crate::support::load::now_us;

use super::checker::Answered;

const CLIENTS: usize = 4;
const CHECKS_PER_CLIENT: usize = 250;

/// Returns the history of several clients that check one key at once.
pub fn history(url: &str, quota: &Quota, key: &str, change: impl Fn(&str) -> String) -> Vec<Answered> {
    let text = change(quota.kind().definition().scripts.take.text);
    let start = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        let client = || {
            let mut redis = redis::Client::open(url).unwrap().get_connection().unwrap();
            start.wait();
            (0..CHECKS_PER_CLIENT).map(|_| check(&mut redis, &text, quota, key)).collect::<Vec<_>>()
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

fn check(redis: &mut Connection, text: &str, quota: &Quota, key: &str) -> Answered {
    let mut eval = redis::cmd("EVAL");
    eval.arg(text).arg(1).arg(key).arg(&quota.kind().args()).arg(1).arg(1).arg("").arg("");
    let called_us = now_us();
    let reply: Vec<Value> = eval.query(redis).unwrap();
    let returned_us = now_us();
    let mut numbers = reply.iter().map(|value| match value {
        Value::Int(number) => *number,
        other => panic!("{other:?} in {reply:?}"),
    });
    let now = numbers.next().unwrap().unsigned_abs();
    // A negative number encodes how many checks were admitted. Otherwise all were.
    let mut numbers = numbers.peekable();
    let k = numbers.next_if(|number| *number < 0).map_or(1, |number| (-1 - number).unsigned_abs());
    let mut raw = RawState::default();
    raw.iter_mut().zip(numbers).for_each(|(field, number)| *field = u64::try_from(number).unwrap());
    let before = Before { blocked_until_us: 0, raw };
    let taken = Taken { quota, cost: 1, max_delay: None, n: 1, k, before, now };
    Answered { called_us, returned_us, now_us: now, answer: taken.answer(0) }
}

/// One charge in five is reported but not written. Each row: algorithm, original text, replacement.
pub const LOST_CHARGE: [(&str, &str, &str); 5] = [
    ("token_bucket", "call('HSET', key, ", "local _ = (now % 5 == 0 and type or call)('HSET', key, "),
    ("leaky_bucket", "call('HSET', key, ", "local _ = (now % 5 == 0 and type or call)('HSET', key, "),
    (
        "fixed_window",
        "local after = try('INCRBY', key, text) + 0",
        "local after = try('INCRBY', key, text) + 0; if now % 5 == 0 then call('DECRBY', key, text) end",
    ),
    (
        "sliding_log",
        "call('ZADD', key, stamp, ",
        "local _ = (now % 5 == 0 and type or call)('ZADD', key, stamp, ",
    ),
    ("sliding_counter", "call('HSET', key, ", "local _ = (now % 5 == 0 and type or call)('HSET', key, "),
];

/// Returns an original text and its replacement, with which one check in five reads the state from before the
/// last write.
pub fn stale_read(algorithm: &str) -> (&'static str, &'static str) {
    match algorithm {
        // This script reads with INCRBY, which also writes, so the replacement changes the reply.
        "fixed_window" => (
            "try('INCRBY', key, text) + 0",
            "math.max(1, try('INCRBY', key, text) - (now % 5 == 0 and 1 or 0))",
        ),
        _ => STALE_READ,
    }
}

const STALE_READ: (&str, &str) = (
    "local now = time[1] * 1000000 + time[2]\n",
    "local now = time[1] * 1000000 + time[2]
local reads = { HGET = 1, ZRANGE = 1, ZREVRANGE = 1, ZRANGEBYSCORE = 1, ZREVRANGEBYSCORE = 1 }
local writes = { HSET = 1, ZADD = 1 }
local function through(run)
  return function(command, key, ...)
    if writes[command] then redis.call('COPY', key, key .. ':before', 'REPLACE') end
    local is_stale = reads[command] and now % 5 == 0 and redis.call('EXISTS', key .. ':before') == 1
    return run(command, is_stale and key .. ':before' or key, ...)
  end
end
call = through(redis.call)
",
);

/// The reply reports another time than the time of the decision.
pub const WRONG_CLOCK: (&str, &str) =
    ("local reply, take_slow = { now }", "local reply, take_slow = { now - 5000 }");
