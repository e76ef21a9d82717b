//! Leased gates of tidegate: units are taken from Redis in advance and spent in process.

use std::time::Duration;

use tidegate::{Gate, Lease};
use tokio::runtime::Handle;

use super::{Info, Kind, Local, LocalDecision};
use crate::Failure;
use crate::case::Case;

pub(crate) struct Leased {
    gate: Gate,
    runtime: Handle,
}

impl Local for Leased {
    const INFO: Info = Info {
        name: "tidegate-lease",
        title: "tidegate, leased",
        note: "within its stated bound; leases of at most 10,000 units, held for a minute",
        kind: Kind::Ours,
        max_capacity: u64::MAX,
    };

    type Key = String;

    /// Enough checks that the gate leases units for the key.
    const WARMUP_CHECKS_PER_KEY: usize = 8;

    fn open(url: &str, case: Case, runtime: &Handle) -> Result<Self, Failure> {
        let _entered = runtime.enter();
        let limiter = super::tidegate_limiter(url)?;
        runtime.block_on(limiter.ready())?;
        let gate = limiter.gate(case.name(), super::tidegate_quota(case.limit()));
        let lease = Lease::new().max_units(10_000).hold(Duration::from_secs(60));
        Ok(Self { gate: gate.leased(lease), runtime: runtime.clone() })
    }

    fn key(name: &str) -> Result<String, Failure> {
        Ok(name.to_owned())
    }

    #[inline]
    fn check(&self, key: &String) -> Result<LocalDecision, Failure> {
        let (decision, fell_back) = match self.gate.try_check(key) {
            Some(decision) => (decision, false),
            None => (self.runtime.block_on(self.gate.check(key))?, true),
        };
        Ok(LocalDecision { allowed: decision.is_allowed(), fell_back })
    }
}
