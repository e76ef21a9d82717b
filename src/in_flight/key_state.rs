//! The state of one key in this process: the units that its permits hold, the callers that wait, and the
//! message in flight. Plain arithmetic: a driver sends the messages, and passes the time.
//!
//! One message is in flight at a time. Acquires and releases made meanwhile travel in the next one: equal
//! acquires at the front of the queue as one acquire of `n`, releases in the number of units kept.
//!
//! The states of a key (`busy`):
//!
//! ```text
//!     plan: the front of the queue may ask, or a report is due
//!   +-----------------------------------------------------------> Flight
//!   |                                                               |
//!   No <------------------------------------------------------------+
//!   | ^    answered: landed, or failed; abandon: the driver ended
//!   | |
//!   | +--------- end_turn: the group drops its turn -------------+
//!   |                                                            |
//!   +------------> Lent, nothing sent ----- begin_turn -----> Lent, sent
//!     grant_turn:           ^                                    |
//!     a group waits         +----------- turn_answered ----------+
//! ```
//!
//! A group also drops its turn before it has sent anything. A turn that ends while its message has no reply, an
//! abandoned message, and a failed one that may have run leave `counted` in doubt: the key reports its units again.
//!
//! The states of a caller:
//!
//! ```text
//!              denied, and may wait longer
//!            +-----------------------------+
//!            v                             |
//!   -----> queue ---- plan_acquires ---> flight ---- hand_out ----> admitted: the process holds its units
//!            |                             |
//!            +--- expire --+-- deny, fail -+
//!                          v
//!           denied, or decided by its failure policy
//! ```

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::waiting::{AcquireAnswer, AcquireTerms, OnLapse, PermitGrant, Waiter};
use crate::batch::Share;
use crate::error::Error;
use crate::store::GateInfo;

/// How long a release waits for another message to travel with.
const RELEASE_DELAY_US: u64 = 5_000;
/// The maximum number of callers that wait for one key.
pub(super) const MAX_WAITERS: usize = 65_536;

/// The circumstances that the state does not know itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    /// The local clock.
    pub(super) now_us: u64,
    /// The number of the current lease; `None` if there is none.
    pub(super) lease: Option<u64>,
    /// The number of processes that share the limit.
    pub(super) instances: u64,
    /// The time to live of a lease: no message arrives later and is processed.
    pub(super) ttl_us: u64,
}

/// Told whether a release reached the store.
pub(super) type Reporter = oneshot::Sender<Result<(), Error>>;

#[derive(Debug, Default)]
pub(super) struct KeyState {
    pub(super) held: HeldUnits,
    pub(super) counted: CountedUnits,
    /// Callers in order of arrival.
    pub(super) queue: VecDeque<Waiter>,
    /// Groups that need the key for one message. Told whether denied callers wait before them.
    pub(super) turns: VecDeque<oneshot::Sender<bool>>,
    pub(super) busy: Busy,
    /// Whether a group had the key last.
    pub(super) is_after_turn: bool,
    /// When the front of the queue is asked for again.
    pub(super) poll_at_us: u64,
    pub(super) polls: Polls,
    /// When changed units are reported, if no acquire travels before.
    pub(super) report_at_us: Option<u64>,
    pub(super) reporters: Vec<Reporter>,
    /// Whether units were released since the message in flight was made.
    pub(super) is_released: bool,
    /// Whether a message is due although no unit has changed.
    pub(super) is_touch_due: bool,
    /// The denial of the front of the queue.
    pub(super) denial: Option<Denial>,
    /// The earliest time at which a caller gives up.
    pub(super) expires_us: u64,
    /// When the last message was made.
    pub(super) made_us: u64,
    /// Until when a message without a reply may still arrive at the store, under the lease of `counted`. A later
    /// message may have removed the entry of this process meanwhile, and with it the number that refuses the old
    /// message. So the key is kept until then, and reports once more.
    pub(super) late_until_us: Option<u64>,
    /// When the store answered last.
    pub(super) answered_us: u64,
    pub(super) answers: u64,
    pub(super) lapses: u64,
    /// Consecutive messages of a lease that had lapsed, or with an old number.
    pub(super) rejections: u8,
    /// Whether a driver runs.
    pub(super) is_driven: bool,
    next_id: u64,
}

/// The units that the permits of this process hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldUnits {
    restored: u64,
    lost: u64,
}

/// The units that the store counts, as far as this process knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedUnits {
    /// The number of the lease under which it counts them.
    pub(super) lease: u64,
    /// `None` after a message without a reply.
    pub(super) units: Option<u64>,
    /// Whether it has answered a message under this lease.
    pub(super) is_confirmed: bool,
}

impl Default for CountedUnits {
    fn default() -> Self {
        Self { lease: 0, units: Some(0), is_confirmed: false }
    }
}

impl CountedUnits {
    fn doubt(&mut self, lease: u64) {
        let is_confirmed = self.is_confirmed && self.lease == lease;
        *self = Self { lease, units: None, is_confirmed };
    }
}

/// Whether a message is in flight.
#[derive(Debug, Default)]
pub(super) enum Busy {
    #[default]
    No,
    Flight(Flight),
    /// A group has the key.
    Lent {
        keep: u64,
        reporters: Vec<Reporter>,
        /// The number of the lease of the message that was sent and is not answered.
        sent: Option<u64>,
    },
}

/// A message in flight.
#[derive(Debug)]
pub(super) struct Flight {
    /// The first `n`, in order of arrival. Those that gave up are removed.
    pub(super) callers: Vec<Waiter>,
    pub(super) terms: Option<AcquireTerms>,
    pub(super) n: u64,
    pub(super) keep: u64,
    pub(super) reporters: Vec<Reporter>,
}

/// The last denial of the front of the queue.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    /// With the limit that decided.
    pub(super) gate: Arc<GateInfo>,
    pub(super) share: Share,
    pub(super) retry_us: u64,
}

/// The message to send next.
#[derive(Debug)]
pub(super) struct Plan {
    /// The acquires; `None` for a report.
    pub(super) terms: Option<AcquireTerms>,
    pub(super) n: u64,
    pub(super) keep: u64,
    /// The time limit; `None` for the default.
    pub(super) deadline_us: Option<u64>,
}

/// The next step of a key's driver.
#[derive(Debug)]
pub(super) enum Step {
    Send(Plan),
    /// Wait until this time, a reply or a change.
    Wait(Option<u64>),
    /// Nothing to do until a caller or the heartbeat wants something.
    Rest,
}

impl HeldUnits {
    pub(super) const fn total(&self) -> u64 {
        self.restored + self.lost
    }

    pub(super) fn of(&mut self, on_lapse: OnLapse) -> &mut u64 {
        match on_lapse {
            OnLapse::Restore => &mut self.restored,
            OnLapse::Lost => &mut self.lost,
        }
    }
}

impl KeyState {
    pub(super) fn new() -> Self {
        Self { expires_us: u64::MAX, ..Self::default() }
    }

    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Adds a caller. Asks at once unless callers wait before it, and it waits too.
    pub(super) fn enqueue(&mut self, waiter: Waiter, now_us: u64) {
        if !self.has_callers() {
            // It was the denial of callers that have left.
            self.denial = None;
        }
        if self.queue.is_empty() || !waiter.waits() {
            self.poll_at_us = now_us;
        }
        self.expires_us = self.expires_us.min(waiter.due_us(self.denial.is_some()));
        self.queue.push_back(waiter);
    }

    /// Returns whether a message is in flight, or a group has the key.
    pub(super) const fn is_busy(&self) -> bool {
        !matches!(self.busy, Busy::No)
    }

    /// Returns whether no further caller may wait.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= MAX_WAITERS
    }

    fn has_callers(&self) -> bool {
        let is_in_flight = matches!(&self.busy, Busy::Flight(flight) if !flight.callers.is_empty());
        is_in_flight || !self.queue.is_empty()
    }

    /// Removes a caller that dropped its future.
    pub(super) fn leave(&mut self, id: u64, now_us: u64) {
        if let Busy::Flight(flight) = &mut self.busy {
            flight.callers.retain(|caller| caller.id != id);
        }
        let Some(at) = self.queue.iter().position(|waiter| waiter.id == id) else { return };
        self.queue.remove(at);
        if at == 0 {
            self.poll_at_us = now_us;
        }
    }

    /// Releases the units of a permit. With a reporter, they are reported at once.
    pub(super) fn release(&mut self, grant: &PermitGrant, now_us: u64, reporter: Option<Reporter>) {
        if self.is_lost(grant) {
            reporter.into_iter().for_each(|reporter| drop(reporter.send(Ok(()))));
            return;
        }
        let held = self.held.of(grant.on_lapse);
        *held = held.saturating_sub(grant.units);
        self.is_released = true;
        let delay_us = if reporter.is_some() { 0 } else { RELEASE_DELAY_US };
        self.report_by(now_us + delay_us);
        if !self.queue.is_empty() {
            self.poll_at_us = now_us;
        }
        self.reporters.extend(reporter);
    }

    pub(super) fn report_by(&mut self, at_us: u64) {
        self.report_at_us = Some(self.report_at_us.map_or(at_us, |earlier_us| earlier_us.min(at_us)));
    }

    /// Returns whether the units of a permit were lost with a lease.
    pub(super) fn is_lost(&self, grant: &PermitGrant) -> bool {
        grant.on_lapse == OnLapse::Lost && grant.lapses < self.lapses
    }

    /// Returns whether the store has counted the units of a permit, under any lease.
    pub(super) const fn is_counted(&self, grant: &PermitGrant) -> bool {
        self.answers > grant.after_answers
    }

    /// Returns whether the store counts the units of this process under this lease.
    pub(super) const fn counts_under(&self, lease: u64) -> bool {
        self.counted.is_confirmed && self.counted.lease == lease
    }

    /// Gives the units of an admission to a caller. Returns false if the caller is gone.
    pub(super) fn admit(
        &mut self,
        waiter: Waiter,
        is_counted: bool,
        answer: impl FnOnce(PermitGrant) -> AcquireAnswer,
    ) -> bool {
        let grant = self.grant(&waiter.terms, is_counted);
        let is_there = waiter.answer.send(answer(grant)).is_ok();
        if is_there {
            self.hold(&grant);
        }
        is_there
    }

    pub(super) fn grant(&self, terms: &AcquireTerms, is_counted: bool) -> PermitGrant {
        // A message in flight was made before this admission, so its reply does not cover it.
        let in_flight = match &self.busy {
            Busy::No => 0,
            Busy::Flight(_) => 1,
            Busy::Lent { sent, .. } => u64::from(sent.is_some()),
        };
        let after_answers = if is_counted { 0 } else { self.answers + in_flight };
        PermitGrant { units: terms.cost, on_lapse: terms.on_lapse, lapses: self.lapses, after_answers }
    }

    pub(super) fn hold(&mut self, grant: &PermitGrant) {
        *self.held.of(grant.on_lapse) += grant.units;
    }

    /// Returns the units that this process may still admit while the store does not decide: its share of the
    /// limit, less the units that it holds.
    pub(super) const fn room(&self, limit: u64, instances: u64) -> u64 {
        let share = limit.div_ceil(if instances == 0 { 1 } else { instances });
        let share = if share == 0 { 1 } else { share };
        share.saturating_sub(self.held.total())
    }

    /// Notes a message under this lease that has no reply.
    pub(super) fn doubt_message(&mut self, lease: u64, now: &Circumstances) {
        self.counted.doubt(lease);
        self.late_until_us = Some(now.now_us + now.ttl_us);
    }

    /// Notes the reply to the last message, after which the store counts these units under this lease. Returns those
    /// that it counts again, after another lease had lapsed.
    pub(super) fn confirm(&mut self, lease: u64, keep: u64, admitted: u64, now_us: u64) -> u64 {
        let is_restored = self.counted.lease != 0 && self.counted.lease != lease;
        self.answers += 1;
        self.answered_us = now_us;
        self.counted = CountedUnits { lease, units: Some(keep + admitted), is_confirmed: true };
        self.late_until_us.take_if(|until_us| *until_us <= self.made_us);
        if is_restored { keep } else { 0 }
    }

    /// Returns whether the store counts other units than this process holds, or may do so.
    pub(super) fn needs_report(&self, now: &Circumstances) -> bool {
        let held = self.held.total();
        let was_late = self.late_until_us.is_some_and(|until_us| until_us <= now.now_us);
        match Some(self.counted.lease) == now.lease {
            true => self.counted.units != Some(held) || self.is_touch_due || was_late,
            false => held > 0,
        }
    }

    /// Returns whether the key can be forgotten.
    pub(super) fn is_unused(&self, now: &Circumstances) -> bool {
        let is_idle = !self.is_busy() && self.queue.is_empty() && self.turns.is_empty();
        let has_no_owner = self.held.total() == 0 && self.reporters.is_empty();
        // The store refuses messages of earlier leases.
        let may_be_late = self.late_until_us.is_some() && Some(self.counted.lease) == now.lease;
        is_idle && has_no_owner && !self.needs_report(now) && !may_be_late
    }

    /// Returns whether the key has to report what it holds: the store may not know, or the last answer came
    /// before `touch_before_us`.
    pub(super) fn is_report_due(&self, now: &Circumstances, touch_before_us: u64) -> bool {
        self.needs_report(now) || self.is_untouched(touch_before_us)
    }

    /// Has the key report now if it [has to](Self::is_report_due). Returns whether it does.
    pub(super) fn prompt(&mut self, now: &Circumstances, touch_before_us: u64) -> bool {
        let is_due = !self.is_busy() && self.is_report_due(now, touch_before_us);
        if is_due {
            self.is_touch_due = self.is_untouched(touch_before_us);
            self.report_by(now.now_us);
        }
        is_due
    }

    fn is_untouched(&self, touch_before_us: u64) -> bool {
        self.held.total() > 0 && self.answered_us < touch_before_us
    }

    /// Notes that the store may have lost what it counted.
    pub(super) fn doubt(&mut self) {
        self.counted.units = None;
    }

    /// Notes that the lease lapsed. Returns the units that it covered.
    pub(super) fn lapse(&mut self) -> u64 {
        let units = self.held.total();
        self.held.lost = 0;
        self.lapses += 1;
        units
    }

    /// Fails every caller. A shutdown reports all units released.
    pub(super) fn close(&mut self, error: &Error) {
        let released = if error.is_shut_down() { Ok(()) } else { Err(error.clone()) };
        let (in_flight, reporters) = match &mut self.busy {
            Busy::Flight(flight) => (mem::take(&mut flight.callers), mem::take(&mut flight.reporters)),
            _ => (Vec::new(), Vec::new()),
        };
        let reporters = reporters.into_iter().chain(mem::take(&mut self.reporters));
        reporters.for_each(|reporter| drop(reporter.send(released.clone())));
        self.turns.clear();
        for waiter in in_flight.into_iter().chain(mem::take(&mut self.queue)) {
            drop(waiter.answer.send(AcquireAnswer::Failed(error.clone())));
        }
    }
}

// The delays between the polls of a key for which callers wait: one poll per process and key.

/// The first delay.
const FIRST_POLL_US: u64 = 10_000;
/// The longest delay.
const LONGEST_POLL_US: u64 = 250_000;

/// The delay of the next poll, which grows until an acquire is admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Polls {
    delay_us: u64,
}

impl Default for Polls {
    fn default() -> Self {
        Self { delay_us: FIRST_POLL_US }
    }
}

impl Polls {
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns the delay until the next poll, randomly up to half shorter.
    ///
    /// The first poll comes after 10 ms, each further one 1.5 times later.
    pub(crate) fn next(&mut self) -> u64 {
        let delay_us = self.delay_us;
        self.delay_us = (delay_us + delay_us / 2).min(LONGEST_POLL_US);
        delay_us - fastrand::u64(..=delay_us / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(delay_us: u64, longest_us: u64) {
        assert!((longest_us / 2..=longest_us).contains(&delay_us), "{delay_us} of {longest_us}");
    }

    #[test]
    fn polls_back_off_to_a_quarter_of_a_second_until_they_are_reset() {
        let mut polls = Polls::default();
        for longest_us in [10_000, 15_000, 22_500, 33_750] {
            within(polls.next(), longest_us);
        }
        for _ in 0..20 {
            polls.next();
        }
        within(polls.next(), 250_000);
        polls.reset();
        within(polls.next(), 10_000);
    }
}
