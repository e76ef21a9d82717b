//! governor, keyed: limits of this process alone, which no other one shares.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::runtime::Handle;

use super::{Info, Kind, Local, Verdict};
use crate::Failure;
use crate::case::Case;

pub(crate) struct Keyed {
    limiter: DefaultKeyedRateLimiter<String>,
}

impl Local for Keyed {
    const INFO: Info = Info {
        name: "governor",
        title: "governor, keyed",
        note: "of this process alone: shares nothing with others; its default DashMap",
        kind: Kind::Peer,
        most: u64::MAX,
    };

    type Key = String;

    fn open(_: &str, _: Case, _: &Handle) -> Result<Self, Failure> {
        // One back each nanosecond: the shortest interval that it knows.
        let rate = NonZeroU32::new(1_000_000_000).ok_or("zero")?;
        Ok(Self { limiter: RateLimiter::keyed(Quota::per_second(rate)) })
    }

    fn key(name: &str) -> Result<String, Failure> {
        Ok(name.to_owned())
    }

    #[inline]
    fn check(&self, key: &String) -> Result<Verdict, Failure> {
        Ok(Verdict { allowed: self.limiter.check_key(key).is_ok(), fell_back: false })
    }
}
