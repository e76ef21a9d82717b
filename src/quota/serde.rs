//! Serialization of rates and calendars. Deserialization validates them like the constructors.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Calendar, Rate};

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

impl Serialize for Calendar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Calendar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
