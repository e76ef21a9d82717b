//! tidegate while Redis is unreachable: the cost of the open circuit breaker and of the fallback.

use ::tidegate::{Gate, Limiter};

use super::{Info, Kind, RUN, Subject, tidegate_quota};
use crate::Failure;
use crate::case::Case;

/// An address without a listener.
const UNREACHABLE: &str = "redis://127.0.0.1:1";

pub(crate) struct Local {
    gate: Gate,
}

impl Subject for Local {
    const INFO: Info = Info {
        name: "tidegate_local",
        title: "tidegate, circuit breaker open",
        note: "decided in process within its share, since Redis is unreachable",
        kind: Kind::Ours,
        max_capacity: u64::MAX,
    };

    async fn open(_: &str, case: Case) -> Result<Self, Failure> {
        let limiter = Limiter::builder().url(UNREACHABLE).namespace(&RUN).instances(1).build()?;
        let gate = limiter.gate(case.family(), tidegate_quota(case.limit()));
        while limiter.health().await.breaker_open_for().is_none() {
            let _ = gate.check("first").await?;
        }
        Ok(Self { gate })
    }

    fn key(_: Case, number: usize) -> String {
        format!("user:{number}")
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        Ok(self.gate.check(key).await?.is_allowed())
    }
}
