//! Serialization of quotas and rates. Deserialization validates them like the constructors.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Kind, LeakyBucket, Quota, Rate};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateData {
    units: u64,
    period_us: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "algorithm", rename_all = "snake_case", deny_unknown_fields)]
enum QuotaData {
    TokenBucket {
        capacity: u64,
        rate: Rate,
    },
    LeakyBucket {
        queue: u64,
        rate: Rate,
    },
    FixedWindow {
        limit: u64,
        window_us: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        aligned_to_clock_at_us: Option<u64>,
    },
    SlidingLog {
        limit: u64,
        window_us: u64,
        #[serde(default)]
        count_denied: bool,
    },
    SlidingCounter {
        limit: u64,
        window_us: u64,
    },
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

impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = match *self.kind() {
            Kind::TokenBucket(bucket) => {
                QuotaData::TokenBucket { capacity: bucket.capacity, rate: bucket.configured_rate }
            }
            Kind::LeakyBucket(LeakyBucket(bucket)) => {
                QuotaData::LeakyBucket { queue: bucket.capacity, rate: bucket.configured_rate }
            }
            Kind::FixedWindow(fixed) => QuotaData::FixedWindow {
                limit: fixed.limit,
                window_us: fixed.window_us,
                aligned_to_clock_at_us: fixed.aligned_us,
            },
            Kind::SlidingLog(log) => QuotaData::SlidingLog {
                limit: log.limit,
                window_us: log.window_us,
                count_denied: log.count_denied,
            },
            Kind::SlidingCounter(counter) => {
                QuotaData::SlidingCounter { limit: counter.limit, window_us: counter.window_us }
            }
        };
        data.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let us = Duration::from_micros;
        let quota = match QuotaData::deserialize(deserializer)? {
            QuotaData::TokenBucket { capacity, rate } => Self::try_token_bucket(capacity, rate),
            QuotaData::LeakyBucket { queue, rate } => Self::try_leaky_bucket(queue, rate),
            QuotaData::FixedWindow { limit, window_us, aligned_to_clock_at_us } => {
                let quota = Self::try_fixed_window(limit, us(window_us));
                match aligned_to_clock_at_us {
                    Some(offset) => quota.and_then(|quota| quota.try_aligned_to_clock_at(us(offset))),
                    None => quota,
                }
            }
            QuotaData::SlidingLog { limit, window_us, count_denied } => {
                let quota = Self::try_sliding_log(limit, us(window_us));
                if count_denied { quota.and_then(Self::try_count_denied) } else { quota }
            }
            QuotaData::SlidingCounter { limit, window_us } => Self::try_sliding_counter(limit, us(window_us)),
        };
        quota.map_err(D::Error::custom)
    }
}
