//! tidegate in memory: `gate.check` of a limiter whose store is this process.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tidegate::{Gate, Limiter};
use tokio::runtime::Handle;

use super::{Info, Kind, Local, LocalDecision};
use crate::Failure;
use crate::case::{Case, KEYS};

pub(crate) struct Memory {
    gate: Gate,
}

impl Local for Memory {
    const INFO: Info = Info {
        name: "tidegate-memory",
        title: "tidegate, in memory",
        note: "one process, nothing shared; `check` polled once",
        kind: Kind::Ours,
        max_capacity: u64::MAX,
    };

    type Key = String;

    fn open(_: &str, case: Case, _: &Handle) -> Result<Self, Failure> {
        // governor evicts no key. Of twice as many as it holds, this limiter evicts none either.
        let limiter = Limiter::builder().in_memory().max_keys(2 * KEYS).build()?;
        Ok(Self { gate: limiter.gate(case.name(), super::tidegate_quota(case.limit())) })
    }

    fn key(name: &str) -> Result<String, Failure> {
        Ok(name.to_owned())
    }

    #[inline]
    fn check(&self, key: &String) -> Result<LocalDecision, Failure> {
        let check = pin!(self.gate.check(key));
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => Ok(LocalDecision { allowed: decision?.is_allowed(), fell_back: false }),
            Poll::Pending => Err("a check in memory waited".into()),
        }
    }
}
