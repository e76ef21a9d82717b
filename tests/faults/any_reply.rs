//! Arbitrary bytes as a reply, as the state of a key, or as the key itself cause no panic, only an error that
//! names the problem. To run longer: `TIDEGATE_FUZZ_SECONDS=3600 cargo test --all-features --test integration any_`.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tidegate::{Error, Gate, Limiter, OnFailure, Quota};
use tokio::runtime::Runtime;

use super::scene::Scene;
use crate::support::fixture::{HOUR, builder, quotas, soon};
use crate::support::wire::Answer;

/// Runs 200 cases, and repeats that until the time in the environment variable is over.
fn for_any<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seconds = std::env::var("TIDEGATE_FUZZ_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
    let (start, mut cases) = (Instant::now(), 0);
    watch_panics();
    loop {
        let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
        cases += config.cases;
        TestRunner::new(config).run(&strategy, &test).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(PANICS.get(), 0, "a task panicked");
        if start.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
    }
    eprintln!("{cases} cases");
}

thread_local! {
    /// Counts the panics of this thread. A panic in a task does not end the test by itself.
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

fn watch_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.set(PANICS.get() + 1);
        before(info);
    }));
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn all_quotas() -> Vec<(&'static str, Quota)> {
    let counting = ("counting", Quota::sliding_log(1_000, 24 * HOUR).count_denied());
    quotas(1_000, 24 * HOUR).into_iter().chain([counting]).collect()
}

/// Makes every kind of call to a gate.
async fn check_all(limiter: &Limiter, gate: &Gate, key: &[u8]) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut record = |error: Option<Error>| errors.extend(error);
    record(gate.check(key).await.err());
    record(gate.check_cost(key, 1_000).await.err());
    record(gate.peek(key).await.err());
    record(gate.until_allowed(key, Duration::ZERO).await.err());
    record(gate.reserve(key, 2).await.err());
    record(gate.refund(key, 3).await.err());
    record(gate.penalize(key, 4).await.err());
    record(gate.block(key, Duration::from_millis(1)).await.err());
    record(gate.unblock(key).await.err());
    gate.check_many([key, b"other", key]).await.into_iter().for_each(|result| record(result.err()));
    record(limiter.check_all([gate.key(key), gate.key("other").cost(2)]).await.err());
    errors
}

/// Generates replies in the scripts' format, with plausible numbers and numbers near the limits.
fn numbers() -> impl Strategy<Value = Vec<u8>> {
    const NOW: i64 = 1_700_000_000_000_000;
    let number = prop_oneof![
        Just(NOW),
        Just(0i64),
        Just(1i64),
        -3..1_100i64,
        NOW - 90_000_000_000..NOW + 90_000_000_000,
        proptest::sample::select(vec![i64::MIN, i64::MAX, 1 << 49, 1 << 52, 1 << 53, -(1 << 53)]),
        any::<i64>(),
    ];
    (Just(NOW), proptest::collection::vec(number, 0..12)).prop_map(|(now, numbers)| {
        let mut reply = format!("*{}\r\n:{now}\r\n", numbers.len() + 1);
        numbers.iter().for_each(|number| reply += &format!(":{number}\r\n"));
        reply.into_bytes()
    })
}

/// Generates RESP 2 and RESP 3 values of any shape.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let line = "[ -~]{0,12}";
    let leaf = prop_oneof![
        any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
        line.prop_map(|text| format!("+{text}\r\n").into_bytes()),
        line.prop_map(|text| format!("-{text}\r\n").into_bytes()),
        "(READONLY|LOADING|NOSCRIPT|OOM|MOVED|ASK|TRYAGAIN|BUSY|STATE|ERR) [ -~]{0,9}"
            .prop_map(|text| format!("-{text}\r\n").into_bytes()),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| [
            format!("${}\r\n", bytes.len()).as_bytes(),
            &bytes,
            b"\r\n"
        ]
        .concat()),
        "(READONLY|2 LOADING|OOM|STATE|STATE used|WRONGTYPE|9 STATE x|0 |1|-) ?[ -~]{0,9}"
            .prop_map(|text| format!("${}\r\n{text}\r\n", text.len()).into_bytes()),
        proptest::sample::select(vec![
            "$-1",
            "*-1",
            "*0",
            "_",
            "#t",
            "#x",
            ",nan",
            ",1e99",
            "(12345678901234567890",
            "%-1",
            "~0"
        ])
        .prop_map(|text| format!("{text}\r\n").into_bytes()),
    ];
    leaf.prop_recursive(4, 24, 6, |inner| {
        (proptest::sample::select(b"*~>%|".to_vec()), proptest::collection::vec(inner, 0..6)).prop_map(
            |(kind, values)| {
                let length = if matches!(kind, b'%' | b'|') { values.len() / 2 } else { values.len() };
                [&[kind], format!("{length}\r\n").as_bytes(), &values.concat()].concat()
            },
        )
    })
}

fn any_reply() -> impl Strategy<Value = Vec<u8>> {
    let lengths = proptest::sample::select(vec![
        "*99999999999",
        "$99999999999",
        "%9223372036854775807",
        "*9223372036854775807",
        "=-1",
        "!-1",
        "$9223372036854775807",
        "|9223372036854775807",
    ]);
    prop_oneof![
        8 => numbers(),
        4 => value(),
        1 => proptest::collection::vec(any::<u8>(), 0..64),
        // Truncated.
        1 => (value(), any::<proptest::sample::Index>()).prop_map(|(bytes, at)| bytes[..at.index(bytes.len())].to_vec()),
        // With a length longer than any real reply.
        1 => (lengths, value()).prop_map(|(length, rest)| [length.as_bytes(), b"\r\n", &rest].concat()),
        // Nested deeper than any real reply.
        1 => (1..400usize).prop_map(|depth| "*1\r\n".repeat(depth).into_bytes()),
    ]
}

#[test]
fn any_reply_is_a_decision_or_a_clear_error() {
    let scene = Scene::new(&[], Duration::from_millis(20));
    let runtime = runtime();
    for_any((any_reply(), 0..all_quotas().len(), any::<bool>()), |(reply, quota, batching)| {
        runtime.block_on(async {
            let settings = |builder: tidegate::Builder| {
                builder.on_failure(OnFailure::Error).breaker(false).batching(batching)
            };
            let limiter = scene.limiter(settings);
            let (name, quota) = all_quotas()[quota];
            let gate = limiter.gate(name, quota);
            scene.wire.answer(Answer::Say(reply));
            for error in check_all(&limiter, &gate, b"user:42:secret").await {
                let text = error.to_string();
                prop_assert!(error.is_unavailable() || error.is_corrupt_state(), "{}", text);
                prop_assert!(text.len() > 40 && !text.contains("user:42"), "{}", text);
            }
            scene.wire.answer(Answer::OfServer);
            soon("Redis decides again", async || gate.peek("key").await.is_ok()).await;
            Ok(())
        })
    });
}

/// Generates bytes that a field might hold.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let number = "-?[0-9]{1,17}(\\.[0-9]{1,3})?|nan|-?inf|1e[0-9]{1,3}|0x[0-9a-f]{1,3}| [0-9]|[0-9]:[0-9]";
    let level = "[0-9]{1,16}/[0-9]{1,16} of [0-9]{1,16}, [0-9]{1,16}/us at [0-9]{1,17}";
    let count = "[0-9]{1,17}((\\+[0-9]{1,17})? since| until) [0-9]{1,17}";
    let text = format!("({number}|({level}|{count})( blocked until [0-9]{{1,17}})?)");
    let text = proptest::string::string_regex(&text).unwrap();
    prop_oneof![text.prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 0..24)]
}

#[derive(Clone, Debug)]
enum StoredState {
    Text(Vec<u8>),
    Hash(Vec<(String, Vec<u8>)>),
    Log(Vec<(f64, Vec<u8>)>),
}

fn stored_state() -> impl Strategy<Value = StoredState> {
    let field = "used|x";
    let score = prop_oneof![-5.0..5e15, proptest::sample::select(vec![f64::INFINITY, -1e300, 1.5, 0.0])];
    let member = prop_oneof![content(), "[0-9]{16}:[0-9]{1,4}|block".prop_map(String::into_bytes)];
    prop_oneof![
        3 => content().prop_map(StoredState::Text),
        4 => proptest::collection::vec((field, content()), 1..5).prop_map(StoredState::Hash),
        4 => proptest::collection::vec((score, member), 1..6).prop_map(StoredState::Log),
    ]
}

impl StoredState {
    fn put(&self, key: &str, redis: &mut redis::Connection) {
        redis::cmd("DEL").arg(key).exec(redis).unwrap();
        let mut put = redis::Cmd::new();
        match self {
            Self::Text(text) => drop(put.arg("SET").arg(key).arg(text)),
            Self::Hash(fields) => drop(put.arg("HSET").arg(key).arg(fields)),
            Self::Log(entries) => {
                put.arg("ZADD").arg(key);
                for (score, member) in entries {
                    put.arg(score).arg(member);
                }
            }
        }
        put.exec(redis).unwrap_or_else(|error| panic!("{self:?}: {error}"));
    }
}

#[test]
fn any_state_is_read_or_a_clear_error_and_reset_repairs_it() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let runtime = runtime();
    let limiter =
        runtime.block_on(async { builder(server.url()).deny_cache(Duration::ZERO).build().unwrap() });
    let redis = RefCell::new(crate::support::script::connect(server.url()));
    let key = proptest::collection::vec(any::<u8>(), 0..40);
    for_any((key, stored_state(), 0..all_quotas().len()), |(key, stored_state, quota)| {
        let (name, quota) = all_quotas()[quota];
        let gate = limiter.gate(name, quota);
        stored_state.put(&gate.redis_key(&key).unwrap(), &mut redis.borrow_mut());
        runtime.block_on(async {
            for error in check_all(&limiter, &gate, &key).await {
                prop_assert!(error.is_corrupt_state(), "{}", error);
                prop_assert_eq!(error.key(), Some(&*key));
            }
            gate.reset(&key).await.unwrap();
            gate.reset("other").await.unwrap();
            prop_assert_eq!(gate.peek(&key).await.unwrap().remaining(), quota.limit());
            Ok(())
        })
    });
}
