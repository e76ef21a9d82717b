//! Bad input is rejected with an error that names the problem and the remedy, and changes no state.

use std::time::Duration;

use tidegate::algorithm::Storage;
use tidegate::{Error, Gate, KeyMode, Limiter, Quota, Rate};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, builder, closed_port, limiter, quotas};

const KEY: &str = "user:42:secret";

/// The classes that an error reports through its methods.
#[derive(Debug, PartialEq, Eq)]
enum ErrorClass {
    Config,
    OverCapacity,
    Corrupt,
    Unavailable,
    Timeout,
}

fn classes(error: &Error) -> Vec<ErrorClass> {
    let candidates = [
        (error.is_config(), ErrorClass::Config),
        (error.is_over_capacity(), ErrorClass::OverCapacity),
        (error.is_corrupt_state(), ErrorClass::Corrupt),
        (error.is_unavailable() && !error.is_timeout(), ErrorClass::Unavailable),
        (error.is_timeout() && error.is_unavailable(), ErrorClass::Timeout),
    ];
    candidates.into_iter().filter_map(|(is_member, class)| is_member.then_some(class)).collect()
}

#[track_caller]
fn assert_error(error: &Error, class: ErrorClass, message: &str) {
    assert_eq!(error.to_string(), message);
    assert_eq!(classes(error), [class], "{error}");
    assert_eq!(format!("{error:?}"), error.to_string(), "`main` prints a sentence");
    assert!(!message.contains(KEY) && !message.contains("password1"), "{message}");
}

const LIMIT: &str = "a limit must be 1 to 2^48 units";
const WINDOW: &str = "a window must be whole microseconds, from 1 ms to 10 years";
const PERIOD: &str = "a rate's period must be whole microseconds, from 1 us to 10 years";

#[test]
fn invalid_quota_is_rejected_with_this_message() {
    let (second, ten_years) = (Duration::from_secs(1), 10 * 365 * 24 * HOUR);
    let (us, ns) = (Duration::from_micros, Duration::from_nanos);
    let rate = "a rate needs 1 to 2^48 units; to refuse everything use OnFailure or a block, not a rate of 0";
    for (units, period, words) in [
        (0, second, rate),
        ((1 << 48) + 1, second, rate),
        (u64::MAX, second, rate),
        (1, Duration::ZERO, PERIOD),
        (1, ns(1_500), PERIOD),
        (1, ten_years + us(1), PERIOD),
        (1, Duration::MAX, PERIOD),
    ] {
        assert_error(&Rate::try_new(units, period).unwrap_err(), ErrorClass::Config, words);
    }

    let capacity = "a capacity must be 1 to 2^48 units";
    let slow = "this rate needs more than 2^48 us (8.9 years) to fill the capacity: raise the rate or lower the capacity";
    for (units, rate, words) in [
        (0, Rate::per_second(1), capacity),
        ((1 << 48) + 1, Rate::per_second(1), capacity),
        (u64::MAX, Rate::per_second(1), capacity),
        (1, Rate::new(1, ten_years), slow),
        (1 << 48, Rate::per_second(1), slow),
    ] {
        assert_error(&Quota::try_token_bucket(units, rate).unwrap_err(), ErrorClass::Config, words);
        assert_error(&Quota::try_leaky_bucket(units, rate).unwrap_err(), ErrorClass::Config, words);
    }

    for (limit, window, words) in [
        (0, second, LIMIT),
        ((1 << 48) + 1, second, LIMIT),
        (u64::MAX, second, LIMIT),
        (1, Duration::ZERO, WINDOW),
        (1, us(999), WINDOW),
        (1, ns(1_000_500), WINDOW),
        (1, ten_years + us(1), WINDOW),
        (1, Duration::MAX, WINDOW),
    ] {
        assert_error(&Quota::try_fixed_window(limit, window).unwrap_err(), ErrorClass::Config, words);
        assert_error(&Quota::try_sliding_log(limit, window).unwrap_err(), ErrorClass::Config, words);
        assert_error(&Quota::try_sliding_counter(limit, window).unwrap_err(), ErrorClass::Config, words);
    }
    let range = "a sliding counter's limit times its window in microseconds must be at most 2^52: shorten the window or use another algorithm";
    assert_error(&Quota::try_sliding_counter(1 << 33, second).unwrap_err(), ErrorClass::Config, range);
}

#[test]
fn modifier_of_another_algorithm_is_rejected_with_this_message() {
    for (name, quota) in quotas(5, HOUR) {
        let aligned = quota.try_aligned_to_clock_at(Duration::ZERO);
        match name {
            "fixed" | "fixed.clock" => assert!(aligned.is_ok()),
            _ => {
                let words = "only a fixed window can be aligned to the clock (a sliding counter always is)";
                assert_error(&aligned.unwrap_err(), ErrorClass::Config, words);
            }
        }
        match name {
            "log" => assert!(quota.try_count_denied().is_ok()),
            _ => {
                let words = "only a sliding log can count denied requests";
                assert_error(&quota.try_count_denied().unwrap_err(), ErrorClass::Config, words);
            }
        }
    }
    for offset in [HOUR, Duration::MAX, Duration::from_nanos(1)] {
        let error = Quota::fixed_window(5, HOUR).try_aligned_to_clock_at(offset).unwrap_err();
        assert_error(
            &error,
            ErrorClass::Config,
            "an offset must be whole microseconds and shorter than the window",
        );
    }
}

#[test]
fn invalid_setting_is_rejected_with_this_message() {
    let memory = || Limiter::builder().in_memory();
    for (error, words) in [
        (
            Limiter::builder().build().unwrap_err(),
            "no store: give the builder a `url`, a `pool`, or `in_memory()`",
        ),
        (
            memory().namespace("a:b").build().unwrap_err(),
            "namespace \"a:b\": use 1 to 64 letters, digits, `_`, `.` or `-`",
        ),
        (
            memory().namespace("").build().unwrap_err(),
            "namespace \"\": use 1 to 64 letters, digits, `_`, `.` or `-`",
        ),
        (
            memory().key_mode(KeyMode::Hmac(b"password1".to_vec())).build().unwrap_err(),
            "the secret of KeyMode::Hmac is shorter than 16 bytes: use 32 random ones",
        ),
        (
            Limiter::in_memory().try_gate("Login", Quota::fixed_window(1, HOUR)).unwrap_err(),
            "gate name \"Login\": use 1 to 64 lower-case letters, digits, `_`, `.` or `-`",
        ),
    ] {
        assert_error(&error, ErrorClass::Config, words);
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn error_for_a_tls_url_names_the_missing_feature() {
    let error = Limiter::open("rediss://:password1@host").unwrap_err();
    assert_error(&error, ErrorClass::Config, "a rediss:// URL needs tidegate's feature `tls`: switch it on");
}

#[test]
fn invalid_url_is_rejected_without_its_password() {
    for url in [
        "",
        "localhost",
        "127.0.0.1:6379",
        "http://127.0.0.1",
        "redis://",
        "redis://user:password1@",
        "redis://user:password1@host:notaport",
        "redis://:password1@host:99999",
        "redis://:password1@host/notadatabase",
        "redis://host?protocol=nonsense",
        "redis://pass word1@host:1:2",
        "redis://user:password1#x@host",
        "redis://user:1?password1@host",
        "redis://user:1/password1@host",
        "unix://user:password1@host/run/redis.sock",
    ] {
        let error = Limiter::open(url).expect_err(url);
        let words = error.to_string();
        assert!(words.starts_with("the Redis URL ") && words.contains(" cannot be used ("), "{url}: {words}");
        let fix = "): it should look like redis://127.0.0.1:6379; percent-encode a user and password, or pass them to `credentials`";
        assert!(words.ends_with(fix), "{url}: {words}");
        assert_error(&error, ErrorClass::Config, &words);
    }
}

#[test]
fn zero_deadline_and_impossible_numbers_of_instances_are_rejected_with_their_range() {
    let builder = || Limiter::builder().url("redis://127.0.0.1");
    let error = builder().deadline(Duration::ZERO).build().unwrap_err();
    let deadline =
        "`deadline` must be above zero, such as 100 ms: with a deadline of zero, Redis could decide no check";
    assert_error(&error, ErrorClass::Config, deadline);
    for instances in [0, 65_536, u64::MAX] {
        let error = builder().instances(instances).build().unwrap_err();
        assert_error(&error, ErrorClass::Config, "`instances` must be 1 to 65535 processes");
    }
    for instances in [1, 65_535] {
        builder().deadline(Duration::from_nanos(1)).instances(instances).build().unwrap();
    }
}

#[tokio::test]
async fn check_with_a_zero_deadline_is_an_error_and_charges_nothing() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        let gate = limiter.gate("a", Quota::fixed_window(5, HOUR)).shadow(true);
        let check = || gate.key(KEY).deadline(Duration::ZERO);
        for error in [
            check().check().await.unwrap_err(),
            check().peek().await.unwrap_err(),
            check().cost(2).peek().await.unwrap_err(),
            check().reserve().await.unwrap_err(),
            check().until_allowed(HOUR).await.unwrap_err(),
            limiter.check_all([gate.key("other"), check()]).await.unwrap_err(),
            limiter.peek_all([gate.key("other"), check()]).await.unwrap_err(),
            limiter.check_each([gate.key("other"), check()]).await.remove(0).unwrap_err(),
        ] {
            let words = "gate \"a\", key \"us…\" (14 bytes): `deadline` must be above zero, such as 100 ms: with a deadline of zero, Redis could decide no check";
            assert_error(&error, ErrorClass::Config, words);
        }
        for key in [KEY, "other"] {
            assert_eq!(gate.peek(key).await.unwrap().remaining(), 5);
        }
    }
}

#[tokio::test]
async fn check_that_can_never_pass_is_an_error_and_charges_nothing() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        for (name, quota) in quotas(5, 24 * HOUR) {
            let gate = limiter.gate(name, quota);
            let other = limiter.gate("other", quota);
            assert!(gate.check(KEY).await.unwrap().is_allowed());
            let words = |cost| {
                format!(
                    "gate \"{name}\", key \"us…\" (14 bytes): a cost of {cost} can never pass a limit of 5: split it or raise the limit"
                )
            };
            for cost in [6, u64::MAX] {
                for error in [
                    gate.check_cost(KEY, cost).await.unwrap_err(),
                    gate.reserve(KEY, cost).await.unwrap_err(),
                    limiter.check_all([other.key(KEY), gate.key(KEY).cost(cost)]).await.unwrap_err(),
                ] {
                    assert_error(&error, ErrorClass::OverCapacity, &words(cost));
                    assert_eq!((error.gate(), error.key()), (Some(name), Some(KEY.as_bytes())));
                }
            }
            let twice = [gate.key(KEY).cost(3), other.key(KEY), gate.key(KEY).cost(3)];
            assert_error(&limiter.check_all(twice).await.unwrap_err(), ErrorClass::OverCapacity, &words(6));
            assert_eq!(gate.peek(KEY).await.unwrap().remaining(), 4, "{quota}");
            assert_eq!(other.peek(KEY).await.unwrap().remaining(), 5, "{quota}");
        }
    }
}

#[tokio::test]
async fn incompatible_checks_are_an_error_and_charge_nothing() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        let gate = limiter.gate("a", Quota::fixed_window(5, HOUR));
        let same_key = limiter.gate("a", Quota::fixed_window(6, HOUR));
        let stranger = Limiter::in_memory().gate("b", Quota::fixed_window(5, HOUR));
        let bad_name = limiter.gate("a:b", Quota::fixed_window(5, HOUR));
        let bad_words = "gate name \"a:b\": use 1 to 64 lower-case letters, digits, `_`, `.` or `-`";
        for (checks, words) in [
            (vec![], "no checks were given"),
            (
                vec![gate.key(KEY), stranger.key(KEY)],
                "gate \"b\", key \"us…\" (14 bytes): this gate belongs to another limiter",
            ),
            (
                vec![gate.key(KEY), same_key.key(KEY)],
                "gate \"a\", key \"us…\" (14 bytes): one key was given under two quotas of the same gate name: give each gate its own name",
            ),
            (vec![gate.key(KEY), bad_name.key(KEY)], bad_words),
        ] {
            assert_error(&limiter.check_all(checks).await.unwrap_err(), ErrorClass::Config, words);
        }
        for error in [
            bad_name.check(KEY).await.unwrap_err(),
            bad_name.peek(KEY).await.unwrap_err(),
            bad_name.until_allowed(KEY, HOUR).await.unwrap_err(),
            bad_name.reserve(KEY, 1).await.unwrap_err(),
            bad_name.check_many([KEY]).await.remove(0).unwrap_err(),
            bad_name.refund(KEY, 1).await.unwrap_err(),
            bad_name.penalize(KEY, 1).await.unwrap_err(),
            bad_name.block(KEY, HOUR).await.unwrap_err(),
            bad_name.unblock(KEY).await.unwrap_err(),
            bad_name.reset(KEY).await.unwrap_err(),
            bad_name.redis_key(KEY).unwrap_err(),
        ] {
            assert_error(&error, ErrorClass::Config, bad_words);
        }
        assert_eq!(gate.peek(KEY).await.unwrap().remaining(), 5);
    }
}

#[tokio::test]
async fn out_of_range_numbers_are_clamped() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        for (name, quota) in quotas(5, 24 * HOUR) {
            let gate = limiter.gate(name, quota);
            gate.refund(KEY, u64::MAX).await.unwrap();
            assert_eq!(gate.peek(KEY).await.unwrap().remaining(), 5, "{quota}");
            gate.penalize(KEY, u64::MAX).await.unwrap();
            gate.penalize(KEY, u64::MAX).await.unwrap();
            let peek = gate.peek(KEY).await.unwrap();
            assert_eq!((peek.is_allowed(), peek.remaining()), (false, 0), "{quota}");
            gate.block(KEY, Duration::MAX).await.unwrap();
            let check = gate.key(KEY).max_delay(Duration::MAX).deadline(Duration::MAX).check().await.unwrap();
            assert!(!check.is_allowed() && check.retry_after() > 365 * 24 * HOUR, "{quota}: {check:?}");
            gate.unblock(KEY).await.unwrap();
            gate.refund(KEY, u64::MAX).await.unwrap();
            gate.reset(KEY).await.unwrap();
            gate.block(KEY, Duration::ZERO).await.unwrap();
            gate.refund(KEY, 0).await.unwrap();
            gate.penalize(KEY, 0).await.unwrap();
            assert_eq!(gate.peek(KEY).await.unwrap().limit(), 5, "{quota}");
        }
    }
}

/// Returns the error of each call that reads a key's state.
async fn errors_of_all_verbs(limiter: &Limiter, gate: &Gate) -> Vec<Error> {
    let healthy = limiter.gate("healthy", Quota::fixed_window(1_000, HOUR));
    let errors = vec![
        gate.check(KEY).await.unwrap_err(),
        gate.peek(KEY).await.unwrap_err(),
        gate.until_allowed(KEY, HOUR).await.unwrap_err(),
        gate.reserve(KEY, 1).await.unwrap_err(),
        gate.refund(KEY, 1).await.unwrap_err(),
        gate.penalize(KEY, 1).await.unwrap_err(),
        gate.block(KEY, HOUR).await.unwrap_err(),
        gate.unblock(KEY).await.unwrap_err(),
        gate.check_many(["fine", KEY, "fine too"]).await.remove(1).unwrap_err(),
        limiter.check_all([healthy.key("fine"), gate.key(KEY)]).await.unwrap_err(),
        limiter.check_all([gate.key(KEY), healthy.key("fine")]).await.unwrap_err(),
        limiter.check_all([gate.key(KEY), healthy.key("fine"), gate.key(KEY)]).await.unwrap_err(),
    ];
    assert_eq!(
        healthy.peek("fine").await.unwrap().remaining(),
        1_000,
        "a group with a corrupt key was charged"
    );
    for neighbour in gate.check_many(["fine", KEY, "fine too"]).await.into_iter().step_by(2) {
        assert!(neighbour.unwrap().is_allowed());
    }
    errors
}

#[tokio::test]
async fn key_of_another_redis_type_fails_alone() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    for (name, quota) in quotas(1_000, 24 * HOUR) {
        let gate = limiter.gate(name, quota);
        let key = gate.redis_key(KEY).unwrap();
        let storage = quota.kind().definition().storage;
        let hash = ["HSET", &key, "used", "1"];
        let other = if storage == Storage::Log { hash } else { ["ZADD", &key, "1", "used"] };
        let text = if storage == Storage::Count { &hash[..] } else { &["SET", &key, "text"] };
        for command in [text, &["SADD", &key, "member"], &other] {
            server.cli(command).unwrap();
            let before = server.cli(&["DUMP", &key]).unwrap();
            let words = format!(
                "gate \"{name}\", key \"us…\" (14 bytes): the key has a type that tidegate does not write: find the other writer, or use another namespace"
            );
            for error in errors_of_all_verbs(&limiter, &gate).await {
                assert_error(&error, ErrorClass::Corrupt, &words);
            }
            assert_eq!(server.cli(&["DUMP", &key]).unwrap(), before, "{quota}: the key was written");
            gate.reset(KEY).await.unwrap();
            assert!(gate.check(KEY).await.unwrap().is_allowed(), "{quota}: a reset repairs the key");
            gate.reset(KEY).await.unwrap();
        }
    }
}

#[tokio::test]
async fn corrupt_field_is_an_error_that_names_the_field() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    for (name, quota) in quotas(1_000, 24 * HOUR) {
        let gate = limiter.gate(name, quota);
        let key = gate.redis_key(KEY).unwrap();
        let storage = quota.kind().definition().storage;
        if storage == Storage::Log {
            continue;
        }
        for value in [
            "",
            "x",
            "-1",
            "nan",
            "inf",
            "-inf",
            "1e400",
            "9007199254740994",
            "1 1",
            "1.5",
            "1/9007199254740994 of 1, 1/us at 1",
        ] {
            assert!(gate.check(KEY).await.unwrap().is_allowed());
            let (command, field) = match storage == Storage::Count {
                true => (&["SET", &key, value][..], "value"),
                false => (&["HSET", &key, "used", value][..], "used"),
            };
            server.cli(command).unwrap();
            assert_corrupt(&server, &limiter, &gate, field, value).await;
        }
    }
}

#[tokio::test]
async fn corrupt_log_entry_is_an_error_that_names_its_part() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    let gate = limiter.gate("log", Quota::sliding_log(1_000, 24 * HOUR));
    let key = gate.redis_key(KEY).unwrap();
    let now = gate.peek(KEY).await.unwrap().server_now_us().to_string();
    for (score, member, field) in [
        (&*now, "x", "member"),
        (&now, "", "member"),
        (&now, ":", "member"),
        (&now, "1", "member"),
        (&now, "1:", "member"),
        (&now, "-1:1", "member"),
        (&now, "1:-1", "member"),
        (&now, "9007199254740994:1", "member"),
        (&now, "0000000000000001:2", "member"),
        ("1.5", "0000000000000001:1", "score"),
        ("-5", "0000000000000001:1", "score"),
        ("inf", "0000000000000001:1", "score"),
        ("1e300", "block", "block"),
        ("-1", "block", "block"),
        ("inf", "block", "block"),
    ] {
        server.cli(&["ZADD", &key, score, member]).unwrap();
        assert_corrupt(&server, &limiter, &gate, field, &format!("{score} {member}")).await;
    }
}

/// Asserts that only a reset repairs the key, and that no other call writes to it.
async fn assert_corrupt(server: &Server, limiter: &Limiter, gate: &Gate, field: &str, value: &str) {
    let key = gate.redis_key(KEY).unwrap();
    let before = server.cli(&["DUMP", &key]).unwrap();
    let words = format!(
        "gate \"{}\", key \"us…\" (14 bytes): corrupt state in field `{field}`, which tidegate did not write: find the other writer, then reset the key",
        gate.name().unwrap(),
    );
    for error in errors_of_all_verbs(limiter, gate).await {
        assert_error(&error, ErrorClass::Corrupt, &words);
    }
    assert_eq!(server.cli(&["DUMP", &key]).unwrap(), before, "a key with {field} {value:?} was written");
    gate.reset(KEY).await.unwrap();
    assert!(gate.peek(KEY).await.unwrap().is_allowed());
}

#[tokio::test]
async fn unusable_redis_is_an_error_that_states_the_cause() {
    let locked = Server::process(&[]).unwrap();
    locked.cli(&["CONFIG", "SET", "requirepass", "password1"]).unwrap();
    let address = locked.url().trim_start_matches("redis://");
    let with_context = |words: &str| format!("gate \"login\", key \"us…\" (14 bytes): {words}");
    for (url, words) in [
        (format!("redis://127.0.0.1:{}", closed_port()), "Redis is unavailable: Connection refused"),
        (format!("redis://{address}"), "Redis is unavailable: NOAUTH Authentication required"),
        (format!("redis://:password12@{address}"), "Redis is unavailable: "),
        (format!("redis://nobody:password1@{address}"), "Redis is unavailable: "),
        (format!("redis://:password1@{address}/99"), "Redis is unavailable: "),
        ("unix:///nonexistent/redis.sock".to_owned(), "Redis is unavailable: No such file"),
    ] {
        let limiter = builder(&url).build().unwrap();
        let gate = limiter.gate("login", Quota::fixed_window(5, HOUR));
        for error in [gate.check(KEY).await.unwrap_err(), gate.refund(KEY, 1).await.unwrap_err()] {
            let message = error.to_string();
            assert!(message.starts_with(&with_context(words)), "{url}: {message}");
            assert_error(&error, ErrorClass::Unavailable, &message);
        }
        let unready = limiter.ready_within(Duration::from_millis(50)).await;
        assert!(unready.unwrap_err().is_unavailable(), "{url}");
        let debug = format!("{limiter:?} {:?}", Limiter::builder().url(&url));
        assert!(!debug.contains("password1"), "{debug}");
    }
    let usable = builder(&format!("redis://:password1@{address}/1")).build().unwrap();
    usable.ready().await.unwrap();
}

#[tokio::test]
async fn server_that_is_not_redis_is_an_error_within_the_deadline() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let gate = || {
        let limiter = builder(&url).deadline(Duration::from_millis(50)).build().unwrap();
        limiter.gate("login", Quota::fixed_window(5, HOUR))
    };
    // The server neither accepts nor replies.
    let error = gate().check(KEY).await.unwrap_err();
    let words = "gate \"login\", key \"us…\" (14 bytes): timed out after 50ms waiting for a connection: check whether Redis is slow or far away, or raise the deadline";
    assert_error(&error, ErrorClass::Timeout, words);

    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let _ = std::io::Write::write_all(&mut connection.unwrap(), b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    for _ in 0..3 {
        assert!(gate().check(KEY).await.unwrap_err().is_unavailable());
    }
}

#[tokio::test]
async fn redis_without_memory_rejects_checks_and_charges_nothing() {
    let server = Server::process(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]).unwrap();
    let limiter = limiter(&server);
    for (name, quota) in quotas(5, HOUR) {
        let gate = limiter.gate(name, quota);
        let error = gate.check(KEY).await.unwrap_err();
        let words = format!("gate \"{name}\", key \"us…\" (14 bytes): Redis rejected the call: OOM");
        assert!(error.to_string().starts_with(&words), "{error}");
        assert_eq!(classes(&error), [ErrorClass::Unavailable]);
        assert_eq!(server.cli(&["DBSIZE"]).unwrap(), "(integer) 0");
    }
}
