//! The task that takes and gives back units for a leased gate. It ends with the gate or the limiter, after
//! all units are given back.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::task::JoinSet;

use super::blocks::{GiveBack, Refilled};
use super::ledger::{Ledger, Refill};
use crate::error::Error;
use crate::quota::reference;
use crate::store::{Group, GroupItem, Outcome, Target};

/// The maximum number of keys in one call, limited by the time that a call may occupy the store.
const MAX_REFILLS: usize = 128;
/// The maximum number of takes in flight.
const MAX_TAKES: usize = 4;
/// The maximum number of refunds in flight: one round trip each.
const MAX_GIVE_BACKS: usize = 64;
/// The time limit for refunds after the end of a gate.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The store, as the worker uses it.
pub(crate) trait Upstream: Send + Sync + 'static {
    /// Returns one outcome per group.
    fn take(&self, groups: Vec<Group>) -> impl Future<Output = Vec<Result<Outcome, Error>>> + Send;

    /// Sends a refund, at most once: a repeated refund could return units twice.
    fn give_back(
        &self,
        target: &Target,
        units: u64,
        stamp_us: u64,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The result of a call.
enum Done {
    Took { refills: Vec<Refill>, outcomes: Vec<Result<Outcome, Error>>, sent_us: u64 },
    GaveBack { units: u64, result: Result<(), Error> },
}

struct Worker<U> {
    upstream: Arc<U>,
    ledger: Ledger,
    calls: JoinSet<Done>,
    takes: usize,
    give_backs: usize,
}

pub(super) async fn run<U: Upstream>(upstream: Arc<U>, ledger: Ledger) {
    let mut worker = Worker { upstream, ledger, calls: JoinSet::new(), takes: 0, give_backs: 0 };
    worker.work().await;
    // The ledger counts the remaining units as stranded.
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, worker.end()).await;
}

impl<U: Upstream> Worker<U> {
    async fn work(&mut self) {
        let shared = self.ledger.shared().clone();
        while !shared.has_ended() {
            let now_us = shared.clock.local_us();
            self.ledger.serve(now_us);
            let is_more = self.ledger.sweep(now_us);
            while self.takes < MAX_TAKES {
                let refills = self.ledger.next_refills(MAX_REFILLS, now_us);
                if refills.is_empty() {
                    break;
                }
                self.send_take(refills);
            }
            self.send_give_backs();
            shared.report_spent();
            if is_more {
                tokio::task::yield_now().await;
            } else if !self.wait().await {
                return;
            }
            while let Some(done) = self.calls.try_join_next() {
                let Ok(done) = done else { return };
                self.done(done);
            }
        }
    }

    /// Waits for the next event. Returns false if a call has panicked (in an observer, for example), so that
    /// the ledger does not know its result.
    async fn wait(&mut self) -> bool {
        let shared = self.ledger.shared().clone();
        let now_us = shared.clock.local_us();
        let due = self.ledger.next_due_us().map(|due_us| due_us.saturating_sub(now_us));
        let mut woken = pin!(shared.queue.woken());
        let mut due = pin!(async {
            match due {
                Some(due_us) => shared.clock.sleep(Duration::from_micros(due_us)).await,
                None => std::future::pending().await,
            }
        });
        let done = poll_fn(|context| {
            // Polled first, so that no result is lost.
            if let Poll::Ready(Some(done)) = self.calls.poll_join_next(context) {
                return Poll::Ready(Some(done));
            }
            match woken.as_mut().poll(context).is_ready() || due.as_mut().poll(context).is_ready() {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        })
        .await;
        match done {
            Some(Ok(done)) => self.done(done),
            Some(Err(_)) => return false,
            None => {}
        }
        true
    }

    /// Gives all units back, including those of takes in flight.
    async fn end(&mut self) {
        self.ledger.close_all();
        self.send_give_backs();
        while let Some(Ok(done)) = self.calls.join_next().await {
            if let Done::GaveBack { result: Err(error), .. } = &done
                && error.is_unavailable()
            {
                // The remaining refunds would time out as well.
                self.ledger.blocks.strand_the_rest();
            }
            self.done(done);
            self.send_give_backs();
        }
    }

    fn send_take(&mut self, refills: Vec<Refill>) {
        let (upstream, clock) = (self.upstream.clone(), self.ledger.shared().clock.clone());
        self.takes += 1;
        self.calls.spawn(async move {
            let groups: Vec<Group> = refills.iter().map(group).collect();
            // Read before sending: a lease may end early, but never late.
            let sent_us = clock.local_us();
            let outcomes = upstream.take(groups).await;
            Done::Took { refills, outcomes, sent_us }
        });
    }

    fn send_give_backs(&mut self) {
        while self.give_backs < MAX_GIVE_BACKS
            && let Some(GiveBack { target, units, stamp_us }) = self.ledger.blocks.next_give_back()
        {
            let upstream = self.upstream.clone();
            self.give_backs += 1;
            self.calls.spawn(async move {
                let result = upstream.give_back(&target, units, stamp_us).await;
                Done::GaveBack { units, result }
            });
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Took { refills, outcomes, sent_us } => {
                self.takes -= 1;
                let now_us = self.ledger.shared().clock.local_us();
                let mut outcomes = outcomes.into_iter();
                for refill in refills {
                    let outcome = outcomes.next().and_then(Result::ok);
                    let taken = outcome.and_then(|outcome| taken(&refill, &outcome));
                    self.ledger.arrived(refill.slot, sent_us, taken, now_us);
                }
            }
            Done::GaveBack { units, result } => {
                self.give_backs -= 1;
                self.ledger.blocks.gave_back(units, result.is_ok());
            }
        }
    }
}

/// Returns a group of as many checks of one unit as the refill takes, each admitted independently.
fn group(refill: &Refill) -> Group {
    let item = GroupItem::new(refill.target.clone(), 1);
    Group { items: SmallVec::from_buf([item]), n: refill.units }
}

fn taken(refill: &Refill, outcome: &Outcome) -> Option<Refilled> {
    let quota = &refill.target.gate.quota;
    let (before, now) = (*outcome.before.first()?, outcome.now_us);
    let algorithm = quota.kind().algorithm();
    let stamp_us = algorithm.stamp(before.raw, now);
    let rest_us = algorithm.leased_until(stamp_us).map(|until_us| until_us.saturating_sub(now));
    let (n, k) = (refill.units, outcome.k);
    let take = reference::Taken { quota, cost: 1, max_delay: None, n, k, before, now };
    let reset_after_us = take.answer(k.saturating_sub(1)).reset_after_us;
    Some(Refilled { units: k, stamp_us, rest_us, reset_after_us })
}
