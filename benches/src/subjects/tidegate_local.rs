//! This crate while no Redis answers: what its circuit breaker and its fallback cost.

use ::tidegate::{Gate, Limiter};

use super::{Info, Kind, RUN, Subject, tidegate_quota};
use crate::Failure;
use crate::case::Case;

/// Nobody listens there.
const NOWHERE: &str = "redis://127.0.0.1:1";

pub(crate) struct Local {
    gate: Gate,
}

impl Subject for Local {
    const INFO: Info = Info {
        name: "tidegate_local",
        title: "tidegate, circuit breaker open",
        note: "decided in this process within its share, since no Redis answers",
        kind: Kind::Ours,
        most: u64::MAX,
    };

    async fn open(_: &str, case: Case) -> Result<Self, Failure> {
        let limiter = Limiter::builder().url(NOWHERE).namespace(&RUN).instances(1).build()?;
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
