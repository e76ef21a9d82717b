//! Keys that combine several keys.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_http::Key;

use super::request;
use crate::support::plan;

fn text(key: &Key) -> Vec<u8> {
    key.of(&request(None, &[])).unwrap()
}

/// Generates bytes, many of them special in the encoding.
fn part() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => prop_oneof![Just(b'|'), Just(b'\\'), Just(b'a')], 1 => any::<u8>()];
    vec(byte, 0..6)
}

/// The parts of a combined key, possibly nested.
#[derive(Clone, Debug, PartialEq)]
enum Shape {
    One(Vec<u8>),
    All(Vec<Self>),
}

impl Shape {
    fn key(&self) -> Key {
        match self {
            Self::One(part) => Key::constant(part.clone()),
            Self::All(parts) => Key::all(parts.iter().map(Self::key)),
        }
    }
}

/// Generates two combined keys to compare: nested pairs, or flat lists of parts.
fn shape() -> impl Strategy<Value = (Shape, Shape)> {
    let pair = || vec(part().prop_map(Shape::One), 2);
    prop_oneof![
        (pair(), pair()).prop_map(|(a, b)| (Shape::All(a), Shape::All(b))),
        (part(), pair(), part(), pair()).prop_map(|(a, b, c, d)| {
            let nested = |one, two| Shape::All(vec![Shape::One(one), Shape::All(two)]);
            (nested(a, b), nested(c, d))
        }),
        (vec(part(), 1..4), vec(part(), 1..4)).prop_map(|(a, b)| {
            let all = |parts: Vec<_>| Shape::All(parts.into_iter().map(Shape::One).collect());
            (all(a), all(b))
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4 * plan::sequences()))]

    #[test]
    fn combined_keys_are_equal_only_if_all_parts_are((one, other) in shape()) {
        prop_assert_eq!(text(&one.key()) == text(&other.key()), one == other);
    }
}

#[test]
fn common_parts_stay_readable() {
    let key =
        Key::all([Key::constant("203.0.113.7"), Key::constant("/login"), Key::constant("2001:db8::/64")]);
    assert_eq!(text(&key), b"203.0.113.7|/login|2001:db8::/64");
    let key = Key::all([Key::constant("a|b"), Key::constant("c\\")]);
    assert_eq!(text(&key), br"a\|b|c\\");
}

#[test]
fn missing_part_makes_the_key_missing() {
    let key = Key::all([Key::constant("a"), Key::header("x-api-key")]);
    assert_eq!(key.of(&request(None, &[])), None);
}
