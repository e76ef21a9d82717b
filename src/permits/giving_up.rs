//! Callers without a decision of the store: their failure policy decides. And callers that give up.

use std::mem;
use std::time::Duration;

use super::key_state::{Busy, Circumstances, KeyState};
use super::terms::{Answer, Waiter};
use crate::error::Error;
use crate::local::fallback::OnFailure;

/// The event that a caller waits for until it times out.
const WAITED_FOR: &str = "Redis to decide an acquire";

impl KeyState {
    /// Applies the failure policies after a message without a reply. Callers that wait and are denied stay in
    /// the queue; the message may be sent again.
    pub(super) fn fail(&mut self, callers: Vec<Waiter>, error: &Error, now: &Circumstances) {
        let retry_us = self.polls.next(0, 0);
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
                drop(waiter.answer.send(Answer::Failed(error.clone())));
                return None;
            }
        };
        let error = error.clone();
        if is_admitted {
            let remaining = if policy == OnFailure::Local { room - cost } else { waiter.terms.limit };
            let answer =
                |grant| Answer::Undecided { policy, error, grant: Some(grant), remaining, retry_us: 0 };
            self.admit(waiter, false, answer);
            return None;
        }
        if waiter.limits.until_us.is_some_and(|until_us| until_us > now.now_us) {
            return Some(waiter);
        }
        let answer = Answer::Undecided { policy, error, grant: None, remaining: room, retry_us };
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
        match self.queue.front() {
            None => self.leave_place(now.now_us),
            // Another front may be admitted where that one was not.
            Some(next) if Some(next.id) != front => self.poll_at_us = now.now_us,
            Some(_) => {}
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
