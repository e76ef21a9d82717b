//! Serialization of rates. Deserialization validates them like the constructor.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Rate;

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

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let RateData { units, period_us } = RateData::deserialize(deserializer)?;
        Self::try_new(units, Duration::from_micros(period_us)).map_err(D::Error::custom)
    }
}
