//! governor, keyed: limits of one process, not shared.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::runtime::Handle;

use super::{Info, Kind, Local, LocalDecision};
use crate::Failure;
use crate::case::Case;

pub(crate) struct Keyed {
    limiter: DefaultKeyedRateLimiter<String>,
}

impl Local for Keyed {
    const INFO: Info = Info {
        name: "governor",
        title: "governor, keyed",
        note: "one process, nothing shared; its default DashMap",
        kind: Kind::Peer,
        max_capacity: u64::MAX,
    };

    type Key = String;

    fn open(_: &str, _: Case, _: &Handle) -> Result<Self, Failure> {
        // One unit per nanosecond: the shortest interval that it supports.
        let rate = NonZeroU32::new(1_000_000_000).ok_or("zero")?;
        Ok(Self { limiter: RateLimiter::keyed(Quota::per_second(rate)) })
    }

    fn key(name: &str) -> Result<String, Failure> {
        Ok(name.to_owned())
    }

    #[inline]
    fn check(&self, key: &String) -> Result<LocalDecision, Failure> {
        Ok(LocalDecision { allowed: self.limiter.check_key(key).is_ok(), fell_back: false })
    }
}
