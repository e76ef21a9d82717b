//! tidegate with a fixed window, for comparison with the peers that count with native commands.

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
        note: "fixed window of an hour from the first check",
        kind: Kind::Ours,
        max_capacity: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let limiter = tidegate_limiter(url)?;
        limiter.ready().await?;
        let quota = Quota::fixed_window(case.limit().capacity, Duration::from_secs(3600));
        Ok(Self { gate: limiter.gate(case.family(), quota) })
    }

    /// The key has no prefix: tidegate adds the namespace, the gate and the algorithm.
    fn key(_: Case, number: usize) -> String {
        format!("user:{number}")
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        Ok(self.gate.check(key).await?.is_allowed())
    }
}
