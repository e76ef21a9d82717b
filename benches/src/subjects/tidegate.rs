//! tidegate with its defaults.

use std::time::Duration;

use ::tidegate::{Gate, Limiter, Quota, Rate};

use super::{DEADLINE, Info, Kind, RUN, Subject};
use crate::Failure;
use crate::case::{Case, Limit};

pub(crate) struct Tidegate {
    gate: Gate,
}

impl Subject for Tidegate {
    const INFO: Info = Info {
        name: "tidegate",
        title: "tidegate",
        note: "exact token bucket by Redis's clock",
        kind: Kind::Ours,
        max_capacity: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let limiter = limiter(url)?;
        limiter.ready().await?;
        Ok(Self { gate: limiter.gate(case.family(), quota(case.limit())) })
    }

    /// The key has no prefix: tidegate adds the namespace and the gate.
    fn key(_: Case, number: usize) -> String {
        format!("user:{number}")
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        Ok(self.gate.check(key).await?.is_allowed())
    }
}

/// Builds a limiter with all defaults except the deadline, which must not decide anything here.
pub(crate) fn limiter(url: &str) -> Result<Limiter, Failure> {
    Ok(Limiter::builder().url(url).namespace(&RUN).deadline(DEADLINE).build()?)
}

pub(crate) fn quota(limit: Limit) -> Quota {
    let rate = match limit.refill_s {
        0 => Rate::per_second(1_000_000),
        seconds => Rate::new(1, Duration::from_secs(seconds)),
    };
    Quota::token_bucket(limit.capacity, rate)
}
