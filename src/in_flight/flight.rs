//! Messages of a key: which one to send next, and what its reply changes.

use std::mem;
use std::time::Duration;

use super::key_state::{Busy, Circumstances, Denial, Flight, KeyState, Plan, Step};
use super::waiting::{AcquireAnswer, AcquireTerms, Waiter};
use crate::batch::Share;
use crate::error::Error;
use crate::local::on_failure::OnFailure;

/// How often a message that the store rejected, because its lease had lapsed, is sent again at once.
const MAX_REJECTIONS: u8 = 3;

impl KeyState {
    /// Returns what to do now.
    pub(super) fn step(&mut self, now: &Circumstances) -> Step {
        self.expire(now);
        if self.is_busy() {
            return Step::Wait(self.next_expiry());
        }
        let is_asking = !self.queue.is_empty() && self.poll_at_us <= now.now_us;
        // Groups and other callers alternate.
        if !(is_asking && self.is_after_turn) && self.grant_turn() {
            return Step::Wait(self.next_expiry());
        }
        if is_asking {
            return Step::Send(self.plan_acquires(now.now_us));
        }
        if !self.queue.is_empty() {
            return Step::Wait(Some(self.poll_at_us.min(self.expires_us)));
        }
        if !self.needs_report(now) {
            self.report_at_us = None;
            self.reporters.drain(..).for_each(|reporter| drop(reporter.send(Ok(()))));
            return Step::Rest;
        }
        match self.report_at_us {
            Some(at_us) if at_us <= now.now_us => Step::Send(self.plan(Vec::new(), None, now.now_us)),
            Some(at_us) => Step::Wait(Some(at_us)),
            None => Step::Rest,
        }
    }

    fn next_expiry(&self) -> Option<u64> {
        Some(self.expires_us).filter(|&at_us| at_us < u64::MAX)
    }

    /// Takes the equal acquires at the front of the queue: no more than an unused key could admit.
    fn plan_acquires(&mut self, now_us: u64) -> Plan {
        let terms = self.queue.front().map(|front| front.terms.clone().adapted());
        let mut callers = Vec::new();
        if let Some(terms) = &terms {
            let most = (terms.decider.quota.limit() / terms.cost).max(1);
            while (callers.len() as u64) < most
                && let Some(waiter) = self.pop_equal(terms)
            {
                callers.push(waiter);
            }
        }
        self.plan(callers, terms, now_us)
    }

    fn pop_equal(&mut self, terms: &AcquireTerms) -> Option<Waiter> {
        self.queue.front().filter(|front| front.terms.merges_with(terms))?;
        self.queue.pop_front()
    }

    fn plan(&mut self, callers: Vec<Waiter>, terms: Option<AcquireTerms>, now_us: u64) -> Plan {
        let (n, keep) = (callers.len() as u64, self.held.total());
        let deadline_us = callers.iter().map(|caller| caller.limits.deadline_us).max();
        let reporters = mem::take(&mut self.reporters);
        self.begin(now_us);
        self.busy = Busy::Flight(Flight { callers, terms: terms.clone(), n, keep, reporters });
        Plan { terms, n, keep, deadline_us }
    }

    /// Returns the message that [`step`](Self::step) planned, with the units held now: a lapse may have ended
    /// some before its lease was known.
    pub(super) fn update_keep(&mut self, mut plan: Plan) -> Plan {
        plan.keep = self.held.total();
        if let Busy::Flight(flight) = &mut self.busy {
            flight.keep = plan.keep;
        }
        plan
    }

    /// From now on, changes are not covered by the message.
    pub(super) fn begin(&mut self, now_us: u64) {
        self.made_us = now_us;
        self.is_after_turn = false;
        self.report_at_us = None;
        self.is_released = false;
        self.is_touch_due = false;
    }

    /// Takes the result of the message in flight, which was sent under the lease with this number. Returns the
    /// units that the store counts again, after a lease had lapsed.
    pub(super) fn answered(
        &mut self,
        lease: Option<u64>,
        result: Result<Share, Error>,
        now: &Circumstances,
    ) -> u64 {
        let Busy::Flight(flight) = mem::take(&mut self.busy) else { return 0 };
        let result = match result {
            // The lease lapsed meanwhile: the store does not count what it admitted.
            Ok(_) if lease.is_none() || lease != now.lease => Err(Error::lapsed_lease()),
            result => result,
        };
        let restored = match result {
            Ok(share) => self.landed(flight, lease.unwrap_or_default(), share, now),
            Err(error) => self.failed(flight, lease, error, now),
        };
        self.set_expiry();
        restored
    }

    fn landed(&mut self, flight: Flight, lease: u64, share: Share, now: &Circumstances) -> u64 {
        let Flight { callers, terms, n, keep, reporters } = flight;
        let (k, cost) = (share.outcome.k, terms.as_ref().map_or(0, |terms| terms.cost));
        let restored = self.confirm(lease, keep, k * cost, now.now_us);
        self.rejections = 0;
        reporters.into_iter().for_each(|reporter| drop(reporter.send(Ok(()))));
        if k > 0 {
            self.polls.reset();
        }
        let held = share.outcome.before.first().map_or(0, |before| before.raw[0]);
        if let Some(terms) = &terms {
            terms.record_demand(held, k, k < n);
        }
        let denied = self.hand_out(callers, terms.as_ref(), &share);
        match terms.filter(|_| !denied.is_empty()) {
            None => {
                self.denial = None;
                self.poll_at_us = now.now_us;
            }
            Some(terms) => {
                let retry_us = self.polls.next();
                let share = after_acquires(share, cost);
                self.deny(denied, Denial { gate: terms.decider, share, retry_us }, now);
            }
        }
        if self.counted.units != Some(self.held.total()) {
            // Units of callers that left, or released meanwhile.
            self.poll_at_us = now.now_us;
            self.report_by(now.now_us);
        }
        restored
    }

    /// Gives the admitted units to the first callers that still wait: those of the message, then others with
    /// the same terms. Returns the callers of the message that are denied.
    fn hand_out(&mut self, callers: Vec<Waiter>, terms: Option<&AcquireTerms>, share: &Share) -> Vec<Waiter> {
        let (mut denied, mut index) = (Vec::new(), 0);
        // A report has no callers.
        let Some(terms) = terms else { return denied };
        let admit = |state: &mut Self, waiter, index: &mut u64| {
            let (gate, share) = (terms.decider.clone(), Share { index: *index, ..share.clone() });
            let answer = |grant| AcquireAnswer::Decided { gate, share, grant: Some(grant), retry_us: 0 };
            *index += u64::from(state.admit(waiter, true, answer));
        };
        for caller in callers {
            match index < share.outcome.k {
                true => admit(self, caller, &mut index),
                false => denied.push(caller),
            }
        }
        while index < share.outcome.k
            && let Some(waiter) = self.pop_equal(terms)
        {
            admit(self, waiter, &mut index);
        }
        denied
    }

    /// Keeps the denied callers that wait at the front of the queue. Denies the others, and those behind: no
    /// caller is overtaken.
    fn deny(&mut self, denied: Vec<Waiter>, denial: Denial, now: &Circumstances) {
        let retry_us = denial.retry_us;
        let (kept, denied): (Vec<_>, Vec<_>) = denied.into_iter().partition(Waiter::waits);
        let deny = |waiter: Waiter| drop(waiter.answer.send(denial.answer()));
        denied.into_iter().for_each(&deny);
        if kept.is_empty() {
            self.denial = None;
            self.poll_at_us = now.now_us;
            return;
        }
        for waiter in mem::take(&mut self.queue) {
            match waiter.waits() {
                true => self.queue.push_back(waiter),
                false => deny(waiter),
            }
        }
        kept.into_iter().rev().for_each(|waiter| self.queue.push_front(waiter));
        self.denial = Some(denial);
        // Units that were released meanwhile may be enough.
        self.poll_at_us = if self.is_released { now.now_us } else { now.now_us + retry_us };
    }

    /// Forgets the message in flight. The store may have applied it under the current lease.
    pub(super) fn abandon(&mut self, now: &Circumstances) {
        self.doubt();
        if let Busy::Flight(_) = &self.busy {
            self.busy = Busy::No;
            self.doubt_message(now.lease.unwrap_or(self.counted.lease), now);
        }
    }

    fn failed(&mut self, flight: Flight, lease: Option<u64>, error: Error, now: &Circumstances) -> u64 {
        let Flight { callers, keep, reporters, .. } = flight;
        let (mut released, mut restored) = (Err(error.clone()), 0);
        match lease {
            Some(lease) if error.is_out_of_memory() => {
                restored = self.confirm(lease, keep, 0, now.now_us);
                released = Ok(());
            }
            Some(lease) if error.may_have_run() => self.doubt_message(lease, now),
            _ => {}
        }
        self.poll_at_us = now.now_us;
        let is_rejected = error.is_lapsed_lease() || error.is_stale_message();
        if is_rejected && self.rejections < MAX_REJECTIONS {
            // Nothing was applied: the same is sent again, under another lease or with a higher number.
            self.rejections += 1;
            callers.into_iter().rev().for_each(|waiter| self.queue.push_front(waiter));
            self.reporters.splice(..0, reporters);
            self.report_by(now.now_us);
            return restored;
        }
        self.rejections = 0;
        let error = if is_rejected { rejected_again() } else { error };
        let released = released.map_err(|_| error.clone());
        reporters.into_iter().for_each(|reporter| drop(reporter.send(released.clone())));
        self.fail(callers, &error, now);
        restored
    }
}

impl Denial {
    pub(super) fn answer(&self) -> AcquireAnswer {
        let (gate, share) = (self.gate.clone(), self.share.clone());
        AcquireAnswer::Decided { gate, share, grant: None, retry_us: self.retry_us }
    }
}

/// Returns the reply as one denied acquire gets it, after the admitted acquires of its message.
fn after_acquires(mut share: Share, cost: u64) -> Share {
    if let Some(before) = share.outcome.before.first_mut() {
        before.raw[0] += share.outcome.k * cost;
    }
    share.outcome.k = 0;
    Share { n: 1, index: 0, ..share }
}

fn rejected_again() -> Error {
    Error::unavailable("it ended each lease of this process at once: has its clock been moved?")
}

// Callers without a decision of the store: their failure policy decides. And callers that give up.

/// The event that a caller waits for until it times out.
const WAITED_FOR: &str = "Redis to decide an acquire";

impl KeyState {
    /// Applies the failure policies after a message without a reply. Callers that wait and are denied stay in
    /// the queue; the message may be sent again.
    pub(super) fn fail(&mut self, callers: Vec<Waiter>, error: &Error, now: &Circumstances) {
        let retry_us = self.polls.next();
        let mut kept = Vec::new();
        // Callers behind that want one decision cannot get another one.
        let (waiting, once): (Vec<_>, Vec<_>) =
            mem::take(&mut self.queue).into_iter().partition(Waiter::waits);
        for caller in callers.into_iter().chain(once) {
            kept.extend(self.apply_policy(caller, error, now, retry_us));
        }
        self.queue.extend(kept);
        if !self.queue.is_empty() {
            self.poll_at_us = if self.is_released { now.now_us } else { now.now_us + retry_us };
        }
        self.queue.extend(waiting);
    }

    /// Answers by the failure policy. Returns a denied caller that waits longer.
    fn apply_policy(
        &mut self,
        waiter: Waiter,
        error: &Error,
        now: &Circumstances,
        retry_us: u64,
    ) -> Option<Waiter> {
        let policy = if error.is_unavailable() { waiter.terms.on_failure } else { OnFailure::Error };
        let room = self.room(waiter.terms.current_limit(), now.instances);
        let cost = waiter.terms.cost;
        let is_admitted = match policy {
            OnFailure::Local => cost <= room,
            OnFailure::Open => true,
            OnFailure::Closed => false,
            OnFailure::Error => {
                drop(waiter.answer.send(AcquireAnswer::Failed(error.clone())));
                return None;
            }
        };
        let error = error.clone();
        if is_admitted {
            let remaining = if policy == OnFailure::Local { room - cost } else { waiter.terms.limit };
            let answer = |grant| AcquireAnswer::Undecided {
                policy,
                error,
                grant: Some(grant),
                remaining,
                retry_us: 0,
            };
            self.admit(waiter, false, answer);
            return None;
        }
        if waiter.limits.until_us.is_some_and(|until_us| until_us > now.now_us) {
            return Some(waiter);
        }
        let answer = AcquireAnswer::Undecided { policy, error, grant: None, remaining: room, retry_us };
        drop(waiter.answer.send(answer));
        None
    }

    /// Answers callers whose time has passed: with the last denial, or by the failure policy if the store did
    /// not decide in time.
    pub(super) fn expire(&mut self, now: &Circumstances) {
        if now.now_us < self.expires_us {
            return;
        }
        let denial = self.denial.clone();
        let is_due = |waiter: &mut Waiter| waiter.due_us(denial.is_some()) <= now.now_us;
        let front = self.queue.front().map(|front| front.id);
        let mut due: Vec<Waiter> = Vec::new();
        if let Busy::Flight(flight) = &mut self.busy {
            due.extend(flight.callers.extract_if(.., is_due));
        }
        let (gone, stay): (Vec<_>, Vec<_>) = mem::take(&mut self.queue)
            .into_iter()
            .partition(|waiter| waiter.due_us(denial.is_some()) <= now.now_us);
        self.queue.extend(stay);
        due.extend(gone);
        for waiter in due {
            match &denial {
                Some(denial) if waiter.waits() => drop(waiter.answer.send(denial.answer())),
                _ => {
                    let deadline = Duration::from_micros(waiter.limits.deadline_us);
                    let error = Error::timeout(WAITED_FOR, deadline);
                    drop(self.apply_policy(waiter, &error, now, 0));
                }
            }
        }
        let next = self.queue.front().map(|next| next.id);
        if next.is_some() && next != front {
            // Another front may be admitted where that one was not.
            self.poll_at_us = now.now_us;
        }
        self.set_expiry();
    }

    pub(super) fn set_expiry(&mut self) {
        let has_denial = self.denial.is_some();
        let in_flight = match &self.busy {
            Busy::Flight(flight) => &flight.callers[..],
            _ => &[],
        };
        let due = self.queue.iter().chain(in_flight).map(|waiter| waiter.due_us(has_denial));
        self.expires_us = due.min().unwrap_or(u64::MAX);
    }
}
