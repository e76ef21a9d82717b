//! The bytes of a token. Numbers are LEB128 varints, texts have their length before them.
//!
//! ```text
//! version (1 byte), flags (1 byte: 1 back, 2 issued while Redis was unavailable, 4 signed), id (12 bytes), ttl in ms,
//! [issuer (4 bytes)], number of items, then per item:
//! kind (1 byte: charge + 8 * algorithm), hash tag (1 byte), gate, key as in Redis, units, 4 arguments of the quota
//! ```
//!
//! Calendar windows have an algorithm of their own, and in place of the arguments their limit and their calendar as
//! text. Versions without it reject the token.
//!
//! Tokens come from clients, so every byte is checked. Bytes that decode are the one encoding of their content.

use std::fmt;
use std::sync::Arc;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD as BASE64URL, Engine as _};

use crate::error::gate_name::GateName;
use crate::key::{HashTag, Keyspace, is_encoded};
use crate::quota::algorithm::{ALGORITHMS, Definition};
use crate::quota::{Calendar, Quota};

const VERSION: u8 = 1;
const IS_REFUNDED: u8 = 1;
const HAS_ISSUER: u8 = 2;
const IS_SIGNED: u8 = 4;

/// The code of calendar windows, beside those of the algorithms: see [`Definition`].
const CALENDAR: u8 = 5;

/// The codes of the charges.
const CHARGES: [Charge; 7] = [
    Charge::Held,
    Charge::HeldApart,
    Charge::Local,
    Charge::Uncharged,
    Charge::Exempt,
    Charge::LocalApart,
    Charge::UnchargedApart,
];

pub(super) fn encode(content: &Content) -> Vec<u8> {
    let mut out = Vec::with_capacity(24 + 48 * content.items.len());
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(content.is_refunded, IS_REFUNDED)
        | flag(content.issuer.is_some(), HAS_ISSUER)
        | flag(content.is_signed, IS_SIGNED);
    out.extend([VERSION, flags]);
    out.extend(content.id.0);
    put_number(&mut out, content.ttl_ms);
    out.extend(content.issuer.into_iter().flat_map(u32::to_be_bytes));
    put_number(&mut out, content.items.len() as u64);
    for item in &content.items {
        let quota = item.quota.kind();
        let charge = CHARGES.iter().position(|&charge| charge == item.charge).map_or(u8::MAX, |at| at as u8);
        let algorithm = match quota.calendar() {
            Some(_) => CALENDAR,
            None => quota.definition().token_code.unwrap_or(u8::MAX),
        };
        out.extend([charge | algorithm << 3, item.hash_tag.index() as u8]);
        put_text(&mut out, &item.gate);
        put_text(&mut out, &item.key);
        put_number(&mut out, item.units);
        match quota.calendar() {
            Some(calendar) => {
                put_number(&mut out, item.quota.limit());
                put_text(&mut out, &calendar.to_string());
            }
            None => quota.args().into_iter().for_each(|number| put_number(&mut out, number)),
        }
    }
    out
}

/// Returns whether a signature follows the content.
pub(super) fn is_signed(bytes: &[u8]) -> bool {
    bytes.get(1).is_some_and(|flags| flags & IS_SIGNED != 0)
}

/// Returns why the bytes are no content of a token, if they are not.
pub(super) fn decode(bytes: &[u8]) -> Result<Content, &'static str> {
    let mut rest = Reader(bytes);
    let [version, flags] = rest.array()?;
    if version != VERSION {
        return Err("it has a version that this release does not know");
    }
    let id = Id(rest.array()?);
    let ttl_ms = rest.number()?;
    check_ttl_ms(ttl_ms)?;
    let issuer = (flags & HAS_ISSUER != 0).then(|| rest.array().map(u32::from_be_bytes)).transpose()?;
    let count = rest.number()?;
    if !(1..=MAX_ITEMS as u64).contains(&count) {
        return Err("it has no checks, or too many");
    }
    let items = (0..count).map(|_| item(&mut rest)).collect::<Result<Vec<_>, _>>()?;
    let (is_refunded, is_signed) = (flags & IS_REFUNDED != 0, flags & IS_SIGNED != 0);
    let content = Content { id, ttl_ms, is_refunded, issuer, is_signed, items };
    check_consistent(&content)?;
    // Also rejects trailing bytes, unknown flags, and numbers with leading zeros.
    match encode(&content) == bytes {
        true => Ok(content),
        false => Err("it was changed"),
    }
}

fn item(rest: &mut Reader<'_>) -> Result<TokenItem, &'static str> {
    let [kind, hash_tag] = rest.array()?;
    let charge = *CHARGES.get(usize::from(kind & 7)).ok_or("it has an unknown kind of charge")?;
    let algorithm = match kind >> 3 {
        CALENDAR => None,
        code => Some(algorithm(code).ok_or("it has an unknown algorithm")?),
    };
    let hash_tag = HashTag::of_index(hash_tag).ok_or("it has an unknown hash tag")?;
    let gate = rest.text()?;
    let gate = GateName::new(gate).filter(|gate| Keyspace::check_gate_name(gate).is_ok());
    let key = rest.text()?;
    if !is_encoded(key) {
        return Err("it has an invalid key");
    }
    let units = rest.number()?;
    let quota = match algorithm {
        Some(algorithm) => {
            let args = [rest.number()?, rest.number()?, rest.number()?, rest.number()?];
            Quota::of_args(algorithm, args).map_err(|_| "it has an invalid quota")?
        }
        None => {
            let (limit, calendar) = (rest.number()?, rest.text()?);
            // Without the feature `calendar` too, or without its zone in this system's database.
            let calendar =
                Calendar::of_text(calendar).ok_or("it has a calendar that this process does not know")?;
            Quota::in_calendar(limit, calendar).map_err(|_| "it has an invalid quota")?
        }
    };
    if units > quota.limit() || !charge.allows(units) {
        return Err("it has units that cannot have been reserved");
    }
    let gate = gate.ok_or("it has an invalid gate name")?;
    Ok(TokenItem { gate, quota, key: key.into(), hash_tag, units, charge })
}

/// Returns the algorithm with this code.
fn algorithm(code: u8) -> Option<&'static Definition> {
    ALGORITHMS.into_iter().find(|definition| definition.token_code == Some(code))
}

/// Checks the properties of every token that a limiter makes: the held items share a hash tag, and only a token with
/// items that Redis did not charge has an issuer.
fn check_consistent(content: &Content) -> Result<(), &'static str> {
    let mut held = content.items.iter().filter(|item| item.charge == Charge::Held);
    let first = held.next();
    if first.is_some_and(|first| held.any(|item| item.hash_tag != first.hash_tag)) {
        return Err("its keys are in different slots");
    }
    match content.issuer.is_some() == content.items.iter().any(TokenItem::is_unheld) {
        true => Ok(()),
        false => Err("it was changed"),
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend(text.bytes());
}

struct Reader<'a>(&'a [u8]);

const TOO_SHORT: &str = "it is too short";

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (array, rest) = self.0.split_first_chunk().ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(*array)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("it has a number that is too large")
    }

    fn text(&mut self) -> Result<&'a str, &'static str> {
        let len = usize::try_from(self.number()?).map_err(|_| TOO_SHORT)?;
        let (text, rest) = self.0.split_at_checked(len).ok_or(TOO_SHORT)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| "it has text that is not UTF-8")
    }
}

// What a token says.

/// The maximum number of checks of a reservation: those of one atomic step.
pub(super) const MAX_ITEMS: usize = 128;

/// The content of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) id: Id,
    pub(super) ttl_ms: u64,
    /// Whether the units are refunded when the hold ends. Otherwise they stay charged.
    pub(super) is_refunded: bool,
    /// The limiter that decided while Redis was unavailable.
    pub(super) issuer: Option<u32>,
    /// Whether a signature follows.
    pub(super) is_signed: bool,
    /// One per check.
    pub(super) items: Vec<TokenItem>,
}

/// The identity of a reservation: unpredictable, since a client that guesses it can settle the reservation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id(pub(super) [u8; 12]);

/// One check of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenItem {
    pub(super) gate: GateName,
    /// The quota that was charged, which may since have been overridden.
    pub(super) quota: Quota,
    /// The key as written in Redis, which hides it if the key mode does.
    pub(super) key: Box<str>,
    pub(super) hash_tag: HashTag,
    /// The units that the store or the fallback has charged. For [`Charge::Uncharged`] and
    /// [`Charge::UnchargedApart`], those that the store may have
    /// charged without an answer.
    pub(super) units: u64,
    pub(super) charge: Charge,
}

/// How a check was charged, which determines how it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// The store holds the units, together with those of the other held checks.
    Held,
    /// The store holds the units under an id of their own: the gate is in shadow mode.
    HeldApart,
    /// Redis was unavailable, and the fallback of the issuer charged the units.
    Local,
    /// Redis was unavailable, and the failure policy admitted without a charge.
    Uncharged,
    /// Nothing to settle: a switch decided, the cost is 0, or shadow mode admitted a denied check.
    Exempt,
    /// As [`Local`](Self::Local), for a gate in shadow mode: a hold without a reply has an id of its own.
    LocalApart,
    /// As [`Uncharged`](Self::Uncharged), for a gate in shadow mode.
    UnchargedApart,
}

impl Charge {
    /// Returns whether a token can have this number of units.
    pub(super) const fn allows(self, units: u64) -> bool {
        match self {
            Self::Held | Self::HeldApart | Self::Local | Self::LocalApart => units > 0,
            Self::Uncharged | Self::UnchargedApart => true,
            Self::Exempt => units == 0,
        }
    }

    /// Returns whether the hold of the check, if there is one, has an id of its own.
    pub(super) const fn is_apart(self) -> bool {
        matches!(self, Self::HeldApart | Self::LocalApart | Self::UnchargedApart)
    }

    /// Returns whether the fallback of the issuer charged the units.
    pub(super) const fn is_local(self) -> bool {
        matches!(self, Self::Local | Self::LocalApart)
    }
}

impl TokenItem {
    /// Returns whether the check was admitted while Redis was unavailable.
    pub(super) const fn is_unheld(&self) -> bool {
        self.charge.is_local() || matches!(self.charge, Charge::Uncharged | Charge::UnchargedApart)
    }
}

impl Id {
    /// Returns the id as written in Redis.
    pub(super) fn text(self) -> Arc<str> {
        BASE64URL.encode(self.0).into()
    }
}

/// Shows only a part of the id: with the whole, a reader could settle the reservation.
impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", BASE64URL.encode(&self.0[..3]))
    }
}

/// Returns an error unless the ttl is 1 s to 24 h.
pub(super) const fn check_ttl_ms(ttl_ms: u64) -> Result<(), &'static str> {
    match ttl_ms {
        1_000..=86_400_000 => Ok(()),
        _ => Err("its ttl is not 1 s to 24 h"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::quota::Rate;

    fn item(quota: Quota, charge: Charge) -> TokenItem {
        TokenItem {
            gate: GateName::new("llm.tokens").unwrap(),
            quota,
            key: "tenant:7".into(),
            hash_tag: HashTag::default(),
            units: if charge == Charge::Exempt { 0 } else { 400 },
            charge,
        }
    }

    fn content() -> Content {
        let window = Duration::from_secs(60);
        let quotas = [
            Quota::token_bucket(1_000, Rate::per_minute(1_000)),
            Quota::leaky_bucket(1_000, Rate::per_minute(1_000)),
            Quota::fixed_window(1_000, window).aligned_to_clock_at(Duration::from_secs(1)),
            Quota::sliding_log(1_000, window),
            Quota::sliding_counter(1 << 20, window),
        ];
        let items = quotas.into_iter().zip(CHARGES).map(|(quota, charge)| item(quota, charge)).collect();
        Content {
            id: Id([7; 12]),
            ttl_ms: 60_000,
            is_refunded: true,
            issuer: Some(5),
            is_signed: false,
            items,
        }
    }

    #[test]
    fn content_is_decoded_again() {
        let content = content();
        assert_eq!(decode(&encode(&content)), Ok(content));
    }

    #[test]
    fn each_algorithm_of_a_rate_has_a_code_of_its_own() {
        let codes = ALGORITHMS.map(|definition| (definition.name, definition.token_code));
        for (at, &(name, code)) in codes.iter().enumerate() {
            assert!(code.is_some_and(|code| code < 32 && code != CALENDAR) || name == "in_flight", "{name}");
            assert!(codes[..at].iter().all(|(_, other)| *other != code), "{name}");
        }
    }

    #[test]
    fn no_changed_byte_and_no_cut_panics() {
        let bytes = encode(&content());
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Ok(content) = decode(&changed) {
                    assert_eq!(encode(&content), changed, "byte {at}, bit {bit}: two texts of one token");
                }
            }
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(decode(&longer), Err("it was changed"));
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn calendar_window_is_decoded_again_and_its_calendar_is_checked() {
        let encoded = |calendar: &str| {
            let quota = Quota::calendar_window(1_000, calendar.parse().unwrap());
            let content = Content { items: vec![item(quota, Charge::Held)], issuer: None, ..content() };
            let bytes = encode(&content);
            assert_eq!(decode(&bytes), Ok(content));
            bytes
        };
        let bytes = encoded("month+15@Europe/Berlin");
        let replaced = |from: &[u8], to: &[u8]| {
            let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
            [&bytes[..at], to, &bytes[at + from.len()..]].concat()
        };
        let unknown = Err("it has a calendar that this process does not know");
        assert_eq!(decode(&replaced(b"month+15", b"month+32")), unknown);
        assert_eq!(decode(&replaced(b"Berlin", b"Barlin")), unknown);
        assert_eq!(
            decode(&replaced(b"Berlin", b"berlin")),
            Err("it was changed"),
            "one form of each calendar"
        );
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err());
        }
    }

    #[test]
    fn random_bytes_do_not_panic() {
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..fastrand::usize(..200)).map(|_| fastrand::u8(..)).collect();
            if let Some(version) = bytes.first_mut() {
                *version = VERSION;
            }
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn hostile_content_is_rejected() {
        let decoded = |change: fn(&mut Content)| {
            let mut content = content();
            change(&mut content);
            decode(&encode(&content)).unwrap_err()
        };
        assert!(decoded(|content| content.items.clear()).contains("no checks"));
        assert!(decoded(|content| content.ttl_ms = 999).contains("ttl"));
        assert!(decoded(|content| content.ttl_ms = 86_400_001).contains("ttl"));
        assert!(decoded(|content| content.items[0].units = 1_001).contains("units"));
        assert!(decoded(|content| content.items[0].units = 0).contains("units"));
        assert!(decoded(|content| content.items[4].units = 1).contains("units"));
        assert!(decoded(|content| content.items[0].key = "a b".into()).contains("key"));
        assert!(decoded(|content| content.items[0].key = "{tag}".into()).contains("key"));
        assert!(decoded(|content| content.items[0].key = "k".repeat(201).into()).contains("key"));
        assert!(decoded(|content| content.items[0].gate = GateName::new("a:b").unwrap()).contains("gate"));
        assert!(decoded(|content| content.issuer = None).contains("changed"));
        assert!(decoded(|content| content.items = vec![content.items[0].clone(); 129]).contains("too many"));
        let apart = |content: &mut Content| {
            content.items[1].charge = Charge::Held;
            content.items[1].hash_tag = HashTag::of_index(1).unwrap();
        };
        assert!(decoded(apart).contains("slots"));
    }
}
