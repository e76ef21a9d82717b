//! Decides the checks of one request together.

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tidegate::{AllDecision, Check, Decision, Error, Permit, Source, Stopwatch, Switch};

use super::in_flight::{acquire_all, can_wait, decide_each, needs_permit};

/// Checks of one request.
pub(super) type Checks = SmallVec<[Check; 1]>;

/// Checks of one request that are decided together: all or nothing, or each independently.
pub(super) struct CheckGroup {
    pub(super) checks: Checks,
    /// For checks that are decided independently: the admitted ones, which a retry does not repeat. Permits are
    /// acquired again: a request that waits for another limit holds none.
    admitted: Option<Vec<Option<GateAdmission>>>,
    /// The permits of the latest admission. Dropping the group releases them.
    permits: Vec<Permit>,
}

/// An admission by one gate, while other gates still deny the request.
struct GateAdmission {
    decision: Decision,
    /// Measures the time since the decision.
    age: Stopwatch,
}

impl GateAdmission {
    /// Returns the decision with its times counted from now.
    fn decision(&self) -> Decision {
        self.decision.clone().aged(self.age.elapsed())
    }
}

impl CheckGroup {
    pub(super) fn all(checks: Checks) -> Self {
        Self { checks, admitted: None, permits: Vec::new() }
    }

    pub(super) fn each(checks: Checks) -> Self {
        if checks.len() == 1 {
            return Self::all(checks);
        }
        let admitted = checks.iter().map(|_| None).collect();
        Self { checks, admitted: Some(admitted), permits: Vec::new() }
    }

    /// Sets the longest delay that the request accepts at leaky buckets.
    pub(super) fn set_max_delay(&mut self, delay: Duration) {
        self.checks = self.checks.drain(..).map(|check| check.max_delay(delay)).collect();
    }

    /// Takes the permits of the latest admission.
    pub(super) fn take_permits(&mut self) -> Vec<Permit> {
        std::mem::take(&mut self.permits)
    }

    /// Decides the checks without waiting.
    pub(super) fn decide(&mut self) -> impl Future<Output = Result<AllDecision, Error>> {
        self.decide_within(Duration::ZERO)
    }

    /// Decides the checks. A single check at an in-flight limit waits for its permit, for at most `max_wait`.
    /// Several do not wait.
    ///
    /// All futures but that of a single check are boxed: they are several times as large, and each request would
    /// allocate the largest.
    pub(super) async fn decide_within(&mut self, max_wait: Duration) -> Result<AllDecision, Error> {
        match (&*self.checks, &self.admitted) {
            ([], _) => Err(Error::config("the request has no gate to check")),
            (_, Some(_)) => Box::pin(self.decide_each()).await,
            (checks, None) if checks.iter().any(needs_permit) => {
                let (decision, permits) = Box::pin(acquire_all(checks, max_wait)).await?;
                self.permits = permits;
                Ok(decision)
            }
            // A single check can also use leases, the deny cache and batches.
            ([check], None) => Ok(AllDecision::of_each([check.decide().await?])),
            ([first, ..], None) => Box::pin(first.limiter().check_all(&self.checks)).await,
        }
    }

    /// Makes the checks that have not yet admitted the request.
    async fn decide_each(&mut self) -> Result<AllDecision, Error> {
        let Some(admitted) = &mut self.admitted else {
            return Err(Error::config("the checks are one group"));
        };
        let undecided: Vec<usize> = (0..admitted.len()).filter(|at| admitted[*at].is_none()).collect();
        let checks: Vec<&Check> = undecided.iter().map(|&at| &self.checks[at]).collect();
        let decided = decide_each(&checks).await;
        let mut decisions: Vec<_> =
            admitted.iter().map(|admitted| admitted.as_ref().map(GateAdmission::decision)).collect();
        let mut permits = Vec::new();
        for (at, decided) in undecided.into_iter().zip(decided) {
            let (decision, acquired) = decided?;
            let check = &self.checks[at];
            if decision.is_allowed() && !needs_permit(check) {
                let age = check.limiter().stopwatch();
                admitted[at] = Some(GateAdmission { decision: decision.clone(), age });
            }
            permits.extend(acquired);
            decisions[at] = Some(decision);
        }
        let decision = AllDecision::of_each(decisions.into_iter().flatten());
        if decision.is_allowed() {
            self.permits = permits;
        }
        Ok(decision)
    }

    /// Returns the decision that [`decide`](Self::decide) would make, without charging or acquiring. In-flight
    /// limits are read one by one.
    pub(super) async fn peek(&self) -> Result<AllDecision, Error> {
        if self.admitted.is_none() && !self.checks.iter().any(needs_permit) {
            return self.checks[0].limiter().peek_all(&self.checks).await;
        }
        let peeks = self.checks.iter().enumerate().map(|(at, check)| async move {
            match self.admission(at) {
                Some(admitted) => Ok(admitted.decision()),
                None => check.clone().peek().await,
            }
        });
        let decisions = join_all(peeks).await.into_iter().collect::<Result<Vec<_>, Error>>()?;
        Ok(AllDecision::of_each(decisions))
    }

    /// Returns how long this denied request has to wait. Gates that have admitted it do not prolong the wait,
    /// nor do gates in shadow mode.
    pub(super) fn wait(&self, denied: &AllDecision) -> Wait {
        let mut wait = Wait::default();
        for (at, decision) in self.unsettled(denied) {
            wait.until_retry = wait.until_retry.max(decision.retry_after());
            // No unit becomes available at a gate that an operator has closed.
            if decision.source() == Source::Switch {
                wait.until_entry = Duration::MAX;
            }
            // A permit may be released at any moment, so the retry time is no bound.
            if !needs_permit(&self.checks[at]) {
                wait.until_entry = wait.until_entry.max(decision.retry_after());
            }
            // At a leaky bucket, the request waits first to enter the bucket's queue and then for its turn.
            // Both together take at most the time in which the queue drains.
            if self.checks[at].quota().is_some_and(|quota| quota.has_queue()) {
                wait.until_entry = wait.until_entry.max(decision.reset_after());
            }
        }
        wait
    }

    /// Returns whether the denied request waits for a permit in the limiter, instead of for a retry time.
    pub(super) fn awaits_permit(&self, denied: &AllDecision) -> bool {
        self.is_denied_in_flight(denied) && can_wait(&self.checks)
    }

    /// Returns whether the denial with the longest wait is by an in-flight limit, whose retry time is a hint.
    pub(super) fn is_denied_in_flight(&self, denied: &AllDecision) -> bool {
        needs_permit(&self.checks[self.binding_index(denied)])
    }

    /// Returns the index of the check that denied with the longest wait.
    pub(super) fn binding_index(&self, denied: &AllDecision) -> usize {
        let wait = |decision: &Decision| (!decision.is_allowed(), decision.retry_after());
        let binding = self.unsettled(denied).max_by_key(|(_, decision)| wait(decision));
        binding.map_or(0, |(at, _)| at)
    }

    /// Returns whether the operators' switches decide the request: a gate is closed, or none can deny. A gate
    /// that has admitted the request does not count.
    pub(super) fn is_decided_by_switches(&self) -> bool {
        let control = self.checks[0].limiter().control();
        let switch = |check: &Check| check.gate().and_then(|gate| control.current_switch(gate));
        let mut can_be_denied = false;
        let unadmitted = self.checks.iter().enumerate().filter(|(at, _)| !self.is_admitted(*at));
        for (_, check) in unadmitted {
            match switch(check) {
                Some(Switch::Closed) => return true,
                None => can_be_denied |= !check.is_shadow(),
                Some(_) => {}
            }
        }
        !can_be_denied
    }

    /// Returns the decisions that can prolong the wait, with their indexes.
    fn unsettled<'a>(&'a self, denied: &'a AllDecision) -> impl Iterator<Item = (usize, &'a Decision)> {
        let decisions = denied.each_alone().iter().enumerate();
        decisions.filter(|&(at, decision)| {
            !self.is_admitted(at) && !self.checks[at].is_shadow() && !decision.is_shadow()
        })
    }

    fn is_admitted(&self, at: usize) -> bool {
        self.admission(at).is_some()
    }

    fn admission(&self, at: usize) -> Option<&GateAdmission> {
        self.admitted.as_ref()?[at].as_ref()
    }
}

/// The wait of a denied request, if no other request arrives.
#[derive(Default)]
pub(super) struct Wait {
    /// Until a retry is admitted.
    pub(super) until_retry: Duration,
    /// Until the request enters the service, at the latest.
    pub(super) until_entry: Duration,
}
