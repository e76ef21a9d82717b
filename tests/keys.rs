//! Two different (gate, key) pairs never share a Redis key, for any bytes in the keys.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::{AsKey, Gate, KeyMode, Limiter, Quota, Rate};

use crate::support::fixture::{HOUR, builder, limiter, quotas};

const MINUTE: Duration = Duration::from_secs(60);
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

fn limiter_of(mode: KeyMode) -> Limiter {
    Limiter::builder().in_memory().key_mode(mode).build().unwrap()
}

fn redis_key(gate: &str, quota: Quota, key: impl AsKey) -> String {
    Limiter::in_memory().gate(gate, quota).redis_key(key).unwrap()
}

/// Returns keys that resemble the encodings, the prefixes and the patterns of Redis.
fn hostile_keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = [
        "",
        ":",
        "::",
        "a",
        "a:",
        ":a",
        "a:b",
        "a::b",
        "A",
        "%",
        "%%",
        "%3A",
        "%3a",
        "%25",
        "%253A",
        " ",
        "%20",
        "+",
        "a b",
        "{",
        "}",
        "{}",
        "{a}",
        "%7Ba%7D",
        "*",
        "?",
        "[a]",
        "\\",
        "/",
        "/60s",
        "60s:",
        "\0",
        "\\0",
        "%00",
        "\r\n",
        "\n",
        "\u{7f}",
        "ä",
        "a\u{308}",
        "%C3%A4",
        "%sha256=",
        "%hmac=",
        "tidegate:2:a:token_bucket:",
        "%sha256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ]
    .iter()
    .map(|key| key.as_bytes().to_vec())
    .collect();
    keys.extend([vec![0], vec![0, 0], vec![0xff], vec![0xff, 0xfe], vec![0xc3], vec![0x80]]);
    // Lengths around the limit above which a key is replaced by its hash, and a key that equals such a hash.
    keys.extend([66, 67, 199, 200, 201, 10_240, 10_241].map(|length| vec![b'a'; length]));
    keys.extend([66, 67].map(|length| vec![0; length]));
    let hashed = redis_key("a", Quota::token_bucket(1, Rate::per_hour(1)), vec![b'a'; 201]);
    keys.push(hashed.rsplit(':').next().unwrap().as_bytes().to_vec());
    let distinct: HashSet<_> = keys.iter().cloned().collect();
    distinct.into_iter().collect()
}

#[test]
fn keys_are_written_as_documented() {
    let bucket = Quota::token_bucket(5, Rate::per_minute(5));
    let fixed = Quota::fixed_window(5, MINUTE);
    for (written, gate, quota, key) in [
        ("tidegate:2:login:token_bucket:user:42", "login", bucket, "user:42"),
        (
            "tidegate:2:login:leaky_bucket:user:42",
            "login",
            Quota::leaky_bucket(5, Rate::per_minute(5)),
            "user:42",
        ),
        ("tidegate:2:api:fixed_window/60s:10.0.0.1", "api", fixed, "10.0.0.1"),
        ("tidegate:2:api:fixed_window/60s@clock:::1", "api", fixed.aligned_to_clock(), "::1"),
        ("tidegate:2:api:fixed_window/60s@clock+1500ms:", "api", fixed.aligned_to_clock_at(MINUTE / 40), ""),
        (
            "tidegate:2:api:sliding_log/1500us:x",
            "api",
            Quota::sliding_log(5, Duration::from_micros(1_500)),
            "x",
        ),
        ("tidegate:2:api:sliding_counter/3600s:x", "api", Quota::sliding_counter(5, HOUR), "x"),
        ("tidegate:2:a:token_bucket:a%20b%25%7B%7D%00%C3%A4~!*", "a", bucket, "a b%{}\0ä~!*"),
        (
            "tidegate:2:a:token_bucket:%sha256=a92efd82109373e58f9a2056dee01e807e216ce6075f7051207c0a9f7d666e50",
            "a",
            bucket,
            &"a".repeat(201),
        ),
    ] {
        assert_eq!(redis_key(gate, quota, key), written);
    }
    let shop = Limiter::builder().in_memory().namespace("shop").build().unwrap();
    assert_eq!(
        shop.gate("api", fixed).redis_key("10.0.0.1").unwrap(),
        "shop:2:api:fixed_window/60s:10.0.0.1"
    );
    let private = limiter_of(KeyMode::Hmac(SECRET.to_vec())).gate("login", bucket);
    // To recompute: echo -n user:42 | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
    let written = "tidegate:2:login:token_bucket:%hmac=7d17066ef1888f6cf99a90aa3bde0f5a";
    assert_eq!(private.redis_key("user:42").unwrap(), written);
}

#[test]
fn redis_key_contains_the_window_and_not_the_limit() {
    let key = |quota| redis_key("a", quota, "x");
    assert_eq!(key(Quota::fixed_window(1, HOUR)), key(Quota::fixed_window(2, HOUR)));
    assert_eq!(key(Quota::sliding_log(1, HOUR)), key(Quota::sliding_log(1, HOUR).count_denied()));
    assert_ne!(key(Quota::fixed_window(1, HOUR)), key(Quota::fixed_window(1, HOUR * 2)));
    assert_ne!(key(Quota::fixed_window(1, HOUR)), key(Quota::fixed_window(1, HOUR).aligned_to_clock()));
}

#[test]
fn only_unambiguous_names_are_accepted() {
    let quota = Quota::fixed_window(1, HOUR);
    let longest = "a".repeat(64);
    for name in ["a", "0", "posts.user", "a-b_c.d", "-", &longest] {
        assert!(Limiter::in_memory().try_gate(name, quota).is_ok(), "{name:?}");
    }
    let too_long = "a".repeat(65);
    for name in ["", "A", "a:b", "a b", "ä", "a/b", "a{b}", "a%b", "a*", "a\n", &too_long] {
        assert!(Limiter::in_memory().try_gate(name, quota).unwrap_err().is_config(), "{name:?}");
        assert_eq!(Limiter::in_memory().gate(name, quota).name(), None);
    }
    let build = |namespace: &str| Limiter::builder().in_memory().namespace(namespace).build();
    for name in ["a", "Shop-Production", "a.b_c", &longest] {
        assert!(build(name).is_ok(), "{name:?}");
    }
    for name in ["", "a:b", "a b", "ä", "{a}", "*", &too_long] {
        assert!(build(name).unwrap_err().is_config(), "{name:?}");
    }
}

/// Returns gates whose names, algorithms and windows are prefixes of one another.
fn look_alikes(limiter: &Limiter) -> Vec<Gate> {
    let us = Duration::from_micros;
    let gates = ["a", "a.a", "a-", "1", "token_bucket"].map(|name| {
        [
            Quota::token_bucket(1, Rate::per_hour(1)),
            Quota::leaky_bucket(1, Rate::per_hour(1)),
            Quota::fixed_window(1, us(6_000_000)),
            Quota::fixed_window(1, us(60_000_000)),
            Quota::fixed_window(1, us(60_000)),
            Quota::fixed_window(1, us(60_001)),
            Quota::fixed_window(1, us(60_000_000)).aligned_to_clock(),
            Quota::fixed_window(1, us(60_000_000)).aligned_to_clock_at(us(1_000)),
            Quota::fixed_window(1, us(60_000_000)).aligned_to_clock_at(us(1_000_000)),
            Quota::sliding_log(1, us(60_000_000)),
            Quota::sliding_counter(1, us(60_000_000)),
        ]
        .map(|quota| limiter.gate(name, quota))
    });
    gates.into_iter().flatten().collect()
}

#[test]
fn gates_never_share_a_redis_key_of_hostile_keys() {
    for mode in [KeyMode::Clear, KeyMode::Hmac(SECRET.to_vec())] {
        let limiter = limiter_of(mode);
        let mut written = HashMap::new();
        for gate in look_alikes(&limiter) {
            for key in hostile_keys() {
                let other = written.insert(gate.redis_key(&key).unwrap(), (gate.clone(), key.clone()));
                assert!(other.is_none(), "{gate:?} {key:?} and {other:?} share a Redis key");
            }
        }
    }
}

/// Generates keys in which bytes with a special meaning are frequent.
fn any_key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![proptest::sample::select(b":{}%/ \0=aA0*".to_vec()), any::<u8>()];
    prop_oneof![
        8 => proptest::collection::vec(byte.clone(), 0..12),
        1 => proptest::collection::vec(byte.clone(), 60..220),
        1 => (byte, 190..10_240usize).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn different_keys_are_encoded_differently_and_printably(
        one in any_key(), other in any_key(), private in any::<bool>(),
    ) {
        let mode = if private { KeyMode::Hmac(SECRET.to_vec()) } else { KeyMode::Clear };
        let limiter = limiter_of(mode);
        let gate = limiter.gate("login", Quota::token_bucket(5, Rate::per_minute(5)));
        let written = [&one, &other].map(|key| gate.redis_key(key).unwrap());
        prop_assert_eq!(one == other, written[0] == written[1]);
        for text in written {
            let key = text.strip_prefix("tidegate:2:login:token_bucket:").unwrap();
            prop_assert!(key.len() <= 200, "{} bytes", key.len());
            prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'{' && byte != b'}'), "{}", key);
        }
    }

    #[test]
    fn clear_key_can_be_decoded(key in proptest::collection::vec(any::<u8>(), 0..66)) {
        let written = redis_key("a", Quota::fixed_window(1, HOUR), &key);
        let mut bytes = written.strip_prefix("tidegate:2:a:fixed_window/3600s:").unwrap().bytes();
        let mut read = Vec::new();
        while let Some(byte) = bytes.next() {
            read.push(match byte {
                b'%' => {
                    let hex = [bytes.next().unwrap(), bytes.next().unwrap()];
                    u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap()
                }
                byte => byte,
            });
        }
        prop_assert_eq!(read, key);
    }
}

#[tokio::test]
async fn hostile_keys_never_share_a_count() {
    let server = tidegate_testkit::shared();
    let hmac = builder(server.url()).key_mode(KeyMode::Hmac(SECRET.to_vec())).build().unwrap();
    for limiter in [Limiter::in_memory(), limiter(&server), hmac] {
        for (name, quota) in quotas(1, 24 * HOUR) {
            let gate = limiter.gate(name, quota);
            let keys = hostile_keys();
            for allowed in [true, false] {
                for (key, decision) in keys.iter().zip(gate.check_many(&keys).await) {
                    assert_eq!(
                        decision.unwrap().is_allowed(),
                        allowed,
                        "{quota}, key {}",
                        key.escape_ascii()
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn private_key_appears_in_no_output() {
    let server = tidegate_testkit::shared();
    let private = "ann@example.org";
    let namespace = crate::support::fixture::namespace();
    let builder = || Limiter::builder().url(server.url()).namespace(&namespace).deadline(HOUR);
    let limiter = builder().key_mode(KeyMode::Hmac(SECRET.to_vec())).build().unwrap();
    let mut output = String::new();
    for (name, quota) in quotas(2, HOUR) {
        let gate = limiter.gate(name, quota);
        assert!(gate.check(private).await.unwrap().is_allowed());
        gate.block(private, HOUR).await.unwrap();
        let error = gate.check_cost(private, 3).await.unwrap_err();
        assert_eq!(error.key(), Some(private.as_bytes()), "the error returns the key on request");
        let reservation = gate.reserve(private, 1).await.unwrap();
        output += &format!("{error} {error:?} {gate:?} {:?} {reservation:?}", gate.key(private));
    }
    let memory = Limiter::in_memory();
    assert!(memory.gate("gate", quotas(2, HOUR)[0].1).check(private).await.unwrap().is_allowed());
    output += &format!("{memory:?} {limiter:?} {:?}", builder().key_mode(KeyMode::Hmac(SECRET.to_vec())));
    output += &server.cli(&["--scan", "--pattern", &format!("{namespace}:*")]).unwrap();
    assert_eq!(output.matches("%hmac=").count(), 6, "{output}");
    for secret in [private, "example", std::str::from_utf8(SECRET).unwrap(), "48, 49, 50"] {
        assert!(!output.contains(secret), "{secret} in {output}");
    }
}
