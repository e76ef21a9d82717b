//! The state of a key, step by step, with a clock that the test moves.

mod groups;
mod idle;
mod queue;
mod reports;

use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tokio::sync::oneshot;

use super::key_state::{Circumstances, KeyState, Plan, Step};
use super::waiting::{AcquireAnswer, AcquireTerms, OnLapse, PermitGrant, TimeLimits, Waiter};
use crate::batch::Share;
use crate::error::Error;
use crate::key::keyed_hash::KeyedHasher;
use crate::key::{KeyMode, Keyspace};
use crate::local::on_failure::OnFailure;
use crate::quota::Quota;
use crate::quota::reference::Before;
use crate::store::{GateInfo, Outcome};

const MS: u64 = 1_000;
/// The time limit of a decision.
const DEADLINE_US: u64 = 100 * MS;
/// The time to live of a lease.
const TTL_US: u64 = 10_000 * MS;

struct Key {
    state: KeyState,
    now: Circumstances,
    terms: AcquireTerms,
}

/// A caller, as the test sees it.
struct Caller {
    id: u64,
    answer: oneshot::Receiver<AcquireAnswer>,
}

impl Key {
    fn new(quota: Quota) -> Self {
        let keyspace = Keyspace::new("test", KeyMode::Clear).unwrap();
        let gate = Arc::new(GateInfo::new(&keyspace, &KeyedHasher::default(), "gate", quota).unwrap());
        let terms = AcquireTerms::new(&gate, 1, OnFailure::Error, OnLapse::Restore).unwrap();
        let now = Circumstances { now_us: 1_000_000, lease: Some(1), instances: 2, ttl_us: TTL_US };
        Self { state: KeyState::new(), now, terms }
    }

    fn advance(&mut self, us: u64) {
        self.now.now_us += us;
    }

    /// Enqueues an acquire that waits for `wait_us`, or wants one decision.
    fn acquire(&mut self, cost: u64, wait_us: Option<u64>) -> Caller {
        self.acquire_with(AcquireTerms { cost, ..self.terms.clone() }, wait_us)
    }

    fn acquire_with(&mut self, terms: AcquireTerms, wait_us: Option<u64>) -> Caller {
        let (sender, answer) = oneshot::channel();
        let now_us = self.now.now_us;
        let limits = TimeLimits {
            decide_by_us: now_us + DEADLINE_US,
            until_us: wait_us.map(|wait_us| now_us + wait_us),
            deadline_us: DEADLINE_US,
        };
        let id = self.state.new_id();
        self.state.enqueue(Waiter { id, terms, limits, answer: sender }, now_us);
        Caller { id, answer }
    }

    /// Returns the message to send now.
    fn sent(&mut self) -> Plan {
        match self.state.step(&self.now) {
            Step::Send(plan) => plan,
            step => panic!("no message: {step:?}"),
        }
    }

    fn assert_waits(&mut self) -> Option<u64> {
        match self.state.step(&self.now) {
            Step::Wait(until_us) => until_us,
            step => panic!("does not wait: {step:?}"),
        }
    }

    fn assert_rests(&mut self) {
        let step = self.state.step(&self.now);
        assert!(matches!(step, Step::Rest), "does not rest: {step:?}");
    }

    /// Replies that `k` acquires were admitted, where others hold `held` units.
    fn reply(&mut self, k: u64, n: u64, held: u64) -> u64 {
        let raw = [held, 0, 0];
        let before = smallvec![Before { blocked_until_us: 0, raw }];
        let outcome = Outcome::new(k, before, 7);
        let lease = self.now.lease;
        self.state.answered(lease, Ok(Share { outcome, n, index: 0, sent_us: 0 }), &self.now)
    }

    fn fail(&mut self, error: Error) {
        let lease = self.now.lease;
        self.state.answered(lease, Err(error), &self.now);
    }

    /// Passes the time in which a message may still arrive. Returns the units that the key then reports to keep.
    fn reported_after_doubt(&mut self) -> u64 {
        assert!(!self.state.is_unused(&self.now), "a message may still arrive");
        self.advance(TTL_US);
        assert!(self.state.prompt(&self.now, 0), "the key reports once more");
        let keep = self.sent().keep;
        self.reply(0, 0, keep);
        keep
    }

    /// Admits one acquire, and returns its grant.
    fn admit(&mut self, terms: AcquireTerms) -> PermitGrant {
        let mut caller = self.acquire_with(terms, None);
        self.sent();
        self.reply(1, 1, 0);
        caller.granted()
    }
}

impl Caller {
    fn answer(&mut self) -> Option<AcquireAnswer> {
        self.answer.try_recv().ok()
    }

    fn granted(&mut self) -> PermitGrant {
        self.answer().expect("no answer").grant().expect("denied")
    }

    fn is_denied(&mut self) -> bool {
        self.answer().expect("no answer").grant().is_none()
    }
}

fn out_of_memory() -> Error {
    Error::from_script("OOM command not allowed when used memory > 'maxmemory'.")
}

fn timeout() -> Error {
    Error::timeout("a reply", Duration::from_millis(100))
}
