//! Runs the scripts for tests: by calls of [`plan`](crate::plan), either unmodified or as a test build whose
//! clock and expiries the test controls.
//!
//! In the test build, functions replace the commands that read the clock or handle expiry. They use the clock
//! in the last argument. Everything else is unmodified.

use std::collections::HashMap;

use redis::{Connection, ConnectionLike, Value};
use tidegate::Quota;
use tidegate::algorithm::{GROUP, all_scripts};
use tidegate::algorithm::{Kind, LeakyBucket, LogEntry, RawState, State, Storage};
use tidegate::reference::{Before, Record};
use tidegate::script::{self, Script};

use crate::plan::{Call, Group, Outcome, Target, Verb};

/// Each replaced command, and the function that replaces it.
const REPLACED: [(&str, &str); 7] = [
    ("call('TIME')", "test_time()"),
    ("call('PEXPIREAT', ", "test_pexpireat("),
    ("call('PEXPIRETIME', ", "test_pexpiretime("),
    ("call('PTTL', ", "test_pttl("),
    ("call('SET', ", "test_set("),
    ("redis.call('UNLINK', ", "test_unlink("),
    ("call('UNLINK', ", "test_unlink("),
];

/// Stores expiries beside each key, so that only the test's clock applies to them. A key that is removed
/// takes its expiry with it, as in Redis.
const BEFORE: &str = r"
local test_now_us = tonumber(ARGV[#ARGV])
ARGV[#ARGV] = nil
local test_now_ms = math.floor(test_now_us / 1000)
local function test_at(key) return key .. ':expires' end
local function test_unlink(key) return redis.call('DEL', key, test_at(key)) end
local function test_time()
  return { string.format('%.0f', math.floor(test_now_us / 1000000)), string.format('%.0f', test_now_us % 1000000) }
end
local function test_pexpireat(key, text)
  assert(string.find(text, '^%d+$'), text)
  local at = tonumber(text)
  if redis.call('EXISTS', key) == 0 then return 0 end
  if at <= test_now_ms then return test_unlink(key) end
  redis.call('SET', test_at(key), text)
end
local function test_pexpiretime(key)
  if redis.call('EXISTS', key) == 0 then return -2 end
  return tonumber(redis.call('GET', test_at(key)) or -1)
end
local function test_set(key, text)
  test_unlink(key)
  redis.call('SET', key, text)
end
local function test_pttl(key)
  if redis.call('EXISTS', key) == 0 then return -2 end
  local at = redis.call('GET', test_at(key))
  return at and at - test_now_ms or -1
end
for _, key in ipairs(KEYS) do
  local at = redis.call('GET', test_at(key))
  if at and (test_now_ms > tonumber(at) or redis.call('EXISTS', key) == 0) then test_unlink(key) end
end
local function script()
";

/// Replies with the script's reply, then with the state that it left at each key.
const AFTER: &str = r"
end
local reply = { script() }
for _, key in ipairs(KEYS) do
  local kind, found = redis.call('TYPE', key).ok, {}
  if kind == 'string' then found = { 'used', redis.call('GET', key) } end
  if kind == 'hash' then found = redis.call('HGETALL', key) end
  if kind == 'zset' then found = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  reply[#reply + 1] = found
  reply[#reply + 1] = kind ~= 'none' and redis.call('GET', test_at(key)) or ''
end
return reply
";

/// Returns the test build, and the number of replacements for each of [`REPLACED`].
pub fn test_build(production: &str) -> (String, [usize; 7]) {
    let mut text = production.to_owned();
    let counts = REPLACED.map(|(command, function)| {
        let count = text.matches(command).count();
        text = text.replace(command, function);
        count
    });
    (prepend(BEFORE, &text) + AFTER, counts)
}

/// Returns a script with a text before it: after its first line if that has flags.
pub fn prepend(before: &str, script: &str) -> String {
    let flags =
        script.starts_with("#!").then(|| script.split_inclusive('\n').next()).flatten().unwrap_or_default();
    format!("{flags}{before}{}", &script[flags.len()..])
}

/// The test builds of all scripts, loaded into a server.
pub struct TestScripts {
    connection: Connection,
    digests: HashMap<&'static str, String>,
    /// Keeps the keys of concurrent sequences apart.
    prefix: String,
}

/// The reply of a call, and the state that it left on the server.
#[derive(Clone, Debug)]
pub struct Observed {
    /// One outcome for each group of a take.
    pub outcomes: Vec<Outcome>,
    pub left: Vec<Left>,
}

/// The state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub held: Held,
    pub blocked_until_us: u64,
    /// `None` if the key has no expiry or does not exist.
    pub expires_ms: Option<u64>,
    pub exists: bool,
}

/// A state as stored, or `Untouched` if the two are equivalent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    State(State),
    /// The entries in the window.
    Log(Vec<LogEntry>),
}

impl TestScripts {
    pub fn load(url: &str) -> Self {
        Self::load_changed(url, |text| text)
    }

    /// Loads the scripts after a change to the text of each.
    pub fn load_changed(url: &str, change: impl Fn(String) -> String) -> Self {
        let mut connection = connect(url);
        let digests = all_scripts()
            .map(|script| {
                let (text, _) = test_build(&change(script.text.to_owned()));
                let digest: String =
                    redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).unwrap();
                (script.name, digest)
            })
            .collect();
        let prefix = format!("exact:{}", rand::random::<u64>());
        Self { connection, digests, prefix }
    }

    /// Runs a sequence on untouched keys, in one round trip.
    ///
    /// The clock of the client stands since the previous call. So a call in calendar windows that have begun since, or
    /// that a step back of the server's clock has left, is first sent for the previous ones, and must be refused. So
    /// must a call whose callers have given up.
    pub fn run<'a>(
        &mut self,
        keys: usize,
        calls: impl Iterator<Item = &'a Call>,
    ) -> Vec<Result<Observed, String>> {
        let keys: Vec<String> = (0..keys).map(|key| format!("{}:{key}", self.prefix)).collect();
        let mut pipe = redis::pipe();
        pipe.cmd("DEL").arg(&keys);
        let calls: Vec<&Call> = calls.collect();
        let mut client_us = calls.first().map_or(0, |call| call.now_us);
        let mut refusals = Vec::new();
        for call in &calls {
            let is_outside = is_in_other_windows(call, client_us);
            for now_us in is_outside.then_some(client_us).into_iter().chain([call.now_us]) {
                let (script, named, mut args) = arguments_at(call, &keys, now_us);
                let mut send = |args: &[String]| {
                    let digest = &self.digests[script.name];
                    pipe.cmd("EVALSHA").arg(digest).arg(named.len()).arg(&named).arg(args).arg(call.now_us);
                };
                if script.is_bounded {
                    *args.last_mut().unwrap() = call.now_us.to_string();
                    send(&args);
                    refusals.push((call.now_us, "LATE"));
                    *args.last_mut().unwrap() = (call.now_us + 1).to_string();
                }
                send(&args);
                refusals.push((call.now_us, if now_us == call.now_us { "" } else { "SPAN" }));
            }
            client_us = call.now_us;
        }
        let packed = pipe.get_packed_pipeline();
        let replies = self.connection.req_packed_commands(&packed, 0, 1 + refusals.len()).unwrap();
        let mut calls = calls.into_iter();
        let mut results = Vec::new();
        let mut refused = Ok(());
        for (reply, (now_us, word)) in replies.into_iter().skip(1).zip(refusals) {
            if word.is_empty() {
                let call = calls.next().unwrap();
                results.push(std::mem::replace(&mut refused, Ok(())).and_then(|()| observed(call, reply)));
            } else {
                refused = refused.and_then(|()| assert_refused(word, now_us, &reply));
            }
        }
        results
    }
}

/// Returns whether one of the call's calendar windows is another one at `now_us`.
fn is_in_other_windows(call: &Call, now_us: u64) -> bool {
    let is_reset = matches!(call.verb, Verb::Reset(_));
    let mut calendars = call.targets().into_iter().filter_map(|target| target.quota.calendar());
    !is_reset && calendars.any(|calendar| calendar.window_at(now_us) != calendar.window_at(call.now_us))
}

/// Returns an error unless the reply, which the states of the keys follow, is a refusal with the server's time.
fn assert_refused(word: &str, now_us: u64, reply: &Value) -> Result<(), String> {
    let refusal = Value::BulkString(format!("{word} {now_us}").into_bytes());
    match reply {
        Value::Array(values) if values.first() == Some(&refusal) => Ok(()),
        _ => Err(format!("not refused: {reply:?}")),
    }
}

pub fn connect(url: &str) -> Connection {
    redis::Client::open(url).unwrap().get_connection().unwrap()
}

/// Returns whether a script takes a bound as its last argument.
pub fn is_bounded(name: &str) -> bool {
    all_scripts().any(|script| script.name == name && script.is_bounded)
}

/// Returns the script that the Redis store would call, and its KEYS and ARGV.
pub fn arguments<'k>(call: &Call, keys: &'k [String]) -> Arguments<'k> {
    arguments_at(call, keys, call.now_us)
}

/// Returns the arguments of a client for which it is `now_us`.
fn arguments_at<'k>(call: &Call, keys: &'k [String], now_us: u64) -> Arguments<'k> {
    let targets = call.targets();
    let named = targets.iter().map(|target| keys[target.key].as_str()).collect();
    let quota = targets[0].quota;
    let mut args: Vec<String> = quota.kind().args_at(now_us).map(|arg| arg.to_string()).into();
    let script = match &call.verb {
        Verb::Take(groups) => {
            let is_uniform =
                groups.iter().all(|group| group.items.len() == 1 && group.items[0].target.quota == quota);
            if !is_uniform {
                return in_span(&GROUP, &targets, named, group_arguments(groups, now_us), now_us);
            }
            let mut requests: Vec<_> = groups
                .iter()
                .map(|group| {
                    let item = &group.items[0];
                    [group.n.to_string(), item.cost.to_string(), text(item.max_delay)]
                })
                .collect();
            if requests.iter().all(|other| *other == requests[0]) {
                requests.truncate(1);
            }
            args.extend(requests.into_iter().flatten());
            &quota.kind().definition().scripts.take
        }
        Verb::Penalize(_, units) => {
            args.push(units.to_string());
            quota.kind().definition().scripts.penalize.as_ref().unwrap()
        }
        Verb::ChargeUsed(_, units, most) => {
            args.extend([units.to_string(), most.to_string()]);
            quota.kind().definition().scripts.charge_used.as_ref().unwrap()
        }
        Verb::Refund(_, units, stamp) => {
            args.extend([units.to_string(), text(*stamp)]);
            quota.kind().definition().scripts.refund.as_ref().unwrap()
        }
        Verb::Block(_, for_us) => {
            let is_block_a_member = quota.kind().definition().storage == Storage::Log;
            args.extend([for_us.to_string(), u8::from(is_block_a_member).to_string()]);
            &quota.kind().definition().scripts.block
        }
        Verb::Reset(_) => return (&script::RESET, named, args),
    };
    in_span(script, &targets[..1], named, args, now_us)
}

type Arguments<'k> = (&'static Script, Vec<&'k str>, Vec<String>);

/// Adds the span of a call with calendar windows.
fn in_span<'k>(
    script: &'static Script,
    targets: &[Target],
    named: Vec<&'k str>,
    args: Vec<String>,
    now_us: u64,
) -> Arguments<'k> {
    let (script, mut args) = match span(targets.iter().map(|target| target.quota), now_us) {
        None => (script, args),
        Some(span) => (script.in_span(), [args, span.to_vec()].concat()),
    };
    if script.is_bounded {
        args.push(String::new());
    }
    (script, named, args)
}

/// Returns the last arguments of a call with these quotas, if one of them is a calendar window: the times that are
/// in the same windows.
pub fn span(quotas: impl IntoIterator<Item = Quota>, now_us: u64) -> Option<[String; 2]> {
    let windows = quotas.into_iter().filter_map(|quota| quota.calendar()).map(|it| it.window_at(now_us));
    let span = windows.reduce(|one, other| one.start.max(other.start)..one.end.min(other.end))?;
    Some([span.start.to_string(), span.end.to_string()])
}

fn text(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

/// Returns the arguments of `group.lua`, with one quota for each item. A repeated quota changes nothing.
pub fn group_arguments(groups: &[Group], now_us: u64) -> Vec<String> {
    let items = || groups.iter().flat_map(|group| &group.items);
    let mut args = vec![items().count().to_string()];
    for item in items() {
        let quota = item.target.quota;
        args.push(quota.algorithm().to_owned());
        args.extend(quota.kind().args_at(now_us).map(|arg| arg.to_string()));
    }
    let mut quota = 0;
    for group in groups {
        args.extend([group.n.to_string(), group.items.len().to_string()]);
        for item in &group.items {
            quota += 1;
            args.extend([quota.to_string(), item.cost.to_string(), text(item.max_delay)]);
        }
    }
    args
}

fn observed(call: &Call, reply: Value) -> Result<Observed, String> {
    let Value::Array(values) = reply else { return Err(format!("{reply:?}")) };
    let mut values = values.into_iter();
    let reply = values.next().ok_or("an empty reply")?;
    let outcomes = match (&call.verb, reply) {
        (Verb::Take(groups), reply) => outcomes(groups, call.now_us, &reply)?,
        (Verb::Reset(_), Value::Int(_)) => Vec::new(),
        (_, Value::Int(now)) if now as u64 == call.now_us => Vec::new(),
        // The stamp of a charge to a fixed window is the end of the window.
        (Verb::Penalize(..), Value::Array(values)) => match values[..] {
            [Value::Int(now), Value::Int(stamp)] if now as u64 == call.now_us && stamp > now => Vec::new(),
            _ => return Err(format!("{values:?}")),
        },
        (Verb::ChargeUsed(..), Value::Array(values)) => {
            let numbers: Vec<u64> =
                redis::from_redis_value(Value::Array(values)).map_err(|error| error.to_string())?;
            match numbers[..] {
                [now, charged, blocked_until_us, a, b, c] if now == call.now_us => {
                    vec![(charged, vec![Before { blocked_until_us, raw: [a, b, c] }])]
                }
                _ => return Err(format!("{numbers:?}")),
            }
        }
        (_, other) => return Err(format!("{other:?}")),
    };
    let left = call
        .targets()
        .iter()
        .map(|target| {
            let mut next = || values.next().ok_or("a short reply");
            let fields: Vec<String> = redis::from_redis_value(next()?).map_err(|error| error.to_string())?;
            let expires: String = redis::from_redis_value(next()?).map_err(|error| error.to_string())?;
            left(&target.quota, &fields, expires.parse().ok(), call.now_us)
                .map_err(|error| format!("{error}, which expires at {expires}"))
        })
        .collect::<Result<_, String>>()?;
    Ok(Observed { outcomes, left })
}

/// Parses a reply in the format that the headers of `take.lua` and `group.lua` define.
pub fn outcomes(groups: &[Group], now: u64, reply: &Value) -> Result<Vec<Outcome>, String> {
    let Value::Array(values) = reply else { return Err(format!("{reply:?}")) };
    let mut values = values.iter();
    let mut signed = || match values.next() {
        Some(Value::Int(number)) => Ok(*number),
        other => Err(format!("{other:?} in {reply:?}")),
    };
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| format!("{number} in {reply:?}"));
    if unsigned(signed()?)? != now {
        return Err(format!("another time in {reply:?}"));
    }
    let mut outcomes = Vec::new();
    for group in groups {
        // A negative first number encodes how many were admitted. Otherwise all were.
        let (k, mut first) = match signed()? {
            first @ 0.. => (group.n, Some(first)),
            k => (unsigned(-1 - k)?, None),
        };
        let mut before = Vec::new();
        for item in &group.items {
            let mut raw = RawState::default();
            let first = first.take().map_or_else(&mut signed, Ok)?;
            let is_blocked = first < 0;
            raw[0] = unsigned(if is_blocked { -1 - first } else { first })?;
            let blocked_until_us = if is_blocked { unsigned(signed()?)? } else { 0 };
            for number in raw.iter_mut().take(item.target.quota.kind().fields()).skip(1) {
                *number = unsigned(signed()?)?;
            }
            before.push(Before { blocked_until_us, raw });
        }
        outcomes.push((k, before));
    }
    match values.next() {
        None => Ok(outcomes),
        Some(_) => Err(format!("a longer reply: {reply:?}")),
    }
}

/// Parses a state, and the time until which its key is blocked. A plain count ends when its key expires.
fn parsed(quota: &Quota, text: &str, expires_ms: Option<u64>) -> Option<(State, u64)> {
    let (state, blocked) = match text.split_once(" blocked until ") {
        Some((state, blocked)) => (state, blocked.parse().ok()?),
        None => (text, 0),
    };
    let state = match quota.kind() {
        Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket)) => level(state, bucket.per)?,
        Kind::FixedWindow(_) => {
            let (used, end_ms) = match state.split_once(" until ") {
                Some((used, end)) => (used, end.strip_suffix("000")?.parse().ok()?),
                None => (state, expires_ms?),
            };
            State::Window { used: used.parse().ok()?, end_ms }
        }
        Kind::SlidingCounter(_) => {
            let (counts, start) = state.split_once(" since ")?;
            let (current, previous) = counts.split_once('+')?;
            State::Counter {
                current: current.parse().ok()?,
                previous: previous.parse().ok()?,
                start_us: start.parse().ok()?,
            }
        }
        Kind::SlidingLog(_) | Kind::InFlight(_) => return None,
    };
    Some((state, blocked))
}

/// Parses `ticks/per of capacity, rate/us at us`. Converts the ticks to those of a quota with `per` ticks per
/// unit.
fn level(text: &str, per: u64) -> Option<State> {
    let (ticks, rest) = text.split_once('/')?;
    let (their_per, rest) = rest.split_once(" of ")?;
    let (capacity, rest) = rest.split_once(", ")?;
    let (rate, at) = rest.split_once("/us at ")?;
    let (mut ticks, their_per): (u64, u64) = (ticks.parse().ok()?, their_per.parse().ok()?);
    if their_per != per {
        ticks = (ticks as f64 / their_per as f64 * per as f64 + 0.5).floor() as u64;
    }
    let by = [capacity.parse().ok()?, rate.parse().ok()?, per];
    // A level above the largest debt is read as the largest debt.
    Some(State::Level { ticks: ticks.min(1 << 49), by, at_us: at.parse().ok()? })
}

/// Parses HGETALL or ZRANGE … WITHSCORES.
pub fn left(quota: &Quota, fields: &[String], expires_ms: Option<u64>, now: u64) -> Result<Left, String> {
    let garbage = || format!("garbage in {fields:?}");
    let pairs: HashMap<&str, &str> = fields.chunks(2).map(|pair| (&*pair[0], &*pair[1])).collect();
    let field = |name: &str| match pairs.get(name) {
        Some(value) => value.parse::<u64>().map_err(|_| garbage()),
        None => Ok(0),
    };
    let (blocked, held) = match quota.kind() {
        Kind::SlidingLog(log) => {
            let entry = |pair: &[String]| {
                let (total, units) = pair[0].split_once(':')?;
                let at_us = pair[1].parse().ok()?;
                Some(LogEntry { at_us, total: total.parse().ok()?, units: units.parse().ok()? })
            };
            let entries = fields.chunks(2).filter(|pair| pair[0] != "block").map(entry);
            let entries = entries.collect::<Option<Vec<_>>>().ok_or_else(garbage)?;
            let live = entries.into_iter().filter(|entry| entry.at_us + log.window_us > now).collect();
            (field("block")?, Held::Log(live))
        }
        _ => {
            let (state, blocked) = match pairs.get("used") {
                Some(text) => parsed(quota, text, expires_ms).ok_or_else(garbage)?,
                None => (State::Untouched, 0),
            };
            (blocked, Held::State(state))
        }
    };
    Ok(Left {
        held: held.canonical(quota, now),
        blocked_until_us: if blocked > now { blocked } else { 0 },
        expires_ms,
        exists: !fields.is_empty(),
    })
}

impl Left {
    /// Returns the state that the reference left.
    pub fn of(record: &Record, quota: &Quota, now: u64) -> Self {
        let held = match (quota.kind(), &record.state) {
            (Kind::SlidingLog(log), State::Log(entries)) => {
                Held::Log(entries.live(log.window_us, now).collect())
            }
            (_, state) => Held::State(state.clone()),
        };
        let blocked = record.blocked_until_us;
        Self {
            held: held.canonical(quota, now),
            blocked_until_us: if blocked > now { blocked } else { 0 },
            expires_ms: Some(record.expires_ms),
            exists: true,
        }
    }

    /// Returns whether the key can be removed without losing state.
    pub fn is_untouched(&self) -> bool {
        self.held == Held::State(State::Untouched) && self.blocked_until_us == 0
    }
}

impl Held {
    fn canonical(self, quota: &Quota, now: u64) -> Self {
        let algorithm = quota.kind().algorithm();
        match self {
            Self::Log(entries) if entries.is_empty() => Self::State(State::Untouched),
            Self::Log(entries) => Self::Log(entries),
            Self::State(state) => {
                if algorithm.reset_after(algorithm.settle(&state, now), now) == 0 {
                    return Self::State(State::Untouched);
                }
                Self::State(match state {
                    // Converts to ticks of this limit, since another limit may have written the level.
                    State::Level { at_us, .. } => {
                        let [ticks, ..] = algorithm.settle(&state, at_us);
                        State::Level { ticks, by: [0; 3], at_us }
                    }
                    other => other,
                })
            }
        }
    }
}
