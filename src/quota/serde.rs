//! Serialization of quotas and rates, as maps, and of calendars, as texts. Deserialization also takes their text where
//! the format is one that people
//! write, and validates them like the constructors.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Calendar, Quota, Rate};
use crate::error::Error;
use crate::quota::algorithm::Kind;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateData {
    units: u64,
    period_us: u64,
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RateData { units: self.units(), period_us: self.period().as_micros() as u64 }.serialize(serializer)
    }
}

impl TryFrom<RateData> for Rate {
    type Error = Error;

    fn try_from(RateData { units, period_us }: RateData) -> Result<Self, Error> {
        Self::try_new(units, Duration::from_micros(period_us))
    }
}

impl From<Kind> for Quota {
    fn from(kind: Kind) -> Self {
        Self { kind }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_map::<_, RateData, _>(deserializer, "a rate, such as \"5/s\" or \"100/min\"")
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_map::<_, Kind, _>(deserializer, "a limit, such as \"100/min\" or \"5/min burst 20\"")
    }
}

impl Serialize for Calendar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Calendar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

pub(crate) fn text_or_map<'de, T, M, D>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    T: FromStr<Err = Error> + TryFrom<M, Error: fmt::Display>,
    M: Deserialize<'de>,
    D: Deserializer<'de>,
{
    if deserializer.is_human_readable() {
        return deserializer.deserialize_any(TextOrMap(expected, PhantomData::<(T, M)>));
    }
    M::deserialize(deserializer)?.try_into().map_err(de::Error::custom)
}

/// Reads a `T` from its text, or from the map of an `M`.
struct TextOrMap<T, M>(&'static str, PhantomData<(T, M)>);

impl<'de, T, M> Visitor<'de> for TextOrMap<T, M>
where
    T: FromStr<Err = Error> + TryFrom<M, Error: fmt::Display>,
    M: Deserialize<'de>,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    /// A map in a compact form, which serde may have buffered: of `#[serde(flatten)]`, for example.
    fn visit_seq<A: SeqAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        M::deserialize(SeqAccessDeserializer::new(fields))?.try_into().map_err(de::Error::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        M::deserialize(MapAccessDeserializer::new(map))?.try_into().map_err(de::Error::custom)
    }
}
