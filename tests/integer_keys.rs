//! Keys are text, bytes or integers. An integer is the same key as its decimal text.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{AsKey, Gate, KeyBytes, Limiter, Override, Quota, Rate};

use crate::support::fixture::{HOUR, limiter};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a gate with 100 units per key, which refills nothing while the test runs.
fn gate() -> Gate {
    Limiter::in_memory().gate("api", Quota::token_bucket(100, Rate::per_day(1)))
}

async fn remaining(gate: &Gate, key: impl AsKey) -> u64 {
    gate.peek(key).await.unwrap().remaining()
}

#[tokio::test]
async fn integer_and_its_decimal_text_are_one_key_in_every_method() {
    let gate = gate();
    let server = tidegate_testkit::shared();
    let redis = limiter(&server).gate("api", Quota::token_bucket(100, Rate::per_day(1)));
    for gate in [&gate, &redis] {
        assert!(gate.check(42_u64).await.unwrap().is_allowed());
        assert_eq!(remaining(gate, "42").await, 99);
        assert!(gate.check_cost(42_i128, 2).await.unwrap().is_allowed());
        assert!(gate.until_allowed(42, SECOND).await.unwrap().is_allowed());
        assert_eq!(remaining(gate, "42").await, 96);
        assert!(gate.key(42_u8).cost(3).check().await.unwrap().is_allowed());
        gate.reserve(42, 3).await.unwrap().commit(4).await.unwrap();
        assert_eq!(remaining(gate, "42").await, 89);
        gate.penalize(42, 10).await.unwrap();
        gate.refund(42, 1).await.unwrap();
        assert_eq!(remaining(gate, "42").await, 80);
        let many = gate.check_many([41, 42, 42]).await;
        let left: Vec<u64> = many.into_iter().map(|decision| decision.unwrap().remaining()).collect();
        assert_eq!(left, [99, 79, 78]);
        gate.block(42, HOUR).await.unwrap();
        assert!(!gate.check("42").await.unwrap().is_allowed());
        gate.unblock(42).await.unwrap();
        assert!(gate.check("42").await.unwrap().is_allowed());
        gate.reset(42).await.unwrap();
        assert_eq!(remaining(gate, "42").await, 100);
        assert_eq!(gate.redis_key(42).unwrap(), gate.redis_key("42").unwrap());
        assert!(gate.try_check(42).is_none_or(|decision| decision.is_allowed()));
    }
    assert_eq!(gate.redis_key(-7).unwrap(), gate.redis_key("-7").unwrap());
    assert_eq!(gate.redis_key(u128::MAX).unwrap(), gate.redis_key(u128::MAX.to_string()).unwrap());
}

#[tokio::test]
async fn override_of_an_integer_key_applies_to_its_decimal_text() {
    let server = tidegate_testkit::shared();
    let limiter = limiter(&server);
    let control = limiter.control();
    control.set_override("api", 42, Quota::fixed_window(7, HOUR), HOUR).await.unwrap();
    let overrides = control.overrides().await.unwrap();
    assert!(matches!(&overrides[..], [Override::Quota { key, .. }] if key == "42"), "{overrides:?}");
    let gate = limiter.gate("api", Quota::token_bucket(100, Rate::per_day(1)));
    assert_eq!(gate.check("42").await.unwrap().limit(), 7);
    control.end_override("api", 42).await.unwrap();
    assert_eq!(control.overrides().await.unwrap(), []);
}

struct UserId(u64);

impl AsKey for UserId {
    fn as_key(&self) -> KeyBytes<'_> {
        self.0.as_key()
    }
}

struct Email(String);

impl AsKey for Email {
    fn as_key(&self) -> KeyBytes<'_> {
        KeyBytes::from(&*self.0)
    }
}

#[tokio::test]
async fn text_and_bytes_types_and_references_to_them_are_keys() {
    let gate = gate();
    let mut text = String::from("x");
    let mut checks = 0;
    macro_rules! check {
        ($($key:expr),* $(,)?) => {
            $(
                assert!(gate.check($key).await.unwrap().is_allowed());
                checks += 1;
            )*
        };
    }
    check!["x", &"x", String::from("x"), &text, &&text, text.as_str(), format_args!("x").to_string()];
    check![b"x", *b"x", &b"x"[..], [b'x'], vec![b'x'], &vec![b'x'], "x".as_bytes()];
    check![Box::<str>::from("x"), Box::<[u8]>::from(*b"x"), Box::new(String::from("x"))];
    check![Arc::<str>::from("x"), Arc::new(String::from("x")), Rc::<str>::from("x")];
    check![Cow::Borrowed("x"), Cow::<str>::Owned(text.clone()), Cow::<[u8]>::Borrowed(b"x")];
    check![&mut text, "x".as_key(), KeyBytes::from(&b"x"[..]), Email(String::from("x"))];
    assert_eq!(remaining(&gate, "x").await, 100 - checks);
    assert!(gate.check(UserId(42)).await.unwrap().is_allowed());
    assert_eq!(remaining(&gate, "42").await, 99);
}

/// A service on several threads needs futures that are `Send`.
#[test]
fn future_of_a_check_by_integer_can_move_between_threads() {
    fn is_send(_: impl Send) {}

    let gate = gate();
    is_send(gate.check(42));
    is_send(gate.check_cost(42_u128, 1));
    is_send(gate.until_allowed("x", SECOND));
}
