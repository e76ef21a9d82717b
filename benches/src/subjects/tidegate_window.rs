//! This crate with a fixed window, as those peers have that count by native commands.

use std::time::Duration;

use ::tidegate::{Gate, Quota};

use super::{Info, Kind, Subject, tidegate_limiter};
use crate::Failure;
use crate::case::Case;

pub(crate) struct Window {
    gate: Gate,
}

impl Subject for Window {
    const INFO: Info = Info {
        name: "tidegate_window",
        title: "tidegate, fixed window",
        note: "fixed window of an hour from the first ask",
        kind: Kind::Ours,
        most: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let limiter = tidegate_limiter(url)?;
        limiter.ready().await?;
        let quota = Quota::fixed_window(case.limit().capacity, Duration::from_secs(3600));
        Ok(Self { gate: limiter.gate(case.family(), quota) })
    }

    /// It has namespace, gate and algorithm before it.
    fn key(_: Case, number: usize) -> String {
        format!("user:{number}")
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        Ok(self.gate.check(key).await?.is_allowed())
    }
}
